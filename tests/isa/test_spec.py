"""What `@inst` refuses, what a row tells a user who got a modifier wrong, and how gates combine."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from error_texts import refused

from ptxgen import ir, isa
from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.isa import spec
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.spec import ANY, Effect, Gate, gate
from ptxgen.target import TARGETS
from ptxgen.types import b32, b64, f32, pred, s32, u16, u32


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    """Rows that a test declares vanish with it."""
    tables = (spec.ROWS, spec.HEADS)
    before = [{word: [*of] for word, of in table._declared.items()} for table in tables]
    spec.RECOGNISED.clear()
    yield
    for table, declared in zip(tables, before, strict=True):
        table._declared = declared
        table._made.clear()
    spec.RECOGNISED.clear()


def meaning(a: Any) -> Any:
    """d = a."""
    return a


def undocumented(a: Any) -> Any:
    return a


def with_flag(a: Any, *, ftz: bool) -> Any:
    """d = a."""
    return a, ftz


def with_machine(machine: Any, a: Any) -> Any:
    """d = a."""
    return machine, a


REFUSALS: list[tuple[str, dict[str, Any], Callable[..., Any], str]] = [
    (
        "copy.f32 d, a",
        {},
        undocumented,
        "@inst('copy.f32 d, a'): the function needs a docstring that says what the instruction means",
    ),
    ("copy.f32 d, a", {"rnd": ("rn",)}, meaning, "@inst('copy.f32 d, a'): no row has a use for ['rnd']"),
    (
        "copy.f32 d, a",
        {"unmodelled": "copies are not modelled"},
        meaning,
        "@inst('copy.f32 d, a'): the function of an instruction that is not modelled has no parameters",
    ),
    ("copy.type d, a", {"type": ()}, meaning, "@inst('copy.type d, a'): a slot without choices"),
    (
        "copy{.ftz}.f32 d, a",
        {},
        meaning,
        "@inst('copy{.ftz}.f32 d, a'): the function takes ['a'], the instruction has ['a', 'ftz']",
    ),
    (
        "copy.f32 d, a",
        {},
        with_flag,
        "@inst('copy.f32 d, a'): the function takes ['a', 'ftz'], the instruction has ['a']",
    ),
    (
        "copy.f32 d, a, b",
        {},
        meaning,
        "@inst('copy.f32 d, a, b'): the function takes ['a'], the instruction has ['a', 'b']",
    ),
    (
        "copy.f32 d, a",
        {"effect": Effect.READ},
        meaning,
        "@inst('copy.f32 d, a'): an effect other than NONE and the parameter 'machine' go together",
    ),
    (
        "copy.f32 d, a",
        {},
        with_machine,
        "@inst('copy.f32 d, a'): an effect other than NONE and the parameter 'machine' go together",
    ),
    ("copy.f32 d, a:", {}, meaning, "cannot read the operand 'a:' in 'd, a:'"),
]


@pytest.mark.parametrize(("syntax", "keywords", "function", "message"), REFUSALS)
def test_a_declaration_that_contradicts_itself_is_refused(
    syntax: str, keywords: dict[str, Any], function: Callable[..., Any], message: str
) -> None:
    inst(syntax, **keywords)(function)
    for look_up in (lambda: isa.rows_named("copy"), lambda: isa.recognise("copy.f32")):
        with refused(ValueError, message):
            look_up()
    with pytest.raises(ValueError, match=re.escape(message)):
        list(isa.rows().values())


def test_importing_the_table_makes_no_row_and_a_look_up_those_of_its_declarations() -> None:
    program = """
from ptxgen.isa import recognise, rows_named, spec
present = [row for named in spec.ROWS._made.values() for row in named]
(op,) = recognise("fma.rn.f32")
declared = {one for named in spec.ROWS._declared.values() for one in named}
count = sum(len(one._rows) for one in declared)
print(len(present), op.row is rows_named("fma")[0], 0 < count < 10 < len(declared))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True True\n"


def test_the_same_syntax_with_the_same_choices_is_refused_and_with_others_is_not() -> None:
    inst("copy.type d, a", type=(f32,))(meaning)
    inst("copy.type d, a", type=(u32,))(meaning)
    assert len(isa.rows_named("copy")) == 2
    inst("copy.type d, a", type=(f32,))(meaning)
    with refused(ValueError, "@inst('copy.type d, a'): declared twice"):
        isa.rows_named("copy")


def test_a_rows_function_can_be_called_with_what_the_row_says() -> None:
    for row in (row for rows in isa.rows().values() for row in rows):
        inspect.signature(row.semantics).bind(**dict.fromkeys(row.parameters))


def test_no_text_of_a_row_names_a_column_that_its_line_lacks() -> None:
    for row in (row for rows in isa.rows().values() for row in rows):
        texts = " ".join((row.name, row.syntax, row.doc, row.section, row.accuracy))
        assert set(re.findall(r"<(\w+)>", texts)) <= row.choices.keys(), row.syntax


def test_a_table_gives_a_row_for_each_line() -> None:
    def first(a: Any, b: Any, *, op: Any, swapped: bool) -> Any:
        """d = a <sign> b."""
        return op(b, a) if swapped else op(a, b)

    inst(
        "copy.<verb>{.swapped}.type d, a, b",
        each("verb sign op", ("plus", "+", lambda a, b: a + b), ("minus", "-", lambda a, b: a - b)),
        each("type sm", ((u32, s32), None), ((f32,), 80)),
        name="copy_<verb>",
        sm=75,
    )(first)
    plus, later = isa.rows_named("copy_plus")
    minus, _ = isa.rows_named("copy_minus")
    assert [row.syntax for row in (plus, minus)] == [
        "copy.plus{.swapped}.type d, a, b",
        "copy.minus{.swapped}.type d, a, b",
    ]
    assert [row.doc for row in (plus, minus)] == ["d = a + b.", "d = a - b."]
    assert [row.gate.sm for row in (plus, later)] == [75, 80]
    assert [list(row.choices["type"]) for row in (plus, later)] == [[u32, s32], [f32]]
    assert minus.parameters == {"a", "b", "swapped"}
    assert minus.semantics(a=5, b=3, swapped=True) == -2


def test_a_column_with_one_value_is_printed_and_one_with_several_is_a_slot() -> None:
    def moved(a: Any, *, space: str) -> Any:
        """d = a of <space>."""
        return (space, a)

    inst("copy.<space>.b32 d, a", each("space", "near", ("far", "away")))(moved)
    near, far = isa.rows_named("copy")
    assert (near.syntax, near.doc) == ("copy.near.b32 d, a", "d = a of near.")
    assert (far.syntax, far.doc) == ("copy.space.b32 d, a", "d = a of <space>.")
    assert (near.semantics(a=1), far.semantics(a=1, space="away")) == (("near", 1), ("away", 1))


def test_what_changes_no_value_does_not_reach_the_function() -> None:
    inst("copy.cop.b32 d, a, policy:b64", cop=("ca", "cg"), ignores=("cop", "policy"))(meaning)
    (row,) = isa.rows_named("copy")
    assert row.parameters == {"a", "policy"}
    assert row.semantics(a=1, policy=2) == 1


def test_tables_combine_with_the_last_changing_fastest() -> None:
    assert times(each("a b", (1, 2), (3, 4)), each("c", 5, 6)) == [
        {"a": 1, "b": 2, "c": 5},
        {"a": 1, "b": 2, "c": 6},
        {"a": 3, "b": 4, "c": 5},
        {"a": 3, "b": 4, "c": 6},
    ]


def test_a_new_row_is_recognised_although_its_opcode_was_unknown_before() -> None:
    assert isa.recognise("copy.f32") == ()
    inst("copy.f32 d, a")(meaning)
    assert [op.row.name for op in isa.recognise("copy.f32")] == ["copy"]


WRONG_MODIFIERS: list[tuple[dict[str, Any], str]] = [
    (
        {"rnf": "rn"},
        "fma has no modifier 'rnf'; did you mean 'rnd'? (syntax: fma.rnd{.ftz}{.sat}.f32 d, a, b, c)",
    ),
    ({"volatile": True}, "fma has no modifier 'volatile' (syntax: fma.rnd{.ftz}{.sat}.f32 d, a, b, c)"),
    (
        {"rnd": "rx"},
        "fma: rnd must be one of rn, rz, rm, rp, got rx (syntax: fma.rnd{.ftz}{.sat}.f32 d, a, b, c)",
    ),
    (
        {"ftz": "yes"},
        "fma: ftz must be one of False, True, got yes (syntax: fma.rnd{.ftz}{.sat}.f32 d, a, b, c)",
    ),
]


@pytest.mark.parametrize(("modifiers", "message"), WRONG_MODIFIERS)
def test_a_wrong_modifier_is_refused_with_what_is_legal(modifiers: dict[str, Any], message: str) -> None:
    with refused(ModifierError, message):
        isa.rows_named("fma")[0].resolve(modifiers)


def test_an_optional_slot_left_out_is_not_offered_as_a_choice() -> None:
    with refused(
        ModifierError,
        "ld: vec must be one of v2, v4, got v3 (syntax: ld.space{.cop}{.vec}.type d*vec, [addr:u64])",
    ):
        isa.rows_named("ld")[0].resolve({"vec": "v3"})


def test_a_misspelt_choice_is_refused_with_the_nearest_one() -> None:
    with refused(
        ModifierError,
        "st: space must be one of global, shared, local, got globl; did you mean 'global'? "
        "(syntax: st.space{.cop}{.vec}.type [addr:u64], a*vec)",
    ):
        isa.rows_named("st")[0].resolve({"space": "globl"})


def test_one_op_exists_for_each_choice_of_modifiers() -> None:
    row = isa.rows_named("fma")[0]
    assert row.resolve({}) is row.resolve({"rnd": "rn", "ftz": False})
    assert row.resolve({}) is not row.resolve({"ftz": True})
    assert len(list(row.all_ops())) == 4 * 2 * 2


def test_an_opcode_that_no_row_prints_is_refused_with_what_its_head_declares() -> None:
    with refused(
        ModifierError,
        "no instruction prints the opcode 'tanh.rn.f32'; tanh is declared as: "
        "tanh.approx.f32 d, a | tanh.approx.type d, a",
    ):
        isa.op_of(ir.Instr("tanh.rn.f32"))
    with refused(ModifierError, "no instruction prints the opcode 'tahn.approx.f32'; did you mean 'tanh'?"):
        isa.op_of(ir.Instr("tahn.approx.f32"))


def test_operands_that_fit_no_row_of_their_opcode_are_refused_with_all_of_them() -> None:
    with refused(
        TypeMismatchError,
        "mov.b64: its 0 operands fit none of: mov.type d, a | mov.b64 d, a:b32*2 | "
        "mov.b64 d, a:b16*4 | mov.b64 d:b32*2, a | mov.b64 d:b16*4, a",
    ):
        isa.op_of(ir.Instr("mov.b64", ()))


def test_the_shape_of_the_operands_tells_rows_of_one_opcode_apart() -> None:
    d, p = ir.Reg("%r1", "b32"), ir.Reg("%p1", "pred")
    rest = (d, ir.IntImm(1), ir.IntImm(31), ir.IntImm(-1))
    assert isa.op_of(ir.Instr("shfl.sync.bfly.b32", (d, *rest))).row.name == "shfl"
    pair = isa.op_of(ir.Instr("shfl.sync.bfly.b32", (ir.Pair(d, p), *rest)))
    assert pair.row.name == "shfl_pred"
    assert pair.pairs == {0}
    assert [o.type for o in pair.dests] == [b32, pred]


def test_an_operand_in_braces_may_be_left_out() -> None:
    op = isa.recognise("bar.sync")[0]
    assert (op.required, len(op.flat)) == (1, 2)
    assert isa.fits(op, (ir.IntImm(0),))
    assert isa.fits(op, (ir.IntImm(0), ir.IntImm(64)))
    assert not isa.fits(op, ())


def test_wide_is_twice_the_type_of_the_row() -> None:
    op = isa.rows_named("mad_wide")[0].resolve({"type": u16})
    assert [o.type for o in op.operands] == [u32, u16, u16, u32]


def test_an_operand_without_a_type_has_that_of_the_slot_type_or_of_the_last_piece() -> None:
    inst("copy.type.wide d, a", name="copy_wide", type=(s32, b64))(meaning)
    assert isa.rows_named("copy_wide")[0].resolve({}).sources[0].type is s32
    assert isa.recognise("ex2.approx.f32")[0].sources[0].type is f32


def test_a_vector_is_as_wide_as_its_slot_says() -> None:
    row = isa.rows_named("ld")[0]
    assert [row.resolve({"vec": v}).dests[0].count for v in (None, "v2", "v4")] == [0, 2, 4]


def test_gates_join_to_what_both_need() -> None:
    ampere, hopper = gate(ptx=(7, 0), sm=80), gate(ptx=(7, 8), sm=90)
    assert ampere.join(hopper) == hopper == hopper.join(ampere)
    assert ampere.join(ANY) is ampere
    assert ANY.join(ampere) is ampere
    late_language = gate(ptx=(8, 0), sm=70)
    assert ampere.join(late_language) == Gate((8, 0), 80)
    only_90a, only_either = gate(only=["sm_90a"]), gate(only=["sm_90a", "sm_100a"])
    assert only_90a.join(only_either).only == {"sm_90a"}
    assert only_90a.join(ampere).only == {"sm_90a"}
    family, later = gate(only=["sm_100f", "sm_120f"]), gate(only=["sm_103f", "sm_90a"])
    assert family.join(later).only == later.join(family).only == {"sm_103f"}
    assert family.join(gate(only=["sm_121a"])).only == {"sm_121a"}


def test_a_gate_admits_its_gpu_and_later_ones_unless_it_names_some() -> None:
    def admitted(gate: Gate) -> list[str]:
        return [t.name for t in TARGETS.values() if gate.admits(t)]

    assert admitted(gate(sm=80)) == [name for name in TARGETS if name != "sm_75"]
    assert admitted(gate(sm=90, only=["sm_90a"])) == ["sm_90a"]
    assert admitted(gate(sm=90, only=["sm_100f"])) == ["sm_100a", "sm_100f", "sm_103a", "sm_103f"]
    assert admitted(gate(only=["sm_103f", "sm_110f"])) == ["sm_103a", "sm_103f", "sm_110a", "sm_110f"]
    assert admitted(gate(sm=103, only=["sm_100f"])) == ["sm_103a", "sm_103f"]


def test_a_gate_names_the_architectures_and_families_that_it_is_of() -> None:
    assert gate(only=["sm_120f", "sm_90a", "sm_100f"]).owners == [
        "sm_90a",
        "family sm_100f",
        "family sm_120f",
    ]


def test_an_op_needs_what_its_row_and_its_choices_need() -> None:
    row = isa.rows_named("ld_nc")[0]
    assert row.resolve({}).gate == Gate((3, 1), 32)
    assert row.resolve({"prefetch": "L2::256B"}).gate == Gate((7, 4), 80)


def test_an_op_and_its_row_say_what_they_are() -> None:
    op = isa.recognise("ex2.approx.ftz.f32")[0]
    assert repr(op) == "Op('ex2.approx.ftz.f32' of ex2)"
    assert op.row.doc == "d = 2 to the power of a, approximately."


def test_a_special_register_is_found_by_its_name() -> None:
    assert isa.special_register("%tid.x").type is u32
    assert isa.special_register("%clock64").gate == Gate((2, 0), 20)
    with pytest.raises(ModifierError) as refused:
        isa.special_register("%tid.w")
    assert str(refused.value).startswith("no special register '%tid.w'; did you mean '%")

from __future__ import annotations

import re
import rlcompleter

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes
from error_texts import refused

from ptxgen import ir
from ptxgen.dsl import KernelBuilder
from ptxgen.dsl.names import OTHER_NAMES
from ptxgen.errors import ModifierError, TypeMismatchError, UnknownInstructionError
from ptxgen.isa.table import rows
from ptxgen.types import b32, bf16x2, f32, f64, s32, u32, u64
from tools import gen_ops_stub


def test_no_row_is_hidden_behind_a_method_of_the_builder():
    k = builder()
    hidden = [name for name in rows() if name in vars(k)]
    for cls in KernelBuilder.__mro__:
        built = {name for name, value in vars(cls).items() if getattr(value, "__name__", "") == "method"}
        hidden += [name for name in rows() if name in set(vars(cls)) - built - set(rows())]
    assert hidden == []


@pytest.mark.parametrize("name", sorted(rows()))
def test_every_row_is_a_method_that_says_what_it_does(name):
    method = getattr(builder(), name)
    assert method.__name__ == name
    assert all(row.syntax in method.__doc__ and row.doc in method.__doc__ for row in rows()[name])


def test_a_builder_lists_its_words_and_all_instructions_for_completion():
    offered = dir(builder())
    assert set(rows()) <= set(offered)
    assert {"load", "store", "loop", "when", "shared"} <= set(offered)
    assert offered == sorted(set(offered))
    completed = rlcompleter.Completer({"k": builder()}).attr_matches("k.sh")
    assert {f"k.{word}(" for word in ("shared", "shl", "shr")} <= set(completed)


def test_a_word_that_does_not_exist_is_no_attribute():
    k = builder()
    assert not hasattr(k, "fmaa")
    assert getattr(k, "fmaa", 3) == 3
    for error in (AttributeError, UnknownInstructionError, ModifierError):
        with refused(error, "no instruction 'fmaa'; did you mean 'fma'?"):
            k.fmaa  # noqa: B018
    with refused(ModifierError, "no instruction 'barier'; did you mean 'barrier'?"):
        k.barier  # noqa: B018


@pytest.mark.parametrize(("name", "ours"), OTHER_NAMES.items())
def test_a_name_of_another_language_says_what_it_is_here(name, ours):
    k = builder()
    with refused(ModifierError, f"no instruction {name!r}; write {ours}"):
        getattr(k, name)
    for word, member in re.findall(r"\bk\.([a-z_0-9]+)(?:\.([a-z_]+))?", ours):
        assert callable(getattr(getattr(k, word), member)) if member else hasattr(k, word)


def test_an_unknown_private_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"\A_repr_html_\Z"):
        builder()._repr_html_  # noqa: B018  # an attribute that notebooks ask for


# ---------------------------------------- modifiers


def test_modifiers_choose_the_opcode():
    k = builder()
    x = k.param("x", f32)
    k.fma(x, x, x, rnd="rz", ftz=True, sat=True)
    assert instructions(k)[-2].opcode == "fma.rz.ftz.sat.f32"


OF_FMA = "(syntax: fma.rnd{.ftz}{.sat}.f32 d, a, b, c)"
OF_CVT = "(syntax: cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype)"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda k, x: k.fma(x, x, x, rmd="rz"), f"fma has no modifier 'rmd'; did you mean 'rnd'? {OF_FMA}"),
        (lambda k, x: k.fma(x, x, x, rnd="rx"), f"fma: rnd must be one of rn, rz, rm, rp, got rx {OF_FMA}"),
        (  # which cannot be a key
            lambda k, x: k.fma(x, x, x, rnd=["rn"]),
            f"fma: rnd must be one of rn, rz, rm, rp, got ['rn'] {OF_FMA}",
        ),
        (lambda k, _: k.mov(0.0, type="f32"), "mov: type must be a type of ptxgen.types, got the text 'f32'"),
        (  # of the row with these types
            lambda k, x: k.cvt(x, dtype=s32, rnd="rm"),
            f"cvt: rnd must be one of rni, rzi, rmi, rpi, got rm; did you mean 'rmi'? {OF_CVT}",
        ),
        (
            lambda k, x: k.cvt(x, dtype=u32, round="rni"),
            f"cvt has no modifier 'round'; did you mean 'rnd'? {OF_CVT}",
        ),
        (
            lambda k, _: k.param("y", b32) * 2,
            "mul: type must be one of u32, s32, u64, s64, u16, s16, got b32; did you mean 'u32'? "
            "(syntax: mul.mode.type d, a, b)",
        ),
    ],
)
def test_a_wrong_modifier_is_refused(use, message):
    k = builder()
    x = k.param("x", f32)
    with refused(ModifierError, message):
        use(k, x)


def test_one_counts_as_true():
    k = builder()
    x = k.param("x", f32)
    k.add(x, x, ftz=1, sat=0)
    k.add(x, x, sat=1, rnd="rm")
    assert [i.opcode for i in instructions(k)[1:3]] == ["add.rn.ftz.f32", "add.rm.sat.f32"]


def test_a_choice_with_a_gate_of_its_own_may_be_switched_off():
    k = builder()
    x = k.param("x", f32)
    k.max(x, x, NaN=False)
    assert instructions(k)[-2].opcode == "max.f32"


# ---------------------------------------- operands


SHARED_ADDRESS = "operand addr must point to global memory, got Pointer(shared f32 [%r0+0])"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda k: k.fma(k.param("x", f32), 1.0), f"fma takes a and b and c, got 2 operand(s) {OF_FMA}"),
        (lambda k: k.exit(1), "exit takes no operands, got 1 operand(s) (syntax: exit)"),
        (
            lambda k: k.cvt(k.thread_id(), f32),
            "cvt takes a, got 2 operand(s) (syntax: cvt.dtype.atype d:dtype, a:atype); "
            "a type is given by name, dtype=f32",
        ),
        (  # of the row that comes nearest
            lambda k: k.fma(k.param("x", f64), 1.0, k.param("y", u32)),
            "fma: operand c must be f64, got Value(%r0: u32); convert with k.cvt(value, dtype=f64)",
        ),
        (
            lambda k: k.selp(1.0, 0.0, k.thread_id() == 0),
            "selp: operand a must be b32, got 1.0; name the type, such as type=f32",
        ),
        (
            lambda k: k.thread_id() + np.float32(3),
            f"add: operand b must be u32, got {np.float32(3)!r}; convert with float(...)",
        ),
        (
            lambda k: k.thread_id() + np.int64(3),
            f"add: operand b must be u32, got {np.int64(3)!r}; convert with int(...)",
        ),
        (lambda k: k.selp(k.thread_id(), 0, 1), "selp: operand c must be pred, got 1"),
        (
            lambda k: k.mov(k.thread_id() < 3, type=u32),
            "mov: operand a must be u32, got Value(%p0: pred); convert with k.cvt(value, dtype=u32)",
        ),
        (
            lambda k: k.prefetch(k.param("x", u64)),
            "prefetch: operand addr must be a Pointer, got Value(%rd0: u64) "
            "(syntax: prefetch.global.level [addr:u64])",
        ),
        (lambda k: k.bra("end"), "bra: operand target must be a label, got 'end'"),
        *(
            (
                lambda k, number=number: k.cp_async_wait_group(number),
                f"cp_async_wait_group: operand n must be an integer, got {number!r}",
            )
            for number in (1.0, None, True)
        ),
        (lambda k: k.pack((k.param("x", u32),)), "pack: operand a must be 2 values, got (Value(%r0: u32),)"),
        (lambda k: k.ld_nc(k.shared("T", (4, 4)).pointer(), type=f32), f"ld_nc: {SHARED_ADDRESS}"),
        (lambda k: k.ld(k.shared("T", (4, 4)).pointer(), space="global", type=f32), f"ld: {SHARED_ADDRESS}"),
    ],
)
def test_a_wrong_operand_is_refused(use, message):
    with refused(TypeMismatchError, message):
        use(builder())


def test_the_space_of_a_pointer_chooses_the_space():
    k = builder()
    k.ld(k.shared("T", (4, 4)).pointer(), type=f32)
    k.ld(k.pointer("Q"), type=f32)
    assert [i.opcode for i in instructions(k) if i.opcode.startswith("ld")][::2] == [
        "ld.shared.f32",
        "ld.global.f32",
    ]


# ---------------------------------------- results


def test_two_results_are_both_given():
    def body(k, x):
        value, inside = k.shfl_pred(x, 4, 31, -1, mode="down")
        return k.selp(value, 99, inside)

    n = np.arange(32)
    assert (computed(body, lanes()) == np.where(n < 28, n + 4, 99)).all()


def test_two_results_are_printed_as_a_pair():
    k = builder(on="sm_90")
    leader, chosen = k.elect(-1)
    assert instructions(k)[-2].operands == (ir.Pair(leader.reg, chosen.reg), ir.IntImm(-1))


def test_a_vector_result_is_a_tuple():
    def body(k, x):
        low, high = k.unpack(k.pack((x, x + 1)))
        return low.as_(u32) * 100 + high.as_(u32)

    assert (computed(body, lanes()) == lanes() * 101 + 1).all()


def test_bits_keep_the_type_of_what_was_given():
    k = builder()
    assert (k.param("a", s32) & 1).type is s32
    assert k.butterfly(k.param("b", f32), 1).type is f32


def test_a_packed_result_has_its_own_type():
    k = builder()
    x = k.param("x", f32)
    assert k.cvt(x, x, dtype=bf16x2).type is bf16x2


def test_an_instruction_without_a_result_gives_none():
    assert builder().membar() is None


# ---------------------------------------- into


def test_into_gives_the_result_to_a_variable():
    def body(k, x):
        v = k.var(u32, 5)
        assert k.add(v, x, into=v) is v
        return v

    assert (computed(body, lanes()) == lanes() + 5).all()


def product(k, into=None):
    """A product of tensor cores added to four variables, %f0 to %f3."""
    total = [k.var(f32, 0.0) for _ in range(4)]
    a, b = [k.param(f"a{i}", u32) for i in range(4)], [k.param(f"b{i}", u32) for i in range(2)]
    return total, k.mma_f32_f16(a, b, total, shape="m16n8k16", into=into(k) if into else total)


@pytest.mark.parametrize(
    ("message", "use"),
    {
        "add: the result is f32, but into= names Var(%r0: u32)": lambda k: k.add(
            k.param("x", f32), 1.0, into=k.var(u32, 0)
        ),
        "add: into= must be a Var, made by k.var, got Value(%f1: f32)": lambda k: k.add(
            k.param("x", f32), 1.0, into=k.mov(2.0, type=f32)
        ),
        "add: into= must be a Var, made by k.var, got 'x'": lambda k: k.add(k.param("x", f32), 1.0, into="x"),
        "add: Var(%f0: f32) belongs to kernel 'theirs', not to 'kernel'; "
        "a value lives in the KernelBuilder that made it": lambda k: k.add(
            k.param("x", f32), 1.0, into=builder("theirs").var(f32, 0.0)
        ),
        "shfl_pred: into= is for a single result (got Var(%r1: u32))": lambda k: k.shfl_pred(
            k.var(u32, 0), 1, 31, -1, into=k.var(u32, 0)
        ),
        "membar: into= is for a single result (got Var(%r0: u32))": lambda k: k.membar(into=k.var(u32, 0)),
        "mma_f32_f16: the result is a vector, so into= must be 4 variables, got Var(%f4: f32)": lambda k: (
            product(k, lambda k: k.var(f32, 0.0))
        ),
        "mma_f32_f16: the result is a vector, so into= must be 4 variables, got [Var(%f4: f32)]": lambda k: (
            product(k, lambda k: [k.var(f32, 0.0)])
        ),
        "mma_f32_f16: the result is f32, but into= names Var(%r6: u32)": lambda k: product(
            k, lambda k: [k.var(u32, 0)] * 4
        ),
        "mma_f32_f16: into= must be a Var, made by k.var, got 1.0": lambda k: product(k, lambda _: [1.0] * 4),
    }.items(),
)
def test_into_names_variables_of_this_kernel_and_of_the_results_type(use, message):
    with refused(TypeMismatchError, message):
        use(builder())


def test_into_takes_the_elements_of_a_vector():
    k = builder()
    total, results = product(k)
    assert list(results) == total
    written, _, _, added = k.build().kernels[0].body[-2].operands
    assert written == added == ir.Vector(tuple(v.reg for v in total))


# ---------------------------------------- the stub


def test_the_stub_is_what_the_table_says():
    assert gen_ops_stub.main(["--check"]) == 0, "run python tools/gen_ops_stub.py"


def test_a_stale_stub_is_told(tmp_path, capsys):
    stale = tmp_path / "ops.pyi"
    stale.write_text("# old\n")
    assert gen_ops_stub.main(["--check", "--file", str(stale)]) == 1
    assert capsys.readouterr().err == (
        f"gen_ops_stub.py: {stale} is not what the instruction table says; run python tools/gen_ops_stub.py\n"
    )
    assert stale.read_text() == "# old\n"
    assert gen_ops_stub.main(["--file", str(stale)]) == 0
    assert gen_ops_stub.main(["--check", "--file", str(stale)]) == 0

"""The rows of tensor memory: texts are read, verified, printed and assembled; the interpreter refuses those
that it does not model by name, and no proof of a kernel with one is complete. What the others do is tested in
tests/interpreter/machine/test_tcgen05*.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from error_texts import refused
from isa.tcgen05_texts import GROUPS, USES, kernel, texts, vector

from ptxgen.check.prove import UNKNOWN, prove
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.check.verify import verify
from ptxgen.errors import AssemblerError, LaunchError, ParseError
from ptxgen.interpreter import run
from ptxgen.ir import Instr, Module
from ptxgen.isa import table
from ptxgen.isa.spec import Gate, Op
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import TARGETS
from ptxgen.text import render

ROWS: Final = [row for named in table.rows().values() for row in named if row.pieces[0].name == "tcgen05"]
MODULES: Final = [(target, group) for target in ("sm_100a", "sm_103a") for group in GROUPS]
SPARSE: Final = "sparse matrices are not modelled"
MOVED: Final = "rows of tensor memory that move down are not modelled"
# A text of each instruction that the manual names.
ONE_OF_EACH: Final = tuple(
    {
        (
            *line.split()[0].rstrip(";").replace("::", ".").split(".")[1:3],
            line.count(".ws") + line.count(".sp"),
        ): line
        for line in texts("cta_group::1", "sm_100a")
    }.values()
)


def instrs(module: Module) -> list[Instr]:
    body = module.kernels[0].body
    return [s for s in body if isinstance(s, Instr) and s.opcode.startswith("tcgen05")]


def ops(target: str, group: str) -> list[Op]:
    return [table.op_of(instr) for instr in instrs(parse(kernel(*texts(group, target), target=target)))]


# ---------------------------------------- text


@pytest.mark.parametrize(("target", "group"), MODULES)
def test_every_text_is_read_verified_and_printed(target: str, group: str) -> None:
    lines = list(texts(group, target))
    module = parse(kernel(*lines, target=target))
    assert verify(module) == ()
    printed = render(module)
    assert [line.strip() for line in printed.splitlines() if "tcgen05" in line] == lines
    assert parse(printed) == module
    assert render(parse(printed)) == printed


def test_the_texts_have_every_row_and_every_choice_of_its_modifiers() -> None:
    met = {op for where in MODULES for op in ops(*where)}
    assert {op.row for op in met} == set(ROWS)
    for row in ROWS:
        for slot, choices in row.choices.items():
            got = {op.modifiers[slot] for op in met if op.row is row}
            # All collectors stand in the texts of the plainest products.
            assert got == set(choices) or slot == "coll", (row.syntax, slot)
    collectors = {op.modifiers.get("coll") for op in met} - {None}
    assert {c for c in collectors if str(c).startswith("collector::a")} == {
        f"collector::a::{u}" for u in USES
    }


@pytest.mark.ptxas
@pytest.mark.parametrize(("target", "group"), MODULES)
def test_the_assembler_takes_every_text(target: str, group: str, assembler: Assembler) -> None:
    assembler.assemble(kernel(*texts(group, target), target=target), target, opt_level=0)


VERSIONS: Final = ((8, 6), (8, 7), (8, 8), (9, 0))


@pytest.mark.slow
@pytest.mark.ptxas
def test_the_assembler_takes_one_text_of_each_gate_exactly_where_the_gate_says(assembler: Assembler) -> None:
    by_gate: dict[Gate, str] = {}
    for target, group in MODULES:
        for text, op in zip(texts(group, target), ops(target, group), strict=True):
            by_gate.setdefault(op.gate, text)
    assert len(by_gate) > 5
    for gate, text in by_gate.items():
        for target in (t for t in TARGETS.values() if t.sm >= 90):
            for version in (v for v in VERSIONS if v >= target.ptx):
                name = f"{version[0]}.{version[1]}"
                module = kernel(text, target=target.name, version=name)
                admitted = gate.admits(target) and version >= gate.ptx
                assert admitted == is_assembled(assembler, module, target.name), (text, target, version)


def is_assembled(assembler: Assembler, text: str, target: str) -> bool:
    try:
        assembler.assemble(text, target, opt_level=0)
    except AssemblerError:
        return False
    return True


# ---------------------------------------- mistakes

LD: Final = "tcgen05.ld.sync.aligned"
MMA: Final = "tcgen05.mma.cta_group"
MULTICAST: Final = (
    "tcgen05.commit.group.mbarrier::arrive::one{.space}.multicast::cluster.b64 [mbar:u64], ctas:u16"
)
LD_SYNTAX: Final = f"(syntax: {LD}.shape.num{{.pack}}.b32 d:b32*nd, [a:u32]"
HELD: Final = "tcgen05.mma.group.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32,"
PLAIN: Final = "tcgen05.mma.group.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32,"
FREED: Final = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 1024;"
PROBLEMS: Final = (
    (
        f"{LD}.16x256b.x2.b32 {vector(4)}, [%r1];",
        f"operand d of tcgen05_ld must be a vector of 8, got {vector(4)} {LD_SYNTAX})",
    ),
    (
        f"{LD}.32x32b.x1.b32 %r1, [%r2];",
        f"operand d of tcgen05_ld must be a vector of 1, got %r1 of class b32 {LD_SYNTAX})",
    ),
    (
        f"{LD}.32x32b.x2.b32 {{%r1, _}}, [%r2];",
        f"operand d of tcgen05_ld is written, so it must be a register, got _ {LD_SYNTAX})",
    ),
    (
        f"{LD}.32x32b.x1.b32 {{%rd1}}, [%r2];",
        f"operand d of tcgen05_ld must be b32, got %rd1 of class b64 {LD_SYNTAX})",
    ),
    (
        f"{LD}.32x32b.x1.b32 {{%r1}}, [%rd2];",
        "operand a of tcgen05_ld must be an address in a register of class b32, got %rd2 of class b64 "
        f"{LD_SYNTAX})",
    ),
    (f"{LD}.32x32b.x1.b32 {{%r1}}, [%r2], 4;", f"tcgen05_ld takes 2 operands, got 3 {LD_SYNTAX})"),
    (
        f"{LD}.16x32bx2.x1.b32 {{%r1}}, [%r2];",
        f"tcgen05_ld_halves takes 3 operands, got 2 {LD_SYNTAX}, split:imm)",
    ),
    (
        "tcgen05.st.sync.aligned.16x128b.x1.b32 [%r1], {%r2};",
        "operand b of tcgen05_st must be a vector of 2, got %r2 of class b32 "
        "(syntax: tcgen05.st.sync.aligned.shape.num{.unpack}.b32 [a:u32], b:b32*nb)",
    ),
    (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 48;",
        "wanted 32, 64, 128, 256 or 512 columns, got 48",
    ),
    (FREED, "wanted 32, 64, 128, 256 or 512 columns, got 1024"),
    (f"{MMA}::1.kind::tf32 [%r1], %rd1, %rd2, %r2, %p1, 16;", "wanted a number from 0 to 15, got 16"),
    (
        f"{MMA}::1.kind::f16 [%r1], %r9, %rd2, %r2, %p1;",
        f"operand a of tcgen05_mma must be u64, got %r9 of class b32 (syntax: {PLAIN} use:pred)",
    ),
    (
        f"{MMA}::2.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, {vector(4)}, %p1;",
        f"{MMA}::2.kind::f8f6f4: its 6 operands fit none of: {PLAIN} use:pred | "
        f"{PLAIN} mask:b32*nm, use:pred | {HELD} use:pred | {HELD} mask:b32*nm, use:pred",
    ),
    (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [%rd1], %r1;",
        f"operand ctas of tcgen05_commit_multicast must be u16, got %r1 of class b32 (syntax: {MULTICAST})",
    ),
    (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [%rd1], 3;",
        "operand ctas of tcgen05_commit_multicast must be a register with a mask of CTAs, got 3 (syntax: "
        f"{MULTICAST})",
    ),
)


@pytest.mark.parametrize(("line", "message"), PROBLEMS)
def test_a_mistake_in_an_operand_is_a_problem(line: str, message: str) -> None:
    assert [problem.message for problem in verify(parse(kernel(line)))] == [message]


@pytest.mark.ptxas
def test_the_assembler_refuses_the_same_operands(assembler: Assembler) -> None:
    taken = [line for line, _ in PROBLEMS if is_assembled(assembler, kernel(line), "sm_100a")]
    assert taken == [FREED]  # it knows no upper limit of the columns that are freed


OPCODES: Final = (
    (
        "tcgen05.alloc.cta_group::1.sync.aligned.b32.wait",
        "tcgen05.alloc.cta_group::1.sync.aligned.b32 is declared as: "
        "tcgen05.alloc.group.sync.aligned{.space}.b32 [dst:u64], n:u32",
    ),
    (f"{LD}.16x256b.x64.b32", f"{LD}.16x256b is declared as: {LD}.shape.num{{.pack}}.b32 d:b32*nd, [a:u32]"),
    (
        "tcgen05.cp.cta_group::1.64x128b",
        "tcgen05.cp.cta_group::1.64x128b is declared as: tcgen05.cp.group.shape.warps [d:u32], b:u64 | "
        "tcgen05.cp.group.shape.warps.b8x16.source [d:u32], b:u64",
    ),
    ("tcgen05.shift.cta_group::3.down", "tcgen05.shift is declared as: tcgen05.shift.group.down [a:u32]"),
)


@pytest.mark.parametrize(("opcode", "forms"), OPCODES)
def test_an_opcode_that_the_manual_lacks_is_not_read(opcode: str, forms: str) -> None:
    line = f"{opcode} [%r1];"
    text = kernel(line)
    number = text.splitlines().index(line) + 1
    message = f"PTX text, line {number}, column 1: no instruction prints the opcode {opcode!r}; {forms}\n"
    with refused(ParseError, f"{message}{line}\n^"):
        parse(text)


EVERYWHERE: Final = "family sm_100f or family sm_110f"
TARGETS_OF: Final = (
    ("tcgen05.wait::ld.sync.aligned;", "sm_90a", "9.0", f"{EVERYWHERE} / PTX 8.6"),
    ("tcgen05.wait::ld.sync.aligned;", "sm_100", "9.0", f"{EVERYWHERE} / PTX 8.6"),
    ("tcgen05.shift.cta_group::1.down [%r1];", "sm_120a", "9.0", "sm_100a or sm_103a or sm_110a / PTX 8.6"),
    (f"{MMA}::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;", "sm_103a", "9.0", "sm_100a or sm_110a / PTX 8.6"),
    (
        "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r3, %r4}, %r2, [%r1];",
        "sm_100a",
        "9.0",
        "family sm_103f or family sm_110f / PTX 8.8",
    ),
    (
        f"{MMA}::1.kind::mxf4.block_scale.block32 [%r1], %rd1, %rd2, %r2, [%r6], [%r7], %p1;",
        "sm_100a",
        "8.7",
        f"{EVERYWHERE} / PTX 8.8",
    ),
)


@pytest.mark.parametrize(("line", "target", "version", "needs"), TARGETS_OF)
def test_a_target_or_a_version_without_the_instruction_is_a_problem(
    line: str, target: str, version: str, needs: str
) -> None:
    opcode = line.split()[0].rstrip(";")
    message = f"{opcode} needs {needs}, but the module targets {target} / PTX {version}"
    assert [p.message for p in verify(parse(kernel(line, target=target, version=version)))] == [message]


# ---------------------------------------- runs

SHIFT: Final = "tcgen05.shift.cta_group::1.down [%r1];"


def refusal(line: str, text: str, why: str, name: str = "k") -> str:
    number = text.splitlines().index(line) + 1
    opcode = line.split()[0].rstrip(";")
    return (
        f"{name} does not run on the interpreter: it has {opcode} (line {number} of the PTX text), and "
        f"{why}; run it on a GPU"
    )


def why_refused(opcode: str) -> str:
    """Why the interpreter refuses an instruction; empty if it does not."""
    words = opcode.split(".")
    if "ws" in words:
        return "products that hold B in the tensor cores are not modelled"
    if "b8x16" in words:
        return "copies that unpack 4- and 6-bit elements are not modelled"
    if "ashift" in words or "shift" in words:
        return MOVED
    return SPARSE if "sp" in words else ""


@pytest.mark.parametrize(("target", "group"), MODULES)
def test_exactly_the_forms_without_a_witness_are_refused(target: str, group: str) -> None:
    for text, op in zip(texts(group, target), ops(target, group), strict=True):
        assert op.row.unmodelled == why_refused(op.opcode), text


@pytest.mark.parametrize("line", [line for line in ONE_OF_EACH if why_refused(line.split()[0])])
def test_a_kernel_with_such_an_instruction_is_refused_by_name_before_it_runs(line: str) -> None:
    text = kernel(line)
    with refused(LaunchError, refusal(line, text, why_refused(line.split()[0]))):
        run(text, grid=1, block=32, args=[])


@pytest.mark.parametrize("asked", [{"stepwise": True}, {"sanitize": True}, {"schedule": "pct:1"}])
def test_every_way_to_run_refuses_it(asked: dict[str, Any]) -> None:
    text = kernel(SHIFT)
    with refused(LaunchError, refusal(SHIFT, text, MOVED)):
        run(text, grid=1, block=32, args=[], **asked)


CALLER: Final = """.version 9.0
.target sm_100a
.address_size 64

.func shifted(.reg .b32 %r1)
{
tcgen05.shift.cta_group::1.down [%r1];
ret;
}

.visible .entry shifts()
{
.reg .b32 %r<2>;
mov.b32 %r1, 0;
call shifted, (%r1);
ret;
}

.visible .entry stores(.param .u64 out)
{
.reg .b64 %rd<2>;
ld.param.u64 %rd1, [out];
st.global.u32 [%rd1], 7;
ret;
}
"""


def test_a_kernel_is_refused_for_what_it_calls_and_not_for_its_neighbours() -> None:
    with refused(LaunchError, refusal(SHIFT, CALLER, MOVED, "shifted")):
        run(CALLER, "shifts", grid=1, block=32, args=[])
    out = np.zeros(1, np.uint32)
    run(CALLER, "stores", grid=1, block=1, args=[out])
    assert out[0] == 7


# ---------------------------------------- proofs

NOTHING: Final = GlobalContract((), (), {}, (1, 1, 1))


@pytest.mark.parametrize("line", [line for line in ONE_OF_EACH if why_refused(line.split()[0])])
def test_a_proof_of_a_kernel_with_a_refused_instruction_is_unknown(line: str) -> None:
    assert prove(kernel(), block=32, contract=NOTHING).complete
    proofs = prove(kernel(line), block=32, contract=NOTHING)
    assert proofs.global_memory is not None
    why = why_refused(line.split()[0])
    for proof in (proofs.shared, proofs.global_memory):
        assert [(v.verdict, v.instr, v.reason) for v in proof.accesses] == [(UNKNOWN, line, why)]
        assert not proof.complete
    assert not proofs.shared.violations
    assert not proofs.global_memory.violations

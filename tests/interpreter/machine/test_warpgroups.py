"""Warpgroups that give registers back and get them (`setmaxnreg`)."""

from __future__ import annotations

import pytest
from interpreter.programs import at, deadlock, located, named, ptx
from interpreter.reported import messages, trap

from ptxgen.errors import AssemblerError
from ptxgen.interpreter.machine.registers import registers_at_entry
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler

PRODUCER_AND_CONSUMER = """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 128;
    @%p0 bra $consumer;
    {producer}
    bra $end;
$consumer:
    {consumer}
$end:
    bar.sync 0;
    """
DEC_40 = "setmaxnreg.dec.sync.aligned.u32 40;"
INC_216 = "setmaxnreg.inc.sync.aligned.u32 216;"


def specialised(producer: str, consumer: str, directives: str = ".maxnreg 128") -> str:
    body = PRODUCER_AND_CONSUMER.format(producer=producer, consumer=consumer)
    return ptx(body, directives=directives)


@pytest.mark.parametrize("directives", [".maxnreg 128", ".maxnreg 121", ".reqntid 256 .minnctapersm 2"])
def test_a_warpgroup_gets_the_registers_that_another_gives_back(directives: str) -> None:
    assert messages(specialised(DEC_40, INC_216, directives), block=256) == []
    assert messages(specialised(INC_216, DEC_40, directives), block=256) == []


def test_registers_that_nobody_gives_back_are_waited_for_for_ever() -> None:
    text = specialised("", INC_216)
    pool = f"the CTA's pool of registers (2816 wanted for its warp, 0 free) in {located(text, 'setmaxnreg')}"
    waits = [
        f"{named(0, 128)} wait at {pool}",
        f"{named(128, 128)} wait at barrier 0 in {located(text, 'bar.sync')}",
    ]
    assert trap(text, block=256) == deadlock(waits, 0, 256)


def test_who_relies_on_registers_of_warps_that_have_ended_is_found() -> None:
    text = specialised(f"{DEC_40} exit;", INC_216.replace("216", "224"))
    assert messages(text, block=256) == [
        at(text, "setmaxnreg", nth=1) + "sync: the warps of the CTA have 33792 registers together at their "
        "ends, but the CTA has 32768: some get them only when others have ended; give a role fewer"
    ]
    assert messages(specialised(f"{DEC_40} exit;", INC_216), block=256) == []


def test_a_kernel_says_how_many_registers_it_begins_with() -> None:
    for directives in ("", ".maxntid 256", ".reqntid 256"):
        text = specialised(DEC_40, "", directives)
        assert messages(text, block=256) == [
            at(text, "setmaxnreg", 128) + "sync: the assembler ignores it, as it does not know the "
            "registers at entry; give the kernel .maxnreg, or .maxntid and .minnctapersm"
        ]


def test_all_warps_of_a_warpgroup_change_their_registers_alike() -> None:
    some = f"and.b32 %r1, %r0, 96;\n    setp.eq.u32 %p1, %r1, 64;\n    @%p1 {{}}\n    {DEC_40}"
    text = specialised(some.replace("{}", "bra $skip;") + "\n$skip:", "")
    assert messages(text, block=256) == [
        at(text, "setmaxnreg", 128) + "sync: all warps of a warpgroup execute it, but warp 6 has not"
    ]
    other = DEC_40.replace("40", "48")
    text = specialised(some.replace("{}", "bra $other;") + f"\n    bra $end;\n$other:\n    {other}", "")
    assert messages(text, block=256) == [
        at(text, DEC_40, 128) + "sync: all warps of a warpgroup execute the same, but warp 6 has "
        "executed setmaxnreg.dec to 48"
    ]
    text = specialised(DEC_40, "")
    assert messages(text, block=224) == [
        at(text, "setmaxnreg", 128) + "sync: all 4 warps of a warpgroup execute it, but the CTA ends with 3"
    ]


def test_registers_go_the_way_that_is_said_to_multiples_of_8() -> None:
    for to, count in (("dec", 136), ("inc", 120)):
        text = specialised(f"setmaxnreg.{to}.sync.aligned.u32 {count};", "")
        assert messages(text, block=256) == [
            at(text, "setmaxnreg", 128)
            + f"sync: setmaxnreg.{to} to {count}, but a thread has 128 registers at this point"
        ]
        same = text.replace(str(count) + ";", "128;")
        assert messages(same, block=256) == []
    for count in (16, 44, 264):
        text = specialised(DEC_40.replace("40", str(count)), "")
        assert trap(text, block=256) == (
            at(text, "setmaxnreg", 128) + f"setmaxnreg takes a multiple of 8 from 24 to 256, got {count}"
        )


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "directives",
    [
        *("", ".maxnreg 168", ".maxntid 384", ".maxntid 384 .minnctapersm 1", ".minnctapersm 1"),
        *(".reqntid 96,4 .minnctapersm 1", ".maxntid 1024 .minnctapersm 1", ".reqntid 256"),
        *(".maxntid 384 .minnctapersm 2", ".maxntid 384 .maxnreg 128 .minnctapersm 1"),
        *(".maxntid 100 .minnctapersm 5", ".maxntid 128 .minnctapersm 1"),
    ],
)
def test_registers_at_entry_are_those_of_ptxas(assembler: Assembler, directives: str) -> None:
    text = specialised("", DEC_40.replace("40", "24"), directives)
    (kernel,) = parse(text).kernels
    count = registers_at_entry(kernel)
    if count:
        assert assembler.assemble(text, "sm_90a").kernel("k").registers == count
    else:
        with pytest.raises(AssemblerError, match="unable to determine register count at entry"):
            assembler.assemble(text, "sm_90a")

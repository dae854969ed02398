"""Static proof of tensor memory: allocations, lanes and columns, and matrices behind descriptors; each rule
has a kernel that is proved and one that breaks it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from dsl import test_blackwell as products_of
from interpreter.tensor_texts import (
    BUFFER,
    LANE,
    MBARRIER,
    TENSOR,
    THREAD,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
)

from ptxgen.check.prove import Proof, prove, prove_shared
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.check.prove.program.matrices import UNIT, Matrix, fields_of, units_of
from ptxgen.dsl import KernelBuilder
from ptxgen.ir import Instr, Module
from ptxgen.isa.descriptors import SIZES, shared_matrix
from ptxgen.parse import parse
from ptxgen.types import bf16, f16, f32

F16: Final = instruction(128, 64, "f16")
HALF: Final = instruction(64, 64, "f16")
LOAD: Final = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r20+62];"
STORE: Final = "tcgen05.st.sync.aligned.16x64b.x2.b32 [%r20], {%r1, %r2};"
MMA: Final = "tcgen05.mma.cta_group::1.kind::f16"
MX: Final = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32"
E2M1: Final = 1 << 27 | 8 << 17 | 1 << 7 | 1 << 10 | 1 << 23
BASE: Final = "the address of tensor memory = 0"
THERE: Final = "thread (0, 0, 0), %r2 = 22528"  # behind the loop that fills shared memory
FILLED: Final = f"{THERE}, {BASE}"


def text(*lines: str, columns: int = 64, nbytes: int = 0, pair: bool = False) -> str:
    """A kernel whose threads have the address of their warp's lanes in %r20."""
    return kernel(
        "\n".join([f"add.u32 %r20, {TENSOR}, {LANE};", *lines]), columns=columns, nbytes=nbytes, pair=pair
    )


def product(*lines: str, idesc: int = F16, nbytes: int = 3 << 13, sbo: int = 1024) -> str:
    """A kernel of which one thread has the descriptors of A in %rd1 and of B in %rd2."""
    ready = [descriptor("%rd1", 0, sbo=sbo), descriptor("%rd2", 1 << 14), f"mov.u32 %r5, {idesc:#x};"]
    all_lines = [*ready, "setp.ne.u32 %p1, %r90, %r90;", *lines, commit()]
    return kernel(by_one_thread(all_lines), columns=64, nbytes=nbytes)


def proof(ptx: str | Module, **how: Any) -> Proof:
    return prove_shared(ptx, block=128, **how)


def said(of: Proof) -> list[tuple[str, str, str]]:
    """The verdicts that are not `proved`, with the first words of their instructions."""
    rest = [v for v in of.verdicts if v.verdict != "proved"]
    return [(v.verdict, v.instr.split()[0].removesuffix(";"), v.reason) for v in rest]


def replaced(ptx: str, old: str, new: str) -> str:
    assert ptx.count(old) == 1
    return ptx.replace(old, new)


# ------------------------------------------------------------------------------ lanes and columns

LOADED: Final = "tcgen05.ld.sync.aligned.32x32b.x2.b32"
STORED: Final = "tcgen05.st.sync.aligned.16x64b.x2.b32"
USES: Final = (
    (
        text(LOAD),
        "+62",
        "+63",
        LOADED,
        f"columns 63 to 64 are outside its allocation, which has 64 columns: thread (0, 0, 0), {BASE}",
    ),
    (
        text(LOAD),
        "+62",
        "+-1",
        LOADED,
        f"lanes -1 to 30 are not those of warp 0 of 4, which has lanes 0 to 31: thread (0, 0, 0), {BASE}",
    ),
    (
        text(LOAD),
        f"add.u32 %r20, {TENSOR}, {LANE};",
        f"mov.u32 %r20, {TENSOR};",
        LOADED,
        f"lanes 0 to 31 are not those of warp 1 of 4, which has lanes 32 to 63: thread (32, 0, 0), {BASE}",
    ),
    (
        text(LOAD),
        "+62",
        f"+{16 << 16}",
        LOADED,
        f"lanes 16 to 47 are not those of warp 0 of 4, which has lanes 0 to 31: thread (0, 0, 0), {BASE}",
    ),
    (
        text(STORE),
        "[%r20]",
        f"[%r20+{8 << 16}]",
        STORED,
        f"it begins at lane 8, and not at lane 0 or 16: thread (0, 0, 0), {BASE}",
    ),
    (
        text("tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r1, %r2}, [%r20], 62;"),
        ", 62;",
        ", 63;",
        "tcgen05.ld.sync.aligned.16x32bx2.x2.b32",
        f"columns 0 to 64 are outside its allocation, which has 64 columns: thread (0, 0, 0), {BASE}",
    ),
    (
        text("tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%r1, %r2}, [%r20+60];"),
        "+60",
        "+61",
        "tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32",
        f"columns 61 to 64 are outside its allocation, which has 64 columns: thread (0, 0, 0), {BASE}",
    ),
    (
        product(f"{MMA} [{TENSOR}], %rd1, %rd2, %r5, %p1;"),
        f"[{TENSOR}], %rd1",
        f"[{TENSOR}+8], %rd1",
        MMA,
        f"D: columns 8 to 71 are outside its allocation, which has 64 columns: {FILLED}",
    ),
    (
        product(f"{MMA} [{TENSOR}], %rd1, %rd2, %r5, %p1;"),
        f"[{TENSOR}], %rd1",
        f"[{TENSOR}+{16 << 16}], %rd1",
        MMA,
        f"D: it begins at lane 16, and not at lane 0: {FILLED}",
    ),
    (
        product(f"{MMA} [{TENSOR}+{16 << 16}], %rd1, %rd2, %r5, %p1;", idesc=HALF),
        f"[{TENSOR}+{16 << 16}]",
        f"[{TENSOR}+{32 << 16}]",
        MMA,
        f"D: it begins at lane 32, and not at lane 0 or 16: {FILLED}",
    ),
    (
        product(f"{MMA} [{TENSOR}], [{TENSOR}+56], %rd2, %r5, %p1;"),
        "+56",
        "+57",
        MMA,
        f"A: columns 57 to 64 are outside its allocation, which has 64 columns: {FILLED}",
    ),
    (
        product(f"{MX} [{TENSOR}], %rd1, %rd2, %r5, [{TENSOR}+60], [{TENSOR}+62], %p1;", idesc=E2M1),
        "+62",
        "+63",
        MX,
        f"scale factors of B: columns 63 to 64 are outside its allocation, which has 64 columns: {FILLED}",
    ),
    (
        product(f"{MX} [{TENSOR}], %rd1, %rd2, %r5, [{TENSOR}+60], [{TENSOR}+62], %p1;", idesc=E2M1),
        "+60",
        f"+{1 << 16}",
        MX,
        f"scale factors of A: it begins at lane 1, and not at lane 0: {FILLED}",
    ),
    (
        product(f"tcgen05.cp.cta_group::1.128x256b [{TENSOR}+56], %rd1;"),
        "+56",
        "+57",
        "tcgen05.cp.cta_group::1.128x256b",
        f"columns 57 to 64 are outside its allocation, which has 64 columns: {FILLED}",
    ),
    (
        product(f"tcgen05.cp.cta_group::1.4x256b [{TENSOR}+{31 << 16}], %rd1;"),
        f"+{31 << 16}",
        f"+{32 << 16}",
        "tcgen05.cp.cta_group::1.4x256b",
        f"it begins at lane 32, and not at lane 0 to 31: {FILLED}",
    ),
    (
        text(LOAD),
        "+62",
        f"+{1 << 16}",
        LOADED,
        f"lanes 1 to 32 are not those of warp 0 of 4, which has lanes 0 to 31: thread (0, 0, 0), {BASE}",
    ),
)


@pytest.mark.parametrize(("right", "old", "new", "instr", "why"), USES)
def test_cells_are_of_the_allocation_and_of_the_warp(
    right: str, old: str, new: str, instr: str, why: str
) -> None:
    assert proof(right).complete, proof(right).report()
    assert said(proof(replaced(right, old, new))) == [("violation", instr, why)]


def test_an_address_may_be_a_number_if_all_columns_are_allocated() -> None:
    whole = text("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r20];", columns=512).replace(
        f"add.u32 %r20, {TENSOR}, {LANE};", f"mov.u32 %r20, {LANE};"
    )
    whole = whole.replace("[%r20];", "[%r20+510];")
    assert proof(whole).complete
    assert said(proof(whole.replace("+510", "+511"))) == [
        (
            "violation",
            LOADED,
            "columns 511 to 512 are outside its allocation, which has 512 columns: thread (0, 0, 0)",
        )
    ]
    part = whole.replace(", 512;", ", 256;").replace("+510", "+10")
    assert said(proof(part)) == [
        ("unknown", LOADED, "its address is not computed from that of an allocation")
    ]


def test_an_address_may_be_computed_in_a_loop() -> None:
    loop = text(
        "mov.u32 %r21, 0;",
        "$next:",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r20];",
        "add.u32 %r20, %r20, 2;",
        "add.u32 %r21, %r21, 1;",
        "setp.lt.u32 %p1, %r21, 32;",
        "@%p1 bra $next;",
    )
    assert proof(loop).complete
    ((verdict, instr, why),) = said(proof(replaced(loop, "%r21, 32;", "%r21, 33;")))
    assert (verdict, instr) == ("violation", LOADED)
    assert why.startswith(
        "columns 64 to 65 are outside its allocation, which has 64 columns: thread (0, 0, 0)"
    )


def test_a_use_that_no_thread_gets_to_has_any_columns() -> None:
    never = f"setp.gt.u32 %p7, {THREAD}, 999;\n@!%p7 bra $never;"
    assert proof(text(never, LOAD.replace("+62", "+999"), "$never:")).complete


def test_an_address_does_not_depend_on_that_of_a_variable() -> None:
    why = "its address depends on that of a variable in shared memory"
    assert said(proof(text(f"add.u32 %r20, %r20, {BUFFER};", LOAD))) == [("unknown", LOADED, why)]


def test_the_threads_of_a_warp_have_one_address() -> None:
    by_thread = replaced(text(LOAD), "+62", "").replace(f"{TENSOR}, {LANE}", f"{TENSOR}, {THREAD}")
    assert ("unknown", LOADED, "the threads of a warp may give different addresses") in said(proof(by_thread))


def test_what_may_not_happen_is_no_violation() -> None:
    guarded = text("ld.global.u32 %r3, [%rd90];", "and.b32 %r3, %r3, 64;", "add.u32 %r20, %r20, %r3;", LOAD)
    ((verdict, instr, why),) = said(proof(guarded))
    assert (verdict, instr) == ("unknown", LOADED)
    assert why == (
        "perhaps columns 126 to 127 are outside its allocation, which has 64 columns, but that may not "
        f"happen (thread (0, 0, 0), {BASE})"
    )


def test_a_value_that_a_loop_has_for_other_threads_is_no_violation() -> None:
    lines = (
        *("mov.u32 %r30, 0;", "mov.u32 %r21, 0;", "$next:", f"setp.lt.u32 %p1, {THREAD}, 64;"),
        *("@%p1 bra $skip;", "mov.u32 %r30, 1;", "$skip:", "add.u32 %r21, %r21, 1;"),
        *("setp.lt.u32 %p2, %r21, 2;", "@%p2 bra $next;", "add.u32 %r20, %r20, %r30;"),
    )
    first = text(*lines, f"@%p9 {LOAD}")  # of warp 0, for which %r30 is 0
    assert [v[:2] for v in said(proof(first))] == [("unknown", "@%p9")]


# ------------------------------------------------------------------------------ allocations

ALLOC: Final = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
DEALLOC: Final = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
FREE: Final = f"{DEALLOC} {TENSOR}, 64;"
PERMIT: Final = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
MINE: Final = f"{ALLOC} [{BUFFER}+16], 64;"
NOT_KNOWN: Final = "its address is not computed from that of an allocation"
RULES: Final[tuple[tuple[list[tuple[str, str]], list[tuple[str, str, str]]], ...]] = (
    (
        [(f"{MINE}", f"{ALLOC} [{BUFFER}+16], 48;"), (FREE, f"{DEALLOC} {TENSOR}, 48;")],
        [
            (
                "violation",
                ALLOC,
                "it allocates 48 columns, and there are allocations of 32, 64, 128, 256, 512",
            ),
            ("unknown", LOADED, NOT_KNOWN),
            ("unknown", DEALLOC, NOT_KNOWN),
        ],
    ),
    ([(FREE, "")], [("violation", ALLOC, "its columns are never freed")]),
    (
        [(FREE, f"{DEALLOC} {TENSOR}, 32;")],
        [("violation", DEALLOC, "it frees 32 columns of an allocation of 64")],
    ),
    (
        [(FREE, f"add.u32 %r1, {TENSOR}, 32;\n{DEALLOC} %r1, 64;")],
        [
            (
                "violation",
                DEALLOC,
                "it frees columns from lane 0 and column 32 of its allocation on, not from its address: "
                f"thread (0, 0, 0), {BASE}",
            )
        ],
    ),
    (
        [(f"{MINE}\n{PERMIT}", f"{PERMIT}\n{MINE}")],
        [("violation", ALLOC, "tcgen05.relinquish_alloc_permit comes before it")],
    ),
    (
        [
            (f"{MINE}\n{PERMIT}", MINE),
            (
                f"setp.eq.u32 %p8, {THREAD}, 0;",
                f"setp.ge.u32 %p7, {THREAD}, 96;\n@%p7 {PERMIT}\nsetp.eq.u32 %p8, {THREAD}, 0;",
            ),
        ],
        [("unknown", ALLOC, "tcgen05.relinquish_alloc_permit may come before it")],
    ),
    (
        [
            (
                f"@!%p9 bra $allocated;\n{MINE}\n{PERMIT}",
                f"setp.lt.u32 %p7, {THREAD}, 999;\n@%p7 bra $late;\n{PERMIT}\n$late:\nbar.sync 0;\n"
                f"@!%p9 bra $allocated;\n{MINE}",
            )
        ],
        [("unknown", ALLOC, "tcgen05.relinquish_alloc_permit may come before it")],
    ),
    (
        [("@!%p9 bra $allocated;", f"setp.lt.u32 %p9, {THREAD}, 64;\n@!%p9 bra $allocated;")],
        [
            ("unknown", ALLOC, "warps 0 to 1 execute it, and each allocates columns"),
            ("unknown", DEALLOC, "the warp that executes it is not known to be one"),
        ],
    ),
    (
        [("@!%p9 bra $freed;", "")],
        [
            ("unknown", ALLOC, "its columns may not be freed, or more than once"),
            ("unknown", DEALLOC, "the warp that executes it is not known to be one"),
        ],
    ),
    (
        [(FREE, f"ld.global.u32 %r1, [%rd90];\n{DEALLOC} %r1, 64;")],
        [
            ("unknown", ALLOC, "a tcgen05.dealloc has an address that is not known"),
            ("unknown", DEALLOC, NOT_KNOWN),
        ],
    ),
    (
        [
            (LOAD, f"bar.sync 0;\n@!%p9 bra $late;\n{FREE}\n$late:\nbar.sync 0;\n{LOAD}"),
            ("$freed:", "$end:"),
            (f"@!%p9 bra $freed;\n{FREE}\n", ""),
        ],
        [("violation", LOADED, "it comes after tcgen05.dealloc has freed its columns")],
    ),
    (
        [("bar.sync 0;\n@!%p9 bra $freed;", "@!%p9 bra $freed;")],
        [("unknown", LOADED, "it may come after tcgen05.dealloc has freed its columns")],
    ),
)


@pytest.mark.parametrize(("changes", "wanted"), RULES)
def test_allocations_keep_their_rules(
    changes: Sequence[tuple[str, str]], wanted: list[tuple[str, str, str]]
) -> None:
    wrong = text(LOAD)
    assert proof(wrong).complete
    for old, new in changes:
        wrong = replaced(wrong, old, new)
    found = [v for v in said(proof(wrong)) if v[1].startswith("tcgen05") or v[1].startswith("@")]
    assert found == wanted


def test_each_instruction_has_a_verdict_on_its_columns() -> None:
    def columns(ptx: str) -> list[tuple[str, int, int]]:
        result = proof(ptx)
        assert result.complete, result.report()
        return [(v.instr.split()[0], v.first, v.last) for v in result.tensor_memory]

    ends = [(ALLOC, 0, 63), (PERMIT.removesuffix(";"), 0, -1)], [(DEALLOC, 0, 0)]
    floats, words = (", ".join(f"%{kind}{n}" for n in range(8)) for kind in "fr")
    wmma = "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"
    other = f"{wmma} {{{floats}}}, {{{words}}}, {{{words}}}, {{{floats}}};"
    by_warp = [f"shr.u32 %r21, {THREAD}, 5;", "add.u32 %r20, %r20, %r21;"]
    split = "tcgen05.ld.sync.aligned.16x32bx2.x2.b32"
    lines = [f"{split} {{%r1, %r2}}, [%r20+2], -2;", LOAD, STORE, other, *by_warp]
    right = text(*lines, LOADED + " {%r1, %r2}, [%r20+3];")
    used = [(split, 0, 3), (LOADED, 62, 63), (STORED, 0, 3), (LOADED, 3, 7)]
    (wrong,) = (
        v for v in proof(replaced(right, "+2], -2;", "], -2;")).tensor_memory if v.verdict != "proved"
    )
    assert (wrong.first, wrong.last) == (-2, 1)
    assert wrong.reason.startswith("columns -2 to 1 are outside its allocation")
    got = columns(right)
    assert [(name.removesuffix(";"), *rest) for name, *rest in got] == [*ends[0], *used, *ends[1]]
    copy = "tcgen05.cp.cta_group::1.128x256b"
    lines = [f"{MMA} [{TENSOR}], [{TENSOR}+56], %rd2, %r5, %p1;", f"{copy} [{TENSOR}+8], %rd1;"]
    assert columns(product(*lines))[2:-1] == [(MMA, 0, 63), (MMA, 56, 63), (copy, 8, 15)]


def test_an_allocation_that_no_thread_gets_to_needs_nothing() -> None:
    never = f"setp.gt.u32 %p7, {THREAD}, 999;\n@!%p7 bra $never;\n{ALLOC} [{BUFFER}+32], 32;\n$never:"
    assert proof(replaced(text(never, LOAD), f"{PERMIT}\n", "")).complete


NOT_COUNTED: Final = "the number of its columns is not known"


def test_allocations_have_a_number_of_columns_that_is_known() -> None:
    loaded = "ld.global.u32 %r50, [%rd90];\n"
    other = text(loaded, SECOND.format("%r50"), LOAD)
    why = "the columns of another allocation are not known"
    wanted = [("unknown", ALLOC, why), ("unknown", ALLOC, NOT_COUNTED)]
    assert said(proof(replaced(other, f"{PERMIT}\n", ""))) == wanted
    wrong = replaced(text(LOAD), f"@!%p9 bra $allocated;\n{MINE}", f"{loaded}@!%p9 bra $allocated;\n{MINE}")
    wrong = replaced(wrong, MINE, MINE.replace(" 64;", " %r50;"))
    assert said(proof(wrong))[0] == ("unknown", ALLOC, NOT_COUNTED)
    wrong = replaced(text(loaded, LOAD), FREE, FREE.replace(" 64;", " %r50;"))
    assert said(proof(wrong)) == [("unknown", DEALLOC, NOT_COUNTED)]


SECOND: Final = (
    f"@!%p9 bra $second;\n{ALLOC} [{BUFFER}+32], {{}};\n$second:\n"
    f"bar.sync 0;\nld.shared.u32 %r40, [{BUFFER}+32];"
)
FREE_SECOND: Final = f"{DEALLOC} %r40, {{}};\n{FREE}"


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (32, []),
        (64, []),
        (
            128,
            [
                (
                    "violation",
                    ALLOC,
                    "it allocates 128 columns after an allocation of 64, and later allocations of a CTA are "
                    "not larger",
                )
            ],
        ),
        (
            512,
            [
                ("unknown", ALLOC, "all allocations have 576 columns, and tensor memory has 512"),
                (
                    "violation",
                    ALLOC,
                    "it allocates 512 columns after an allocation of 64, and later allocations of a CTA are "
                    "not larger",
                ),
            ],
        ),
    ],
)
def test_later_allocations_are_not_larger_and_all_fit(columns: int, wanted: list[Any]) -> None:
    two = text(SECOND.format(columns), f"add.u32 %r41, %r40, {LANE};", LOAD.replace("%r20+62", "%r41+30"))
    two = replaced(two, f"{PERMIT}\n", "")
    two = replaced(two, FREE, FREE_SECOND.format(columns))
    assert said(proof(two)) == wanted


def test_no_allocation_comes_after_a_promise_between_others() -> None:
    two = replaced(text(SECOND.format(32), LOAD), FREE, FREE_SECOND.format(32))
    why = "tcgen05.relinquish_alloc_permit comes before it"
    assert said(proof(two)) == [("violation", ALLOC, why)]


def test_columns_are_freed_after_their_allocation() -> None:
    free = f"mov.u32 %r50, 0;\n@%p9 {DEALLOC} %r50, 512;"
    early = replaced(text(columns=512), f"{DEALLOC} {TENSOR}, 512;\n", "")
    early = replaced(early, "@!%p9 bra $allocated;", f"{free}\n@!%p9 bra $allocated;")
    assert said(proof(early)) == [("unknown", "@%p9", "it may come before the allocation")]


def test_a_mistake_that_a_value_from_memory_decides_may_not_happen() -> None:
    some = "ld.global.u32 %r50, [%rd90];\nsetp.eq.u32 %p7, %r50, 0;"
    wrong = replaced(text(LOAD), MINE, f"{some}\n@%p7 {MINE.replace(', 64;', ', 48;')}")
    why = "perhaps it allocates 48 columns, and there are allocations of 32, 64, 128, 256, 512"
    assert said(proof(wrong))[0] == ("unknown", "@%p7", why)
    smaller = f"{some}\n@%p7 {ALLOC} [{BUFFER}+32], 32;\nbar.sync 0;\n@!%p9 bra $allocated;"
    later = said(proof(replaced(text(LOAD), "@!%p9 bra $allocated;", smaller)))
    assert ("unknown", ALLOC, "an allocation of 32 columns may come before it") in later


@pytest.mark.parametrize("byte", [16, 32])
def test_nothing_else_writes_the_word_of_any_address_that_is_loaded(byte: int) -> None:
    two = replaced(text(SECOND.format(32), LOAD), f"{PERMIT}\n", "")
    two = replaced(two, FREE, FREE_SECOND.format(32))
    assert proof(two).complete
    load = "bar.sync 0;\nld.shared.u32 %r40"
    wrong = replaced(two, load, f"st.shared.u32 [{BUFFER}+{byte}], 5;\n{load}")
    why = "st.shared.u32 may write over the address of an allocation"
    assert said(proof(wrong))[2:] == [("unknown", LOADED, why), *[("unknown", DEALLOC, why)] * 2]


def test_the_word_of_an_address_may_be_written_after_all_loads_of_it() -> None:
    two = replaced(text(SECOND.format(32), LOAD), f"{PERMIT}\n", "")
    two = replaced(two, FREE, FREE_SECOND.format(32))
    last = "ld.shared.u32 %r40"
    assert proof(replaced(two, last, f"st.shared.u32 [{BUFFER}+16], 5;\n{last}")).complete
    load = f"ld.shared.u32 {TENSOR}, [{BUFFER}+16];"
    again = replaced(text(LOAD), load, f"{load}\nbar.sync 0;\nst.shared.u32 [{BUFFER}+16], 5;\n{load}")
    why = "st.shared.u32 may write over the address of an allocation"
    assert ("unknown", LOADED, why) in said(proof(again))


def test_variables_of_dynamic_memory_share_the_word() -> None:
    some = "".join(f".extern .shared .align 16 .b8 {name}[];\n" for name in ("one", "two"))
    right = replaced(text(LOAD), ".visible .entry", f"{some}.visible .entry")
    right = right.replace(f"[{BUFFER}+16]", "[one+16]")
    assert proof(right, dynamic_smem=64).complete
    load = f"ld.shared.u32 {TENSOR}"
    wrong = replaced(right, load, f"st.shared.u32 [two+16], 5;\n{load}")
    why = "st.shared.u32 may write over the address of an allocation"
    assert ("unknown", LOADED, why) in said(proof(wrong, dynamic_smem=64))


def test_another_cta_may_write_the_word_of_an_address_that_nobody_loads() -> None:
    second = SECOND.format(32).partition("bar.sync")[0]
    store = "st.shared::cluster.u32 [%r3+32], 5;"
    two = text(second, f"mapa.shared::cluster.u32 %r3, {BUFFER}, 1;", store, LOAD)
    two = replaced(two, "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    assert said(proof(replaced(two, f"{PERMIT}\n", ""))) == [
        ("violation", ALLOC, "its columns are never freed")
    ]


def test_the_word_of_an_address_is_in_shared_memory() -> None:
    why = "the word that an allocation's address is written to is not proved to be in shared memory"
    outside = text(LOAD).replace(f"[{BUFFER}+16]", f"[{BUFFER}+4096]")
    assert ("unknown", LOADED, why) in said(proof(outside))


def test_words_of_two_addresses_that_a_value_decides_may_differ() -> None:
    chosen = f"cvt.u32.u64 %r50, %rd90;\nand.b32 %r50, %r50, 4;\nadd.u32 %r50, %r50, {BUFFER};"
    wrong = replaced(text(LOAD), MINE, MINE.replace(BUFFER, "%r50"))
    wrong = replaced(wrong, "@!%p9 bra $allocated;", f"{chosen}\n@!%p9 bra $allocated;")
    wrong = replaced(wrong, f"{TENSOR}, [{BUFFER}+16]", f"{TENSOR}, [%r50+32]")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(wrong))


def test_an_address_that_a_value_from_memory_moves_is_not_listed() -> None:
    why = "its address cannot be listed: it depends on a value from memory"
    loaded = text("ld.global.u32 %r3, [%rd90];", "add.u32 %r20, %r20, %r3;", LOAD)
    assert said(proof(loaded)) == [("unknown", LOADED, why)]


def test_an_address_is_loaded_after_the_allocation_has_written_it() -> None:
    early = text(LOAD)
    early = replaced(early, f"bar.sync 0;\nld.shared.u32 {TENSOR}", f"ld.shared.u32 {TENSOR}")
    reason = "its address cannot be listed: it depends on a value from memory"
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(early)), reason


COPY: Final = f"cvt.u64.u32 %rd50, {BUFFER};"


@pytest.mark.parametrize(
    ("lines", "byte", "same"),
    [
        (f"{COPY}\ncvt.u32.u64 %r50, %rd50;", 16, True),
        (f"add.u32 %r50, {BUFFER}, 0xfffffff0;\nadd.u32 %r50, %r50, 28;", 4, True),
        (f"add.s32 %r50, {BUFFER}, -16;\nadd.s32 %r50, 28, %r50;", 4, True),
        ("mov.u32 %r50, buf+4;", 12, True),
        (f"shfl.sync.idx.b32 %r50, {BUFFER}, 0, 31, 0xffffffff;", 16, True),
        (f"{COPY}\nmov.b64 {{%r50, %r51}}, %rd50;", 16, False),
        (f"{COPY}\nmov.b64 {{%r51, %r50}}, %rd50;", 16, False),
        (f"mov.b64 %rd50, {{{BUFFER}, {THREAD}}};\ncvt.u32.u64 %r50, %rd50;", 16, False),
        (f"xor.b32 %r50, {BUFFER}, 4;", 16, False),
        (f"neg.s32 %r50, {BUFFER};", 16, False),
    ],
)
def test_the_address_of_the_word_is_that_of_the_allocation(lines: str, byte: int, same: bool) -> None:
    load = f"ld.shared.u32 {TENSOR}"
    other = replaced(text(LOAD), f"{load}, [{BUFFER}+16]", f"{lines}\n{load}, [%r50+{byte}]")
    assert (("unknown", LOADED, NOT_KNOWN) in said(proof(other))) is not same


def test_a_shuffle_of_some_threads_has_no_address() -> None:
    shuffle = f"shfl.sync.idx.b32 %r50, {BUFFER}, 0, 31, 0xffffffff;"
    one = product(shuffle, "ld.shared.u32 %r51, [%r50+16];", ONE.replace(TENSOR, "%r51"))
    assert ("unknown", MMA, NOT_KNOWN) in said(proof(one))


@pytest.mark.parametrize(
    "lines",
    [
        "ld.shared.u32 %rd50, [{word}];\ncvt.u32.u64 {address}, %rd50;",
        "ld.shared.b32 %f1, [{word}];\nmov.b32 {address}, %f1;",
        "setp.lt.u32 %p7, %r93, 512;\nmov.u32 {address}, 0;\n@%p7 ld.shared.u32 {address}, [{word}];",
    ],
)
def test_other_loads_of_the_word_have_values_that_are_not_known(lines: str) -> None:
    lines = lines.format(word=f"{BUFFER}+16", address=TENSOR)
    other = replaced(text(LOAD), f"ld.shared.u32 {TENSOR}, [{BUFFER}+16];", lines)
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(other))


def test_a_copy_from_shared_memory_writes_no_word() -> None:
    copy = f"cp.async.bulk.global.shared::cta.bulk_group [%rd91], [{BUFFER}+16], 16;"
    assert proof(text(copy, LOAD)).complete


@pytest.mark.parametrize(("flip", "known"), [("3", True), ("1", False), ("%r3", False)])
def test_only_barriers_of_other_numbers_leave_that_of_all_threads(flip: str, known: bool) -> None:
    before = "ld.global.u32 %r3, [%rd90];\nmov.u32 %r50, 1;\nmov.u32 %r51, 0;\n$again:"
    barrier = f"bar.sync %r50, 128;\nxor.b32 %r50, %r50, {flip};"
    again = "add.u32 %r51, %r51, 1;\nsetp.lt.u32 %p7, %r51, 4;\n@%p7 bra $again;"
    assert (("unknown", LOADED, NOT_KNOWN) in said(proof(text(before, barrier, again, LOAD)))) is not known


def test_nothing_else_writes_the_word_of_an_address() -> None:
    right = text(f"st.shared.u32 [{BUFFER}+20], 5;", LOAD)
    assert proof(right).complete
    store = "st.shared.u32"
    wrong = replaced(right, f"[{BUFFER}+20]", f"[{BUFFER}+16]")
    why = f"{store} may write over the address of an allocation"
    assert said(proof(wrong)) == [
        ("unknown", ALLOC, "a tcgen05.dealloc has an address that is not known"),
        ("unknown", LOADED, why),
        ("unknown", DEALLOC, why),
    ]
    assert proof(replaced(wrong, f"{store} [{BUFFER}+16]", f"bar.sync 0;\n{store} [{BUFFER}+16]")).complete
    whole = text(f"{store} [{BUFFER}+16], 5;", LOAD, columns=512)
    assert ("unknown", LOADED, why) in said(proof(whole))
    anywhere = replaced(right, f"[{BUFFER}+20]", "[%r1]")
    assert said(proof(anywhere))[-1] == (
        "unknown",
        DEALLOC,
        f"{store}, which is not proved, may write over the address of an allocation",
    )


def test_barriers_in_loops_of_all_threads_order_the_word_too() -> None:
    loop = text(
        LOAD,
        "mov.u32 %r21, 0;",
        "$next:",
        "bar.sync 0;",
        f"st.shared.u32 [{BUFFER}+16], 5;",
        "add.u32 %r21, %r21, 1;",
        "setp.lt.u32 %p1, %r21, 3;",
        "@%p1 bra $next;",
    )
    assert proof(loop).complete
    some = replaced(loop, "bar.sync 0;\nst.shared", "bar.sync 1, 128;\nst.shared")
    assert proof(some).complete
    mixed = replaced(loop, "bar.sync 0;\nst.shared", "@%p8 bra $skip;\nbar.sync 0;\n$skip:\nst.shared")
    assert not proof(mixed).complete


EARLY: Final = f"@!%p9 bra $allocated;\n{MINE}"


def test_a_barrier_that_warps_pass_at_other_times_orders_nothing() -> None:
    right = text(LOAD)
    other_numbers = replaced(right, EARLY, f"@!%p9 bra $allocated;\nbar.sync 1, 32;\n{MINE}")
    assert proof(other_numbers).complete
    # The other warps pass the barrier of all threads with warp 0, which has not yet allocated.
    early = replaced(right, EARLY, f"@!%p9 bra $allocated;\nbar.sync 0;\n{MINE}")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(early))
    first = "ld.global.u32 %r50, [%rd90];\nand.b32 %r50, %r50, 7;"
    anyone = replaced(right, "fence.proxy.async;\nbar.sync 0;", f"{first}\nbar.sync %r50;")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(anyone))
    parted = replaced(right, EARLY, f"@!%p9 bra $others;\nbar.sync 0;\n{MINE}")
    parted = replaced(parted, "$allocated:\n", "bra $allocated;\n$others:\nbar.sync 0;\n$allocated:\n")
    parted = replaced(parted, "fence.proxy.async;\nbar.sync 0;\n", "")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(parted))


@pytest.mark.parametrize(
    "other",
    [
        "@%p9 bar.sync 0;",
        "bar.arrive 0, 128;",
        "bar.sync 0, 64;",
        "bar.sync;",
        "bar.sync 0;\nbar.sync 0, 64;",
    ],
)
def test_a_barrier_that_not_all_threads_wait_at_orders_nothing(other: str) -> None:
    wrong = replaced(text(LOAD), "fence.proxy.async;\nbar.sync 0;", f"fence.proxy.async;\n{other}")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(wrong))


def test_branches_of_tables_decide_what_is_not_known() -> None:
    table = "and.b32 %r50, %r93, 0;\n$ways: .branchtargets {}, $here;\nbrx.idx %r50, $ways;\n$here:\n{}"
    wrong = replaced(text(LOAD), f"@!%p9 bra $allocated;\n{MINE}", table.format("$allocated", MINE))
    assert proof(wrong).tensor_memory[0].reason == "which warps execute it, and how often, is not known"
    other = text(table.format("$there", "bar.sync 1;\n$there:"), LOAD)
    assert LOADED not in [instr for _, instr, _ in said(proof(other))]


def test_a_barrier_of_clusters_that_some_warps_pass_orders_nothing() -> None:
    meet = "barrier.cluster.arrive;\nbarrier.cluster.wait;"
    right = replaced(text(LOAD, pair=True), "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    assert proof(right).complete
    early = replaced(right, "@!%p9 bra $allocated;\n", f"@!%p9 bra $allocated;\n{meet}\n")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(early))
    arrive, wait = meet.split("\n")
    others = [[f"@%p9 {arrive}", f"@%p9 {wait}"], [arrive, arrive], [wait, wait], [arrive], [wait, arrive]]
    others.append(["$again:", arrive, wait, "@%p9 bra $again;"])
    for other in map("\n".join, others):
        wrong = replaced(right, f"fence.proxy.async;\n{meet}", f"fence.proxy.async;\n{other}")
        assert ("unknown", LOADED, NOT_KNOWN) in said(proof(wrong))


def test_another_cta_may_write_the_word_at_any_time() -> None:
    right = text(
        f"mapa.shared::cluster.u32 %r3, {BUFFER}, 1;", "bar.sync 0;", f"st.shared.u32 [{BUFFER}+16], 5;", LOAD
    )
    right = replaced(right, "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    assert proof(right).complete
    wrong = replaced(right, f"st.shared.u32 [{BUFFER}+16]", "st.shared::cluster.u32 [%r3+16]")
    why = "st.shared::cluster.u32 may write over the address of an allocation"
    assert ("unknown", LOADED, why) in said(proof(wrong))
    late = f"bar.sync 0;\nst.shared.u32 [{BUFFER}+16], 5;"
    moved = replaced(right, f"bar.sync 0;\nst.shared.u32 [{BUFFER}+16], 5;\n{LOAD}", f"{LOAD}\n{late}")
    assert proof(moved).complete
    later = replaced(moved, late, f"{late}\nst.shared::cluster.u32 [%r3+16], 5;")
    assert ("unknown", LOADED, why) in said(proof(later))


def test_a_function_that_is_not_followed_may_write_the_word() -> None:
    called = replaced(text("call f;", LOAD), ".visible .entry", ".extern .func f;\n.visible .entry")
    why = "a function that is called, and not followed, may write over the address of an allocation"
    assert ("unknown", LOADED, why) in said(proof(called))


def test_a_violation_is_one_for_each_address_of_the_allocation() -> None:
    some = replaced(
        text(LOAD),
        f"add.u32 %r20, {TENSOR}, {LANE};",
        f"and.b32 %r20, {TENSOR}, 32;\nadd.u32 %r20, %r20, {LANE};",
    )
    ((verdict, instr, why),) = said(proof(some))
    assert (verdict, instr) == ("unknown", LOADED)
    assert why == (
        "perhaps columns -2 to -1 are outside its allocation, which has 64 columns, but that may not happen "
        "(thread (0, 0, 0), the address of tensor memory = 64)"
    )
    even = replaced(text(LOAD), f"{TENSOR}, {LANE};", f"{TENSOR}, {LANE};\nand.b32 %r20, %r20, ~32;")
    ((verdict, instr, why),) = said(proof(replaced(even, "+62", "")))
    assert (verdict, instr) == ("unknown", LOADED)
    assert why.endswith("(thread (0, 0, 0), the address of tensor memory = 32)")


DECIDED: Final = "ld.global.u32 %r50, [%rd90];\nsetp.eq.u32 %p7, %r50, 0;"


def test_a_use_that_may_come_after_columns_are_freed_is_no_violation() -> None:
    free = "bar.sync 0;\n@!{} bra $late;\n" + FREE + "\n$late:\nbar.sync 0;"
    use = f"@!%p7 bra $end;\n{LOAD}\n$end:"
    why = "it may come after tcgen05.dealloc has freed its columns"
    for lines in ((free.format("%p7"), LOAD), (free.format("%p9"), use)):
        early = (
            text(DECIDED, *lines).removesuffix("ret;\n}\n").rpartition("@!%p9 bra $freed;")[0] + "ret;\n}\n"
        )
        assert ("unknown", LOADED, why) in said(proof(early))
    late = replaced(text(DECIDED, use), "bar.sync 0;\n@!%p9 bra $freed;", "@!%p9 bra $freed;")
    assert ("unknown", LOADED, why) in said(proof(late))


def test_one_thread_may_compute_an_address_from_its_number() -> None:
    one = product(f"add.u32 %r50, {TENSOR}, {THREAD};", ONE.replace(TENSOR, "%r50"))
    assert proof(one).complete


@pytest.mark.parametrize(
    "right", [f"setp.eq.u32 %p7, {TENSOR}, 448;", f"and.b32 %r22, {TENSOR}, 32;\nsetp.eq.u32 %p7, %r22, 32;"]
)
def test_a_use_that_is_right_for_some_addresses_of_the_allocation_is_no_violation(right: str) -> None:
    moved = "selp.u32 %r21, 0, 64, %p7;\nadd.u32 %r20, %r20, %r21;"
    ((verdict, instr, why),) = said(proof(text(right, moved, LOAD)))
    assert (verdict, instr) == ("unknown", LOADED)
    assert why.startswith("perhaps columns 126 to 127 are outside its allocation")


def test_rows_begin_in_the_lanes_of_their_warp() -> None:
    later = f"setp.ge.u32 %p7, {THREAD}, 32;\n@%p7 add.u32 %r20, %r20, {8 << 16};"
    why = f"it begins at lane 40, and not at lane 32 or 48: thread (32, 0, 0), {BASE}"
    assert said(proof(text(later, STORE))) == [("violation", STORED, why)]


@pytest.mark.parametrize(("mine", "other", "columns"), [(TENSOR, "%r40", 64), ("%r40", TENSOR, 32)])
def test_the_address_of_another_allocation_may_decide_on_a_use(mine: str, other: str, columns: int) -> None:
    decided = f"setp.eq.u32 %p7, {other}, 64;\n@!%p7 bra $skip;"
    use = LOAD.replace("%r20+62", f"%r41+{columns - 1}")
    two = text(SECOND.format(32), f"add.u32 %r41, {mine}, {LANE};", decided, use, "$skip:")
    two = replaced(replaced(two, f"{PERMIT}\n", ""), FREE, FREE_SECOND.format(32))
    ((_, instr, why),) = said(proof(two))
    assert instr == LOADED
    wrong = f"columns {columns - 1} to {columns} are outside its allocation, which has {columns} columns"
    assert why.removeprefix("perhaps ").startswith(wrong)


def test_a_use_comes_after_the_allocation() -> None:
    whole = text(LOAD.replace("[%r20+62]", f"[{LANE}]"), columns=512)
    assert proof(whole).complete
    early = replaced(
        whole,
        "@!%p9 bra $allocated;",
        f"{LOAD.replace('[%r20+62]', f'[{LANE}]').replace('%r1', '%r11')}\n@!%p9 bra $allocated;",
    )
    why = "it may come before the allocation"
    assert said(proof(early)) == [("unknown", LOADED, why)]
    some = replaced(whole, f"{ALLOC} [", f"{DECIDED}\n@%p7 {ALLOC} [")
    assert ("unknown", LOADED, why) in said(proof(some))


def test_instructions_of_one_block_have_the_warps_of_their_guards() -> None:
    two = replaced(text(LOAD), EARLY, f"@%p9 {MINE}\n{ALLOC} [{BUFFER}+32], 32;")
    assert said(proof(two)) == [
        ("unknown", "@%p9", "an allocation of 32 columns may come before it"),
        ("unknown", ALLOC, "warps 0 to 3 execute it, and each allocates columns"),
    ]


def test_columns_are_freed_once() -> None:
    twice = replaced(text(LOAD), FREE, f"{FREE}\n{FREE}")
    assert said(proof(twice))[0] == ("unknown", ALLOC, "several instructions free its columns")


def test_an_allocation_is_made_once() -> None:
    again = replaced(text(LOAD), MINE, f"$again:\n{MINE}\n@%p9 bra $again;")
    why = "which warps execute it, and how often, is not known"
    assert said(proof(again))[0] == ("unknown", ALLOC, why)


@pytest.mark.parametrize("instr", [MINE, FREE])
@pytest.mark.parametrize("value", ["mov.u32 %r50, %ctaid.x;", "cvt.u32.u64 %r50, %rd90;"])
@pytest.mark.parametrize("branches", [False, True])
def test_only_some_ctas_may_execute_what_a_value_of_theirs_decides(
    instr: str, value: str, branches: bool
) -> None:
    decided = f"{value}\nsetp.eq.u32 %p7, %r50, 0;"
    guarded = f"@!%p7 bra $end;\n{instr}\n$end:" if branches else f"@%p7 {instr}"
    got = [why for _, _, why in said(proof(replaced(text(LOAD), instr, f"{decided}\n{guarded}")))]
    if instr == MINE:
        assert got == ["which warps execute it, and how often, is not known", NOT_KNOWN, NOT_KNOWN]
    else:
        assert got[0] == "its columns may not be freed, or more than once"


NOT_IN_TABLE: Final = "the instruction is not in the table"
NOT_FREED: Final = "a tcgen05.dealloc has an address that is not known"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (MINE, f"{MINE}\n{ALLOC} [{BUFFER}+32];"),
        (MINE, f"{MINE}\n{ALLOC} {BUFFER}, 64;"),
        (FREE, f"{DEALLOC} {TENSOR};"),
    ],
)
def test_allocations_without_their_operands_are_unknown(old: str, new: str) -> None:
    got = [v.reason for v in proof(replaced(text(LOAD), old, new)).tensor_memory if v.verdict != "proved"]
    assert got == [NOT_FREED, NOT_IN_TABLE, *[NOT_KNOWN] * 2 * (old == MINE)]


@pytest.mark.parametrize(("byte", "wrong"), [(15, False), (16, True), (19, True), (20, False)])
def test_each_byte_of_the_word_may_be_written_over(byte: int, wrong: bool) -> None:
    store = f"cvt.u16.u32 %rs1, {THREAD};\nst.shared.u8 [{BUFFER}+{byte}], %rs1;\n{MINE}"
    got = said(proof(replaced(text(LOAD), MINE, store)))
    assert (("unknown", LOADED, "st.shared.u8 may write over the address of an allocation") in got) == wrong


def test_a_load_of_another_word_may_come_before_that_of_the_address() -> None:
    load = f"ld.shared.u32 {TENSOR}, [{BUFFER}+16]"
    assert proof(replaced(text(LOAD), load, f"ld.shared.u32 %r50, [{BUFFER}+8];\n{load}")).complete


@pytest.mark.parametrize("operands", [f"{TENSOR}, {BUFFER}", TENSOR])
def test_a_load_without_an_address_loads_none_of_an_allocation(operands: str) -> None:
    wrong = replaced(text(LOAD), f"ld.shared.u32 {TENSOR}, [{BUFFER}+16]", f"ld.shared.u32 {operands}")
    assert ("unknown", LOADED, NOT_KNOWN) in said(proof(wrong))


@pytest.mark.parametrize("opcode", [ALLOC, DEALLOC])
def test_an_opcode_of_a_module_that_no_row_prints_is_unknown(opcode: str) -> None:
    module = parse(text(LOAD))
    (instr,) = (i for i in module.kernels[0].body if isinstance(i, Instr) and i.opcode == opcode)
    instr.opcode = opcode.replace(".sync.aligned", "")
    assert ("unknown", instr.opcode, NOT_IN_TABLE) in said(proof(module))


# ------------------------------------------------------------------------------ pairs


def test_pairs_are_two_ctas_of_a_cluster() -> None:
    pair = text(LOAD, pair=True)
    why = "the number of CTAs of its cluster is not known (.reqnctapercluster)"
    allocated, freed = (x.replace("cta_group::1", "cta_group::2") for x in (ALLOC, DEALLOC))
    assert said(proof(pair)) == [("unknown", allocated, why), ("unknown", freed, why)]
    for ctas in (2, 4):
        cluster = replaced(pair, "out)\n{", f"out)\n.reqnctapercluster {ctas}, 1, 1\n{{")
        assert proof(cluster).complete
    three = replaced(pair, "out)\n{", "out)\n.reqnctapercluster 3, 1, 1\n{")
    odd = "a pair has two CTAs of one cluster, and the cluster has 3"
    assert said(proof(three)) == [("violation", allocated, odd), ("violation", freed, odd)]


def test_products_of_one_cta_use_no_allocation_of_a_pair() -> None:
    pair = product(f"{MMA} [{TENSOR}], %rd1, %rd2, %r5, %p1;").replace(
        "cta_group::1.sync", "cta_group::2.sync"
    )
    pair = replaced(pair, "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    why = "it is for cta_group::1, its allocation for another group"
    assert ("unknown", MMA, why) in said(proof(pair))


def test_a_commit_is_multicast_to_ctas_of_the_cluster() -> None:
    line = by_one_thread([commit(mask=3)])
    two = replaced(text(line), "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    assert proof(two).complete
    instr = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    assert said(proof(replaced(two, "mov.u16 %rs1, 3;", "mov.u16 %rs1, 6;"))) == [
        ("violation", instr, "it multicasts to the CTAs of mask 0x0006 in a cluster of 2")
    ]
    loaded = replaced(two, "mov.u16 %rs1, 3;", "ld.global.u16 %rs1, [%rd90];")
    assert said(proof(loaded)) == [("unknown", instr, "the CTAs of its mask are not known")]
    why = "the number of CTAs of its cluster is not known (.reqnctapercluster)"
    assert ("unknown", instr, why) in said(proof(text(line)))


# ------------------------------------------------------------------------------ shared memory


def test_a_commit_arrives_at_an_mbarrier_in_shared_memory() -> None:
    right = text(by_one_thread([commit()]))
    assert proof(right).complete
    instr = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
    wrong = replaced(right, f"{instr} [{MBARRIER}]", f"{instr} [{MBARRIER}+4]")
    why = "byte 4 of buf is not a multiple of 8 bytes: thread (0, 0, 0)"
    assert said(proof(wrong))[0] == ("violation", instr, why)


ONE: Final = f"{MMA} [{TENSOR}], %rd1, %rd2, %r5, %p1;"
DESCRIPTORS: Final = (
    (
        "%rd1, %rd1, 0x4000404000010000",
        "%rd1, %rd1, 0x4000408000010000",
        f"matrix A: bytes 1024 to 32767 are outside buf, which has 25600 bytes: {THERE}",
    ),
    (
        "%r91, 17408;",
        "%r91, 18432;",
        f"matrix B: bytes 18432 to 26623 are outside buf, which has 25600 bytes: {THERE}",
    ),
    (
        "%rd2, %rd2, 0x4000404000010000",
        "%rd2, %rd2, 0x4000004000010000",
        f"matrix B: bits 46 to 48 of its descriptor are 000, not 001: {THERE}",
    ),
    (
        "%rd2, %rd2, 0x4000404000010000",
        "%rd2, %rd2, 0x6000404000010000",
        f"matrix B: its descriptor has the swizzle 3, and there are 0, 1, 2, 4 and 6: {THERE}",
    ),
)


@pytest.mark.parametrize(("old", "new", "why"), DESCRIPTORS)
def test_matrices_behind_descriptors_lie_in_shared_memory(old: str, new: str, why: str) -> None:
    right = product(ONE)
    assert proof(right).complete, proof(right).report()
    assert said(proof(replaced(right, old, new))) == [("violation", MMA, why)]


def test_transposed_matrices_have_the_swizzle_of_their_type() -> None:
    right = product(ONE, idesc=F16 | 1 << 16)
    assert proof(right).complete, proof(right).report()
    wrong = replaced(right, "%rd2, %rd2, 0x4000404000010000", "%rd2, %rd2, 0x2000404000010000")
    why = "its descriptor has the swizzle 1, and of M- or N-major matrices tf32 has 1, all others another"
    assert said(proof(wrong)) == [("violation", MMA, f"matrix B: {why}: {THERE}")]


def test_an_absolute_leading_offset_is_not_followed() -> None:
    absolute = replaced(product(ONE), "%rd2, %rd2, 0x4000404000010000", "%rd2, %rd2, 0x4010404000010000")
    why = "matrix B: its descriptor has an address in place of the leading dimension's offset"
    assert said(proof(absolute)) == [("unknown", MMA, why)]


def test_descriptors_in_clusters_leave_out_the_rank_of_an_address() -> None:
    cluster = replaced(product(ONE), "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    why = "the matrix that its descriptor names depends on the variable's address"
    assert proof(cluster).complete
    unmasked = cluster.replace("and.b32 %r3, %r3, 0x3fff;\n", "")
    assert said(proof(unmasked)) == [("unknown", MMA, f"matrix {x}: {why}") for x in "AB"]


def test_the_matrix_of_a_copy_lies_in_shared_memory() -> None:
    instr = "tcgen05.cp.cta_group::1.32x128b.warpx4"
    right = product(f"{instr} [{TENSOR}], %rd1;", nbytes=512 + 16384, sbo=128)
    right = right.replace("0x4000400800010000", "0x400800010000")
    assert proof(right).complete, proof(right).report()
    wrong = replaced(right, "%r91, 1024;", "%r91, 17424;")
    why = "bytes 17424 to 17935 are outside buf, which has 17920 bytes: thread (0, 0, 0), %r2 = 16384"
    assert said(proof(wrong)) == [("violation", instr, f"its matrix: {why}")]


def test_a_product_is_one_of_the_table() -> None:
    wrong = product(ONE, idesc=instruction(96, 64, "f16"))
    lost = [("unknown", MMA, f"matrix {x}: the shape of its product is not known") for x in "AB"]
    why = f"{MMA}: expected M 64 or 128 in the shape of the instruction descriptor 0x06100010, got 96"
    assert said(proof(wrong)) == [*lost, ("violation", MMA, why)]
    unfollowed = product(ONE, idesc=F16 | 1 << 2)
    assert said(proof(unfollowed))[-1] == (
        "unknown",
        MMA,
        "products with a sparse A, or with K of 96, are not followed",
    )
    loaded = replaced(product(ONE), f"mov.u32 %r5, {F16:#x};", "ld.global.u32 %r5, [%rd90];")
    assert said(proof(loaded))[-1] == ("unknown", MMA, "its instruction descriptor is not known")
    chosen = replaced(
        product(ONE), f"mov.u32 %r5, {F16:#x};", f"mov.u32 %r5, {F16:#x};\n@%p9 or.b32 %r5, %r5, 0x2000;"
    )
    assert proof(chosen).complete  # a product with A negated has the same shape


def test_scale_factors_fit_in_a_column() -> None:
    line = (
        f"{MX.replace('block32', 'block16')} [{TENSOR}], %rd1, %rd2, %r5, [{TENSOR}+60], [{TENSOR}+62], %p1;"
    )
    assert proof(product(line, idesc=E2M1)).complete
    wrong = product(line, idesc=E2M1 | 2 << 29)
    why = f"4 factors of a row do not fit in a column of 4 bytes from byte 2 on: {FILLED}"
    assert said(proof(wrong)) == [("violation", MX.replace("block32", "block16"), why)]


def test_each_cta_of_a_pair_has_the_scale_factors_of_its_rows() -> None:
    line = f"{MX} [{TENSOR}], %rd1, %rd2, %r5, [{TENSOR}+60], [{TENSOR}+62], %p1;"
    two = product(line, idesc=E2M1 + (1 << 27)).replace("cta_group::1", "cta_group::2")
    two = replaced(two, "out)\n{", "out)\n.reqnctapercluster 2, 1, 1\n{")
    assert said(proof(two)) == []
    wrong = said(proof(replaced(two, "+60]", "+61]")))
    assert [why.partition(":")[0] for _, _, why in wrong] == ["scale factors of A"]


def test_an_unmodelled_form_is_unknown() -> None:
    shifted = text(by_one_thread([f"tcgen05.shift.cta_group::1.down [{TENSOR}];"]))
    instr = "tcgen05.shift.cta_group::1.down"
    assert said(proof(shifted)) == [
        ("unknown", instr, "rows of tensor memory that move down are not modelled")
    ]


def test_global_memory_is_not_that_of_tensor_memory() -> None:
    result = prove(
        product(ONE, nbytes=0).replace("[1024]", "[32768]"),
        block=128,
        contract=GlobalContract((), (), {}, (1, 1, 1)),
    )
    assert result.global_memory is not None
    assert not result.global_memory.accesses


def test_generic_stores_before_a_product_need_a_fence() -> None:
    right = product(ONE)
    assert not proof(right).unfenced
    (problem,) = proof(replaced(right, "fence.proxy.async;", "")).unfenced
    assert problem.message.startswith("no fence.proxy.async is between")


@pytest.mark.parametrize("kind", ["f16", "tf32", "e4m3"])
def test_the_interpreter_reads_the_units_that_the_proof_expects(kind: str) -> None:
    rng, size = random.Random(kind), SIZES.get(kind, 1)
    for _ in range(100):
        transposed = rng.random() < 0.5
        swizzles = ((1,) if kind == "tf32" else (0, 2, 4, 6)) if transposed else (0, 1, 2, 4, 6)
        bits = rng.choice(swizzles) << 61 | rng.randrange(8) << 49 | 1 << 46
        bits |= rng.randrange(1 << 10) << 32 | rng.randrange(1 << 10) << 16 | rng.randrange(1 << 14)
        rows = rng.choice((16, 64, 128, 256))
        matrix = Matrix("A", rows, transposed, size=size, tensor=True)
        of = shared_matrix(bits)
        words = of.words_along_rows(rows, kind) if transposed else of.words(rows)
        got = units_of((bits & 0x3FFF) * UNIT, fields_of(bits, matrix), matrix)
        assert np.array_equal(np.unique(got), np.unique(words // UNIT * UNIT))


# ------------------------------------------------------------------------------ kernels of the DSL


def complete(k: KernelBuilder, *arrays: Any) -> None:
    boxes, module = k.tma.boxes(), k.build()
    names = [p.name for p in module.kernels[0].params if p.name in boxes]
    maps = {name: boxes[name].of(array) for name, array in zip(names, arrays, strict=True)}
    result = prove_shared(module, block=k.threads, params=maps)
    assert result.complete, result.report()
    assert result.tensor_memory
    assert not result.unfenced


@pytest.mark.parametrize(
    ("dtype", "sizes", "turned", "swizzles"),
    [
        (f16, (64, 128), (False, True), ("128B", "128B")),
        (bf16, (128, 96), (True, True), ("128B", "64B")),
        (f16, (256, 8), (False, True), ("64B", "32B")),
        (f32, (64, 64), (False, True), ("128B", "64B")),
        ("e4m3", (32, 16), (True, True), ("128B", "32B")),
    ],
)
def test_products_of_the_dsl_are_proved(dtype: Any, sizes: Any, turned: Any, swizzles: Any) -> None:
    inner, columns = sizes
    a, b = products_of.integers((128, inner), dtype, 0), products_of.integers((inner, columns), dtype, 1)
    left, right = (np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True))
    if isinstance(dtype, str):
        left, right = left.view(np.uint8), right.view(np.uint8)
    c = np.zeros((128, columns), np.float32)
    complete(products_of.product(dtype, sizes, turned, swizzles), left, right, c)


def test_rings_in_tensor_memory_of_the_dsl_are_proved() -> None:
    a, b, c, _ = products_of.of_persistent()
    complete(products_of.persistent(), a, b, c)
    q, key, v = (products_of.integers(shape, f16, 0) for shape in ((128, 64), (64, 64), (64, 32)))
    complete(products_of.chained(), q, key, v, np.zeros((128, 32), np.float32))


@pytest.mark.parametrize("columns", [128, 256])
def test_pairs_of_the_dsl_are_proved(columns: int) -> None:
    complete(products_of.paired(columns), *products_of.of_pair(columns))


@pytest.mark.parametrize(
    ("form", "columns", "pair"), [("nvf4", 192, False), ("mxf8", 128, False), ("nvf4", 256, True)]
)
def test_products_with_scale_factors_of_the_dsl_are_proved(form: str, columns: int, pair: bool) -> None:
    rows, depth = 128 * (1 + pair), 256 if form == "mxf8" else 512
    a, of_a, _ = products_of.quantised(form, "e4m3", rows, depth, 0)
    b, of_b, _ = products_of.quantised(form, "e5m2", columns, depth, 1)
    c = np.zeros((rows, columns), np.float32)
    complete(products_of.scaled(form, columns, pair), a, b, c, of_a, of_b)

"""`st.bulk`: zeros in shared memory, on the interpreter, in the sanitizers, the proofs and the assembler."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import ptx
from interpreter.reported import messages, trap

from ptxgen.check.prove import prove_global, prove_shared
from ptxgen.check.prove.contract import GlobalArray, GlobalContract
from ptxgen.check.verify import verify
from ptxgen.kernels.access_modes import uses_of
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

THREADS = 8
# Each thread fills its 32 bytes of `buf` with ones, writes zeros by a form of st.bulk, and copies the bytes.
BEFORE = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 5;
    mov.u32 %r2, buf;
    add.u32 %r2, %r2, %r1;
    cvt.u64.u32 %rd1, %r2;
    cvta.shared.u64 %rd2, %rd1;
    shl.b32 %r3, %r0, 3;
    and.b32 %r3, %r3, 24;
    cvt.u64.u32 %rd3, %r3;
    setp.ge.u32 %p1, %r0, 2;
"""
FILL = "    st.shared.v4.b32 [%r2], {-1, -1, -1, -1};\n    st.shared.v4.b32 [%r2+16], {-1, -1, -1, -1};\n"
AFTER = """
    cvt.u64.u32 %rd4, %r1;
    add.u64 %rd0, %rd0, %rd4;
    ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];
    st.global.v4.b32 [%rd0], {%r4, %r5, %r6, %r7};
    ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2+16];
    st.global.v4.b32 [%rd0+16], {%r4, %r5, %r6, %r7};
"""


def kernel(body: str, *, fill: str = FILL, after: str = AFTER) -> str:
    return ptx(f"{BEFORE}{fill}    {body}\n{after}", "u64 out", shared=32 * THREADS, target="sm_100")


def zeroed(sizes: list[int], start: int = 0) -> np.ndarray:
    wanted = np.full((THREADS, 32), 0xFF, np.uint8)
    for row, size in zip(wanted, sizes, strict=True):
        row[start : start + size] = 0
    return wanted


FORMS = {
    "st.bulk.weak.shared::cta [%r2], %rd3, 0;": zeroed([0, 8, 16, 24] * 2),
    "st.bulk.shared::cta [%r2+8], %rd3, 0;": zeroed([0, 8, 16, 24] * 2, 8),
    "st.bulk [%rd2], %rd3, 0;": zeroed([0, 8, 16, 24] * 2),
    "st.bulk.weak [%rd2+16], 16, 0;": zeroed([16] * 8, 16),
    "@%p1 st.bulk.shared::cta [%rd1], %rd3, 0;": zeroed([0, 0, 16, 24, 0, 8, 16, 24]),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_thread_writes_as_many_zeros_as_it_says(form: str) -> None:
    out = np.zeros((THREADS, 32), np.uint8)
    text = kernel(form)
    module = parse(text)
    assert parse(render(module)) == module
    assert verify(module) == ()
    run_both_ways(text, args=[out], grid=1, block=THREADS)
    np.testing.assert_array_equal(out, FORMS[form])


@pytest.mark.ptxas
def test_the_assembler_takes_every_form(assembler: Assembler) -> None:
    for form in FORMS:
        assembler.assemble(kernel(form), "sm_100")


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (
            "st.bulk.shared::cta [%r2], 12, 0;",
            "wants to write 12 bytes of shared memory at 0x0 (buf), a size that is not a multiple of 8",
        ),
        (
            "st.bulk.shared::cta [%r2+4], 8, 0;",
            "wants to write 8 bytes of shared memory at 0x4 (buf), which is not a multiple of 8",
        ),
        (
            "st.bulk.shared::cta [%r2], 264, 0;",
            "wants to write 8 bytes of shared memory at 0x100, outside its 256 bytes",
        ),
        (
            "st.bulk.shared::cta [%r2], -8, 0;",
            "wants to write 8 bytes of shared memory at 0x100, outside its 256 bytes",
        ),
        ("st.bulk [%rd0], 8, 0;", "which is not in shared memory"),
    ],
)
def test_what_the_manual_leaves_undefined_ends_the_run(form: str, why: str) -> None:
    assert trap(kernel(form), [np.zeros((THREADS, 32), np.uint8)], block=1).endswith(why)


def test_zeros_count_as_written_and_as_an_access() -> None:
    out = [np.zeros((THREADS, 32), np.uint8)]
    whole = kernel("st.bulk.shared::cta [%r2], 32, 0;", fill="")
    assert messages(whole, out, block=THREADS) == []
    half = messages(kernel("st.bulk.shared::cta [%r2], 16, 0;", fill=""), out, block=THREADS)
    assert len(half) == 1
    assert "depends on shared address 0x10 (buf), which nothing has written" in half[0], half[0]
    # The bytes of the next thread, too, without a barrier. One warp runs in lockstep, but PTX does not.
    racy = messages(kernel("@!%p1 st.bulk.shared::cta [buf], 256, 0;"), out, block=THREADS)
    assert racy
    assert all("race: " in message for message in racy)


@pytest.mark.parametrize(
    ("form", "verdict"),
    [
        ("st.bulk.shared::cta [%r2], 32, 0;", "proved"),
        ("st.bulk [%rd2], 32, 0;", "proved"),
        ("st.bulk.shared::cta [%r2], %rd3, 0;", "proved"),
        ("st.bulk.shared::cta [%r2], 40, 0;", "violation"),
        ("st.bulk.shared::cta [%r2+4], 8, 0;", "violation"),
        ("st.bulk.shared::cta [%r2], %rd0, 0;", "unknown"),
    ],
)
def test_the_proof_of_shared_memory_has_all_bytes(form: str, verdict: str) -> None:
    (found,) = [a for a in prove_shared(kernel(form), block=THREADS).accesses if "st.bulk" in a.instr]
    assert found.verdict == verdict, found.reason


def test_it_writes_no_array_of_the_caller() -> None:
    (body,) = parse(kernel("st.bulk [%rd2], 32, 0;", after="")).kernels
    assert uses_of(body, ["out"]).written == frozenset()


def test_it_is_no_access_to_global_memory() -> None:
    contract = GlobalContract((GlobalArray("out", (), 32 * THREADS, 32),), (), {}, (1, 1, 1))
    proof = prove_global(kernel("st.bulk [%rd2], 32, 0;", after=""), block=THREADS, contract=contract)
    assert proof.accesses == ()

"""Loads by threads that do not use the value, as Triton's of elements that several threads load."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import ptx
from interpreter.reported import kinds

# 16 elements for 128 threads, as Triton 3.9 emits `v = load(x); store(x, 2 * v)`.
IN_PLACE = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 15;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd0, %rd1;
    mov.u32 %r2, 0x0;
    LOAD
    COMPUTE
    and.b32 %r5, %r0, 112;
    setp.eq.b32 %p1, %r5, 0;
    STORE
"""
LOAD, COMPUTE = "ld.global.b32 %r2, [%rd1];", "add.u32 %r3, %r2, %r2;"
STORE = "@%p1 st.global.b32 [%rd1], %r3;"


MASKED = "setp.gt.s32 %p2, %r2, -1; and.pred %p3, %p1, %p2; @%p3 st.global.b32 [%rd1], %r3;"
SUM_OF_16 = "\n".join(
    ["mov.u32 %r3, %r2;"]
    + [f"shfl.sync.bfly.b32 %r6, %r3, {n}, 31, -1;\n add.u32 %r3, %r3, %r6;" for n in (8, 4, 2, 1)]
)
SUM_OF_32 = "shfl.sync.bfly.b32 %r6, %r2, 16, 31, -1;\n add.u32 %r3, %r2, %r6;"
NONE = "setp.lt.u32 %p2, %r1, 99; @%p2 bra $on;\n    mov.u32 %r9, 0;\n$on:"


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(
    ("load", "compute", "store", "raced"),
    [
        (LOAD, COMPUTE, STORE, False),
        (LOAD, COMPUTE + NONE, STORE, False),
        (LOAD, SUM_OF_16, STORE, False),
        (LOAD, COMPUTE, "not.pred %p4, %p1;\n    @!%p4 st.global.b32 [%rd1], %r3;", False),
        # A value that nobody uses: who writes so by hand means the load.
        (LOAD, "mov.u32 %r3, %r1;", STORE, True),
        # Every thread stores what it has computed of the value that it has found.
        (LOAD, COMPUTE, "st.global.b32 [%rd1], %r3;", True),
        (LOAD, COMPUTE, "setp.ne.b32 %p1, %r5, 0;" + STORE, True),
        # The value decides whether a thread stores, or is used elsewhere: stored, or by a branch.
        (LOAD, COMPUTE, MASKED, False),
        (LOAD, COMPUTE, MASKED.replace("and.pred", "or.pred"), True),
        (LOAD, COMPUTE + "mul.wide.u32 %rd3, %r0, 4; add.u64 %rd3, %rd3, %rd0;", STORE, False),
        (LOAD, COMPUTE + "st.shared.u32 [buf], %r3;", STORE, True),
        (LOAD, COMPUTE + "setp.eq.u32 %p5, %r2, 77; @%p5 trap;", STORE, True),
        # The lanes that store have received what other lanes of their warp have loaded, or have not.
        (LOAD, SUM_OF_32, STORE, False),
        (LOAD, "shfl.sync.idx.b32 %r3, %r2, 31, 31, -1;", STORE, False),
        (LOAD, "shfl.sync.down.b32 %r3, %r2, 1, 31, -1;", STORE, True),
    ],
)
def test_a_load_of_a_thread_that_does_not_use_the_value_races_with_nothing(
    load: str, compute: str, store: str, raced: bool, seed: int | None
) -> None:
    body = IN_PLACE.replace("LOAD", load).replace("COMPUTE", compute).replace("STORE", store)
    how = {"block": 128, "seed": seed, "sanitize": "race,init"}
    assert kinds(ptx(body, shared=512), [np.arange(64, dtype=np.uint32)], **how) == ["race"] * raced

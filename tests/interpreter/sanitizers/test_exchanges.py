"""Stores of what a warp has computed together, over what its lanes have loaded."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import ptx
from interpreter.reported import reports

# Each lane loads a word, and stores it elsewhere in the end; the exchange computes %r4, which another lane
# stores over the word.
BODY = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, {base};
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd1, %rd1, %rd0;
    mad.lo.u32 %r2, %r0, 4, %r1;
    st.shared.u32 [%r2], %r0;
    bar.sync 0;
    ld.{space}.u32 %r3, [{at}];
    mov.u32 %r30, %r3;
    EXCHANGE
    STORE
    st.global.u32 [%rd1+128], %r30;
"""
BUTTERFLY = "\n".join(
    f"    shfl.sync.bfly.b32 %r5, %r4, {n}, 31, -1;\n    add.u32 %r4, %r4, %r5;" for n in (16, 8, 4, 2, 1)
)


def kinds_of(exchange: str, store: str, space: str, seed: int | None = None) -> list[str]:
    at, first = ("%r2", "buf") if space == "shared" else ("%rd1", "%rd0")
    body = BODY.format(base="buf", space=space, at=at).replace("EXCHANGE", exchange)
    body = body.replace("STORE", store.format(space=space, first=first, at=at))
    x = np.arange(64, dtype=np.uint32)
    return [r.kind for r in reports(ptx(body, "u64 x", shared=128), [x], seed=seed, sanitize="race")]


ALL_STORE = "st.{space}.u32 [{first}], %r4;"
LAST_STORES = "setp.eq.u32 %p1, %r0, 31;\n    @%p1 st.{space}.u32 [{first}], %r4;"


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize(
    ("exchange", "store", "raced"),
    [
        ("mov.u32 %r4, %r3;" + BUTTERFLY, ALL_STORE, False),
        ("mov.u32 %r4, %r3;" + BUTTERFLY, LAST_STORES, False),
        ("mov.u32 %r4, %r0;" + BUTTERFLY, ALL_STORE, True),  # a sum of something else
        ("mov.u32 %r4, %r0;" + BUTTERFLY, LAST_STORES, True),
        ("shfl.sync.idx.b32 %r4, %r3, 0, 31, -1;", LAST_STORES, False),
        ("shfl.sync.idx.b32 %r4, %r3, 1, 31, -1;", LAST_STORES, True),  # of another lane
        ("shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", LAST_STORES, True),
        ("redux.sync.add.s32 %r4, %r3, -1;", LAST_STORES, False),
        ("redux.sync.add.s32 %r4, %r0, -1;", LAST_STORES, True),
        ("setp.gt.u32 %p2, %r3, 100; vote.sync.ballot.b32 %r4, %p2, -1;", LAST_STORES, False),
        ("setp.gt.u32 %p2, %r0, 100; vote.sync.ballot.b32 %r4, %p2, -1;", LAST_STORES, True),
        ("match.any.sync.b32 %r4, %r3, -1;", LAST_STORES, False),
        # The lane's index, the address or a guard depends on it.
        (
            "shfl.sync.idx.b32 %r6, %r3, 0, 31, -1; add.u32 %r6, %r6, 31; setp.eq.u32 %p1, %r0, %r6;",
            "@%p1 st.{space}.u32 [{first}], %r0;",
            False,
        ),
        (
            "shfl.sync.idx.b32 %r6, %r3, 0, 31, -1; add.u32 %r6, %r6, 31; setp.ne.u32 %p1, %r0, %r6;",
            "@%p1 bra $end;\n    st.{space}.u32 [{first}], %r0;\n$end:",
            False,
        ),
        (
            "shfl.sync.idx.b32 %r6, %r3, 0, 31, -1; setp.eq.u32 %p1, %r0, %r6; setp.eq.u32 %p2, %r0, 31;",
            "@%p1 bra $end;\n    mov.u32 %r7, 1;\n$end:\n    @%p2 st.{space}.u32 [{first}], %r0;",
            True,  # what both ways lead to
        ),
        # The word is loaded once more, and that load has nothing to do with the sum.
        ("mov.u32 %r4, %r3;" + BUTTERFLY + "\n    ld.{space}.u32 %r30, [{at}];", LAST_STORES, True),
        # Loaded again behind the exchange, with the sum stored by all.
        ("mov.u32 %r4, %r3;\n    bar.warp.sync -1;\n    ld.{space}.u32 %r30, [{at}];", LAST_STORES, True),
    ],
)
def test_a_store_that_depends_on_what_another_lane_has_loaded_comes_after_the_load(
    exchange: str, store: str, raced: bool, space: str
) -> None:
    at, first = ("%r2", "buf") if space == "shared" else ("%rd1", "%rd0")
    exchange = exchange.replace("{space}", space).replace("{at}", at).replace("{first}", first)
    for seed in (None, 1):
        assert kinds_of(exchange, store, space, seed) == ["race"] * raced


def test_a_lane_outside_of_the_mask_has_told_nobody_what_it_has_loaded() -> None:
    exchange = """
    mov.u32 %r4, 0;
    setp.lt.u32 %p3, %r0, 1;
    @%p3 bra $apart;
    redux.sync.add.s32 %r4, %r3, 0xfffffffe;
$apart:
    """
    assert kinds_of(exchange, LAST_STORES, "shared") == ["race"]
    exchange = exchange.replace("@%p3 bra $apart;", "").replace("0xfffffffe", "-1")
    assert kinds_of(exchange, LAST_STORES, "shared") == []

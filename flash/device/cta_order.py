"""In which order the CTAs of a causal kernel take their parts of the problem: the blocks of query
rows that see the most keys first, so that the last CTAs to begin are short and all multiprocessors
end together; but only of a section of the heads at a time, so that the K and V of these stay in the
cache (the order of FlashAttention-3's scheduler). `tools/cta_order.py` models what it is worth.
"""

from __future__ import annotations

from typing import Final

from ptxgen.dsl import KernelBuilder, Value

# Of an A100 (NVIDIA A100 Tensor Core GPU Architecture): where no device says how much it has.
USUAL_CACHE_BYTES: Final = 40 << 20


def last_first(
    k: KernelBuilder, nth: Value, blocks: Value, ctas: Value, section: Value
) -> tuple[Value, Value]:
    """The head, of all batches, and the block of rows that the CTA `nth` of all `ctas` computes,
    of heads that have `blocks` each; `section` is how many heads take turns, at least 1. Taken as
    u32, which is divided in fewer instructions, and returned as s32.

    The last section has the heads that are left. Whatever `section` is, each CTA has its own part.
    """
    heads = ctas // blocks
    width = k.min(section, heads)
    head = nth // blocks  # head by head, to begin with
    in_section = head % width
    before = head - in_section  # heads of earlier sections
    nth = nth - head * blocks + in_section * blocks  # in the section
    width = k.min(width, heads - before)
    turn = nth // width
    head = before + (nth - turn * width)
    # Never negative: the maximum says so where the proof would have to find it out again and again.
    return k.signed(head), k.max(k.signed(blocks) - 1 - k.signed(turn), 0)


def heads_per_section(heads: int, group: int, nbytes: int, cache_bytes: int) -> int:
    """The rule for `section`: of the `heads` of all batches, of which `group` share a head of K and
    V of `nbytes`, as many as have these in three quarters of the cache, where Q and O pass through
    the rest; but fewer if else the last section would be so small that multiprocessors are left
    without work.
    """
    shared = heads // group
    fit = min(max(cache_bytes * 3 // 4 // max(nbytes, 1), 1), shared)
    widths = (n for n in range(fit, 0, -1) if 4 * (shared % n or n) >= 3 * n)
    return next(widths, 1) * group

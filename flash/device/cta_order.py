"""The order in which the CTAs of a causal kernel take their parts of the problem. Query blocks that
see the most keys come first, so that the last CTAs to begin are short and all multiprocessors end
together; but only within one section of the heads at a time, so that the K and V of the section
stay in the L2 cache (the order of FlashAttention-3's scheduler). `tools/cta_order.py` models the
gain.
"""

from __future__ import annotations

from typing import Final

from ptxgen.dsl import KernelBuilder, Value, marked

# L2 cache of an A100 (NVIDIA A100 Tensor Core GPU Architecture), used if no device gives its own.
USUAL_CACHE_BYTES: Final = 40 << 20


@marked("cta order: last first")
def last_first(
    k: KernelBuilder, nth: Value, blocks: Value, ctas: Value, section: Value
) -> tuple[Value, Value]:
    """The head, of all batches, and the query block that CTA `nth` of `ctas` computes, where each head has
    `blocks` query blocks. `section`, at least 1, is the number of heads whose blocks are interleaved.
    Arguments are u32, which are divided in fewer instructions; results are s32.

    The last section has the remaining heads. Whatever `section` is, no two CTAs get the same block.
    """
    heads = ctas // blocks
    width = k.min(section, heads)
    head = nth // blocks  # in the order head by head
    in_section = head % width
    before = head - in_section  # heads of earlier sections
    nth = nth - head * blocks + in_section * blocks  # index in the section
    width = k.min(width, heads - before)
    round_index = nth // width
    head = before + (nth - round_index * width)
    # The block is never negative: the maximum states it, so that the proof need not derive it.
    return k.signed(head), k.max(k.signed(blocks) - 1 - k.signed(round_index), 0)


def heads_per_section(heads: int, group: int, nbytes: int, cache_bytes: int) -> int:
    """The number of heads in a `section` of `last_first`. `heads` counts the heads of all batches; `group` of
    them share a head of K and V, whose K and V take `nbytes`. A section has as many heads as have their K and
    V in three quarters of the cache, while Q and O pass through the rest; but fewer if otherwise the last
    section would be less than three quarters full, which leaves multiprocessors without work.
    """
    shared = heads // group
    fit = min(max(cache_bytes * 3 // 4 // max(nbytes, 1), 1), shared)
    widths = (n for n in range(fit, 0, -1) if 4 * (shared % n or n) >= 3 * n)
    return next(widths, 1) * group

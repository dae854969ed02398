"""The largest sizes, such as numbers of queries and heads, that a call may have."""

from __future__ import annotations

from typing import Final

from flash.families.simt import BLOCKS_Q, TILES
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.problem.features import Features
from flash.scores.window import Window
from ptxgen.target import MAX_GRID

INT32_MAX: Final = 2**31 - 1  # the limit of counts of pages, lengths and sequences
# A kernel numbers rows and keys in s32, up to the end of the last, partly empty, block or tile.
MAX_SEQ: Final = 2**31 - 2 * max(*BLOCKS_Q, *TILES)
MAX_CTAS: Final = MAX_GRID[0]


def max_seq(features: Features) -> int:
    """The most queries, and keys, of a head; with varlen, of all sequences together."""
    narrow = features.has(Window) or features.has_functions or features.varlen or features.cached
    return MAX_WINDOWED_SEQ if narrow else MAX_SEQ

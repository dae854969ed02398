"""The memory that the launches of a call pass on, in one piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from flash.decode.plan import CacheCall, Parts, Workspace
from flash.launch.workspace import piece
from flash.operands.dtypes import F32, DType
from flash.problem.config import ALIGNMENTS
from ptxgen.arrays.views import ArrayView

_ALIGNED: Final = ALIGNMENTS[0]  # bytes, the alignment of an array in the workspace


def workspace_of(call: CacheCall, splits: int, turns: bool, room: Callable[[int], ArrayView]) -> Workspace:
    """Memory of a call: rotated queries if `turns`, then O and LSE of the splits if several."""
    batch, heads, seq_q, _ = call.q.shape
    element = call.config.element
    of_parts = (batch, heads, seq_q, splits, call.config.value_dim)
    wanted: list[tuple[tuple[int, ...], DType]] = [(call.q.shape, element)] if turns else []
    wanted += [(of_parts, F32), (of_parts[:-1], F32)] if splits > 1 else []
    if not wanted:
        return Workspace()
    sizes = [-(-math.prod(shape) * dtype.nbytes // _ALIGNED) * _ALIGNED for shape, dtype in wanted]
    whole = room(sum(sizes) // F32.nbytes)
    found = [piece(whole, sum(sizes[:n]), shape, dtype) for n, (shape, dtype) in enumerate(wanted)]
    queries = found.pop(0) if turns else None
    return Workspace(Parts(*found) if found else None, queries)

"""Block masks: which blocks of queries and keys a mask_mod shows at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.mods.captured import with_captured
from flash.mods.evaluate import Evaluation
from flash.mods.record import MASK_MOD, naming, traced
from flash.mods.trace import AUX, AuxArray, Trace
from flash.operands.dtypes import AUX_DTYPES
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, shown

BLOCK: Final = 128  # queries, and keys, of a block
_MOST: Final = 2**30


def visible_blocks(
    mask_mod: Callable[..., Any] | Trace,
    shape: Sequence[int],
    *,
    aux: Mapping[str, NDArray[Any]] | None = None,
    block: Sequence[int] = (BLOCK, BLOCK),
) -> NDArray[np.bool_]:
    """Whether some query of a block sees a key of a block: bool [batch, heads, ceil(seq_q / block[0]),
    ceil(seq_k / block[1])] for `shape` [batch, heads, seq_q, seq_k]. Use 1 for an axis on which the
    function does not depend, and index that by 0. `aux` are numpy arrays; the function may also close over
    them, or over tensors on the CPU. Memory is O(seq_k * block[0]).

    Raises `ConfigError` for a shape or blocks that are not positive integers, and what `mask_mod`
    raises in an `AttentionConfig`.
    """
    sizes = [integer(n, 1, _MOST) for n in (*shape, *block)]
    if len(shape) != 4 or len(block) != 2 or None in sizes:
        raise ConfigError(
            "visible_blocks: shape must be (batch, heads, seq_q, seq_k) and block (queries, keys), "
            f"positive integers, got {shown(shape)} and {shown(block)}"
        )
    with naming("visible_blocks"):
        arguments = with_captured({MASK_MOD: mask_mod, AUX: aux}, _declared(aux or {}))
        arrays = {name: np.asarray(array) for name, array in (arguments[AUX] or {}).items()}
        trace = traced(MASK_MOD, arguments[MASK_MOD], _declared(arrays))
    batch, heads, seq_q, seq_k = shape
    rows, columns = block
    visible = np.zeros((batch, heads, -(-seq_q // rows), -(-seq_k // columns)), bool)
    firsts = np.arange(0, seq_k, columns)
    for b, h, nth in np.ndindex(visible.shape[:3]):
        inputs = {
            "batch": np.array(b),
            "head": np.array(h),
            "query": np.arange(nth * rows, min((nth + 1) * rows, seq_q))[:, None],
            "key": np.arange(seq_k),
        }
        seen = Evaluation(trace, inputs, arrays, np.dtype(np.float32)).result
        of_keys = np.broadcast_to(seen.any(axis=0) if seen.ndim > 1 else seen, (seq_k,))
        visible[b, h, nth] = np.logical_or.reduceat(of_keys, firsts)
    return visible


def _declared(aux: Mapping[str, Any]) -> list[AuxArray]:
    """The declarations of arrays, by name."""
    arrays = {name: np.asarray(array) for name, array in sorted(aux.items())}
    types = {dtype.array_name: dtype for dtype in AUX_DTYPES}
    for name, array in arrays.items():
        if array.dtype.name not in types:
            raise ConfigError(
                f"aux[{name!r}] must be one of {', '.join(types)}, got {array.dtype.name}; convert it"
            )
    return [AuxArray(name, types[array.dtype.name], array.ndim) for name, array in arrays.items()]

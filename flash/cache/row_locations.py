"""The arrays that tell kernels where the rows of each item of a call are in a KV cache, and the call that
writes such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flash.cache.cuda_memory import KVMemory, Numbers
from flash.decode.operation import append_to
from flash.decode.plan import AppendCall
from flash.kernels.append import COUNTS
from flash.operands.blocks import block_type
from flash.pages.placement import Stretch
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.runtime.cuda import CudaBackend


class RowLocations:
    """The arrays in which kernels look up rows of a KV cache. `operands` holds by name: lengths of sequences,
    sequence of each item, padding rows of each item, block table and scales. Indices and padding, which never
    change, are written in the order of `stream`. `shared`: whether the next call may reuse the memory of this
    call's arrays.
    """

    def __init__(
        self,
        memory: KVMemory,
        layer: int,
        sequences: Sequence[int],
        padding: Sequence[int],
        stream: int,
        *,
        shared: bool,
    ) -> None:
        self.operands: dict[str, ArrayView] = {}
        self._of_layer = memory.small.lengths[layer]
        self._sequences = list(sequences)
        self._lengths: Numbers | None = None
        arrays = memory.arrays(layer)
        count = len(self._sequences)
        if count == len(self._of_layer) and self._sequences == list(range(count)):
            self.operands["seqused_k"] = arrays.lengths
        else:
            self._lengths = self._numbers(memory, "seqused_k", shared=shared)
            self._numbers(memory, "cache_batch_idx", shared=shared).follow(_int32(sequences), stream)
        if any(padding):
            self._numbers(memory, "leftpad_k", shared=shared).follow(_int32(padding), stream)
        if arrays.block_table is not None:
            self.operands["block_table"] = arrays.block_table
        if arrays.k_scale is not None and arrays.v_scale is not None:
            self.operands |= {"k_scale": arrays.k_scale, "v_scale": arrays.v_scale}

    def _numbers(self, memory: KVMemory, name: str, *, shared: bool) -> Numbers:
        """The operand `name` in the memory of a cache, a number for each item of the call."""
        array = memory.numbers(len(self._sequences), name if shared else "")
        self.operands[name] = array.view
        return array

    def follow(self, stream: int) -> None:
        """Write the current lengths of the call's sequences, in the order of `stream`."""
        if self._lengths is not None:
            self._lengths.follow(self._of_layer[self._sequences], stream)


def _int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def write_rows(
    memory: KVMemory,
    cuda: CudaBackend,
    layer: int,
    rows: tuple[ArrayView, ArrayView],
    stretches: Sequence[Stretch],
    stream: int,
) -> None:
    """Write the first rows of each item of K and V, `rows`, to its stretch, the last rows of its sequence."""
    counts = [stretch.end - stretch.begin for stretch in stretches]
    if not any(counts):
        return
    locations = RowLocations(
        memory, layer, [stretch.sequence for stretch in stretches], (), stream, shared=True
    )
    locations.follow(stream)
    of_counts = {}
    if set(counts) != {rows[0].shape[2]}:
        numbers = memory.numbers(len(counts), "counts")
        numbers.follow(np.array(counts, np.int32), stream)
        of_counts[COUNTS.name] = numbers.view
    memory.stream, of_layer = stream, memory.arrays(layer)
    page_size = 0 if of_layer.block_table is None else of_layer.k.shape[2]
    k, v = memory.brought(*rows, stream)
    arrays = {"K_NEW": k, "V_NEW": v, "K": of_layer.k, "V": of_layer.v, **locations.operands, **of_counts}
    call = AppendCall(arrays, page_size, blocks=block_type(memory.element))
    backend = "cpu" if memory.device == HOST else "cuda"
    append_to(cuda, "KVCache.append").bound(call, backend, memory.workspace)(stream)

"""The arrays that tell kernels where the rows of each item of a call are in a KV cache, and the call that
writes such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flash.cache.cuda_memory import KVMemory, Numbers
from flash.decode.operation import append_to
from flash.decode.plan import AppendCall
from flash.kernels.append import COUNTS
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

        def numbers(name: str, values: Sequence[int] | None = None) -> Numbers:
            array = memory.numbers(len(sequences), name if shared else "")
            self.operands[name] = array.view
            if values is not None:
                array.follow(np.array(values, np.int32), stream)
            return array

        if self._sequences == list(range(len(self._of_layer))):
            self.operands["seqused_k"] = arrays.lengths
        else:
            self._lengths = numbers("seqused_k")
            numbers("cache_batch_idx", sequences)
        if any(padding):
            numbers("leftpad_k", padding)
        for name in ("block_table", "k_scale", "v_scale"):
            array = getattr(arrays, name)
            if array is not None:
                self.operands[name] = array

    def follow(self, stream: int) -> None:
        """Write the current lengths of the call's sequences, in the order of `stream`."""
        if self._lengths is not None:
            self._lengths.follow(self._of_layer[self._sequences], stream)


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
    call = AppendCall(arrays, page_size)
    backend = "cpu" if memory.device == HOST else "cuda"
    append_to(cuda, "KVCache.append").bound(call, backend, memory.workspace)(stream)

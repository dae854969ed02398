"""The arrays that tell kernels where the rows of each item of a call are in a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flash.cache.host_memory import KVMemory, Numbers
from ptxgen.arrays.views import ArrayView


class RowLocations:
    """`operands` holds by name: lengths of sequences, sequence of each item, padding rows of each
    item, block table and scales. `shared`: whether the next call may reuse the memory of this
    call's arrays.
    """

    def __init__(
        self,
        memory: KVMemory,
        layer: int,
        sequences: Sequence[int],
        padding: Sequence[int] = (),
        *,
        shared: bool,
    ) -> None:
        self.operands: dict[str, ArrayView] = {}
        self._of_layer = memory.small.lengths[layer]
        self._sequences = list(sequences)
        self._lengths: Numbers | None = None
        self._fixed: list[tuple[Numbers, Sequence[int]]] = []
        arrays = memory.arrays(layer)

        def numbers(name: str) -> Numbers:
            found = memory.numbers(len(sequences), name if shared else "")
            self.operands[name] = found.view
            return found

        if self._sequences == list(range(len(self._of_layer))):
            self.operands["seqused_k"] = arrays.lengths
        else:
            self._lengths = numbers("seqused_k")
            self._fixed.append((numbers("cache_batch_idx"), sequences))
        if any(padding):
            self._fixed.append((numbers("leftpad_k"), padding))
        more = ("block_table", "k_scale", "v_scale")
        found = ((name, getattr(arrays, name)) for name in more)
        self.operands |= {name: array for name, array in found if array is not None}

    def place(self, stream: int) -> None:
        """Write the sequence indices and padding, which never change, in the order of `stream`."""
        for numbers, values in self._fixed:
            numbers.follow(np.array(values, np.int32), stream)

    def follow(self, stream: int) -> None:
        """Write the current lengths of the call's sequences, in the order of `stream`."""
        if self._lengths is not None:
            self._lengths.follow(self._of_layer[self._sequences], stream)

"""Tensor maps from the arguments of `cuTensorMapEncodeTiled` (CUDA Driver API, "Tensor Map Object
Management").
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, OOB_FILLS, SWIZZLES, TensorMap, name_of


def encoded(numbers: Sequence[int], words: Sequence[int]) -> bytes:
    """The bytes of a map. `numbers` are its type, rank, address, interleave, swizzle, promotion and fill;
    `words` five dims, five strides, five sizes of a box and five element strides. Raises `ConfigError` for
    what the driver refuses.
    """
    type, rank, address, _, swizzle, promotion, fill = numbers[:7]
    dims, strides, box, steps = (tuple(words[n : n + rank]) for n in range(0, 20, 5))
    tensor_map = TensorMap(
        address,
        box,
        name_of("dtype", DTYPES, type),
        dims,
        strides[: rank - 1],
        name_of("swizzle", SWIZZLES, swizzle),
        steps,
        name_of("oob_fill", OOB_FILLS, fill),
        name_of("l2_promotion", L2_PROMOTIONS, promotion),
    )
    return tensor_map.encode(address)

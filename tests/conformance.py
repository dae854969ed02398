"""The kinds of forward kernels, a line each, and what every kind is judged by.

`tests/flash/kernels/test_conformance.py` runs each of `KINDS` with each of `FEATURES`. A new family of
kernels has to be in the table, and needs tests of its own only for what no other kind has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from judge import assert_within
from kernel_runs import Problem, random_operands, run_forward

from flash.error_bound import Bound, arithmetic_of_config, attention_bound
from flash.families.family import Family
from flash.families.mma import MMA
from flash.families.simt import SIMT
from flash.families.tcgen05 import TCGEN05
from flash.families.tcgen05_fp8 import TCGEN05_FP8
from flash.families.tcgen05_latent import TCGEN05_LATENT
from flash.families.tcgen05_mx import TCGEN05_MX, TCGEN05_NV
from flash.families.tcgen05_split import TCGEN05_SPLIT
from flash.families.wgmma import WGMMA
from flash.families.wgmma_fp8 import FP8
from flash.families.wgmma_latent import LATENT
from flash.families.wgmma_split import SPLIT
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, scaled_numbers

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array]
Operands = Mapping[str, Array]
Dims = tuple[int, int]
NO_OPERANDS: Final[Operands] = MappingProxyType({})
SCALES: Final = ("q_scale", "k_scale", "v_scale")
SEED: Final = 7  # of dropout
_SANITIZERS: Final = "all,tensor_fence"  # which kernels with tensor memory pass, too


@dataclass(frozen=True)
class Kind:
    """What a config says to have a kernel of a family, with tiles so small that small problems have more of
    them than stages, and the sizes that are tried with default tiles.
    """

    family: Family[Any]
    settings: Mapping[str, Any]
    tile: int = 16
    block_q: int = 64
    dims: Dims = (16, 16)
    widths: tuple[Dims, ...] = ()
    blocks_q: tuple[int, ...] = ()  # other blocks of queries
    stages: tuple[int, ...] = (2, 3)
    alignments: tuple[int, ...] = ()  # below that of rows, in bytes

    def config(self, *dims: int, **how: Any) -> AttentionConfig:
        """A config whose kernel is of the family; `how` goes before what the kind says."""
        small = {"return_lse": True, "tile": self.tile, "block_q": self.block_q}
        if how.get("mask") and how.get("bias") and (self.tile, self.block_q) == (32, 256):
            small["block_q"] = 128  # two row tiles of 32 keys lack registers for both
        named = dict(
            zip(("head_dim", "head_dim_v"), dims or (() if "head_dim" in how else self.dims), strict=False)
        )
        config = AttentionConfig(**{**small, **self.settings, **named, **how})
        assert config.kernel().family is self.family, config.kernel().family.name
        return config

    def default(self, *dims: int, **how: Any) -> AttentionConfig:
        """A config with default tiles, where `how` says nothing else."""
        return self.config(*dims, **{"tile": "auto", "block_q": "auto", **how})

    @property
    def least_keys(self) -> int:
        """The fewest keys of a launch: no tensor map describes none."""
        return int(bool(self.family.mapped))


_HOPPER: Final = {"target": "sm_90a"}
_SPLIT: Final = {"precision": "f32_grade", **_HOPPER}
_LATENT: Final = {"dtype": "f16", "shared_kv": True}
_LONG: Final[tuple[Dims, ...]] = ((264, 40), (320, 256), (512, 512), (576, 257))
_SLICED: Final[tuple[Dims, ...]] = (
    (40, 257),
    (64, 264),
    (3, 300),
    (128, 320),
    (96, 384),
    (17, 511),
    (256, 512),
)
_ANY: Final[tuple[Dims, ...]] = (
    *((n, n) for n in (1, 3, 16, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 256)),
    *((64, 128), (128, 64), (40, 72), (3, 200), (256, 1), (111, 96), *_SLICED),
)
_GRADE: Final[tuple[Dims, ...]] = (
    *((n, n) for n in (1, 5, 20, 40, 59, 64, 96, 111, 128, 160, 256)),
    *((64, 128), (128, 64), (40, 72), (3, 150), (256, 1), (111, 96), *_SLICED),
)
_WIDE: Final[tuple[Dims, ...]] = (
    *((8, 8), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256)),
    *((40, 24), (72, 40), (128, 96), (192, 128), (64, 128), (40, 136), (128, 256)),
)
_OF_SPLIT: Final[tuple[Dims, ...]] = (
    *((4, 4), (64, 64), (128, 128)),
    *((72, 40), (96, 124), (64, 128), (128, 20)),
)
_OF_TCGEN05: Final[tuple[Dims, ...]] = (
    *((8, 8), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256)),
    *((40, 24), (72, 40), (128, 96), (64, 128), (128, 64), (192, 128), (40, 136), (128, 256), (256, 128)),
    *((64, 320), (128, 384), (256, 512)),
)
_OF_TCGEN05_FP8: Final[tuple[Dims, ...]] = (
    *((16, 16), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256)),
    *((96, 48), (64, 128), (128, 64), (192, 128)),
)
_OF_TCGEN05_MX: Final[tuple[Dims, ...]] = (
    *((32, 32), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256)),
    *((96, 48), (64, 128), (128, 80), (192, 128), (32, 256)),
)
_OF_FP8: Final[tuple[Dims, ...]] = (
    *((16, 16), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256)),
    *((192, 128), (64, 128), (48, 144), (128, 256)),
)

KINDS: Final[dict[str, Kind]] = {
    "simt": Kind(SIMT, {"target": "sm_80"}, 16, 16, widths=_ANY + _LONG, stages=(), alignments=(4, 8)),
    "simt sm_75": Kind(SIMT, {"target": "sm_75"}, 16, 32, widths=_ANY, stages=(), alignments=(4, 8)),
    "mma f16": Kind(
        MMA, {"dtype": "f16"}, 16, 32, widths=_ANY + _LONG, stages=(2, 3, 4), alignments=(2, 4, 8)
    ),
    "mma sm_75": Kind(
        MMA, {"dtype": "f16", "target": "sm_75"}, 16, 32, widths=_ANY, stages=(), alignments=(2, 4, 8)
    ),
    "mma bf16": Kind(MMA, {"dtype": "bf16", "target": "sm_86"}, widths=_ANY + _LONG, alignments=(2,)),
    "mma tf32": Kind(MMA, {"precision": "tf32"}, 16, 32, widths=_GRADE + _LONG, alignments=(4, 8)),
    "mma f32_grade": Kind(MMA, {"precision": "f32_grade"}, 16, 32, widths=_GRADE + _LONG, alignments=(4, 8)),
    "wgmma f16": Kind(WGMMA, {"dtype": "f16", **_HOPPER}, widths=_WIDE, blocks_q=(128, 192)),
    "wgmma bf16": Kind(WGMMA, {"dtype": "bf16", **_HOPPER}, 16, 128, widths=_WIDE, blocks_q=(64, 192)),
    "wgmma of three": Kind(WGMMA, {"dtype": "f16", **_HOPPER}, 16, 192),
    "tcgen05 f16": Kind(
        TCGEN05, {"dtype": "f16", "target": "sm_100a"}, 16, 256, widths=_OF_TCGEN05, blocks_q=(128,)
    ),
    "tcgen05 bf16": Kind(TCGEN05, {"dtype": "bf16", "target": "sm_103a"}, 16, 128, widths=_OF_TCGEN05),
    "fp8 e4m3 on sm_100a": Kind(
        TCGEN05_FP8,
        {"dtype": "e4m3", "target": "sm_100a"},
        32,
        256,
        (64, 64),
        _OF_TCGEN05_FP8,
        blocks_q=(128,),
    ),
    "fp8 e5m2 on sm_103a": Kind(
        TCGEN05_FP8, {"dtype": "e5m2", "target": "sm_103a"}, 32, 128, (64, 64), _OF_TCGEN05_FP8
    ),
    "fp8 in blocks on sm_100a": Kind(
        TCGEN05_FP8,
        {"dtype": "e4m3", "scale_block": 64, "target": "sm_100a"},
        32,
        256,
        (64, 64),
        _OF_TCGEN05_FP8,
        blocks_q=(128,),
    ),
    "mxfp8 e4m3 on sm_100a": Kind(
        TCGEN05_MX,
        {"dtype": "e4m3", "scale_block": "mx", "target": "sm_100a"},
        32,
        256,
        (64, 64),
        _OF_TCGEN05_MX,
        blocks_q=(128,),
    ),
    "mxfp8 e5m2 on sm_103a": Kind(
        TCGEN05_MX,
        {"dtype": "e5m2", "scale_block": "mx", "target": "sm_103a"},
        32,
        128,
        (96, 48),
        _OF_TCGEN05_MX,
    ),
    "nvfp4 e4m3 on sm_100a": Kind(
        TCGEN05_NV,
        {"dtype": "e4m3", "scale_block": "nv", "target": "sm_100a"},
        32,
        256,
        (64, 64),
        _OF_TCGEN05_MX,
        blocks_q=(128,),
    ),
    "nvfp4 e5m2 on sm_103a": Kind(
        TCGEN05_NV, {"dtype": "e5m2", "scale_block": "nv", "target": "sm_103a"}, 32, 128, (96, 48)
    ),
    "split": Kind(SPLIT, _SPLIT, widths=_OF_SPLIT, blocks_q=(128,)),
    "split on sm_100a": Kind(TCGEN05_SPLIT, {**_SPLIT, "target": "sm_100a"}, block_q=128, widths=_OF_SPLIT),
    "latent": Kind(
        LATENT,
        {**_LATENT, **_HOPPER},
        tile=32,
        dims=(264, 128),  # 320 columns with padding: 64 of O for each consumer
        widths=((576, 512), (320, 256), (512, 512)),
        stages=(3,),
    ),
    "latent on sm_100a": Kind(
        TCGEN05_LATENT,
        {**_LATENT, "target": "sm_100a"},
        32,
        128,
        (264, 128),  # 320 columns with padding: as many slabs of K as shared memory has
        ((576, 512), (320, 256), (512, 512), (448, 320)),
        stages=(2,),
    ),
    "fp8 e4m3": Kind(FP8, {"dtype": "e4m3", **_HOPPER}, 64, 64, (64, 64), _OF_FP8, blocks_q=(128, 192)),
    "fp8 e5m2": Kind(FP8, {"dtype": "e5m2", **_HOPPER}, 64, 64, (64, 64), _OF_FP8, blocks_q=(128, 192)),
    "fp8 in blocks": Kind(
        FP8, {"dtype": "e4m3", "scale_block": 64, **_HOPPER}, 64, 64, (64, 64), _OF_FP8, blocks_q=(128, 192)
    ),
}

_ALL: Final = {"window": (30, 25), "softcap": 2.0, "alibi": True, "mask": True, "sink": True}
FEATURES: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "left": {"window": (20, None)},
    "right": {"window": (None, 4)},
    "both_sides": {"window": (5, 9)},
    "own_position": {"window": (0, 0)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "bias": {"bias": "f32"},
    "key_bias": {"key_bias": "f32"},
    "mask": {"mask": True},
    "sink": {"sink": True},
    "dropout": {"dropout": 0.3},
    "all": {**_ALL, "bias": "f32"},
    "all_by_key": {**_ALL, "key_bias": "f32"},
    "packed": {"pack_gqa": True},
    "all_packed": {**_ALL, "key_bias": "f32", "pack_gqa": True},
}


def has(kind: str, feature: str) -> bool:
    """Whether kernels of a kind have a feature: none of fp8 draws which weights to drop, or packs heads whose
    blocks of rows have scales.
    """
    in_blocks = isinstance(KINDS[kind].settings.get("scale_block"), int)
    missing = {"dropout"} | ({"pack_gqa"} if in_blocks else set())
    return (
        KINDS[kind].family not in (FP8, TCGEN05_FP8, TCGEN05_MX, TCGEN05_NV)
        or not missing & FEATURES[feature].keys()
    )


def arrays_of(
    config: AttentionConfig, seq_q: int, seq_k: int, batch: int = 1, heads: int = 1, kv_heads: int = 1
) -> Arrays:
    """Q, K and V with normal entries, of NVFP4 Q and K of drawn bytes; with `shared_kv` V is columns of K."""
    problem = Problem(seq_q, seq_k, config.head_dim, config.value_dim, batch, heads, kv_heads)
    q, k, v = problem.arrays(dtype=config.element.numpy)
    if config.scale_block == "nv":
        rng = np.random.default_rng(0)
        q, k = (rng.integers(0, 256, (*x.shape[:-1], x.shape[-1] // 2), np.uint8) for x in (q, k))
    return q, k, k[..., : config.value_dim] if config.shared_kv else v


def spoiled(array: Array, value: float) -> float:
    """`value`, or for elements of four bits, which are never NaN or infinite, the bits of their largest."""
    return 0x77 if array.dtype == np.uint8 else value


def operands_of(config: AttentionConfig, arrays: Arrays) -> dict[str, Array]:
    """An array for each operand of the config's features, the scales of fp8 among them."""
    (batch, heads, seq_q, _), (_, kv_heads, seq_k, _) = arrays[0].shape, arrays[1].shape
    problem = Problem(seq_q, seq_k, config.head_dim, arrays[2].shape[3], batch, heads, kv_heads)
    return random_operands(config, problem)


def _exact(
    config: AttentionConfig, arrays: Arrays, operands: Operands
) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """The numbers that Q, K and V stand for, and the arguments of attention to them."""
    how = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments}
    how |= {"dropout_seed": SEED} if config.dropout else {}
    how |= {name: array for name, array in operands.items() if name not in SCALES}
    if SCALES[0] not in operands:
        return arrays, how
    scaled = (
        scaled_numbers(x, operands[name], config.scale_block) for x, name in zip(arrays, SCALES, strict=True)
    )
    return tuple(scaled), how


def reference(
    config: AttentionConfig, arrays: Arrays, operands: Operands = NO_OPERANDS
) -> tuple[Array, Array]:
    """O and LSE in float64; silent about what is not finite."""
    exact, how = _exact(config, arrays, operands)
    with np.errstate(invalid="ignore", over="ignore"):
        return attention_reference(*exact, **how)


def bound_of(
    config: AttentionConfig, arrays: Arrays, operands: Operands, parts: float = 0.0, **more: Any
) -> Bound:
    """What results may be; `parts` is as in `flash.error_bound.Arithmetic`, and `more` are arguments of the
    reference that no config has.
    """
    exact, how = _exact(config, arrays, operands)
    return attention_bound(*exact, config.output.numpy, arithmetic_of_config(config, parts), **how, **more)


def run(
    config: AttentionConfig, arrays: Arrays, operands: Operands = NO_OPERANDS, **how: Any
) -> tuple[Array, Array]:
    """O and LSE of the kernel's own PTX, run with the sanitizers on."""
    seed = {"dropout_seed": SEED} if config.dropout else {}
    out, lse, _ = run_forward(config, arrays, operands=operands, **{"sanitize": _SANITIZERS, **seed, **how})
    return out, lse


def judge(
    config: AttentionConfig,
    arrays: Arrays,
    out: Array,
    lse: Array | None,
    operands: Operands = NO_OPERANDS,
    parts: float = 0.0,
    **more: Any,
) -> None:
    """O and LSE are as accurate as the arithmetic allows; `parts` and `more` are those of `bound_of`."""
    assert_within(out, lse if config.return_lse else None, bound_of(config, arrays, operands, parts, **more))


def judge_items(
    config: AttentionConfig,
    q: Array,
    keys: Sequence[tuple[Array, Array]],
    out: Array,
    lse: Array,
    parts: float = 0.0,
) -> None:
    """Each item of a batch is as accurate as attention to its own K and V, [kv_heads, keys, dim]."""
    for b, (k, v) in enumerate(keys):
        item = slice(b, b + 1)
        judge(config, (q[item], k[None], v[None]), out[item], lse[item], parts=parts)


def check(
    config: AttentionConfig, arrays: Arrays, operands: Operands = NO_OPERANDS, **how: Any
) -> tuple[Array, Array]:
    """`run` and `judge`, and the results; operands that are not given are those of `operands_of`."""
    arguments = {**operands_of(config, arrays), **operands}
    out, lse = run(config, arrays, arguments, **how)
    judge(config, arrays, out, lse, arguments)
    return out, lse


def bits(array: Array) -> Array:
    """The bits of numbers, of which NaN equals itself."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_same_bits(one: tuple[Array, ...], other: tuple[Array, ...]) -> None:
    """Results, such as (O, LSE), are the same bit for bit."""
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))

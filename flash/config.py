"""What the user asks for (`AttentionConfig`) and what the kernel's text depends on
(`KernelConfig`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from flash.dtypes import DTYPES, F32, DType
from flash.mma_tiling import MMA_BLOCKS_Q, MmaTiling, mma_tilings
from flash.tiling import BLOCKS_Q, MAX_HEAD_DIM, TILES, Tiling, micro_tiles
from ptxgen.errors import ConfigError
from ptxgen.target import TARGETS, Target
from ptxgen.target import target as find_target

DEFAULT_TARGET: Final = "sm_80"  # of emitted text; a launch takes the device's own
ALIGNMENTS: Final = (16, 8, 4, 2)  # bytes
# The kernel's scale is softmax_scale * log2(e) in f32, which must not overflow.
MAX_SCALE: Final = 2.0**127
STAGES: Final = (1, 2, 3, 4)
CAUSAL: Final = (False, True, "bottom_right", "top_left")

# The default tile and block_q, by the target's shared memory per block (at least so many bytes)
# and head_dim or head_dim_v, whichever is larger (at most so many). Chosen by `Tiling.cost` among
# the shapes that let eight warps, or as many as fit, live on one multiprocessor; `tools/bench.py`
# measures them.
_KIB: Final = 1024
DEFAULT_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    227 * _KIB: {
        32: (32, 128), 64: (64, 128), 96: (32, 128), 192: (32, 64), 256: (16, 64),
    },
    163 * _KIB: {
        64: (32, 128), 128: (32, 64), 256: (16, 64),
    },
    99 * _KIB: {
        64: (32, 64), 96: (32, 128), 160: (32, 64), 192: (16, 64), 256: (16, 32),
    },
    64 * _KIB: {
        96: (32, 64), 128: (32, 32), 192: (16, 32), 256: (16, 16),
    },
}  # fmt: skip

# The same for 16-bit types, whose kernels use tensor cores.
DEFAULT_MMA_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    163 * _KIB: {
        64: (64, 128), 128: (64, 128), 192: (64, 64), 256: (64, 64),
    },
    99 * _KIB: {
        64: (64, 128), 128: (32, 128), 192: (32, 64), 256: (32, 64),
    },
}  # fmt: skip
LEAST_ASYNCHRONOUS: Final = 4  # bytes that one `cp.async` copies (PTX ISA)
# Narrower copies go through registers, which larger tiles do not leave.
_TILE_THROUGH_REGISTERS: Final = 32
FIRST_WITH_MMA: Final = 80  # cp.async, ldmatrix and m16n8k16

AnyTiling = Tiling | MmaTiling


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Everything the emitted text depends on, and nothing else. Same value, same bytes.

    `alignment` is the promise, in bytes, that every pointer and stride of Q, K, V and O is a
    multiple of it.
    """

    target: Target
    tiling: AnyTiling
    causal: str  # "", "bottom_right" or "top_left"
    return_lse: bool
    alignment: int
    dtype: DType = F32

    @property
    def name(self) -> str:
        """The entry's name, which says the configuration."""
        t = self.tiling
        dims = f"d{t.head_dim}" + (f"v{t.head_dim_v}" if t.head_dim_v != t.head_dim else "")
        words = [f"attention_forward_{self.dtype.name}", dims, f"m{t.block_q}", f"n{t.tile}"]
        words += [f"s{t.stages}"] if isinstance(t, MmaTiling) and t.stages > 1 else []
        words += [self.causal] if self.causal else []
        words += ["lse"] if self.return_lse else []
        words += (
            [f"align{self.alignment}"]
            if self.alignment != natural_alignment(t.head_dim, t.head_dim_v, self.dtype)
            else []
        )
        return "_".join(words)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """An attention problem and how to compute it. Frozen, hashable, checked when it is made.

    head_dim, head_dim_v: 1..256; head_dim_v defaults to head_dim.
    dtype: "f32", "f16" or "bf16", of Q, K, V and O; sums and LSE are f32. The 16-bit ones run on
    tensor cores and need sm_80 or later.
    causal: False; True or "bottom_right" (the last query sees every key, as flash-attn and KV
    caches need);
        "top_left" (query i sees keys 0..i, as PyTorch's `is_causal`).
    tile: keys per tile of K and V, one of 16, 32, 64, 128; block_q: query rows per CTA, one of the
    same, for 16-bit types at least 32. "auto" takes the documented default for head_dim and target
    (`DEFAULT_TILES`, `DEFAULT_MMA_TILES`).
    stages: tiles of K, and of V, that shared memory holds, 1..4; more hide more of the latency of
    memory, fewer leave room for more CTAs. "auto" is 1. f32 has 1 only.
    softmax_scale: factor of Q Kᵀ; None means 1/√head_dim. It is an argument of the kernel, not
    part of its text.
    return_lse: also write the log-sum-exp of each row (natural logarithm, f32, [batch, heads,
    seq_q]).
    target: such as "sm_90"; None means sm_80 for emitted text and the device's own for a launch on
    a GPU.
    alignment: bytes that all pointers and strides are multiples of; "auto" takes the most head_dim
    allows for emitted text, and what the arrays have for a launch.

    Raises `ConfigError` for anything that cannot be generated.
    """

    head_dim: int
    head_dim_v: int | None = None
    dtype: str = "f32"
    causal: bool | str = False
    tile: int | str = "auto"
    block_q: int | str = "auto"
    stages: int | str = "auto"
    softmax_scale: float | None = None
    return_lse: bool = False
    target: str | None = None
    alignment: int | str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim", _dimension("head_dim", self.head_dim))
        value_dim = self.head_dim if self.head_dim_v is None else self.head_dim_v
        object.__setattr__(self, "head_dim_v", _dimension("head_dim_v", value_dim))
        _require_one_of("dtype", self.dtype, tuple(DTYPES))
        _require_one_of("causal", self.causal, CAUSAL)
        if self.causal is True:
            object.__setattr__(self, "causal", "bottom_right")
        if self.target is not None:
            object.__setattr__(self, "target", find_target(self.target).name)
        _require_one_of("tile", self.tile, (*TILES, "auto"), hint=self._largest_tile)
        _require_one_of("block_q", self.block_q, (*self._blocks_q, "auto"), hint=self._largest_tile)
        alignments = [n for n in ALIGNMENTS if n >= self.element.nbytes]
        stages = (1,) if self.element is F32 else STAGES
        _require_one_of("stages", self.stages, (*stages, "auto"))
        _require_one_of("alignment", self.alignment, (*alignments, "auto"))
        if not isinstance(self.return_lse, bool):
            raise ConfigError(
                f"AttentionConfig: return_lse must be True or False, got {self.return_lse!r}"
            )
        _require_scale(self.softmax_scale)
        choose_tiling(self, find_target(self.target) if self.target else _most_generous())

    def _largest_tile(self) -> str:
        target = find_target(self.target or DEFAULT_TARGET)
        tile = _largest_tile(self, target)
        return (
            f"; the largest tile that fits head_dim={self.head_dim}, head_dim_v={self.head_dim_v} "
            f"on {target.name} is {tile}"
        )

    @property
    def _blocks_q(self) -> tuple[int, ...]:
        return BLOCKS_Q if self.element is F32 else MMA_BLOCKS_Q

    @property
    def _stages(self) -> int:
        return 1 if self.stages == "auto" else int(self.stages)

    @property
    def element(self) -> DType:
        """The type of the elements of Q, K, V and O."""
        return DTYPES[self.dtype]

    @property
    def value_dim(self) -> int:
        """head_dim_v as an int: never None once the config is made."""
        assert self.head_dim_v is not None  # set in __post_init__
        return self.head_dim_v

    @property
    def scale(self) -> float:
        """The softmax scale that will be used."""
        return self.head_dim**-0.5 if self.softmax_scale is None else float(self.softmax_scale)

    def kernel(
        self,
        target: Target | None = None,
        alignment: int | None = None,
        return_lse: bool | None = None,
    ) -> KernelConfig:
        """The kernel for a target (default: the config's own, else sm_80) and for arrays of some
        alignment in bytes.

        Raises `ConfigError` if the tiles do not fit the target.
        """
        target = target or find_target(self.target or DEFAULT_TARGET)
        if alignment is None:
            natural = natural_alignment(self.head_dim, self.value_dim, self.element)
            alignment = natural if self.alignment == "auto" else int(self.alignment)
        return KernelConfig(
            target,
            choose_tiling(self, target, alignment),
            self.causal or "",  # type: ignore[arg-type]  # True became "bottom_right"
            self.return_lse if return_lse is None else return_lse,
            alignment,
            self.element,
        )

    def with_target(self, target: str) -> AttentionConfig:
        """The same problem for another target."""
        return replace(self, target=target)


def natural_alignment(head_dim: int, head_dim_v: int, dtype: DType) -> int:
    """The largest alignment that contiguous arrays of these head dimensions have, in bytes: 16, 8,
    4 or, for 16-bit types, 2.
    """
    return math.gcd(16, head_dim * dtype.nbytes, head_dim_v * dtype.nbytes)


def default_tile(head_dim: int, target: Target, dtype: DType = F32) -> tuple[int, int]:
    """The documented default (tile, block_q); `head_dim` is the larger of the two."""
    table = DEFAULT_TILES if dtype is F32 else DEFAULT_MMA_TILES
    by_dim = next(row for shared, row in table.items() if target.shared_per_block_optin >= shared)
    return next(tiles for most, tiles in by_dim.items() if head_dim <= most)


@lru_cache(maxsize=1024)
def choose_tiling(
    config: AttentionConfig, target: Target, alignment: int | None = None
) -> AnyTiling:
    """The tiling of a config on a target: what it says, the default for what it leaves open.

    If the default does not go with what is said, the nearest smaller size that does is taken.
    Raises `ConfigError` with the limit and the largest tile that fits.
    """
    _require_target(config, target)
    larger = max(config.head_dim, config.value_dim)
    default = default_tile(larger, target, config.element)
    if alignment is None:
        alignment = natural_alignment(config.head_dim, config.value_dim, config.element)
    if alignment < LEAST_ASYNCHRONOUS:
        default = min(default[0], _TILE_THROUGH_REGISTERS), default[1]
    tiles = _candidates(config.tile, default[0], TILES)
    blocks = _candidates(config.block_q, default[1], config._blocks_q)
    for tile in tiles:
        for block_q in blocks:
            tiling = _tiling(config, tile, block_q, target)
            if tiling is not None:
                return tiling
    raise ConfigError(_does_not_fit(config, tiles[0], blocks, target))


def offered_tiles(
    head_dim: int, head_dim_v: int, target: Target, dtype: str = F32.name
) -> list[tuple[int, int]]:
    """Every (tile, block_q) that a kernel of these head dimensions can have on the target."""
    return _offered(AttentionConfig(head_dim, head_dim_v, dtype), target)


def _offered(config: AttentionConfig, target: Target) -> list[tuple[int, int]]:
    return [(n, m) for n in TILES for m in BLOCKS_Q if _tiling(config, n, m, target)]


def _tiling(config: AttentionConfig, tile: int, block_q: int, target: Target) -> AnyTiling | None:
    dims = config.head_dim, config.value_dim
    found: Sequence[AnyTiling]
    if config.element is F32:
        found = micro_tiles(*dims, tile, block_q, target)
    else:
        found = mma_tilings(*dims, tile, block_q, config._stages, target)
    return next((t for t in found if t.shared_bytes <= target.shared_per_block_optin), None)


def _require_target(config: AttentionConfig, target: Target) -> None:
    if config.element is not F32 and target.sm < FIRST_WITH_MMA:
        raise ConfigError(
            f"AttentionConfig: dtype={config.dtype!r} needs sm_{FIRST_WITH_MMA} or later, whose "
            f"tensor cores and asynchronous copies the kernel uses, got {target.name}; use "
            "dtype='f32'"
        )


def _candidates(asked: int | str, default: int, offered: tuple[int, ...]) -> tuple[int, ...]:
    if asked != "auto":
        return (int(asked),)
    return (default, *(n for n in reversed(offered) if n < default))


def _largest_tile(config: AttentionConfig, target: Target) -> int:
    return max(tile for tile, _ in _offered(config, target))


def _does_not_fit(
    config: AttentionConfig, tile: int, blocks: tuple[int, ...], target: Target
) -> str:
    block_q = blocks[-1]
    limit = target.shared_per_block_optin
    smallest: AnyTiling = (
        Tiling(config.head_dim, config.value_dim, tile, block_q, 4, 4, 1)
        if config.element is F32
        else MmaTiling(
            config.head_dim, config.value_dim, tile, block_q, warps=4, stages=config._stages
        )
    )
    offered = _offered(config, target)
    fitting = [pair for pair in offered if pair[1] in blocks]
    largest, goes_with = max(fitting or offered)
    cure = f"the largest tile that fits is {largest}, with block_q={goes_with}"
    problem = (
        f"needs {smallest.shared_bytes} bytes of shared memory, but {target.name} allows {limit} "
        "bytes per block"
        if smallest.shared_bytes > limit
        else f"has no division among threads that fits the registers of {target.name}"
    )
    return (
        f"AttentionConfig: head_dim={config.head_dim}, head_dim_v={config.value_dim}, tile={tile}, "
        f"block_q={block_q} {problem}; {cure}"
    )


def _most_generous() -> Target:
    return max(TARGETS.values(), key=lambda t: t.shared_per_block_optin)


def _dimension(name: str, value: Any) -> int:
    """`value` as an int, if it is an integer of any kind (numpy's too) in range."""
    if not isinstance(value, bool):
        with suppress(TypeError):  # not an integer of any kind
            size = operator.index(value)
            if 1 <= size <= MAX_HEAD_DIM:
                return size
    target = _most_generous()
    tile = max(tile for tile, _ in offered_tiles(MAX_HEAD_DIM, MAX_HEAD_DIM, target))
    raise ConfigError(
        f"AttentionConfig: {name} must be an integer from 1 to {MAX_HEAD_DIM}, got {value!r}; "
        f"beyond {MAX_HEAD_DIM} a CTA cannot keep its rows in registers and shared memory, where "
        f"the largest tile that fits {MAX_HEAD_DIM} is {tile} on {target.name}"
    )


def _require_one_of(
    name: str, value: Any, legal: tuple[Any, ...], hint: Callable[[], str] = str
) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in legal):
        words = ", ".join(map(repr, legal))
        raise ConfigError(f"AttentionConfig: {name} must be one of {words}, got {value!r}{hint()}")


def is_scale(value: object) -> bool:
    """Whether a kernel can multiply by it: a finite number, also in f32 and in units of log2."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= MAX_SCALE


def _require_scale(value: Any) -> None:
    if value is not None and not is_scale(value):
        raise ConfigError(
            f"AttentionConfig: softmax_scale must be a number of at most {MAX_SCALE:g} either way, "
            f"or None for 1/sqrt(head_dim), got {value!r}"
        )

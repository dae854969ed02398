"""The kernels for KV caches without a launch: their PTX and contracts, for other host programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flash.contract.cache_builds import AppendBuild, MergeBuild, append_build, merge_build
from flash.contract.catalogue import Build, build
from flash.decode.plan import CacheCall, blocks_of, default_target, kernel_of, oldest_target, require_cached
from flash.families.request import MAX_HEAD_DIM, MAX_HEAD_DIM_V, natural_alignment
from flash.kernels.append import AppendConfig
from flash.kernels.merge import MergeConfig
from flash.operands.blocks import CACHED_DTYPES, block_type
from flash.operands.dtype_names import Cached, DTypeLike, DTypeObject
from flash.operands.dtypes import F32, DType, config_name, require_dtype
from flash.problem.config import ALIGNMENTS, DEFAULT_TARGET, AttentionConfig
from flash.problem.features import ANGLES, MAX_PAGE_SIZE, Features
from flash.problem.limits import MAX_CTAS
from flash.problem.narrow import HEAD, TOKEN, is_per_token
from ptxgen.arguments import integer
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.target import Target
from ptxgen.target import target as find_target


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The memory layout of a KV cache, and which arrays a launch takes in addition to `seqused_k`, which it
    always takes.

    page_size: 1..256, the rows of a page; None for contiguous memory.
    kv_dtype: fp8 or int8, as `AttentionConfig.dtype` or array libraries call it, with scales; "q8_0" or
        "q4_0", blocks with scales in them; None for the type of the queries and new rows.
    scale_per: of fp8 and int8, whether each "head" of K and V has a scale, or each "token" of a head.
    leftpad_k, cache_batch_idx: whether a launch takes these arrays, as in `DecodeKernel.launch`.

    Raises `ConfigError` for invalid values.
    """

    page_size: int | None = None
    kv_dtype: Cached | type[Any] | DTypeObject | None = None
    leftpad_k: bool = False
    cache_batch_idx: bool = False
    scale_per: Literal["head", "token"] = HEAD

    def __post_init__(self) -> None:
        if self.page_size is not None and integer(self.page_size, 1, MAX_PAGE_SIZE) is None:
            raise ConfigError(
                f"CacheConfig: page_size must be an integer from 1 to {MAX_PAGE_SIZE}, or None for "
                f"contiguous memory, got {shown(self.page_size)}"
            )
        object.__setattr__(self, "kv_dtype", config_name(self.kv_dtype))
        if self.kv_dtype is not None and self.kv_dtype not in CACHED_DTYPES:
            known = ", ".join(map(repr, CACHED_DTYPES))
            raise ConfigError(
                f"CacheConfig: kv_dtype must be {known}, or None for the type of the queries, got "
                f"{shown(self.kv_dtype)}{did_you_mean(self.kv_dtype, CACHED_DTYPES)}"
            )
        is_per_token("CacheConfig", self.narrow or F32, self.scale_per)

    @property
    def features(self) -> Features:
        """The features of the cache on which a kernel's text depends."""
        return Features(
            seqused_k=True,
            leftpad_k=self.leftpad_k,
            cache_batch_idx=self.cache_batch_idx,
            page_size=self.page_size or 0,
            kv_dtype=self.narrow,
            per_token=self.scale_per == TOKEN,
        )

    @property
    def narrow(self) -> DType | None:
        """The element type of the cache, if it is a narrow one; None if it is that of the queries."""
        return None if self.kv_dtype is None else CACHED_DTYPES[str(self.kv_dtype)]

    def target(self, name: str | None, caller: str) -> Target:
        """The target of a kernel, by default the oldest one, from sm_80 on, that has the needed
        instructions. Raises `ConfigError` for an older target.
        """
        stored = self.narrow or F32
        least, chosen = oldest_target(stored), default_target(stored) if name is None else find_target(name)
        if self.kv_dtype is not None and chosen.sm < least.sm:
            raise ConfigError(
                f"{caller}: a cache of {self.kv_dtype!r} needs {least.name} or later, got "
                f"{chosen.name}; use kv_dtype=None"
            )
        return chosen


def decode(
    config: AttentionConfig,
    cache: CacheConfig,
    *,
    splits: bool = False,
    seq_q: int = 1,
    group: int = 1,
    append: bool = False,
    rotary_dim: int = 0,
    rotary_interleaved: bool = False,
) -> Build:
    """The kernel that attends to a KV cache, for arrays with the config's alignment.

    `splits`: whether the kernel divides the keys among CTAs, into a number of splits that the
    launch gives; O and LSE are then partial results, which a kernel of `merge` merges. Tiles, and
    whether heads are packed, are chosen for `seq_q` queries of `group` query heads for each head of
    K and V; the kernel takes any seq_q and group.

    `append`: whether the kernel first writes 1 to 16 new rows of each sequence to the cache; the
    rows are of the type of the queries. With `rotary_dim`, an even number, the kernel rotates the
    first `rotary_dim` columns of queries, and of new keys if it appends. A kernel that appends takes
    no more queries of a head of K and V than a CTA has rows.

    Raises `ConfigError` for a config that does not fit a cache, `VerifyError` for a fault of the
    generator.
    """
    require_cached(config)
    for name, value in (("seq_q", seq_q), ("group", group)):
        _integer("decode", name, value, MAX_CTAS)
    if cache.kv_dtype is not None:
        _require_widened(config, str(cache.kv_dtype))
    if append and config.shared_kv:
        raise ConfigError(
            "decode: a kernel that appends writes rows of K and of V, and with shared_kv V is columns of K; "
            "use append=False, and write new rows of K before"
        )
    rotated = _checked_rotary_dim("decode", rotary_dim, rotary_interleaved, config.head_dim)
    target = cache.target(config.target, "decode")
    call = _example(config, cache, seq_q, group)
    operands = {**call.operands, **_new_rows(config, rotated, append=append)}
    call = call._replace(operands=operands, interleaved=rotary_interleaved)
    kernel = kernel_of(call, target, 2 if splits else 1)
    if append and kernel.features.appended is None:
        raise ConfigError(
            f"decode: a kernel that appends must have the queries of a head of K and V in one CTA, "
            f"got {seq_q} of {group} heads, which are {blocks_of(call, kernel)} CTAs of "
            f"{kernel.tiling.block_q} rows; use append=False and the kernel of "
            "cache_kernels.append"
        )
    return build(kernel)


def append(
    head_dim: int,
    head_dim_v: int | None = None,
    *,
    cache: CacheConfig,
    dtype: DTypeLike = "f32",
    rotary_dim: int = 0,
    rotary_interleaved: bool = False,
    counts: bool = False,
    target: str | None = None,
) -> AppendBuild:
    """The kernel that writes new rows of `dtype` to a KV cache. With `rotary_dim`, an even number,
    it rotates the first `rotary_dim` columns of new keys and of queries. `counts`: whether a launch
    gives the number of new rows of each item.

    Raises `ConfigError` for invalid arguments, `VerifyError` for a fault of the generator.
    """
    caller = "append"
    _integer(caller, "head_dim", head_dim, MAX_HEAD_DIM)
    value_dim = head_dim if head_dim_v is None else head_dim_v
    _integer(caller, "head_dim_v", value_dim, MAX_HEAD_DIM_V)
    rotated = _checked_rotary_dim(caller, rotary_dim, rotary_interleaved, head_dim)
    return append_build(
        AppendConfig(
            cache.target(target, caller),
            head_dim,
            value_dim,
            require_dtype(caller, "dtype", dtype),
            cache.features,
            rotated,
            rotary_interleaved,
            counts,
        )
    )


def merge(
    head_dim_v: int,
    *,
    dtype: DTypeLike = "f32",
    parts: DTypeLike = "f32",
    return_lse: bool = False,
    alignment: int | None = None,
    target: str | None = None,
) -> MergeBuild:
    """The kernel that merges the partial results of splits to results of `dtype`. `alignment`: the
    common alignment in bytes of the pointer and strides of the result, by default that of a dense
    array; the parts always have the alignment of dense arrays.

    Raises `ConfigError` for invalid arguments, `VerifyError` for a fault of the generator.
    """
    caller = "merge"
    _integer(caller, "head_dim_v", head_dim_v, MAX_HEAD_DIM_V)
    result, of_parts = require_dtype(caller, "dtype", dtype), require_dtype(caller, "parts", parts)
    natural = natural_alignment(head_dim_v, head_dim_v, result)
    possible = [n for n in ALIGNMENTS if result.nbytes <= n <= natural]
    if alignment is not None and alignment not in possible:
        raise ConfigError(
            f"{caller}: alignment must be one of {', '.join(map(str, possible))}, got {shown(alignment)}"
        )
    return merge_build(
        MergeConfig(
            find_target(target or DEFAULT_TARGET),
            head_dim_v,
            result,
            of_parts,
            natural if alignment is None else alignment,
            natural_alignment(head_dim_v, head_dim_v, of_parts),
            return_lse,
        )
    )


def _integer(caller: str, name: str, value: object, most: int) -> None:
    if integer(value, 1, most) is None:
        raise ConfigError(f"{caller}: {name} must be an integer from 1 to {most}, got {shown(value)}")


def _checked_rotary_dim(caller: str, rotary_dim: object, interleaved: bool, head_dim: int) -> int:
    """The checked rotary_dim: the number of columns that are rotated."""
    columns = integer(rotary_dim, 0, head_dim)
    if columns is None or columns % 2:
        raise ConfigError(
            f"{caller}: rotary_dim must be an even number from 0 to head_dim={head_dim}, got {rotary_dim!r}"
        )
    if interleaved and not columns:
        raise ConfigError(f"{caller}: rotary_interleaved is for a rotary_dim; give one")
    return columns


def _require_widened(config: AttentionConfig, stored: str) -> None:
    """Refuse configs that kernels for narrow types do not take: they widen some elements together."""
    if config.element is F32:
        raise ConfigError(f"decode: queries for a cache of {stored!r} must be of 'f16' or 'bf16', got 'f32'")
    together = CACHED_DTYPES[stored].together
    if config.head_dim % together or config.value_dim % together:
        raise ConfigError(
            f"decode: head_dim and head_dim_v of a cache of {stored!r} must be multiples "
            f"of {together}, got {config.head_dim} and {config.value_dim}"
        )


def _example(config: AttentionConfig, cache: CacheConfig, seq_q: int, group: int) -> CacheCall:
    """A call with arrays without memory, whose addresses have the config's alignment."""
    first = ALIGNMENTS[0] if config.alignment == "auto" else int(config.alignment)
    rows = cache.page_size or 1
    stored = cache.narrow or config.element
    operands = (*config.features.operands, *cache.features.operands)

    def array(shape: tuple[int, ...], dtype: DType) -> ArrayView:
        return _nowhere(shape, dtype, first)

    out = (1, group, seq_q, config.value_dim)
    return CacheCall(
        config,
        array((1, group, seq_q, config.head_dim), config.element),
        array((1, 1, rows, stored.in_row(config.head_dim)), stored),
        array((1, 1, rows, stored.in_row(config.value_dim)), stored),
        array(out, config.element),
        {o.name: array(o.shape(*out[:3], packed=False), F32) for o in config.outputs},
        {operand.name: array((1,) * len(operand.axes), operand.dtype) for operand in operands},
        cache.page_size or 0,
        rows,
        config.scale,
        blocks=block_type(stored),
    )


def _new_rows(config: AttentionConfig, rotary_dim: int, *, append: bool) -> dict[str, ArrayView]:
    """New rows of a call without memory: one row, if the kernel appends, and the rotary angles of one
    position.
    """
    dims = {"k_new": config.head_dim, "v_new": config.value_dim} if append else {}
    rows = {name: _nowhere((1, 1, 1, dim), config.element) for name, dim in dims.items()}
    angles = _nowhere((1, rotary_dim // 2), F32)
    return rows | (dict.fromkeys(ANGLES, angles) if rotary_dim else {})


def _nowhere(shape: tuple[int, ...], dtype: DType, pointer: int = 0) -> ArrayView:
    return ArrayView(pointer, shape, dense_strides(shape), dtype.array_name, HOST, False, "numpy", None)

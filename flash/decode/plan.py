"""Attention of few queries to the keys of a KV cache, as launches: which kernels run, in which
order, on which arrays.

One kernel attends. If that leaves multiprocessors without work, the keys of a sequence are divided
among several CTAs, and a second kernel merges their partial results (flash-decoding). The kernel
that attends appends few new rows to the cache; a kernel that runs before it appends many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from flash.calls.memory import Memory
from flash.calls.step import Step, aligned, launch_step
from flash.contract.cache_builds import append_build
from flash.contract.catalogue import proved_build
from flash.device.grouped_heads import packing_saves_ctas
from flash.families.choice import AnyTiling, choose_launch_tiling, choose_tiling, gathers_rows
from flash.families.mma import MmaTiling
from flash.families.precision import HALF
from flash.families.request import MAX_COLUMNS, natural_alignment
from flash.families.wgmma import BOX_ROWS, lies_in_boxes
from flash.kernels.append import COUNTS, WARPS, AppendConfig
from flash.launch.kernel_choice import against_map
from flash.launch.merge_launch import MergeCall, merging
from flash.operands.blocks import BlockType
from flash.operands.declared import LAST_KEYS
from flash.operands.dtypes import F32, OF_ARRAYS, DType
from flash.problem.config import DEFAULT_TARGET, STAGES, AttentionConfig
from flash.problem.features import ANGLES, LENGTHS, MAX_NEW_ROWS, MAX_POSITIONS, Appended, Features, Rotation
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import LSE, OUTPUTS, and_lse
from flash.problem.row_bits import by_rows
from flash.scores.features import SCORES
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.rates import bytes_to_be_in_flight
from ptxgen.target import Target
from ptxgen.target import target as find_target

# Registers of a thread that widening rows of narrow types takes where rows are wide, and so few are left that
# the assembler was seen to spill with tiles of 64 keys, and of K of more than 256 columns with tiles of 32.
_WIDENING_REGISTERS: Final = 44
_WIDENING_LONG_REGISTERS: Final = 64
_WIDE: Final = 192  # columns
_SMALL_TILE: Final = 32  # keys
_FEW_ROWS: Final = 64  # of a CTA
_FEW_COLUMNS: Final = 64
SCALES: Final = ("k_scale", "v_scale")
_OLDEST: Final = "sm_75"
# The merge of more splits costs more than their CTAs save.
MOST_SPLITS: Final = 128
# Fraction of the best utilization: fewer splits are better than a little more utilization.
_GOOD_ENOUGH: Final = 0.85
# Bytes in flight as a multiple of what memory needs: a CTA has fewer in flight until it starts the next copy,
# and registers of a tiling, by which its CTAs are counted, are an estimate.
_SURPLUS: Final = 1.5
_NOT_CACHED: Final = ("varlen", *(f.setting for f in SCORES if not f.in_cache))


def require_cached(config: object) -> None:
    """Raise `ConfigError` unless `config` is an `AttentionConfig` of attention to a cache."""
    if not isinstance(config, AttentionConfig):
        raise ConfigError(
            f"DecodeKernel: config must be an AttentionConfig, got {shown(config)}; "
            "make one with flash.AttentionConfig(head_dim=64, causal=True)"
        )
    wrong = [name for name in _NOT_CACHED if getattr(config, name)]
    wrong += [f"dtype={config.dtype!r}"] if config.is_fp8 else []
    wrong += ["causal='top_left'"] if config.causal == "top_left" else []
    if wrong:
        raise ConfigError(
            f"DecodeKernel: config must be one that goes with a cache, got {', '.join(wrong)}; "
            "use AttentionKernel, or leave that out"
        )


def new_operands(views: Mapping[str, ArrayView]) -> dict[str, ArrayView]:
    """The new rows and rotary tables among the arrays of a call, by the names of operands; without arrays of
    no elements, which change nothing.
    """
    names = {"k": "k_new", "v": "v_new", **{name: name for name in ANGLES}}
    return {to: views[name] for name, to in names.items() if name in views and views[name].size}


class CacheCall(NamedTuple):
    """A checked call: q [batch, heads, seq_q, head_dim], and K and V of a cache, which hold
    sequences of `capacity` rows, or pages of `page_size` rows (0: no pages).

    `outputs` are the arrays of `OUTPUTS` that are wanted, by name.
    `operands` are the arrays of the kernel's features, by name. With `k_new` [batch, kv_heads, n, head_dim]
    and `v_new`, n at least 1, of one dtype, new rows are appended to the cache before attention; the lengths
    in `operands` and `longest`, the most keys that a sequence may have, include them. With `rotary_cos` and
    `rotary_sin`, f32 [positions, rotary_dim / 2] with dense rows, the first rotary_dim columns of `k_new` and
    q, which then have one dtype, are rotated by the positions of their rows, in pairs of neighbours if
    `interleaved` (`flash/problem/rotary.py`). `splits` None is "auto". `blocks` is the type of K and V whose
    arrays are of the bytes of blocks.
    """

    config: AttentionConfig
    q: ArrayView
    k: ArrayView
    v: ArrayView
    out: ArrayView
    outputs: Mapping[str, ArrayView]
    operands: Mapping[str, ArrayView]
    page_size: int
    longest: int
    scale: float
    splits: int | None = None
    interleaved: bool = False
    blocks: BlockType | None = None

    @property
    def capacity(self) -> int:
        """The number of rows (tokens) that a sequence of the cache has room for."""
        if not self.page_size:
            return self.k.shape[2]
        return self.operands["block_table"].shape[1] * self.page_size

    @property
    def has_scales(self) -> bool:
        """Whether K and V are of a narrow type, and `operands` has `k_scale` and `v_scale`."""
        return "k_scale" in self.operands

    @property
    def per_token(self) -> bool:
        """Whether the scales are of single rows: [pages, kv_heads, page_size] or [sequences, kv_heads,
        capacity], and not of heads.
        """
        return self.has_scales and len(self.operands["k_scale"].shape) == len(self.k.shape) - 1

    @property
    def rotation(self) -> Rotation | None:
        """The rotary embedding of new rows of K and of q; None without one."""
        cos = self.operands.get(ANGLES[0])
        return None if cos is None else Rotation(2 * cos.shape[1], self.interleaved)

    @property
    def stored(self) -> DType:
        """The element type of K and V as the cache stores them."""
        return self.blocks or OF_ARRAYS[self.k.dtype]

    @property
    def group(self) -> int:
        """The number of query heads that share a head of K and V."""
        return self.q.shape[1] // self.k.shape[1]


class AppendCall(NamedTuple):
    """Rows to append to a cache, and how they and queries are rotated. The arrays have the kernel's names for
    them: new rows K_NEW and V_NEW [batch, kv_heads, n, ...], n at least 1, the cache, K and V as in
    `CacheCall`, and operands. `seqused_k` includes the new rows, and rows of padding get
    position 0 only if `leftpad_k` is there. For a cache of a narrow type, `k_scale` and `v_scale` are f32
    [kv_heads], or of the cache's shape without its last dimension, which the launch writes. `counts`, int32
    [batch], is how many of the first of the n rows of each item are new. With COS and SIN [positions,
    rotary_dim / 2], f32 with dense rows, K_NEW and Q [batch, heads, seq_q, head_dim] are rotated, Q to Q_OUT.
    `blocks` as in `CacheCall`.
    """

    arrays: Mapping[str, ArrayView]
    page_size: int
    interleaved: bool = False
    blocks: BlockType | None = None

    @property
    def stored(self) -> DType:
        """The element type of K and V as the cache stores them."""
        return self.blocks or OF_ARRAYS[self.arrays["K"].dtype]


def require_widening(caller: str, call: CacheCall, target: Target) -> None:
    """Raise `LaunchError` for a cache of a type that the target cannot widen."""
    least = oldest_target(call.stored)
    if target.sm < least.sm:
        raise LaunchError(
            f"{caller}: a cache of {call.stored.name!r} needs {least.name} or later, got {target.name}; use "
            "a cache of the queries' type, or backend='cpu'"
        )


def oldest_target(stored: DType) -> Target:
    """The first target that has kernels for caches of a type."""
    return find_target(stored.needs or _OLDEST)


def default_target(stored: DType) -> Target:
    """The first target, from the default one on, that has kernels for caches of a type."""
    return find_target(stored.needs or DEFAULT_TARGET)


def kernel_of(call: CacheCall, target: Target, splits: int, *, same_bits: bool = False) -> KernelConfig:
    """The kernel that attends, for a target. With `same_bits` it computes a row as that of calls of any other
    number of queries does (`flash/problem/row_bits.py`).
    """
    merged = splits > 1
    alignment = _alignment(call, merged)
    config, rows = call.config, call.q.shape[2] * call.group
    if not same_bits:
        config = config.for_rows(rows, lambda config: _tiling(call, config, target, alignment, merged))
    has_small_tile = _has_small_tile(call, _tiling(call, config, target, alignment, merged))

    def tiling_of(config: AttentionConfig) -> AnyTiling:
        tiling = _tiling(call, config, target, alignment, merged, small=has_small_tile)
        return by_rows(tiling) if same_bits else tiling

    if same_bits:
        config = config.for_rows(rows, tiling_of, same_bits=True)
    tiling = tiling_of(config)
    outputs = tuple([output for output in OUTPUTS if output.name in call.outputs])
    kernel = config.kernel(target, alignment)
    kernel = replace(kernel, tiling=tiling, outputs=and_lse(outputs) if merged else outputs)
    lengths: dict[str, Any] = {name: name in call.operands for name in LENGTHS}
    features = replace(
        kernel.features,
        splits=merged,
        page_size=call.page_size,
        kv_dtype=call.stored if call.stored.is_narrow else None,
        per_token=call.per_token,
        **lengths,
    )
    packs = config.pack_gqa is True or (
        config.pack_gqa == "auto" and packing_saves_ctas(call.q.shape[2], call.group, kernel.tiling.block_q)
    )
    kernel = replace(kernel, features=features, packed=packs)
    appended, rotation = _appended_by(call, kernel), None if "k_new" in call.operands else call.rotation
    return replace(kernel, features=replace(features, appended=appended, query_rotation=rotation))


def _tiling(
    call: CacheCall,
    config: AttentionConfig,
    target: Target,
    alignment: int,
    merged: bool,
    *,
    small: bool = False,
) -> AnyTiling:
    """The tiling of a cache call's kernel; with `small` its tiles have `_SMALL_TILE` keys."""
    in_pages = call.page_size > 0
    request = replace(
        config.tile_request,
        looks_up=in_pages or config.mask,
        in_pages=in_pages,
        gathers=_gathers(call),
        rotates="k_new" in call.operands or call.rotation is not None,
        without_wgmma=_without_wgmma(call, merged),
    )
    if call.stored.is_narrow and max(config.head_dim, config.value_dim) > _WIDE:
        many = config.head_dim > MAX_COLUMNS or call.blocks is not None
        widening = _WIDENING_LONG_REGISTERS if many else _WIDENING_REGISTERS
        request = replace(request, other_registers=request.other_registers + widening)
    if small:
        tiling = choose_tiling(replace(request, tile=_SMALL_TILE), target, alignment)
    else:
        tiling = choose_launch_tiling(config.tile_request, request, target, alignment)
    is_open = config.stages == config.tile == "auto"
    return _with_stages(call, tiling, target) if is_open else tiling


def _with_stages(call: CacheCall, tiling: AnyTiling, target: Target) -> AnyTiling:
    """A tiling with stages that keep memory busy, if a CTA has so few rows that it waits for memory."""
    if not isinstance(tiling, MmaTiling) or tiling.operands is not HALF or tiling.prefetches:
        return tiling
    if tiling.block_q > _FEW_ROWS:
        return tiling
    wanted = _SURPLUS * bytes_to_be_in_flight(target.sm)
    return tiling.with_stages(STAGES, target, call.stored.nbytes, wanted)


def _has_small_tile(call: CacheCall, tiling: AnyTiling) -> bool:
    """Whether a call takes small tiles of keys in place of those of its usual `tiling`."""
    takes_more = call.per_token or call.blocks is not None
    return takes_more and call.config.tile == "auto" and _is_crowded(tiling)


def _is_crowded(tiling: AnyTiling) -> bool:
    """Whether a tiling is one with which the assembler was seen to spill where each token has a scale, which
    takes registers for the powers of rows, or each block, whose codes are read in halves of words: long
    tiles, many rows and more than 64 columns.
    """
    columns = max(tiling.head_dim, tiling.head_dim_v)
    return tiling.tile > _SMALL_TILE and tiling.block_q > _FEW_ROWS and columns > _FEW_COLUMNS


def _gathers(call: CacheCall) -> bool:
    """Whether threads of a kernel with `wgmma` copy each row from its page."""
    in_boxes = lies_in_boxes(call.page_size, padded="leftpad_k" in call.operands)
    return call.page_size > 0 and not in_boxes and gathers_rows(call.config.tile_request)


def _without_wgmma(call: CacheCall, merged: bool) -> str:
    """Why the kernel with `wgmma` (`flash/families/wgmma.py`) cannot compute a call; empty if it can."""
    in_boxes_alone = not _gathers(call)
    for is_met, reason in (
        (call.stored.is_narrow, f"K and V are {call.stored.name}"),
        (not call.k.size, "there are no keys"),
        (
            call.page_size % BOX_ROWS and in_boxes_alone,
            f"boxes of tensor copies have multiples of {BOX_ROWS} rows",
        ),
        (
            call.page_size and "leftpad_k" in call.operands and in_boxes_alone,
            "pages begin with rows that are no keys",
        ),
    ):
        if is_met:
            return reason
    arrays = [("Q", call.q), *([] if merged else [("O", call.out)])]
    if in_boxes_alone:
        arrays[1:1] = ("K", call.k), ("V", call.v)
    nbytes = call.config.element.nbytes
    reasons = (against_map(name, a.shape[:-1], a.strides[:-1], nbytes) for name, a in arrays)
    return next(filter(None, reasons), "")


def _appended_by(call: CacheCall, kernel: KernelConfig) -> Appended | None:
    """The new rows of a call, if the kernel that attends writes them: few rows, of the type of the queries,
    with all queries of a head of K and V in one CTA. Otherwise None.
    """
    k = call.operands.get("k_new")
    if k is None:
        return None
    ctas = blocks_of(call, kernel) // (call.q.shape[0] * call.k.shape[1])  # of one head of K and V
    if ctas > 1 or k.shape[2] > MAX_NEW_ROWS or OF_ARRAYS[k.dtype] is not kernel.dtype:
        return None
    rotation = call.rotation or Rotation(0, interleaved=False)
    of_value = call.operands["v_new"].shape[3]
    return Appended(kernel.dtype, k.shape[3], of_value, rotation.rotary_dim, rotation.interleaved)


def rotates_before(call: CacheCall, kernel: KernelConfig) -> bool:
    """Whether a launch before the one that attends rotates q."""
    return call.rotation is not None and kernel.features.rotation is None


def _alignment(call: CacheCall, merged: bool) -> int:
    """The common alignment in bytes of the pointers and strides of Q, of O unless it is `merged`,
    and of K and V unless they are narrow.
    """
    config = call.config
    arrays = [call.q] if call.stored.is_narrow else [call.q, call.k, call.v]
    arrays += [] if merged else [call.out]
    nbytes = config.element.nbytes
    natural = natural_alignment(config.head_dim, config.value_dim, config.element)
    return math.gcd(natural, *[aligned(array, nbytes) for array in arrays])


def blocks_of(call: CacheCall, kernel: KernelConfig) -> int:
    """The number of CTAs of an attending launch for each split of the keys."""
    batch, heads, seq_q, _ = call.q.shape
    rows, of = (seq_q * call.group, heads // call.group) if kernel.packed else (seq_q, heads)
    return -(-rows // kernel.tiling.block_q) * of * batch * kernel.tiling.value_slices


@functools.lru_cache(maxsize=1024)
def choose_splits(blocks: int, tiles: int, slots: int) -> int:
    """The number of splits for "auto", by flash-decoding's rule with its limits. Each split has
    `blocks` CTAs, and the device runs `slots` CTAs at a time. Of the numbers of splits up to the
    number of key `tiles`, it is the smallest whose utilization of the slots is nearly the best.
    """
    most = max(min(MOST_SPLITS, tiles, slots), 1)

    def use(splits: int) -> float:
        waves = blocks * splits / slots
        return waves / math.ceil(waves)

    best = max(use(n) for n in range(1, most + 1))
    return next(n for n in range(1, most + 1) if use(n) >= _GOOD_ENOUGH * best)


def steps_of(call: CacheCall, kernel: KernelConfig, splits: int, memory: Memory) -> list[Step]:
    """The launches of a call, in order. Arrays that one launch writes and a later one reads are in `memory`:
    rotated q, if a launch before the one that attends rotates it; and if there are several splits, their O
    [batch, heads, seq_q, splits, head_dim_v] and LSE [batch, heads, seq_q, splits], f32.
    """
    steps, queries = [], None
    if rotates_before(call, kernel):
        queries = memory.array(tuple(call.q.shape), call.config.element)
    if "k_new" in call.operands and kernel.features.appended is None:
        steps.append(append_step(kernel.target, appending(call, queries)))
        call = call if queries is None else call._replace(q=queries)
    if splits == 1:
        return [*steps, _attending(call, kernel, 1)]
    shape = (*call.q.shape[:3], splits)
    outs, lses = memory.array((*shape, call.config.value_dim), F32), memory.array(shape, F32)
    of_splits = call._replace(out=outs, outputs={**call.outputs, LSE.name: lses})
    steps.append(_attending(of_splits, kernel, splits))
    lses = lses._replace(shape=(math.prod(shape[:-1]), splits), strides=(splits, 1))
    merged = merging(MergeCall(outs, lses, call.out, call.outputs.get(LSE.name)), kernel.target)
    overlaps = kernel.begins_next and merged.plan.attributes.programmatic
    return [*steps, merged._replace(in_flight=(outs, lses) if overlaps else ())]


def appending(call: CacheCall, queries: ArrayView | None) -> AppendCall:
    """The call that appends the new rows before attention; rotated q is written to `queries`, None without
    rotation.
    """
    arrays = {"K": call.k, "V": call.v, **call.operands}
    arrays |= {name.upper(): arrays.pop(name) for name in ("k_new", "v_new")}
    if queries is not None:
        cos, sin = (call.operands[name] for name in ANGLES)
        arrays |= {"Q": call.q, "Q_OUT": queries, "COS": cos, "SIN": sin}
    return AppendCall(arrays, call.page_size, call.interleaved, call.blocks)


def append_step(target: Target, call: AppendCall) -> Step:
    """The launch that writes the new rows, and rotates if there are tables."""
    arrays, (batch, kv_heads, n, _) = call.arrays, call.arrays["K_NEW"].shape
    k, rotates = arrays["K"], "COS" in arrays
    lengths: dict[str, Any] = {name: name in arrays for name in LENGTHS}
    stored = call.stored if call.stored.is_narrow else None
    per_token = "k_scale" in arrays and len(arrays["k_scale"].shape) == len(k.shape) - 1
    kernel = append_build(
        AppendConfig(
            target,
            arrays["K_NEW"].shape[3],
            arrays["V_NEW"].shape[3],
            OF_ARRAYS[arrays["K_NEW"].dtype],
            Features(page_size=call.page_size, kv_dtype=stored, per_token=per_token, **lengths),
            2 * arrays["COS"].shape[1] if rotates else 0,
            rotates and call.interleaved,
            COUNTS.name in arrays,
        )
    )
    kernel.require_proved()
    rows = batch * kv_heads * n
    capacity, sequences = k.shape[2], k.shape[0]
    if call.page_size:
        sequences, columns = arrays["block_table"].shape
        capacity = columns * call.page_size
    values: dict[str, int | float] = {
        "new_rows": rows,
        "n": n,
        "kv_heads": kv_heads,
        "seq_k": capacity,
        "kv_batch": sequences,
        "pages": k.shape[0],
    }
    if rotates:
        _, heads, seq_q, _ = arrays["Q"].shape
        # The kernel takes no 0 for seq_q and heads, even if there is no query to divide by them.
        values |= {"q_rows": batch * heads * seq_q, "seq_q": max(seq_q, 1), "heads": max(heads, 1)}
        values["positions"] = min(arrays["COS"].shape[0], MAX_POSITIONS)
        rows += batch * heads * seq_q
    return launch_step(kernel, arrays, values, -(-rows // WARPS))


def _attending(call: CacheCall, kernel: KernelConfig, splits: int) -> Step:
    build = proved_build(kernel)
    arrays = {"Q": call.q, "K": call.k, "V": call.v, "O": call.out, **call.operands}
    arrays |= {output.array: call.outputs[output.name] for output in kernel.outputs}
    batch, heads, seq_q, _ = call.q.shape
    values = call.config.numbers | {
        "seq_q": seq_q,
        "heads": heads,
        "group": call.group,
        "seq_k": call.capacity,
        "splits": splits,
        "section": heads,
        "batch": batch,
        "kv_heads": call.k.shape[1],
        "softmax_scale": call.scale,
        "kv_batch": _sequences(call),
        "pages": call.k.shape[0],
        LAST_KEYS: last_keys(call.operands),
        **aux_sizes(call.config, call.operands),
    }
    if "k_new" in call.operands:
        values["n"] = call.operands["k_new"].shape[2]
    if ANGLES[0] in call.operands:
        values["positions"] = min(call.operands[ANGLES[0]].shape[0], MAX_POSITIONS)
    return launch_step(build, arrays, values, blocks_of(call, kernel) * splits)


def last_keys(operands: Mapping[str, ArrayView]) -> int:
    """The number of keys at the end of a sequence that a mask covers; 0 without a mask."""
    return operands["mask"].shape[-1] if "mask" in operands else 0


def aux_sizes(config: AttentionConfig, operands: Mapping[str, ArrayView]) -> dict[str, int]:
    """The lengths of the arrays that functions of scores index, by parameter."""
    lengths: dict[str, int] = {}
    for array in config.aux_arrays:
        lengths |= zip(array.sizes, operands[array.operand].shape, strict=True)
    return lengths


def _sequences(call: CacheCall) -> int:
    """The number of sequences in the KV cache of a call."""
    return (call.operands["block_table"] if call.page_size else call.k).shape[0]

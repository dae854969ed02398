"""Kernels that attend to a KV cache, for the mutation campaign: their problems, and the right
results.

Which keys a split has is not prescribed: the splits' results must merge to attention to all keys.
Kernels that append must leave the cache as it was except in new rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from flash.calls.step import Step
from flash.decode.plan import CacheCall, kernel_of, new_operands, steps_of
from flash.error_bound import PARTS_OF_F32, Bound, arithmetic_of_config, attention_bound
from flash.host.stored_rows import loaded, stored
from flash.operands.blocks import CACHED_DTYPES
from flash.operands.dtypes import F32, I32, DType
from flash.problem.config import AttentionConfig
from flash.problem.rotary import rotary_tables, rotated
from flash.reference import merged
from ptxgen.arrays.views import ArrayView, view
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from ptxgen.target import target
from tools.campaign.arrays import (
    SCORES,
    bits_differ,
    copied,
    margins_changed,
    slot_of,
    with_margins,
    within_margins,
)
from tools.campaign.launches import of_step
from tools.campaign.problems import ABOVE_HUGE, HUGE, LANE_ROWS

_SEED: Final = 20252
_ROOM: Final = 5  # unused rows of a sequence
_SPARE: Final = 2  # unused sequences
_NEW: Final = (7, 1, 3, 16)  # counts of appended rows, problem by problem
_POSITIONS: Final = 200  # rows of the rotary tables


@dataclass(frozen=True, slots=True)
class CacheProblem:
    """Attention of `seq_q` queries of each item to its keys: the rows of its sequence up to `used`,
    without the first `padding` rows. A kernel with splits divides them among `splits`. V of the
    last `nan_last` keys is NaN; `scores` is as in `tools/campaign/problems.py`. The scale
    is `times` that of the config, and with `full` the capacity is that of the longest sequence. The last
    `n` rows of each item are new, and the rotary tables have `positions` rows.
    """

    seq_q: int
    used: tuple[int, ...]
    padding: tuple[int, ...] = ()  # empty: no padding
    heads: int = 4
    kv_heads: int = 2
    splits: int = 3
    nan_last: int = 0
    scores: str = "random"
    times: float = 1.0
    full: bool = False
    n: int = 0
    positions: int = _POSITIONS


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The settings of a kernel that attends to a cache. `indexed`: it takes the sequence and the
    padding of each item. With `kv_dtype`, a narrow type, the cache has
    scales. With `rotary_dim` the kernel appends, and
    rotates `rotary_dim` columns.
    """

    config: AttentionConfig
    page_size: int = 0
    has_splits: bool = True
    indexed: bool = True
    kv_dtype: str | None = None
    rotary_dim: int = 0

    @property
    def stored(self) -> DType:
        """The element type of the cache."""
        return self.config.element if self.kv_dtype is None else CACHED_DTYPES[self.kv_dtype]

    def padding(self, problem: CacheProblem) -> tuple[int, ...]:
        """The number of padding rows of each item."""
        return (problem.padding if self.indexed else ()) or (0,) * len(problem.used)


def cache_subject(name: str, *, attention: dict[str, Any], **settings: Any) -> KernelUnderTest:
    """The subject of the kernel with these `CacheSettings`."""
    options = CacheSettings(AttentionConfig(return_lse=True, causal=True, **attention), **settings)
    problems = _problems_of(options)

    def prepare(problem: CacheProblem) -> Launch:
        arrays = CacheArrays.of(options, problem)
        return of_step(arrays.step(), (arrays.out, arrays.lse, *arrays.cache), arrays.wrong)

    build = CacheArrays.of(options, problems[0]).step().build
    return KernelUnderTest(name, build.kernel.name, build.threads, build.module, problems, prepare)


def _problems_of(settings: CacheSettings) -> tuple[CacheProblem, ...]:
    """Problems with items whose keys end anywhere in a tile. The first problem uses all buffers
    repeatedly in each loop; some items have fewer keys than queries, or than splits.
    """
    t = settings.config.kernel().tiling
    group = 2 if settings.config.pack_gqa is True else 1  # heads in a CTA
    tile, block = t.tile, t.block_q // group  # block: queries of one head in a CTA
    ends = tuple(range(1, tile + 1))
    first = CacheProblem(block, (9 * tile + 5, 5 * tile, 3 * tile + 1, 5), (0, 3, tile, 2), splits=2)
    two_blocks = CacheProblem(block + 3, (3 * tile + 2, block + 9))
    one = CacheProblem(1, (*ends[::3], 0, 4 * tile, 6 * tile + 7), splits=4)
    ragged = [
        CacheProblem(1 + n % block, tuple(end + tile * (n // 8) for end in ends[n::8]), heads=2)
        for n in range(0, 16, 3)
    ]
    padded = CacheProblem(2, (tile + 3, 2 * tile, 2 * tile + 1), (tile, tile - 1, 2 * tile + 1))
    grouped = CacheProblem(block // 2 + 1, (tile + 2, 2 * tile), heads=4, kv_heads=1)
    alone = CacheProblem(block - 1, (2 * tile + 3, block), heads=2, kv_heads=2)
    scores = [
        replace(two_blocks, scores=name, heads=2, kv_heads=1, splits=splits)
        for name in ("none", "growing", "parting")
        for splits in (1, 2)
    ]
    negative = replace(two_blocks, times=-1.0)
    # Exponents of which a base, subtracted from them, would lose what matters.
    huge = [replace(p, times=HUGE) for p in scores if p.scores == "growing"]
    # For each of a thread's rows, and each key of a tile, the key is the first after the diagonal.
    # Only the last query sees NaN, or all but the first one, whose keys end at the end of a tile.
    apart = max(t.row_step // group, 1)
    after = tuple(range(1, tile + apart, max(apart - 1, 1)))
    hidden = [
        CacheProblem(block, tuple(block + n for n in after), nan_last=last, heads=2 * group, splits=splits)
        for last, splits in ((max(apart - 1, 1), 1), (1, 3), (block - 1, 3))
    ]
    hidden.append(replace(hidden[-1], used=(block + tile - 1,), splits=1))
    # A block of only one row, which sees NaN.
    kv_heads = 3 if group > 1 else 1  # heads; a divisor of 32 + 1 rows
    rows = (t.block_q + 1) // kv_heads
    hidden.append(CacheProblem(rows, (rows + 3, tile), heads=kv_heads, kv_heads=1, nan_last=1))
    # No memory follows the last key.
    full = [CacheProblem(2, (1, end), splits=1, full=True) for end in (5, 2 * tile + 3)]
    # An item without keys, before whose cache there is nothing.
    empty = CacheProblem(1, (0, tile + 1), heads=2, splits=1)
    # Two tiles that the diagonal cuts; the last warp's rows all see a key of the last one.
    cut = replace(
        alone, seq_q=block, used=(3 * tile + 2 * LANE_ROWS // group,), heads=group, kv_heads=1, splits=1
    )
    crossing = [replace(cut, scores="crossing"), replace(cut, times=ABOVE_HUGE)]
    alike = (first, two_blocks, one, padded, grouped, alone, negative)
    problems = (*alike, *scores, *huge, *hidden, *full, empty, *ragged, *crossing)
    return _appending(settings, problems) if settings.rotary_dim else problems


def _appending(settings: CacheSettings, problems: tuple[CacheProblem, ...]) -> tuple[CacheProblem, ...]:
    """The problems with new rows, and with all queries of a head of K in one block. Further
    problems have items with fewer rows than are new, with padding among the new rows, with as many
    splits as tiles, and with only one row that sees NaN.
    """
    block, tile = settings.config.kernel().tiling.block_q, settings.config.kernel().tiling.tile

    def fitting(p: CacheProblem, n: int) -> CacheProblem:
        heads = p.heads if settings.config.pack_gqa is True else p.kv_heads
        return replace(p, heads=heads, seq_q=min(p.seq_q, block * p.kv_heads // heads), n=n)

    more = (
        CacheProblem(3, (2 * tile + 4, tile, 9, 3), (0, 0, 7, 2), n=16),
        CacheProblem(1, (3 * tile, 2 * tile + 1, tile + 3), (0, 1, tile + 1), n=4, positions=tile),
        CacheProblem(5, (3 * tile + 2, 2 * tile + 5), (0, 4), n=tile, splits=5),
        CacheProblem(1, (tile + 3, tile), heads=2, n=1, nan_last=1),
    )
    appending = [fitting(p, _NEW[i % len(_NEW)]) for i, p in enumerate(problems)]
    return (*appending, *(fitting(p, p.n) for p in more))


class _Results:
    """A stand-in for the memory of a call: it hands out the arrays for O and LSE of the splits, which are
    then checked.
    """

    def __init__(self, *arrays: ArrayView) -> None:
        self._arrays = list(arrays)

    def array(self, *_: object, **__: object) -> ArrayView:
        """The next of the arrays, in the order of the requests."""
        return self._arrays.pop(0)


@dataclass(frozen=True, slots=True)
class CacheArrays:
    """The arrays of a problem, within margins of NaN; cache rows that no item uses are NaN, too.
    With splits O is [batch, heads, seq_q, splits, columns], and LSE [batch, heads, seq_q, splits].
    """

    settings: CacheSettings
    problem: CacheProblem
    q: Array
    cache: tuple[Array, Array]
    operands: dict[str, Array]
    out: Array
    lse: Array
    wanted: tuple[Array, Array]  # the cache after the launch
    new: dict[str, Array]  # new rows and rotary tables, by name
    attending: Array  # the rotated queries
    keys: list[tuple[Array, Array]] = field(default_factory=list)  # keys and values of each item

    @classmethod
    def of(cls, settings: CacheSettings, p: CacheProblem) -> CacheArrays:
        """The arrays of a problem, with equal contents at each call."""
        random, config, batch = np.random.default_rng(_SEED), settings.config, len(p.used)
        q = with_margins((batch, p.heads, p.seq_q, config.head_dim), config.element, random, reverse=False)
        count = batch + _SPARE if settings.indexed else batch
        index = random.permutation(count)[:batch] if settings.indexed else np.arange(batch)
        operands = {"seqused_k": np.array(p.used)}
        if settings.indexed:
            operands |= {"leftpad_k": np.array(settings.padding(p)), "cache_batch_idx": index}
        room = max(p.used) + (0 if p.full else _ROOM)
        sizes = (count, p.kv_heads, room)
        if settings.page_size:
            table = random.permutation(count * -(-room // settings.page_size)).reshape(count, -1)
            operands["block_table"] = table
            sizes = (table.size, p.kv_heads, settings.page_size)
        inputs = {name: within_margins(array, I32) for name, array in operands.items()}
        for name in ("k_scale", "v_scale") if settings.kv_dtype else ():
            inputs[name] = within_margins(random.uniform(0.5, 2.0, p.kv_heads), F32)
        dims = config.head_dim, config.value_dim
        k, v = (with_margins((*sizes, d), settings.stored, None, reverse=False) for d in dims)
        rows = (batch, p.heads, p.seq_q)
        if settings.has_splits:
            flat = (batch * p.heads, p.seq_q, p.splits, config.value_dim)
            parts = with_margins(flat, F32, None, reverse=False)
            out = parts.reshape(*rows, p.splits, config.value_dim)
            lse = np.full((*rows, p.splits), np.nan, np.float32)
        else:
            out = with_margins((*rows, config.value_dim), config.element, None, reverse=False)
            lse = np.full(rows, np.nan, np.float32)
        new = {}
        if settings.rotary_dim:
            for name, dim in zip(("k", "v"), dims, strict=True):
                shape = (batch, p.kv_heads, p.n, dim)
                new[name] = with_margins(shape, config.element, random, reverse=False)
            tables = rotary_tables(p.positions, settings.rotary_dim)
            new |= {n: within_margins(t, F32) for n, t in zip(("cos", "sin"), tables, strict=True)}
        arrays = cls(settings, p, q, (k, v), inputs, out, lse, (copied(k), copied(v)), new, q.copy())
        for b, slot in enumerate(index):
            arrays._fill(b, int(slot), random)
        return arrays

    def _fill(self, b: int, sequence: int, random: np.random.Generator) -> None:
        """Make the keys and values of item `b`, and write them to the cache."""
        settings, p, config = self.settings, self.problem, self.settings.config
        begin, end = settings.padding(p)[b], p.used[b]
        count = max(end - begin, 0)
        k, v = (
            random.standard_normal((1, p.kv_heads, count, d)).astype(config.element.numpy)
            for d in (config.head_dim, config.value_dim)
        )
        q, rest = self.q[b : b + 1], slice(settings.rotary_dim, None)  # rotated infinities would be NaN
        SCORES[p.scores](q[..., rest], k[..., rest], v, max(LANE_ROWS * p.kv_heads // p.heads, 1))
        v[:, :, max(count - p.nan_last, 0) :] = np.nan
        if settings.rotary_dim:
            self._append(b, sequence, k, v)
        self.attending[b] = self._rotated(b, self.q) if settings.rotary_dim else self.q[b]
        scales = [self._scale(name) for name in ("k_scale", "v_scale")]
        rows = [stored(x[0], settings.stored, s) for x, s in zip((k, v), scales, strict=True)]
        for side, of_side in zip((*self.cache, *self.wanted), (*rows, *rows), strict=True):
            for row in range(begin, end - p.n):
                page, within = slot_of(self.operands, settings.page_size, sequence, row)
                side[page, :, within] = of_side[:, row - begin]
        k, v = (loaded(x, settings.stored, s)[None] for x, s in zip(rows, scales, strict=True))
        self.keys.append((k, v))

    def _append(self, b: int, sequence: int, k: Array, v: Array) -> None:
        """Make the last keys and values of item `b` new rows, and rotate them in place; new rows of
        padding have other contents.
        """
        p, begin = self.problem, self.settings.padding(self.problem)[b]
        first = p.used[b] - p.n
        k_new, v_new = self.new["k"][b], self.new["v"][b]
        keys = max(p.n - max(begin - first, 0), 0)  # new rows that are keys
        there = k.shape[2] - keys
        k_new[:, p.n - keys :], v_new[:, p.n - keys :] = k[0, :, there:], v[0, :, there:]
        rotated_k = self._rotated(b, self.new["k"])
        k[0, :, there:] = rotated_k[:, p.n - keys :]
        for i in range(max(-first, 0), p.n):
            page, within = slot_of(self.operands, self.settings.page_size, sequence, first + i)
            for side, row in zip(self.wanted, (rotated_k[:, i], v_new[:, i]), strict=True):
                side[page, :, within] = row

    def _rotated(self, b: int, x: Array) -> Array:
        """The rows `x` of item `b`, rotated by their positions; the last row has the position of the last
        key.
        """
        end = self.problem.used[b] - self.settings.padding(self.problem)[b]
        rows = np.arange(end - x.shape[2], end)
        positions = np.clip(rows, 0, self.problem.positions - 1)[None]
        cos, sin = self.new["cos"], self.new["sin"]
        result: Array = rotated(x[b : b + 1], cos, sin, positions, interleaved=False)[0]
        return result.astype(x.dtype)

    def _scale(self, name: str) -> Array | None:
        scale = self.operands.get(name)
        return None if scale is None else scale[:, None, None]

    def step(self) -> Step:
        """The launch of the kernel that attends to the cache."""
        p, settings = self.problem, self.settings
        inputs = {name: view(array, name) for name, array in self.operands.items()}
        k, v = (view(x, "cache") for x in self.cache)
        size = settings.page_size
        room = inputs["block_table"].shape[1] * size if size else k.shape[2]
        scale = settings.config.scale * p.times
        out, lse = view(self.out, "out"), view(self.lse, "lse")
        splits = p.splits if settings.has_splits else 1
        names = {"k": "k", "v": "v", "cos": "rotary_cos", "sin": "rotary_sin"}
        new = {names[name]: view(array, name) for name, array in self.new.items()}
        call = CacheCall(
            settings.config,
            view(self.q, "q"),
            k,
            v,
            out,
            {"lse": lse},
            inputs | new_operands(new),
            size,
            room,
            scale,
        )
        kernel = kernel_of(call, target(str(settings.config.target)), max(splits, 1 + settings.has_splits))
        return steps_of(call, kernel, splits, _Results(out, lse))[0]

    def wrong(self) -> str:
        """A description of the first wrong result; empty if all are right."""
        out, lse = self.out, self.lse
        whole = out.reshape(-1, *out.shape[-3:])
        changed = margins_changed(whole, np.ones(whole.shape[2], bool))
        if self.settings.has_splits:
            out, lse = merged(out.astype(float), lse.astype(float))
        wanted, wanted_lse, out_error, lse_error = self._bound()
        return (
            difference("O", out, wanted, out_error)
            or difference("LSE", lse, wanted_lse, lse_error)
            or changed
            or bits_differ("K", self.cache[0], self.wanted[0])
            or bits_differ("V", self.cache[1], self.wanted[1])
        )

    def _bound(self) -> Bound:
        """O and LSE of all items, with their allowed errors."""
        config, p = self.settings.config, self.problem
        scale = config.scale * p.times
        # The results of splits are merged in float64, and not rounded.
        element = np.float32 if self.settings.has_splits else config.element.numpy
        arithmetic = arithmetic_of_config(config, PARTS_OF_F32 * self.settings.has_splits)
        bounds = [
            attention_bound(q[None], k, v, element, arithmetic, causal="bottom_right", softmax_scale=scale)
            for q, (k, v) in zip(self.attending, self.keys, strict=True)
        ]
        return Bound(*(np.concatenate(arrays) for arrays in zip(*bounds, strict=True)))

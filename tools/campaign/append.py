"""The kernels that append to a KV cache, for the mutation campaign: their problems, and the right
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flash.calls.step import Step
from flash.decode.plan import AppendCall, append_step
from flash.host.stored_rows import stored
from flash.operands.blocks import CACHED_DTYPES
from flash.operands.dtypes import F32, I32, DType
from flash.problem.rotary import rotary_tables, rotated
from ptxgen.arrays.views import view
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from ptxgen.target import target
from tools.campaign.arrays import bits_differ, copied, slot_of, with_margins, within_margins
from tools.campaign.launches import of_step

_SEED: Final = 20251
_SEQUENCES, _CAPACITY = 5, 23  # of the cache; with pages the capacity is rounded up
_NONFINITE: Final = (np.nan, np.inf, -np.inf, 1000.0, 2.0**-10, -(2.0**-12))  # special for e4m3
_BEYOND_E4M3: Final = 300  # times a normal number: beyond 448, the largest number, in some elements


@dataclass(frozen=True, slots=True)
class AppendProblem:
    """The sizes of an append: `n` new rows of each item, whose sequence then has `used` rows.
    `padding` and `index` hold the padding rows and the sequence of each item; the rotary tables
    have `positions` rows. In a kernel that counts, only the first `counts` rows of each item are
    new; empty for all of them.
    """

    n: int
    seq_q: int
    used: tuple[int, ...]
    padding: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    heads: int = 3
    kv_heads: int = 2
    positions: int = _CAPACITY
    counts: tuple[int, ...] = ()


# Items with more rows than the capacity, or fewer rows than are new; warps without a row of K, or
# without a row of Q; no query.
_PROBLEMS: Final = (
    AppendProblem(3, 2, (23, 3, 2), (4, 1, 0), (4, 0, 2)),
    AppendProblem(1, 1, (1,), (0,), (3,)),
    AppendProblem(2, 1, (2**31 - 1, 0), (2, 5), (1, 4)),
    AppendProblem(2, 0, (5,), (1,), (0,)),
    AppendProblem(2, 3, (9,), (9,), (2,), heads=1, kv_heads=2),
    AppendProblem(1, 4, (17, 16), (3, 0), (2, 0), positions=9),
    AppendProblem(4, 1, (4, 8), (0, 1), (1, 3), heads=5, kv_heads=1),
)


@dataclass(frozen=True, slots=True)
class AppendSettings:
    """The settings of an append kernel, which rotates if `rotary_dim` is not 0. With `kv_dtype`, a
    narrow type, the cache has scales, `scale` for all heads or random ones, and new rows of K and V have
    the numbers `special`, too; without `index` item b has sequence b, and without `padding` no row is
    padding.
    """

    target: str
    dims: tuple[int, int]
    dtype: DType
    rotary_dim: int
    interleaved: bool = False
    page_size: int = 0
    padding: bool = True
    index: bool = True
    kv_dtype: str | None = None
    scale: float | None = None
    special: tuple[float, ...] = ()

    @property
    def stored(self) -> DType:
        """The element type of the cache."""
        return self.dtype if self.kv_dtype is None else CACHED_DTYPES[self.kv_dtype]


def append_subject(name: str, **settings: Any) -> KernelUnderTest:
    """The subject of the kernel with these `AppendSettings`."""
    options = AppendSettings(**settings)

    def prepare(problem: AppendProblem) -> Launch:
        arrays = AppendArrays.of(options, problem)
        return of_step(arrays.step(), arrays.results, arrays.wrong)

    build = AppendArrays.of(options, _PROBLEMS[0]).step().build
    return KernelUnderTest(name, build.kernel.name, build.threads, build.module, _PROBLEMS, prepare)


@dataclass(frozen=True, slots=True)
class AppendArrays:
    """The arrays of an append problem, within margins: new rows and queries, rotary tables, the
    operands that say where rows go, and the cache and rotated queries, as they are (`results`) and
    as they should be (`wanted`), margins included. K has the heads of a row adjacent in memory, as after a
    projection.
    """

    settings: AppendSettings
    counts: Array | None
    new: tuple[Array, Array, Array]
    tables: tuple[Array, ...]
    operands: dict[str, Array]
    results: tuple[Array, Array, Array]
    wanted: tuple[Array, Array, Array]

    @classmethod
    def of(cls, settings: AppendSettings, p: AppendProblem) -> AppendArrays:
        """The arrays of a problem, with equal contents at each call."""
        random, batch = np.random.default_rng(_SEED), len(p.used)
        dim, dim_v = settings.dims
        sizes = ((p.n, p.kv_heads, dim), (p.kv_heads, p.n, dim_v), (p.heads, p.seq_q, dim))
        new = [with_margins((batch, *s), settings.dtype, random, reverse=False) for s in sizes]
        new[0] = new[0].swapaxes(1, 2)
        new[0][...] *= new[0].dtype.type(_BEYOND_E4M3 if settings.kv_dtype else 1)
        new[1][0, 0, 0, : len(_NONFINITE)] = _NONFINITE
        if settings.special:
            for of_side in new[:2]:
                of_side[0, 0, 0, -len(settings.special) :] = settings.special
        tables = rotary_tables(p.positions, settings.rotary_dim) if settings.rotary_dim else ()
        operands = {"seqused_k": np.array(p.used)}
        operands |= {"leftpad_k": np.array(p.padding)} if settings.padding else {}
        operands |= {"cache_batch_idx": np.array(p.index)} if settings.index else {}
        extents = (_SEQUENCES if settings.index else batch, p.kv_heads, _CAPACITY)
        if settings.page_size:
            columns = -(-_CAPACITY // settings.page_size)
            pages = random.permutation(extents[0] * columns)
            operands["block_table"] = pages.reshape(extents[0], columns)
            extents = (pages.size, p.kv_heads, settings.page_size)
        inputs = {name: within_margins(array, I32) for name, array in operands.items()}
        for name in ("k_scale", "v_scale") if settings.kv_dtype else ():
            scales = random.uniform(0.1, 3.0, p.kv_heads)
            if settings.scale is not None:
                scales[...] = settings.scale
            inputs[name] = within_margins(scales, F32)
        results = [with_margins((*extents, d), settings.stored, None, reverse=False) for d in settings.dims]
        results.append(with_margins(new[2].shape, settings.dtype, None, reverse=False))
        appended = cls(
            settings,
            within_margins(np.array(p.counts), I32) if p.counts else None,
            (new[0], new[1], new[2]),
            tuple(within_margins(table, F32) for table in tables),
            inputs,
            (results[0], results[1], results[2]),
            (copied(results[0]), copied(results[1]), copied(results[2])),
        )
        appended._fill(p)
        return appended

    def step(self) -> Step:
        """The launch of the kernel that appends to the cache."""
        settings, arrays = self.settings, dict(zip(("K_NEW", "V_NEW", "Q"), self.new, strict=True))
        arrays |= {**dict(zip(("K", "V", "Q_OUT"), self.results, strict=True)), **self.operands}
        arrays |= {} if self.counts is None else {"counts": self.counts}
        arrays |= dict(zip(("COS", "SIN"), self.tables, strict=False))  # none without a rotation
        views = {name: view(array, name) for name, array in arrays.items()}
        return append_step(
            target(settings.target), AppendCall(views, settings.page_size, settings.interleaved)
        )

    def _fill(self, p: AppendProblem) -> None:
        """Write the exact contents of the cache after the launch to `wanted`."""
        capacity = _CAPACITY
        if self.settings.page_size:
            capacity = self.operands["block_table"].shape[1] * self.settings.page_size
        used = np.minimum(p.used, capacity)
        padding = np.minimum(p.padding, used) if self.settings.padding else np.zeros_like(used)
        k, v, q_out = self.wanted
        k_new, v_new, q = self.new
        rows = k_new
        if self.tables:
            q_out[...] = self._rotated(q, used, padding, p).astype(q.dtype)
            rows = self._rotated(k_new, used, padding, p)
        if not self.settings.kv_dtype:
            rows = rows.astype(k.dtype)
        index, page_size = self.operands.get("cache_batch_idx"), self.settings.page_size
        for b, i in np.ndindex(len(p.used), p.n):
            n = p.counts[b] if p.counts else p.n
            row = int(used[b]) - n + i
            if row < 0 or i >= n:
                continue
            sequence = b if index is None else int(index[b])
            page, within = slot_of(self.operands, page_size, sequence, row)
            for to, of, name in ((k, rows, "k_scale"), (v, v_new, "v_scale")):
                values = of[b, :, i]
                if self.settings.kv_dtype:
                    values = stored(values, self.settings.stored, self.operands[name][:, None])
                to[page, :, within] = values

    def _rotated(self, x: Array, used: Array, padding: Array, p: AppendProblem) -> Array:
        """Rows with rotary embedding at their positions, in f32."""
        rows = (used - padding)[:, None] + np.arange(-x.shape[2], 0)
        positions = np.clip(rows, 0, p.positions - 1)
        cos, sin = self.tables
        return rotated(x, cos, sin, positions, interleaved=self.settings.interleaved)

    def wrong(self) -> str:
        """A description of the first wrong result; empty if all are right."""
        arrays = zip(("K", "V", "Q"), self.results, self.wanted, strict=True)
        return next(filter(None, (bits_differ(*each) for each in arrays)), "")

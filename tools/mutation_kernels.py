"""The shipped kernels that the campaign makes wrong, and how each of their runs is judged.

A new kernel is one more entry of `SUBJECTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.build import build
from flash.config import AttentionConfig
from flash.dtypes import F32, DType
from flash.mma_tiling import MMA_ROWS
from flash.reference import attention_reference
from flash.tile_choice import AnyTiling
from flash.tiling import Tiling, padded
from ptxgen import interpreter, ir
from ptxgen.interpreter import Report, Result

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of one attention problem. V of the keys from `nan_from` on is NaN, if it is not None;
    with `negative`, the scale is that of the config negated; `scores` is a name in `_SCORES`.
    With `reverse`, the last row is the first in memory: nothing lies behind the first row. Of
    causal kernels `section` heads take turns.
    """

    seq_q: int
    seq_k: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    nan_from: int | None = None
    negative: bool = False
    scores: str = "random"
    reverse: bool = False
    section: int = 1

    def scale(self, config: AttentionConfig) -> float:
        """The softmax scale of this problem."""
        return -config.scale if self.negative else config.scale


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what the sanitizers say, what is wrong with the results (empty: nothing), the
    results' bytes, and how many instructions were executed one after another.
    """

    reports: tuple[Report, ...]
    wrong: str
    results: bytes
    dispatched: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of the campaign. `run(module, problem, **how)` runs it or a mutant of it; `how` goes
    to the interpreter, or to the function that is given as `launch` and called in its place. Every
    buffer is used again in the first problem.
    """

    name: str
    entry: str
    block: int
    module: ir.Module
    problems: tuple[Problem, ...]
    run: Callable[..., Ran]


# Around what a kernel may touch of its arrays: other rows and columns, full of NaN, whose bits must
# not change. A read of them shows in the results, one behind the last of them stops the kernel.
_MARGIN_ROWS: Final = 2
_MARGIN_BYTES: Final = 16  # so that all rows stay aligned
_SEED: Final = 20240
_EIGHT: Final = MMA_ROWS // 2  # a lane of a tensor-core product has rows so far apart
_GROWTH: Final = 12.0  # of scores, and again of those in every other eight rows
_STEEP: Final = 48.0  # by which scores differ from key to key, without their scale

# Of eight rows each: neighbours are the rows of a warp, and of its lanes.
_UP, _DEAD, _DOWN = range(3)
_COURSES: Final = (_UP, _DEAD, _DEAD, _UP, _UP, _DOWN, _DOWN, _UP)


def _no_scores(q: Array, k: Array) -> None:
    """All are -inf."""
    q[...], k[...] = np.abs(q), -np.inf


def _growing(q: Array, k: Array) -> None:
    """They grow towards the first key, in every other eight rows much more."""
    k *= np.linspace(_GROWTH, 0, k.shape[2])[:, None].astype(k.dtype)
    q[:, :, np.arange(q.shape[2]) // _EIGHT % 2 == 0] *= np.asarray(_GROWTH, q.dtype)


def _parting(q: Array, k: Array) -> None:
    """In one warp there are rows whose scores grow towards the first key so steeply that exp2
    overflows within a tile, rows whose scores fall as steeply, and rows whose scores are all -inf.
    """
    course = np.take(_COURSES, np.arange(q.shape[2]) // _EIGHT % len(_COURSES))
    k[..., 0], k[..., 1] = -1, np.arange(k.shape[2])[::-1]
    q[..., 0] = np.where(course == _DEAD, np.inf, 0)
    q[..., 1] = np.where(course == _DOWN, -_STEEP, _STEEP)


# How the scores are changed that normally distributed queries and keys give.
_SCORES: Final[dict[str, Callable[[Array, Array], None]]] = {
    "random": lambda _q, _k: None,
    "none": _no_scores,
    "growing": _growing,
    "parting": _parting,
}


def _problems(config: AttentionConfig) -> tuple[Problem, ...]:
    """Ragged ends of every kind: each guard of an unrolled loop has a problem that ends there.

    The first goes round all buffers twice, in each loop. One has no key, some have more queries
    than keys.
    """
    t = config.kernel().tiling
    ends_q = [1 + n * t.block_q // 16 for n in range(16)]  # rows of the last CTA
    ends_k = [1 + n * t.tile // 16 for n in range(16)]  # keys of the last tile
    three_tiles = 2 * t.tile + ends_k[6]
    queries = max(t.block_q + ends_q[6] + 1, three_tiles)
    # A bottom-right mask must show two whole tiles to all rows, too.
    first = Problem(queries, three_tiles + queries * (config.causal == "bottom_right"))
    ragged = [
        Problem(t.block_q + end, ends_k[n] + t.tile * (n // 8), heads=1)
        for n, end in enumerate(ends_q)
    ]
    whole = Problem(t.block_q, 2 * t.tile)
    batches = Problem(t.block_q + 5, t.tile - 3, batch=2, section=3)
    grouped = Problem(t.block_q, t.tile // 2 + 1, 1, 4, 2)
    hidden = _hidden(t) if config.causal else []
    no_score = Problem(t.block_q, t.tile + 1, scores="none")
    negative = Problem(t.block_q, t.tile + 1, negative=True)
    growing = Problem(t.block_q, 3 * t.tile, scores="growing")
    # Several tiles that are whole, and several that a diagonal or the end cuts.
    parting = Problem(2 * t.block_q, 2 * t.block_q + 3 * t.tile // 2, heads=1, scores="parting")
    # The last row sees all keys: no tile is cut.
    uncut = Problem(t.block_q + 1, 3 * t.tile, reverse=True)
    special = Problem(3, 0), grouped, no_score, negative, growing, parting, uncut
    return first, whole, batches, *special, *hidden, *ragged


def _hidden(t: AnyTiling) -> list[Problem]:
    """Each of a thread's rows in turn with each key of a tile behind its diagonal, where V is NaN:
    what a row does not see must not matter. Then a first row that sees whole tiles alone, and a
    block of one row that sees NaN.
    """
    apart = t.groups if isinstance(t, Tiling) else _EIGHT  # a thread's rows are
    row = t.block_q - apart  # the first of the last rows that threads have
    ahead = range(1, t.tile + apart, max(apart - 1, 1))
    turns = [Problem(t.block_q, t.block_q + n, heads=1, nan_from=row + n + 1) for n in ahead]
    whole = Problem(t.block_q, t.block_q + t.tile - 1, heads=1, nan_from=t.tile)
    alone = Problem(t.block_q + 1, t.block_q + t.tile // 2 + 1, heads=1, nan_from=t.block_q)
    return [*turns, whole, alone]


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Of one problem: q, k, v as a kernel sees them, within their margins, and the right results
    with what each element may be off by.
    """

    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    out_error: Array
    lse_error: Array


def _with_margins(
    shape: tuple[int, ...], dtype: DType, random: np.random.Generator | None, *, reverse: bool
) -> Array:
    """An array whose margins, and without `random` all of it, are NaN."""
    batch, heads, rows, columns = shape
    pitch = padded(columns * dtype.nbytes + _MARGIN_BYTES, _MARGIN_BYTES) // dtype.nbytes
    whole = np.full((batch, heads, rows + _MARGIN_ROWS, pitch), np.nan, dtype.numpy)
    view = whole[:, :, :rows, :columns]
    if random is not None:
        view[...] = random.standard_normal(shape)
    return view[:, :, ::-1] if reverse else view


@lru_cache(maxsize=64)
def _arrays(config: AttentionConfig, problem: Problem) -> _Arrays:
    p, random = problem, np.random.default_rng(_SEED)
    sizes = [(p.heads, p.seq_q, config.head_dim), (p.kv_heads, p.seq_k, config.head_dim)]
    sizes.append((p.kv_heads, p.seq_k, config.value_dim))
    q, k, v = (
        _with_margins((p.batch, *size), config.element, random, reverse=p.reverse) for size in sizes
    )
    how: dict[str, Any] = {"softmax_scale": p.scale(config), "causal": config.causal}
    _SCORES[p.scores](q, k)
    if p.nan_from is not None:
        v[:, :, p.nan_from :] = np.nan
    out, lse = attention_reference(q, k, v, **how)
    near_out, near_lse = attention_reference(q, k, v, dtype=np.float32, **how)
    near_out = near_out.astype(config.element.numpy).astype(np.float64)
    out_error = _allowed(near_out, out, config.element)
    return _Arrays(q, k, v, out, lse, out_error, _allowed(near_lse, lse, F32))


def _allowed(near: Array, exact: Array, dtype: DType) -> Array:
    """Twice the largest error of numpy in the same precision, and twice the rounding of the largest
    value; as much again for each element's own size, for `ex2.approx` and `lg2.approx`, or for the
    rounding of P.
    """
    finite = np.isfinite(exact)
    size = np.abs(np.where(finite, exact, 0))
    worst = np.abs(np.where(finite, near - np.where(finite, exact, 0), 0)).max(initial=0)
    steps = 8 if dtype is F32 else 2
    epsilon = float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
    allowed: Array = 2 * worst + steps * epsilon * (size + size.max(initial=0))
    return allowed


def _forward(name: str, **settings: Any) -> Subject:
    """The forward kernel of one configuration."""
    config = AttentionConfig(return_lse=True, **settings)
    kernel = config.kernel()
    tiling = kernel.tiling

    def run(
        module: ir.Module,
        problem: Problem,
        *,
        launch: Callable[..., Result] = interpreter.run,
        **how: Any,
    ) -> Ran:
        p, given = problem, _arrays(config, problem)
        shape = p.batch, p.heads, p.seq_q, config.value_dim
        out = _with_margins(shape, config.element, None, reverse=p.reverse)
        lse = np.full((p.batch, p.heads, p.seq_q), np.nan, np.float32)
        arrays = (given.q, given.k, given.v, out)
        strides = [s // a.itemsize for a in arrays for s in a.strides[:3]]
        done = launch(
            module,
            kernel.name,
            grid=-(-p.seq_q // tiling.block_q) * p.heads * p.batch * tiling.value_slices,
            block=tiling.threads,
            args=[
                *arrays, lse, *strides, p.seq_q, p.seq_k, p.heads, p.heads // p.kv_heads,
                np.float32(p.scale(config)), *([p.section] if config.causal else []),
            ],
            dynamic_smem=module.kernels[0].dynamic_shared_bytes,
            raise_on_report=False,
            **how,
        )  # fmt: skip
        wrong = (
            _difference("O", out, given.out, given.out_error)
            or _difference("LSE", lse, given.lse, given.lse_error)
            or _margins_changed(out)
        )
        return Ran(done.reports, wrong, out.tobytes() + lse.tobytes(), done.counters.dispatched)

    module = build(kernel).module
    return Subject(name, kernel.name, tiling.threads, module, _problems(config), run)


def _difference(what: str, got: Array, wanted: Array, allowed: Array) -> str:
    """The first element that is too far from what it should be, in words; NaN is far from all but
    NaN.
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= allowed
    bad = ~(near | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return (
        f"{what}{list(at)} is {got[at]:.6g}, wanted {wanted[at]:.6g}; {bad.sum()} elements differ"
    )


def _margins_changed(view: Array) -> str:
    whole = view.base
    assert isinstance(whole, np.ndarray)
    bits = np.dtype(f"u{whole.itemsize}")
    changed = whole.view(bits) != np.asarray(np.nan, whole.dtype).view(bits)
    changed[:, :, : view.shape[2], : view.shape[3]] = False
    return "O is written outside its rows and columns" if changed.any() else ""


@lru_cache(maxsize=1)
def subjects() -> dict[str, Subject]:
    """All kernels of the campaign by name; made once."""
    made = (
        _forward("f32-sm_75", target="sm_75", head_dim=20, tile=16, block_q=128),
        _forward("f32-sm_80", target="sm_80", head_dim=20, tile=16, block_q=128),
        _forward(
            "f32-sm_80-causal", target="sm_80", head_dim=20, tile=16, block_q=128,
            causal="top_left",
        ),
        # Two threads share a score; rows and columns need padding; narrow copies.
        _forward(
            "f32-sm_75-causal-split", target="sm_75", head_dim=6, tile=16, block_q=16,
            causal="bottom_right",
        ),
        # Tensor cores: panels of 64, 32 and 16 columns, and an epilogue in passes.
        _forward(
            "f16-sm_80", target="sm_80", dtype="f16", head_dim=24, head_dim_v=72, tile=16,
            block_q=32,
        ),
        _forward(
            "bf16-sm_80-causal-stages", target="sm_80", dtype="bf16", head_dim=16, tile=16,
            block_q=64, causal="top_left", stages=2,
        ),
        # Copies through registers.
        _forward(
            "f16-sm_80-causal-narrow", target="sm_80", dtype="f16", head_dim=5, head_dim_v=37,
            tile=16, block_q=32, causal="bottom_right",
        ),
    )  # fmt: skip
    return {subject.name: subject for subject in made}

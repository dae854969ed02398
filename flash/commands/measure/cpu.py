"""Measures the backends "cpu" and "compiled" on the CPU against PyTorch and plain numpy."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.commands.measure.record import (
    MS,
    Goal,
    Job,
    Rows,
    Setting,
    Work,
    flat,
    interleaved,
    measured,
    ratios,
    seconds,
)
from flash.cpu.attention import attention_cpu
from flash.cpu.engine_choice import engine_of
from flash.cpu.paged_rows import KeyRows, PagedRows
from flash.operands.dtype_names import DTypeName
from flash.problem.config import AttentionConfig
from flash.scores.window import causal_offset
from ptxgen.errors import BackendError
from ptxgen.runtime.backend import require_compiler
from ptxgen.runtime.settings import COMPILED

Array = NDArray[Any]

THREADS: Final = 2
BATCH, HEADS, HEAD_DIM = 1, 8, 64
SHORT: Final = 1024  # the longest sequences whose whole matrix of scores numpy computes, too
SHORTEST: Final = 256
SHORTEST_GOAL: Final = 1.2
RATIO_GOAL: Final = 1.3
DECODING_GOAL: Final = 2.0
# Difference of two orders of adding 4096 products in f32; a wrong result differs by 1e-2 or more.
AGREEMENT: Final = 1e-4
AGREEMENT_OF_16_BITS: Final = 5e-3  # PyTorch also rounds weights
OURS: Final = {"ours": "cpu", COMPILED: COMPILED}  # contestants, and the backends that they are
# A pool of OpenMP threads spins for about 5 ms after its last work (libgomp, GOMP_SPINCOUNT).
_SPIN_S: Final = 0.02


def normal(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Arrays of normally distributed numbers, equal for equal seeds."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


@dataclass(frozen=True, slots=True)
class Token:
    """Decoding of one token: sizes of its arrays, all of `dtype`; `page_size` 0 is contiguous. Pages lie
    one after the other, the last of the sequence first, or `shuffled`.
    """

    dtype: DTypeName
    heads: int
    kv_heads: int
    head_dim: int
    seq_k: int
    page_size: int = 0
    shuffled: bool = False

    @property
    def table(self) -> Array:
        """The numbers of the sequence's pages."""
        count = self.seq_k // self.page_size
        numbers = np.random.default_rng(0).permutation(count) if self.shuffled else np.arange(count)[::-1]
        return numbers.astype(np.int32)

    @property
    def settings(self) -> dict[str, Setting]:
        """The token as the settings of a measurement."""
        sizes = {"heads": self.heads, "kv": self.kv_heads, "d": self.head_dim, "N": self.seq_k}
        return {"dtype": self.dtype, **sizes, "page": self.page_size, "shuffled": self.shuffled}


TOKENS: Final = (
    Token("f32", 8, 8, 64, 4096),
    Token("bf16", 8, 8, 64, 4096),
    Token("f16", 8, 8, 64, 4096),
    Token("f32", 32, 8, 128, 4096),
    Token("bf16", 32, 8, 128, 4096),
    *(Token("f32", 8, 8, 64, 4096, size, shuffled) for size in (16, 64, 256) for shuffled in (False, True)),
    Token("f32", 32, 8, 128, 4096, 16),
    Token("bf16", 8, 8, 64, 4096, 16),
    Token("bf16", 32, 8, 128, 4096, 16),
)


def cpu_jobs(quick: bool) -> list[Job]:
    """Jobs for f32, batch 1, 8 heads of 64, full and causal, short and long; and for one token. Raises
    ModuleNotFoundError without threadpoolctl, before anything is measured.
    """
    importlib.import_module("threadpoolctl")
    rounds, batch = (3, 3) if quick else (7, 4)
    counts = {SHORT: (rounds, batch)}
    if not quick:
        counts |= {SHORTEST: (2 * rounds, 4 * batch), 4096: (5, 2)}
    forward = [
        Job(f"cpu N={n} {'causal' if causal else 'full'}", functools.partial(compare, n, causal, *counts[n]))
        for n in counts
        for causal in (False, True)
    ]
    tokens = [
        Job(
            f"cpu token {token.dtype} page {token.page_size}{' shuffled' if token.shuffled else ''}",
            functools.partial(compare_token, token, 2 * rounds, batch),
        )
        for token in (TOKENS[:1] if quick else TOKENS)
    ]
    return forward + tokens


def compare(
    seq: int, causal: bool, rounds: int, batch: int, *, heads: int = HEADS, head_dim: int = HEAD_DIM
) -> Rows:
    """Times of one shape, and the ratios of our times to those of each other contestant in the same round."""
    q, k, v = normal(*[(BATCH, heads, seq, head_dim)] * 3)
    contestants, remarks = our_contestants(lambda backend: _attending(backend, q, k, v, causal))
    try:
        contestants["torch"] = _torch(q, k, v, causal)
    except ImportError as error:
        remarks.append(f"no comparison with PyTorch: {error}; pip install torch")
    if seq <= SHORT:
        contestants["numpy N²"] = functools.partial(dense_attention, q, k, v, causal)
    goals = dict.fromkeys(OURS, SHORTEST_GOAL if seq <= SHORTEST else RATIO_GOAL)
    results = raced(contestants, {"N": seq, "causal": causal}, rounds, batch, goals, AGREEMENT)
    return [*remarks, *results]


def compare_token(token: Token, rounds: int, batch: int) -> Rows:
    """Times of decoding one token, and the ratios of our times to PyTorch's in the same round. PyTorch
    takes no pages: it gathers them first, or is given contiguous keys.
    """
    kind = AttentionConfig(token.head_dim, dtype=token.dtype).element.numpy
    rows = (BATCH, token.kv_heads, token.seq_k, token.head_dim)
    q, k, v = (x.astype(kind) for x in normal((BATCH, token.heads, 1, token.head_dim), rows, rows))
    k_rows: KeyRows = k
    v_rows: KeyRows = v
    theirs: dict[str, Callable[[], Callable[[], Array]]] = {"torch": lambda: _torch(q, k, v, False)}
    if token.page_size:
        table = token.table
        k_pages, v_pages = (_in_pages(x, table, token.page_size) for x in (k, v))
        paged = (PagedRows(x.transpose(0, 2, 1, 3), table, token.seq_k) for x in (k_pages, v_pages))
        k_rows, v_rows = paged
        theirs = {
            "torch": lambda: _torch_in_pages(q, k_pages, v_pages, table),
            "torch, contiguous": theirs["torch"],
        }
    contestants, remarks = our_contestants(
        lambda backend: _attending(backend, q, k_rows, v_rows, causal=True)
    )
    try:
        contestants |= {name: make() for name, make in theirs.items()}
    except ImportError as error:
        remarks.append(f"no comparison with PyTorch: {error}; pip install torch")
    goals = dict.fromkeys(OURS, DECODING_GOAL)
    alike = AGREEMENT if token.dtype == "f32" else AGREEMENT_OF_16_BITS
    return [*remarks, *raced(contestants, token.settings, rounds, batch, goals, alike)]


def raced(
    contestants: Mapping[str, Callable[[], Array]],
    settings: Mapping[str, Setting],
    rounds: int,
    batch: int,
    goals: Mapping[str, float],
    agreement: float,
) -> Rows:
    """Times of the contestants, and the ratios of those of ours to each of the others; and the same of CPU
    time against PyTorch, with one thread for each. `goals` are by the names of ours. Results that differ by
    more than `agreement` are reported.
    """
    results = {name: work().astype(np.float32) for name, work in contestants.items()}
    ours, others = ([name for name in contestants if (name in OURS) == our] for our in (True, False))
    pairs = [(our, other) for our in ours for other in others]
    rows: Rows = []
    for our, name in pairs:
        apart = float(np.abs(results[our] - results[name]).max())
        if not apart <= agreement:
            of_settings = " ".join(f"{key}={value}" for key, value in settings.items())
            rows.append(f"WRONG: {our} and {name} differ by {apart:g} at {of_settings}")
    by_torch = {name: work for name, work in contestants.items() if name in ours or "torch" in name}
    clocks: tuple[tuple[str, int, Callable[[Work], float], Mapping[str, Work]], ...] = (
        ("", THREADS, seconds, contestants),
        ("CPU ", 1, functools.partial(seconds, clock=time.process_time), by_torch),
    )
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # GPUs are measured without it

    for prefix, threads, timer, racing in clocks:
        with threadpool_limits(threads, "blas"), _torch_threads(threads):
            samples = interleaved(racing, rounds=rounds, batch=batch, pause=_SPIN_S, timer=timer)
        for name, rounds_ in samples.items():
            label = f"CPU, {name}" if prefix else name
            rows.append(measured(label, "ms", [t * MS for t in flat(rounds_)], config=settings))
        for our, name in pairs:
            if name in samples:
                rows.append(
                    measured(
                        f"{prefix}time of {our} / {name}",
                        "x",
                        ratios(samples[our], samples[name]),
                        config=settings,
                        goal=Goal("<=", goals[our]) if "torch" in name else None,
                        headline=name == "torch",
                    )
                )
    return rows


CPU_REMARKS: Final = (
    "ours is the backend cpu, which is numpy; compiled is the backend of that name, with loops of Numba",
    f"without other settings f32, B{BATCH} H{HEADS} d{HEAD_DIM}; {THREADS} threads for each contestant, and "
    "one where CPU time is measured, which other work on the machine changes less",
    "contestants have turns of several calls, of which the first two do not count: PyTorch's "
    "OpenMP threads spin for about 5 ms after a call, at the expense of the next contestant",
    "a ratio is of the medians of the same round; its n is the number of rounds",
    "in a virtual machine threads of a contestant may share a core for some rounds: PyTorch's, which spin, "
    "then take 8 ms or more, and ours as long as one thread",
    "with pages, PyTorch gathers the keys of a token into contiguous ones, because its attention takes no "
    "pages, and that is part of its time; as 'torch, contiguous' it is given these",
)


@contextlib.contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """A context in which PyTorch, if it is installed, has this number of threads."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        yield
        return
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def our_contestants(
    make: Callable[[str], Callable[[], Array]],
) -> tuple[dict[str, Callable[[], Array]], list[str]]:
    """Our contestants, by name, which `make` makes of a backend; and remarks on why one is missing."""
    calls: dict[str, Callable[[], Array]] = {}
    remarks: list[str] = []
    for name, backend in OURS.items():
        try:
            require_compiler(backend)
        except BackendError as error:
            remarks.append(f"not measured: {error}")
        else:
            calls[name] = make(backend)
    return calls, remarks


def _attending(backend: str, q: Array, k: KeyRows, v: KeyRows, causal: bool) -> Callable[[], Array]:
    out, engine = np.empty_like(q), engine_of(backend)

    def attend() -> Array:  # on as many threads as BLAS has
        attention_cpu(q, k, v, out, None, softmax_scale=None, causal=causal, engine=engine)
        return out

    return attend


def _torch(q: Array, k: Array, v: Array, causal: bool) -> Callable[[], Array]:
    torch: Any = importlib.import_module("torch")
    tensors = [tensor_of(torch, array) for array in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = q.shape[1] != k.shape[1]

    def run() -> Array:
        with torch.no_grad():
            return array_of(attend(*tensors, is_causal=causal, enable_gqa=grouped), q)

    return run


def _torch_in_pages(q: Array, k: Array, v: Array, table: Array) -> Callable[[], Array]:
    """PyTorch on keys and values in pages [pages, page_size, kv_heads, dim] of one sequence."""
    torch: Any = importlib.import_module("torch")
    query, keys, values, numbers = (tensor_of(torch, array) for array in (q, k, v, table))
    numbers = numbers.to(torch.int64)
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = q.shape[1] != k.shape[2]

    def run() -> Array:
        with torch.no_grad():
            rows = (pages[numbers].flatten(0, 1).transpose(0, 1)[None] for pages in (keys, values))
            return array_of(attend(query, *rows, enable_gqa=grouped), q)

    return run


def tensor_of(torch: Any, array: Array) -> Any:
    """The array as a tensor; PyTorch reads no bf16 of numpy."""
    if array.dtype.kind in "fiu" and array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)


def array_of(tensor: Any, like: Array) -> Array:
    """A result for comparison, as f32 if it is of 16 bits: numpy reads no bf16 of PyTorch."""
    array: Array = (tensor if like.dtype == np.float32 else tensor.float()).numpy()
    return array


def _in_pages(x: Array, table: Array, page_size: int) -> Array:
    """The rows [1, kv_heads, n, dim] in pages [pages, page_size, kv_heads, dim], in the order of the
    table.
    """
    pages = np.empty((len(table), page_size, x.shape[1], x.shape[3]), x.dtype)
    pages[table] = x[0].swapaxes(0, 1).reshape(pages.shape)
    return pages


def dense_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Plain attention in numpy: in f32, with the whole matrix of scores."""
    scores = (q * np.float32(q.shape[-1] ** -0.5)) @ k.swapaxes(2, 3)
    if causal:
        rows, columns = scores.shape[-2:]
        last = np.arange(rows)[:, None] + causal_offset(True, rows, columns)
        scores[..., np.arange(columns) > last] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.asarray(scores @ v, np.float32)

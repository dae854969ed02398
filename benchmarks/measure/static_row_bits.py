"""The cost of rows whose bits do not depend on the batch: kernels of launches with `splits=1`, and those
that a launch chooses freely, by the issue model.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np

from flash.commands.measure.record import Job, Rows, Setting, measured
from flash.commands.measure.static_quality import Subject, assembled
from flash.contract.catalogue import build
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.operands.dtype_names import Auto
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from ptxgen.arrays.views import ArrayView, view
from ptxgen.errors import BackendError
from ptxgen.report.issue_model import modelled
from ptxgen.report.issue_units import SCHEDULERS
from ptxgen.target import WARP_SIZE
from ptxgen.target import target as find_target

_PAGE: Final = 16
_BATCH: Final = 8
_HEADS: Final = 16
_GROUP: Final = 8  # heads that share a head of K, over pages
_DTYPE: Final = "f16"
_SCORES: Final = 1000

ROW_BITS_REMARKS: Final = (
    f"{_DTYPE}, {_BATCH} items with {_HEADS} heads, of which {_GROUP} share a head of K over pages; clocks "
    f"of a multiprocessor for {_SCORES} scores that count, in the main loop, by the model in "
    "ptxgen/report/issue_model.py, which knows nothing of DRAM",
    "target | d | call | free: kernel, clocks | splits=1: kernel, clocks | ratio",
)


@dataclass(frozen=True)
class Call:
    """A launch: `queries` of each item to `keys`, over pages or not."""

    target: str
    head_dim: int
    queries: int
    keys: int
    pages: bool = False

    @property
    def label(self) -> str:
        """The launch in words: target, head_dim and lengths."""
        queries = "1 query" if self.queries == 1 else f"{self.queries} queries"
        return f"{queries}, {self.keys} keys{' in pages' * self.pages}"

    def kernel(self, splits: int | Auto) -> KernelConfig:
        """The kernel of the launch."""
        page_size = _PAGE if self.pages else None
        config = AttentionConfig(
            self.head_dim,
            dtype=_DTYPE,
            target=self.target,
            splits=splits,
            varlen=self.pages,
            page_size=page_size,
        )
        operands: dict[str, ArrayView] = {}
        of_q: tuple[int, ...] = (_BATCH, _HEADS, self.queries, self.head_dim)
        of_k = _BATCH, _HEADS, self.keys, self.head_dim
        if self.pages:
            of_q = _BATCH * self.queries, _HEADS, self.head_dim
            of_k = _BATCH * self.keys // _PAGE, _HEADS // _GROUP, _PAGE, self.head_dim
            shapes = {"cu_seqlens_q": (_BATCH + 1,), "seqused_k": (_BATCH,)}
            tables = {"block_table": (_BATCH, self.keys // _PAGE)}
            operands = {n: view(np.empty(shape, np.int32), n) for n, shape in (shapes | tables).items()}
        q, k = (view(np.empty(shape, np.float16), "array") for shape in (of_q, of_k))
        most = self.queries if self.pages else None
        geometry = check(config, q, k, k, None, operands=operands, max_seqlen_q=most)
        return kernel_of(config, geometry, find_target(self.target), 16)


CALLS: Final = (
    Call("sm_80", 64, 4096, 4096),
    Call("sm_80", 128, 4096, 4096),
    Call("sm_80", 64, 1, 4096, pages=True),
    Call("sm_90a", 64, 4096, 4096),
    Call("sm_90a", 96, 4096, 4096),
    Call("sm_90a", 128, 1024, 1024),
    Call("sm_90a", 128, 4096, 4096),
    Call("sm_90a", 256, 4096, 4096),
    Call("sm_90a", 128, 1, 4096, pages=True),
    Call("sm_90a", 128, 9, 4096, pages=True),
)


def row_bits_jobs(quick: bool) -> list[Job]:
    """A job for every launch, which assembles both kernels and models their main loops."""
    calls = CALLS[2:3] if quick else CALLS
    return [
        Job(f"splits d={c.head_dim} {c.label} {c.target}", functools.partial(row_bits_cost, c)) for c in calls
    ]


def row_bits_cost(call: Call) -> Rows:
    """The row of a launch: both kernels, and the ratio of their clocks."""
    free, fixed = call.kernel("auto"), call.kernel(1)
    try:
        clocks = [_clocks(call, kernel) for kernel in (free, fixed)]
    except BackendError as error:
        return [f"{free.name} or {fixed.name} was not assembled: {str(error).splitlines()[0]}"]
    ratio = clocks[1] / clocks[0]
    cells = [f"{_words(k)}, {n:.0f}" for k, n in zip((free, fixed), clocks, strict=True)]
    settings: dict[str, Setting] = {"target": call.target, "d": call.head_dim, "call": call.label}
    return [
        " | ".join([call.target, str(call.head_dim), call.label, *cells, f"{ratio:.2f}"]),
        measured("clocks: splits=1 / free", "x", [ratio], config=settings, headline=True),
    ]


def _words(kernel: KernelConfig) -> str:
    """The kernel's product and tiles in words."""
    t = kernel.tiling
    return f"{kernel.family.name} {t.block_q}x{t.tile}"


def _clocks(call: Call, kernel: KernelConfig) -> float:
    """The clocks of a multiprocessor for `_SCORES` scores of a launch. Raises `BackendError` without the
    tools for it.
    """
    assembly, t = assembled(Subject.of(build(kernel)), kernel.target), kernel.tiling
    if assembly.loop is None:
        raise BackendError(assembly.why_no_loop)
    threads = t.computing_threads
    busy = modelled(assembly.loop, kernel.target, threads, max(assembly.ctas_per_sm, 1))
    group = _GROUP if kernel.packed else 1
    scores = min(call.queries * group, t.block_q) * t.tile
    return _SCORES * busy.clocks_of_iteration * (threads // WARP_SIZE) / (SCHEDULERS * scores)

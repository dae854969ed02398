"""Main loops of the kernels that attend to a cache, in machine code: the instructions of an iteration for
the bytes of K and V that it reads, and the bytes in flight meanwhile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from flash import cache_kernels
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.commands.measure.static_quality import Assembled, Subject, assembled
from flash.contract.catalogue import Build
from flash.decode.plan import oldest_target
from flash.families.mma import MMA, MmaTiling
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.runtime.sass import OTHER, mix
from ptxgen.target import WARP_SIZE
from ptxgen.target import target as find_target

TARGETS: Final = ("sm_80", "sm_90", "sm_120")
HEAD_DIMS: Final = (64, 128)
PAGE_SIZES: Final = (0, 16, 64)  # 0: no pages
# The type of the queries, and of K and V if that is another.
DTYPES: Final[tuple[tuple[Any, Any], ...]] = (("f16", None), *(("bf16", t) for t in FP8_DTYPES))
GROUP: Final = 8  # query heads for each head of K and V
_ACCESS: Final = 16  # bytes: the unit of instruction counts

LOOP_REMARKS: Final = (
    f"kernels that divide the keys among CTAs, one query of {GROUP} heads for each head of K and V, causal; "
    "the way round the main loop where no mask cuts, of a warp, as nvdisasm prints it",
    f"instructions for {_ACCESS} bytes: those of all warps of a CTA in a turn, beside the bytes of the tiles "
    "of K and V that it takes in; integers are all instructions but products, f32, exp2, conversions, memory "
    "and control",
    "bytes in flight: tiles of K and V on their way while another is multiplied, of all CTAs that are "
    "resident on a multiprocessor; fp8 is loaded through registers, and in flight before it is widened",
    "no peer is beside them: FlashInfer and FlashAttention need nvcc; flash-attn-4 has no splits on sm_90 "
    "and sm_120, and no pages on sm_80",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """How keys and values are stored: `kv_dtype` None is the type `dtype` of the queries, and
    `page_size` 0 is contiguous.
    """

    head_dim: int
    dtype: Any
    kv_dtype: Any
    page_size: int

    def kernel(self, target: str) -> Build:
        """The kernel that attends. Raises `ConfigError` for a target that does not widen `kv_dtype`."""
        config = AttentionConfig(self.head_dim, dtype=self.dtype, causal=True, target=target)
        cache = cache_kernels.CacheConfig(page_size=self.page_size or None, kv_dtype=self.kv_dtype)
        return cache_kernels.decode(config, cache, splits=True, group=GROUP)


def loop_jobs(quick: bool) -> list[Job]:
    """One job for each kernel and each target that has it."""
    targets = TARGETS[1:2] if quick else TARGETS
    return [
        Job(
            f"loops d={d} {kv_dtype or dtype} page {page} {target}",
            functools.partial(loop_quality, Stored(d, dtype, kv_dtype, page), target),
        )
        for target, d, (dtype, kv_dtype), page in product(targets, HEAD_DIMS, DTYPES, PAGE_SIZES)
        if kv_dtype is None or find_target(target).sm >= oldest_target(FP8_DTYPES[kv_dtype]).sm
    ]


def loop_quality(stored: Stored, target: str) -> Rows:
    """Registers, instructions of the main loop and bytes in flight of one decode kernel."""
    built = stored.kernel(target)
    t = MMA.require(built.config.tiling)
    settings: dict[str, Setting] = {
        "target": target,
        "d": stored.head_dim,
        "q": stored.dtype,
        "kv": stored.kv_dtype or stored.dtype,
        "page": stored.page_size,
        "tile": t.tile,
        "threads": t.threads,
    }
    try:
        assembly = assembled(Subject.of(built), find_target(target))
    except BackendError as error:
        return [f"{built.kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    if assembly.loop is None:
        return [f"{built.kernel.name}: {assembly.why_no_loop}"]
    iteration_bytes = 2 * t.tile * stored.head_dim * built.config.element_of("K").nbytes
    return _rows(assembly, settings, iteration_bytes, t)


def _rows(assembly: Assembled, settings: dict[str, Setting], iteration_bytes: int, t: MmaTiling) -> Rows:
    assert assembly.loop is not None
    path = assembly.loop.path
    spilled = assembly.spilled_bytes
    ctas = max(assembly.ctas_per_sm, 1)
    # All stages of K and V but the one that is multiplied.
    ahead = (2 * t.stages - 1) * iteration_bytes / 2
    of_warps = len(path) * (t.threads // WARP_SIZE)

    def row(name: str, unit: str, value: float, *, goal: Goal | None = None, headline: bool = False) -> Rows:
        return [measured(name, unit, [value], config=settings, goal=goal, headline=headline)]

    return [
        *row("registers", "", assembly.registers),
        *row("spilled", "bytes", spilled, goal=Goal("<=", 0), headline=bool(spilled)),
        *row("CTAs", "per SM", ctas),
        *row("instructions of a turn", "", len(path)),
        *row("integers of a turn", "", mix(path).get(OTHER, 0), headline=True),
        *row(
            f"instructions for {_ACCESS} bytes of K and V",
            "",
            of_warps / (iteration_bytes / _ACCESS),
            headline=True,
        ),
        *row("in flight", "KiB per SM", ctas * ahead / 1024, headline=True),
    ]

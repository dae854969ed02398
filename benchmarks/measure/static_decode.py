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
from flash.families.simt import KIB
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import ISSUED, bytes_to_be_in_flight, memory_of
from ptxgen.runtime.sass import OTHER, mix
from ptxgen.target import WARP_SIZE
from ptxgen.target import target as find_target

TARGETS: Final = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_QUICK: Final = ("sm_90",)
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
    "resident on a multiprocessor; the goal is what Little's law asks for the fastest memory of the target, "
    "with its latency under load (ptxgen/rates.py)",
    "issue slots: instructions that schedulers must issue for the bytes that this memory brings, of those "
    "that they can",
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
    targets = _QUICK if quick else TARGETS
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
        "stages": t.stages,
        "threads": t.threads,
    }
    try:
        assembly = assembled(Subject.of(built), find_target(target))
    except BackendError as error:
        return [f"{built.kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    if assembly.loop is None:
        return [f"{built.kernel.name}: {assembly.why_no_loop}"]
    return _rows(assembly, settings, built.config.element_of("K").nbytes, t)


def _rows(assembly: Assembled, settings: dict[str, Setting], nbytes: int, t: MmaTiling) -> Rows:
    assert assembly.loop is not None
    path = assembly.loop.path
    spilled = assembly.spilled_bytes
    ctas = max(assembly.ctas_per_sm, 1)
    target = find_target(str(settings["target"]))
    in_flight = t.bytes_in_flight(target, nbytes, ctas)
    iteration_bytes = t.tile * (t.head_dim + t.head_dim_v) * nbytes
    for_access = len(path) * (t.threads // WARP_SIZE) / (iteration_bytes / _ACCESS)
    issued = for_access / _ACCESS * memory_of(target.sm).bytes_per_clock / ISSUED

    def row(name: str, unit: str, value: float, *, goal: Goal | None = None, headline: bool = False) -> Rows:
        return [measured(name, unit, [value], config=settings, goal=goal, headline=headline)]

    return [
        *row("registers", "", assembly.registers),
        *row("spilled", "bytes", spilled, goal=Goal("<=", 0), headline=bool(spilled)),
        *row("CTAs", "per SM", ctas),
        *row("instructions of a turn", "", len(path)),
        *row("integers of a turn", "", mix(path).get(OTHER, 0), headline=True),
        *row(f"instructions for {_ACCESS} bytes of K and V", "", for_access, headline=True),
        *row("issue slots at the memory's rate", "%", 100 * issued, goal=Goal("<=", 100)),
        *row(
            "in flight",
            "KiB per SM",
            in_flight / KIB,
            goal=Goal(">=", bytes_to_be_in_flight(target.sm) / KIB),
            headline=True,
        ),
    ]

"""The machine instructions that the producer of a kernel for Hopper issues for a tile of K and V that it
gathers from pages of any number of rows.
"""

from __future__ import annotations

import functools
from itertools import product
from typing import Final

from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.contract.catalogue import build
from flash.families.wgmma import WARPGROUP, WGMMA, WGMMA_TARGET, WgmmaTiling
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.sass import OTHER, Loop, find_disassembler, loops, main_loop, mix
from ptxgen.target import WARP_SIZE

DTYPE: Final = "bf16"
HEAD_DIMS: Final = (64, 128, 256)
PAGE_SIZES: Final = (1, 8, 100)
_COPY: Final = "LDGSTS"
_CHUNK: Final = 16  # bytes that a thread copies at once

GATHERED_REMARKS: Final = (
    f"the producer of pages: {DTYPE}, causal, packed sequences and heads; instructions of a warp, which "
    "copies a quarter of a tile of K and of V, where it need not wait; integers are as in `--only loops`",
)


def gathered_jobs(quick: bool) -> list[Job]:
    """A job for every head_dim and size of a page; if `quick` for one."""
    sizes = list(product(HEAD_DIMS, PAGE_SIZES))
    return [
        Job(f"hopper d={d} {DTYPE} page {page}", functools.partial(gathered_quality, d, page))
        for d, page in (sizes[:1] if quick else sizes)
    ]


def gathered_quality(head_dim: int, page_size: int) -> Rows:
    """Registers and spills of one kernel whose producer gathers pages."""
    config = AttentionConfig(
        head_dim,
        dtype=DTYPE,
        target=WGMMA_TARGET,
        causal=True,
        varlen=True,
        page_size=page_size,
        pack_gqa=True,
    )
    built = build(config.kernel())
    t = WGMMA.require(built.config.tiling)
    try:
        assembly = find_assembler(target=WGMMA_TARGET).assemble(built.text, WGMMA_TARGET)
        instrs = find_disassembler().instructions(assembly.cubin)
    except BackendError as error:
        return [f"{built.kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    copying = (loop for loop in loops(instrs) if any(instr.name == _COPY for instr in loop.path))
    producer = max(copying, key=lambda loop: len(loop.path), default=None)
    consumer = main_loop(instrs)
    if producer is None or consumer is None:
        return [f"{built.kernel.name}: no loop copies tiles, or none multiplies them"]
    usage = assembly.kernel(built.kernel.name)
    settings: dict[str, Setting] = {
        "target": WGMMA_TARGET,
        "d": head_dim,
        "dtype": DTYPE,
        "page": page_size,
        "tile": t.tile,
    }
    return _rows(producer, consumer, t, settings, usage.spill_store_bytes + usage.spill_load_bytes)


def _rows(producer: Loop, consumer: Loop, t: WgmmaTiling, settings: dict[str, Setting], spilled: int) -> Rows:
    path, warps = producer.path, WARPGROUP // WARP_SIZE
    chunks = t.tile * (t.head_dim + t.head_dim_v) * 2 // _CHUNK
    share = 100 * len(path) / (len(path) + t.consumers * len(consumer.path))

    def row(name: str, unit: str, value: float, *, goal: Goal | None = None, headline: bool = False) -> Rows:
        return [measured(name, unit, [value], config=settings, goal=goal, headline=headline)]

    return [
        *row("instructions of the producer for a tile", "", len(path), headline=True),
        *row("integers of the producer for a tile", "", mix(path).get(OTHER, 0), headline=True),
        *row(
            f"instructions of the producer for {_CHUNK} bytes", "", len(path) * warps / chunks, headline=True
        ),
        *row("instructions of the producer, of all", "%", share, headline=True),
        *row("spilled beside a producer that gathers", "bytes", spilled, goal=Goal("<=", 0)),
    ]

"""The models of loops and launches compared with an H200: with its counters, and with rates of short
launches.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.measure.launch_model import Blocks, Estimate, Sizes, clocks_of_blocks, estimate, machine_code
from benchmarks.measure.predictions import COLUMNS, TOKENS
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.commands.measure.report import ROOT
from flash.contract.catalogue import Build, build
from flash.families.wgmma import WGMMA_TARGET
from flash.operands.dtype_names import Scheduler
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import H200
from ptxgen.report.issue_model import Busy, modelled
from ptxgen.runtime.sass import main_loop
from ptxgen.target import target as find_target

RUNS: Final = ROOT / "benchmarks" / "results" / "h200-first-runs.json"
RAN: Final = "99046007"  # the commit of the kernels that were measured (flash/silicon/ledger.json)
DTYPE: Final = "f16"
POINTS: Final = 5  # of the tensor cores' share, by which model and counters may differ
TENTH: Final = 0.1  # by which the relation of a short launch to a long one may differ
LONG: Final = 16384  # queries and keys
HEAD_DIMS: Final = (64, 96, 128, 192, 256)
_NAME: Final = re.compile(r"attention_forward_wgmma_f16_d(\d+)_m(\d+)_n(\d+)_s2(_static)?(_bottom_right)?$")
_SCHEDULERS: Final[Mapping[str, Scheduler]] = {"s": "static", "g": "grid", "m": "mirrored"}
_TILES: Final = re.compile(r"(\d+)x(\d+)([sgm])$")
_EMIT: Final = """
import json, sys
from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
print(json.dumps([build(AttentionConfig(**config).kernel()).text for config in json.load(sys.stdin)]))
"""

MODEL_REMARKS: Final = (
    f"{RUNS.name} has the counters and the rates, of the texts that commit {RAN} emits, which are modelled",
    "counters: the share of clocks in which tensor cores were busy, of a whole launch; model: of the main "
    "loop, and of the launch by benchmarks/measure/launch_model.py; points are those of the loop",
    f"short launches: TFLOP/s as a multiple of those of {LONG} queries and keys, model's and clock's",
    "kernel | N | counters % | loop % | launch % | points",
)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A kernel that was measured: rows of a block of queries, keys of a tile, and the scheduler."""

    head_dim: int
    block_q: int
    tile: int
    scheduler: Scheduler
    causal: bool = False

    @classmethod
    def of_name(cls, name: str) -> Tiles:
        """The kernel of that name. Raises ValueError for a name of another kind."""
        words = _NAME.match(name)
        if words is None:
            raise ValueError(f"{name} is no name of a forward kernel of f16 with wgmma and two stages")
        scheduler = _SCHEDULERS["s" if words[4] else "g"]
        return cls(int(words[1]), int(words[2]), int(words[3]), scheduler, words[5] is not None)

    @property
    def config(self) -> AttentionConfig:
        """The config whose kernel has this name."""
        return AttentionConfig(
            self.head_dim,
            dtype=DTYPE,
            causal=self.causal,
            target=WGMMA_TARGET,
            block_q=self.block_q,
            tile=self.tile,
            scheduler=self.scheduler,
        )


def model_jobs(quick: bool) -> list[Job]:
    """A job for each kernel that was counted, and for each head_dim with short launches."""
    counted = runs()["counters"][: 1 if quick else None]
    dims = () if quick else HEAD_DIMS
    return [
        *(Job(f"counters {c['kernel']} N={c['N']}", functools.partial(against_counters, c)) for c in counted),
        *(
            Job(f"short launches d={d}{' causal' * causal}", functools.partial(short_launches, d, causal))
            for d, causal in itertools.product(dims, (False, True))
        ),
    ]


@functools.cache
def runs() -> dict[str, Any]:
    """The recorded counters and rates of an H200."""
    recorded: dict[str, Any] = json.loads(RUNS.read_text(encoding="utf-8"))
    return recorded


def against_counters(counted: Mapping[str, Any]) -> Rows:
    """The row of a kernel that was counted, and by how many points the model of its loop differs. Raises
    `BackendError` without the tools for it.
    """
    tiles, n, share = Tiles.of_name(counted["kernel"]), counted["N"], counted["tensor_pipe_%"]
    loop, launch = 100 * read(tiles)[1].tensor, 100 * of_launch(tiles, n).tensor
    points = loop - share
    row = f"{counted['kernel']} | {n} | {share:.1f} | {loop:.1f} | {launch:.1f}"
    if n < LONG:
        return [f"{row} | -"]  # there, the instructions outside of the loop count
    settings: dict[str, Setting] = {"d": tiles.head_dim, "causal": tiles.causal, "N": n}
    goal = Goal("<=", POINTS)
    return [
        f"{row} | {points:+.1f}",
        measured("model / counters", "points", [abs(points)], config=settings, goal=goal, headline=True),
    ]


def short_launches(head_dim: int, causal: bool) -> Rows:
    """The relations of short launches, how many are within a tenth, and the largest difference. Raises
    `BackendError` without the tools for it.
    """
    rates = runs()["tiles_by_length"]
    rows = {r["N"]: r for r in rates if (r["d"], r["causal"]) == (head_dim, causal)}
    lines: Rows = []
    off: list[float] = []
    for key in filter(_TILES.match, rows[LONG]):
        cells = []
        for n, measured_rates in rows.items():
            ratio = relation(head_dim, key, n, causal)
            clock = measured_rates[key] / rows[LONG][key]
            off += [abs(ratio / clock - 1)] * (n != LONG)
            cells.append(f"{n}: {ratio:.2f}, {clock:.2f}")
        lines.append(f"d={head_dim} {'causal ' * causal}{key}, model, clock | {' | '.join(cells)}")
    settings: dict[str, Setting] = {"d": head_dim, "causal": causal}
    lines.append(
        f"d={head_dim} {'causal ' * causal}| {sum(x <= TENTH for x in off)} of {len(off)} in a tenth"
    )
    goal = Goal("<=", TENTH)
    worst = measured("short / long, off by", "x", [max(off)], config=settings, goal=goal, headline=True)
    return [*lines, worst]


def relation(head_dim: int, key: str, n: int, causal: bool = False) -> float:
    """The TFLOP/s of a launch with n queries and keys as a multiple of those with `LONG`, by the model; `key`
    names tiles and scheduler, as `128x128s`.
    """
    words = _TILES.match(key)
    assert words is not None, f"{key} names tiles and scheduler"
    tiles = Tiles(head_dim, int(words[1]), int(words[2]), _SCHEDULERS[words[3]], causal)
    short, long = of_launch(tiles, n), of_launch(tiles, LONG)
    return short.tflops(H200) / long.tflops(H200)


def of_launch(tiles: Tiles, n: int) -> Estimate:
    """The estimate of a launch of the first runs with n queries and keys."""
    kernel, busy, block = read(tiles)
    heads = COLUMNS // tiles.head_dim
    return estimate(kernel, busy, 1, Sizes(TOKENS // n, heads, heads, n, n), H200, block)


@functools.cache
def read(tiles: Tiles) -> tuple[Build, Busy, Blocks | None]:
    """A kernel, and the models of the main loop and of a block of the text that ran. Raises `BackendError`
    without the tools for it.
    """
    kernel, text = build(tiles.config.kernel()), texts_that_ran()[tiles]
    target = find_target(WGMMA_TARGET)
    loop = main_loop(machine_code(text, target))
    if loop is None:
        raise BackendError(f"{kernel.config.name} has no loop with products")
    busy = modelled(loop, target, kernel.config.tiling.computing_threads, 1)
    return kernel, busy, clocks_of_blocks(kernel, target, text)


def all_tiles() -> list[Tiles]:
    """The kernels that were counted, or timed by tiles and length."""
    timed = {
        Tiles(row["d"], int(words[1]), int(words[2]), _SCHEDULERS[words[3]], row["causal"])
        for row in runs()["tiles_by_length"]
        for words in filter(None, map(_TILES.match, row))
    }
    counted = {Tiles.of_name(row["kernel"]) for row in runs()["counters"]}
    return sorted(timed | counted, key=str)


@functools.cache
def texts_that_ran() -> Mapping[Tiles, str]:
    """The texts of the kernels that were measured, as the commit `RAN` emits them. Raises `BackendError`
    outside a checkout with its history.
    """
    every = all_tiles()
    configs = [
        {"head_dim": t.head_dim, "dtype": DTYPE, "causal": t.causal, "target": WGMMA_TARGET}
        | {"block_q": t.block_q, "tile": t.tile, "scheduler": t.scheduler}
        for t in every
    ]
    with tempfile.TemporaryDirectory(prefix="flash-") as folder:
        try:
            source = subprocess.run(
                ["git", "archive", RAN, "flash", "ptxgen", "templates"],
                cwd=ROOT,
                capture_output=True,
                check=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise BackendError(f"the texts that ran are those of commit {RAN}: take a git clone") from error
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            archive.extractall(folder, filter="data")
        emitted = subprocess.run(
            [sys.executable, "-c", _EMIT],
            env=os.environ | {"PYTHONPATH": folder},
            cwd=folder,
            input=json.dumps(configs).encode(),
            capture_output=True,
            check=True,
        ).stdout
    return dict(zip(every, json.loads(emitted), strict=True))

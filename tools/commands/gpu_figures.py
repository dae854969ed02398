"""The figures of docs/gpu.md, each computed from the ledger, the results of GPUs in benchmarks/results, the
cases that GPUs recorded in tests/vectors, or a model.
"""

from __future__ import annotations

import functools
import io
import json
import lzma
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measure.predictions import LENGTHS, device_of, predictions
from flash.contract.catalogue import build
from flash.device.cta_order import heads_per_section
from flash.families.tcgen05 import TCGEN05
from flash.launch.key_splits import OVERHEAD
from flash.launch.scheduler_choice import HIDDEN, Device, costs_in_order, time_mirrored, time_of_grid
from flash.problem.config import AttentionConfig
from flash.silicon.ledger import WRONG, Ledger, read
from ptxgen.target import target as find_target
from tools.commands.shipped_kernels import FAMILIES, SEQS, TARGETS, TOKENS, WIDTH, chosen, shipped

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
FIRST: Final = RESULTS / "h200-first-runs.json"
VECTORS: Final = ROOT / "tests" / "vectors"
HEAD_DIMS: Final = (64, 96, 128, 192, 256)
UNKNOWN: Final = "-"  # in a cell of a table
_MIB: Final = 1 << 20
_SCHEDULERS: Final = {"grid": "g", "static": "s", "mirrored": "m"}

Row = Mapping[str, Any]
Table = list[list[str]]


@functools.cache
def first() -> dict[str, Any]:
    """The results of the first GPU that ran the project."""
    figures: dict[str, Any] = json.loads(FIRST.read_text(encoding="utf-8"))
    return figures


def later() -> list[dict[str, Any]]:
    """The results of `make gpu`, a document for each file, in the order of the files' names."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if path != FIRST and isinstance(data, dict) and "name" in data.get("device", ()) and "calls" in data:
            results.append(data | {"file": path.name})
    return results


def one(rows: Iterable[Row], **wanted: Any) -> Row:
    """The only row with the values `wanted`. Raises `LookupError` for no such row, and for several."""
    matches = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} rows have {wanted}")
    return matches[0]


# ------------------------------------------------------------------------------------- the ledger


@functools.cache
def devices() -> dict[str, str]:
    """The compute capability of each GPU of the ledger."""
    return {entry.device: entry.compute_capability for entry in read()}


def listed(words: Iterable[str]) -> str:
    """The words as a list in a sentence: `a, b and c`."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def which_ran() -> str:
    """The sentence of README.md that says which GPUs have run the kernels."""
    ran = {round(float(capability) * 10) for capability in devices().values()}
    where = listed(f"an {name} (sm_{round(float(c) * 10)})" for name, c in sorted(devices().items()))
    never = sorted({find_target(name).sm for name in TARGETS} - ran)
    missing = f"; none has on {listed(f'sm_{sm}' for sm in never)}" if never else ""
    return f"kernels have run on {where}{missing}"


def of_families(device: str) -> Table:
    """For each family of shipped kernels: how many texts it has for a device's generation, how many of
    them ran there and failed there, of how many only an earlier text ran, and how many never ran.
    """
    entries = [entry for entry in read() if entry.device == device]
    ledger, generation = Ledger(entries), round(float(devices()[device]) * 10)
    counts: dict[str, Counter[str]] = {family: Counter() for family in FAMILIES}
    for kernel in shipped([name for name in TARGETS if find_target(name).sm == generation]):
        ran, earlier = ledger.of(kernel.words, kernel.text)
        count = counts[kernel.family]
        count["texts"] += 1
        if ran:
            count["ran"] += 1
            count["wrong"] += any(entry.verdict == WRONG for entry in ran)
        else:
            count["earlier" if earlier else "never"] += 1
    columns = ("texts", "ran", "wrong", "earlier", "never")
    return [[family, *(str(count[column]) for column in columns)] for family, count in counts.items()]


# -------------------------------------------------------------------------------- recorded cases


def vectors() -> list[dict[str, Any]]:
    """For each folder of tests/vectors: its name, the device that gave the results, and their number."""
    runs = []
    for folder in sorted(VECTORS.glob("sm_*")):
        facts = [_facts(path) for path in sorted(folder.glob("*.npz.xz"))]
        of = listed(sorted({fact["device"] for fact in facts}))
        runs.append({"name": folder.name, "device": of, "cases": sum(len(f["cases"]) for f in facts)})
    return runs


def _facts(path: Path) -> dict[str, Any]:
    """The facts about the cases in a file of recorded cases, without their arrays."""
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as arrays:
        facts: dict[str, Any] = json.loads(arrays["facts"].tobytes())
    return facts


# ------------------------------------------------------------------------------- the first GPU


def _device() -> Device:
    of = first()["device"]
    return Device(of["multiprocessors"], of["l2_cache_mib"] * _MIB)


def _config(head_dim: int, causal: bool) -> AttentionConfig:
    return AttentionConfig(head_dim, dtype="f16", causal=causal, target="sm_90a")


def of_launches(causal: bool) -> Table:
    """TFLOP/s in f16, ours / cuDNN: a row for each head_dim, a column for each number of keys. Ours are the
    tiles and the scheduler of a launch; `UNKNOWN` where these were not measured.
    """
    return [[str(d), *(_of_launch(d, seq, causal) for seq in SEQS)] for d in HEAD_DIMS]


def _of_launch(head_dim: int, seq: int, causal: bool) -> str:
    kernel = chosen(_config(head_dim, causal), seq, _device())
    row = one(first()["tiles_by_length"], d=head_dim, N=seq, causal=causal)
    tile = f"{kernel.tiling.block_q}x{kernel.tiling.tile}{_SCHEDULERS.get(kernel.scheduler, '')}"
    ours = f"{row[tile]:.0f}" if tile in row else UNKNOWN
    return f"{ours} / {row['cudnn']:.0f}"


def call(
    implementation: str, head_dim: int, seq: int = 4096, *, causal: bool = False, dtype: str = "f16"
) -> Row:
    """The row of one call in the results of the first runs."""
    return one(first()["calls"], who=implementation, d=head_dim, n=seq, causal=causal, dtype=dtype)


def through_the_api(head_dim: int, seq: int, *, causal: bool = False) -> Row:
    """The row of a call of the first runs through the functions of the API."""
    return one(first()["through_the_api"], d=head_dim, n=seq, causal=causal)


_OTHERS: Final = {
    'f16 by `mma.sync` (`target="sm_90"`)': ("ours-mma", "f16"),
    "FlashAttention-2, which is `mma.sync`, too": ("flash", "f16"),
    "f32_grade, three products of f16 by `wgmma`": ("ours-f32_grade", "f32"),
    "tf32": ("ours-tf32", "f32"),
    "exact f32": ("ours-ieee", "f32"),
    "e4m3, N = 16384": None,
    "gradients of f16 (`mma.sync`)": ("bwd-ours", "f16"),
    "gradients by FlashAttention-2": ("bwd-flash", "f16"),
    "gradients by cuDNN, with Hopper's instructions": ("bwd-cudnn", "f16"),
}


def of_others() -> Table:
    """TFLOP/s of other kernels: full and causal, head_dim 64 and 128."""
    rows = []
    for words, of in _OTHERS.items():
        if of is None:
            rates = [through_the_api(128, 16384, causal=causal)["tflops"] for causal in (False, True)]
            rows.append([words, "", _rates(rates)])
        else:
            implementation, dtype = of
            both = [
                [call(implementation, d, causal=causal, dtype=dtype)["tflops"] for causal in (False, True)]
                for d in (64, 128)
            ]
            rows.append([words, *map(_rates, both)])
    return rows


def _rates(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


def of_peer(implementation: str) -> tuple[int, int]:
    """The least and the most TFLOP/s of a peer's forward calls in f16, rounded outwards to tens."""
    rates = [
        row["tflops"] for row in first()["calls"] if row["who"] == implementation and row["dtype"] == "f16"
    ]
    rates += [row[implementation] for row in first()["schedulers"]]
    return math.floor(min(rates) / 10) * 10, math.ceil(max(rates) / 10) * 10


def spread(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest of `values`."""
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def clocks() -> tuple[float, float]:
    """The least and the highest clock in GHz of the launches over the most keys whose counters were read."""
    rows = first()["counters"]
    longest = max(row["N"] for row in rows)
    return spread(row["cycles"] / row["ns"] for row in rows if row["N"] == longest)


def errors_of_f32_grade() -> tuple[float, float]:
    """The largest error of f32_grade, as a multiple of that of exact f32: the least and the most."""
    return spread(
        call("ours-f32_grade", d, causal=causal, dtype="f32")["err"]
        / call("ours-ieee", d, causal=causal, dtype="f32")["err"]
        for d in (64, 128)
        for causal in (False, True)
    )


def costs_of_clearing(head_dim: int) -> tuple[int, int]:
    """What checking V for NaN and infinity cost, in %: the least and the most."""
    rows = [row for row in first()["what_clearing_values_costs"]["rows"] if row["d"] == head_dim]
    least, most = spread(100 * (row["noclear"] / row["plain"] - 1) for row in rows)
    return round(least), round(most)


def costs_of_clusters() -> tuple[int, int]:
    """What clusters of two CTAs cost next to a grid, in %: the least and the most."""
    rows = [row for row in first()["schedulers"] if "grid, clusters of two" in row]
    least, most = spread(100 * (1 - row["grid, clusters of two"] / row["grid"]) for row in rows)
    return round(least), round(most)


# ------------------------------------------------------------------------------------- the models


def of_schedulers() -> Table:
    """How much faster mirrored rounds are than a grid: by the model of `flash/launch/scheduler_choice.py`,
    with overlap, and by the clock.
    """
    device, rows = _device(), []
    for head_dim in (64, 128, 256):
        config = _config(head_dim, True)
        resources = build(config.kernel()).resources
        slots = device.multiprocessors * resources.ctas_per_sm
        cells = []
        for seq in SEQS:
            heads, nbytes = TOKENS // seq * (WIDTH // head_dim), seq * 2 * head_dim * config.element.nbytes
            width = heads_per_section(heads, 1, nbytes, device.cache_bytes)
            costs = OVERHEAD + costs_in_order(resources.tiles_of_blocks(seq, seq), heads, width)
            model = time_of_grid(costs.tolist(), slots) / time_mirrored(costs, slots, HIDDEN * OVERHEAD)
            row = one(first()["schedulers"], d=head_dim, N=seq, causal=True)
            cells.append(f"{model:.2f} / {row['mirrored'] / row['grid']:.2f}")
        rows.append([f"{head_dim}, model / clock", *cells])
    return rows


def of_counters() -> Table:
    """The share of the clocks in which tensor cores were busy, by the counters of the GPU and by the
    model.
    """
    rows = []
    for row in first()["counters"]:
        _, _, _, dtype, dim, block, tile, *_ = row["kernel"].split("_")
        head_dim, sizes = int(dim[1:]), f"{block[1:]}x{tile[1:]}"
        causal = "bottom_right" in row["kernel"]
        # In short launches the counters also count what is before and after the main loop.
        model = _modelled(row["kernel"]) if row["N"] == max(SEQS) else UNKNOWN
        cells = [dtype, str(head_dim), sizes, _cell(causal), str(row["N"])]
        rows.append([*cells, f"{row['tensor_pipe_%']:.1f}", model])
    return sorted(rows, key=lambda cells: (cells[3], int(cells[1]), int(cells[4])))


def of_blackwell() -> Table:
    """The predictions of kernels with `tcgen05`: device, type or precision, head_dim, mask, share of tensor
    cores in %, and TFLOP/s by length.
    """
    rows = []
    for of in predictions():
        target = find_target(of.config["target"])
        if not TCGEN05.is_for(target):
            continue
        rates = {launch["queries"]: f"{launch['tflops']:.0f}" for launch in of.launches}
        kind = of.config.get("precision", of.config["dtype"])
        about = [device_of(target.name).name, kind, str(of.config["head_dim"]), _cell(of.config["causal"])]
        rows.append([*about, f"{of.tensor:.0f}", *(rates[n] for n in LENGTHS)])
    return rows


def _modelled(kernel: str) -> str:
    """The share of the clocks, in %, in which tensor cores are busy in a kernel's main loop by the issue
    model.
    """
    name = kernel.removesuffix("_static")
    return next((f"{of.tensor:.1f}" for of in predictions() if of.kernel == name), UNKNOWN)


# ----------------------------------------------------------------------------------- later devices

_SPEEDS: Final = {"tflops": "{:.0f}", "tbs": "{:.2f} TB/s", "ms": "{:.3g} ms"}
_OF_CALLS: Final = ("kind", "dtype", "d", "dv", "n", "causal", "heads", "kv_heads", "window")


def of_calls(results: Row) -> Table:
    """A header and a row for each problem of a file of results, with the speed of each contestant; of several
    runs the last one counts.
    """
    contestants = list(dict.fromkeys(row["who"] for row in results["calls"]))
    used = [name for name in _OF_CALLS if any(name in row for row in results["calls"])]
    problems: dict[tuple[str, ...], dict[str, str]] = {}
    for row in results["calls"]:
        problem = tuple(_cell(row.get(name, "")) for name in used)
        problems.setdefault(problem, {})[row["who"]] = _speed(row)
    body = [
        [*problem, *(rates.get(implementation, "") for implementation in contestants)]
        for problem, rates in problems.items()
    ]
    return [[*used, *contestants], *body]


def _cell(value: Any) -> str:
    return {True: "causal", False: "full"}[value] if isinstance(value, bool) else str(value)


def _speed(row: Row) -> str:
    """The speed of a call by its row, as text: TFLOP/s, or another unit with its name."""
    return next((shown.format(row[name]) for name, shown in _SPEEDS.items() if name in row), UNKNOWN)


def of_later_counters(results: Row) -> Table:
    """A table of a file of results: kernel, number of keys, and share of the clocks in which tensor cores are
    busy.
    """
    share = "tensor_pipe_%"
    rows = [row for row in results.get("counters", ()) if share in row]
    return [[row["kernel"], str(row["N"]), f"{row[share]:.1f}"] for row in rows]

"""The models' predictions for kernels that no GPU has run yet: `benchmarks/results/predictions.json`.

`tools/gen_predictions.py` writes the file; a run on a GPU reads it with `predictions`, looks entries up by
the hash of the emitted text, and prints them next to its measurements. Each entry has

* `kernel` and `config`: the name of the kernel, and the arguments of its `AttentionConfig`, with tiles where
  it has a scheduler; kernels of gradients also `owner`, keys or queries;
* `sha256`: the hash of the emitted text;
* `tensor_%`: the share of the clocks of the main loop in which tensor cores are busy (`issue_model`, of
  kernels with `tcgen05` `role_model`), and `iteration_clocks`, those in which each resident CTA goes round
  the loop once;
* `launches`: for `batch`, `heads`, and so many `queries` and `keys` the clocks of the launch and TFLOP/s
  that the result needs at the boost clock of the device (`launch_model`). Kernels of gradients have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.launch_model import Sizes, clocks_of_blocks, estimate
from benchmarks.measure.static_blackwell import RoleReading
from benchmarks.measure.static_gradients import computing_threads
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import Subject, assembled
from flash.contract.catalogue import build
from flash.contract.gradients import gradient_build
from flash.families.tcgen05 import TCGEN05
from flash.families.tcgen05_split import TCGEN05_SPLIT
from flash.families.wgmma import WGMMA_TARGET
from flash.operands.dtype_names import Scheduler
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import OWNERS
from ptxgen.errors import BackendError
from ptxgen.rates import DEVICES, H200, OF_TENSOR_MEMORY, Device
from ptxgen.report.issue_model import Busy, modelled
from ptxgen.report.issue_units import SCHEDULERS, Unit
from ptxgen.runtime.assembler import find_assembler
from ptxgen.target import WARP_SIZE, Target
from ptxgen.target import target as find_target

PREDICTIONS: Final = ROOT / "benchmarks" / "results" / "predictions.json"
TOKENS: Final = 16384  # rows of queries of a launch: batch times their number
COLUMNS: Final = 2048  # of a row: heads times head_dim
LENGTHS: Final = (1024, 4096, 16384)
SHORT: Final = (128, 256, 512, 1024, 2048)  # of the persistent kernels that launches choose for them
_ALIGNED: Final = 16  # bytes, of the arrays of gradients
_MMA_TARGETS: Final = ("sm_80", "sm_89", "sm_120")
_TCGEN05_TARGETS: Final = ("sm_100a", "sm_103a")
_GRADIENT_TARGETS: Final = ("sm_80", "sm_90", WGMMA_TARGET, "sm_120")


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel to predict: a forward kernel, or with an `owner` one of gradients, for the target `on`."""

    config: AttentionConfig
    on: str
    owner: str = ""

    @property
    def words(self) -> dict[str, Any]:
        """The kernel's config as plain data for JSON."""
        c = self.config
        words = {"head_dim": c.head_dim, "dtype": c.dtype, "causal": bool(c.causal), "target": self.on}
        if c.scheduler != "auto":
            words |= {"scheduler": c.scheduler, "block_q": c.block_q, "tile": c.tile}
        return words | ({"precision": c.precision} if c.dtype == "f32" else {}) | self._owner

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of queries, and of keys, of the launches that are predicted."""
        return LENGTHS if self.config.scheduler == "auto" else SHORT

    @property
    def _owner(self) -> dict[str, str]:
        return {"owner": self.owner} if self.owner else {}


@dataclass(frozen=True, slots=True)
class Prediction:
    """An entry of the file; `tensor` is in %, `iteration` in clocks."""

    kernel: str
    config: Mapping[str, Any]
    sha256: str
    tensor: float
    iteration: float
    launches: tuple[Mapping[str, float], ...]

    @property
    def row(self) -> str:
        """The entry as a line of a table: kernel, share of the tensor cores, and TFLOP/s by length."""
        rates = ", ".join(f"{launch['queries']}: {launch['tflops']:.0f}" for launch in self.launches)
        return f"{self.kernel} {self.config['target']} | {self.tensor:.1f} | {rates or '-'}"


def cases() -> Iterator[Case]:
    """The kernels whose launches are predicted."""
    hopper = WGMMA_TARGET
    for d, causal in product((64, 96, 128, 192, 256), (False, True)):
        yield Case(AttentionConfig(d, dtype="f16", causal=causal, target=hopper), hopper)
    for d, causal in product((64, 128), (False, True)):
        yield _persistent(d, "mirrored" if causal else "static", causal=causal)
    for d, causal in product((64, 128, 256), (False, True)):
        yield Case(AttentionConfig(d, dtype="e4m3", causal=causal, target=hopper), hopper)
    for d in (64, 128):
        yield Case(AttentionConfig(d, precision="f32_grade", target=hopper), hopper)
    for on, d in product(_MMA_TARGETS, (64, 128, 256)):
        yield Case(AttentionConfig(d, dtype="f16", target=on), on)
    for on, d, owner in product(_GRADIENT_TARGETS, (64, 128), OWNERS):
        yield Case(AttentionConfig(d, dtype="f16"), on, owner)
    for d, owner in product((64, 128), OWNERS):
        yield Case(AttentionConfig(d, dtype="e4m3", target=hopper), hopper, owner)
    for on, d, causal in product(_TCGEN05_TARGETS, (64, 128), (False, True)):
        yield Case(AttentionConfig(d, dtype="bf16", causal=causal, target=on), on)
    for on, d in product(_TCGEN05_TARGETS, (64, 128)):
        yield Case(AttentionConfig(d, precision="f32_grade", target=on), on)


def _persistent(head_dim: int, scheduler: Scheduler, *, causal: bool) -> Case:
    """The kernel of short launches for Hopper, with blocks of 128 queries and tiles of 128 keys."""
    config = AttentionConfig(
        head_dim, dtype="f16", causal=causal, target=WGMMA_TARGET, block_q=128, tile=128, scheduler=scheduler
    )
    return Case(config, WGMMA_TARGET)


def predict(case: Case) -> dict[str, Any]:
    """The entry of a kernel. Raises `BackendError` without the tools for it."""
    target = find_target(case.on)
    if case.owner:
        kernel = gradient_config(case.config, case.owner, target, _ALIGNED)
        of = gradient_build(kernel)
        shared, threads = of.kernel.dynamic_shared_bytes, computing_threads(kernel.tiling)
        subject = Subject(of.text, of.kernel.name, kernel.tiling.threads, shared, 1)
        busy, ctas = _busy(subject, threads, target)
        return _entry(kernel.name, case, of.text, busy, busy.clocks_of_ctas(threads, ctas), [])
    forward = build(case.config.kernel())
    t = forward.config.tiling
    threads = t.computing_threads
    if forward.config.family in (TCGEN05, TCGEN05_SPLIT):
        busy, ctas, block = _busy_of_roles(forward.text, threads), 1, None
    else:
        busy, ctas = _busy(Subject.of(forward), threads, target, t.moved_bytes)
        block = clocks_of_blocks(forward, target)
    launches, device = [], device_of(case.on)
    for n in case.lengths:
        heads = COLUMNS // case.config.head_dim
        sizes = Sizes(TOKENS // n, heads, heads, n, n)
        estimated = estimate(forward, busy, ctas, sizes, device, block)
        launches.append(
            {"batch": sizes.batch, "heads": heads, "queries": n, "keys": n}
            | {"clocks": round(estimated.clocks), "tflops": round(estimated.tflops(device), 1)}
        )
    return _entry(forward.config.name, case, forward.text, busy, busy.clocks_of_ctas(threads, ctas), launches)


def device_of(on: str) -> Device:
    """The device whose clock and bandwidth a launch of kernels for a target has: an H200 for sm_90 and
    sm_90a, a B200 for sm_100a and a B300 for sm_103a.
    """
    sm = find_target(on).sm
    return H200 if sm == find_target("sm_90").sm else {**DEVICES, **OF_TENSOR_MEMORY}[sm]


def _busy(subject: Subject, threads: int, target: Target, moved: int | None = None) -> tuple[Busy, int]:
    code = assembled(subject, target)
    if code.loop is None:
        raise BackendError(code.why_no_loop)
    ctas = max(code.ctas_per_sm, 1)
    return modelled(code.loop, target, threads, ctas, moved), ctas


def _busy_of_roles(text: str, threads: int) -> Busy:
    """The main loop of a kernel with `tcgen05`, of which a multiprocessor has one CTA: an iteration of all
    roles, as if the `threads` that compute weights issued it.
    """
    clocks = RoleReading.of(text).clocks
    of_warp = clocks.of_iteration / (threads / WARP_SIZE / SCHEDULERS)
    return Busy({Unit.TENSOR: clocks.tensor}, of_warp, ())


def _entry(
    name: str, case: Case, text: str, busy: Busy, clocks: float, launches: list[dict[str, float]]
) -> dict[str, Any]:
    return {
        "kernel": name,
        "config": case.words,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tensor_%": round(100 * busy.tensor, 1),
        "iteration_clocks": round(clocks, 1),
        "launches": launches,
    }


def render() -> str:
    """The file as it is now. Raises `BackendError` without the tools for it."""
    assembler = find_assembler(target="sm_90a")
    about = {
        "what": "What the models of flash/commands/measure say; tools/gen_predictions.py writes it",
        "assembler": f"{assembler.name} {assembler.version}",
        "problem": f"batch * queries = {TOKENS}, heads * head_dim = {COLUMNS}, TFLOP/s at the boost clock",
    }
    return json.dumps(about | {"predictions": [predict(case) for case in cases()]}, indent=1) + "\n"


def predictions(path: Path = PREDICTIONS) -> list[Prediction]:
    """The entries of a file that `render` wrote."""
    entries = json.loads(path.read_text(encoding="utf-8"))["predictions"]
    return [
        Prediction(
            e["kernel"], e["config"], e["sha256"], e["tensor_%"], e["iteration_clocks"], tuple(e["launches"])
        )
        for e in entries
    ]

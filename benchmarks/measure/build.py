"""Measures the time to emit and to assemble PTX, and the registers and code of the result."""

from __future__ import annotations

import functools
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

from flash.commands.measure.record import (
    MS,
    US,
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
    timed,
)
from flash.commands.measure.report import ROOT
from flash.contract.catalogue import build, emit
from flash.contract.resources import KernelResources
from flash.operands.dtypes import F32
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from ptxgen.check.verify import require_valid
from ptxgen.errors import BackendError
from ptxgen.runtime.assembler import Assembly, find_assembler
from ptxgen.text import render

F32_128: Final = AttentionConfig(128, tile=32)
F16_128: Final = AttentionConfig(128, dtype="f16")
EMITTED: Final = (
    F32_128,
    F16_128,
    AttentionConfig(64, causal=True, target="sm_90"),
    AttentionConfig(72, return_lse=True),
    AttentionConfig(256, target="sm_75"),
)
HEAD_DIMS: Final = (32, 64, 96, 128, 192, 256)
TARGETS: Final = ("sm_75", "sm_80", "sm_90a", "sm_120a")

WARM_GOALS_MS: Final = {F32_128: 20.0, F16_128: 40.0}
CUBIN_GOAL_S: Final = 1.0
LINE_GOAL_US: Final = 8.0
COLD_GOAL: Final = 2.5  # times the import of numpy and jinja2, which this package needs
# Modules that take 0.15 s or more to import, or belong to a GPU: emitting PTX needs none of them.
HEAVY: Final = ("cuda", "torch", "cupy", "jax", "scipy", "onnx", "triton", "rich")

_EMIT: Final = ("-m", "ptxgen", "emit", "--head-dim", "128", "--tile", "32")
_OURS, _LIBRARIES = "emission", "import numpy, jinja2"
_PROGRAMS: Final = {_OURS: _EMIT, _LIBRARIES: ("-c", _LIBRARIES), "nothing": ("-c", "pass")}
_COLD_TIMEOUT_S: Final = 120.0
_INSTRUCTION_BYTES: Final = 16  # since sm_70


def emit_jobs(quick: bool) -> list[Job]:
    """Jobs for warm emission of several kernels, for its parts, and for a cold process."""
    repeats = 5 if quick else 15
    configs = EMITTED[:2] if quick else EMITTED
    warm = [Job(f"emit {c.kernel().name}", functools.partial(_warm, c, repeats)) for c in configs]
    return [
        *warm,
        Job("parts of emission", functools.partial(_parts, F32_128, repeats)),
        Job("from a configuration to a cubin", functools.partial(_to_cubin, F16_128, repeats)),
        Job("emit in a fresh process", functools.partial(_cold, 5 if quick else 25)),
        Job("what emission imports", _imports),
    ]


def assemble_jobs(quick: bool) -> list[Job]:
    """Jobs that assemble the default kernel of each head dimension for some targets."""
    head_dims, targets = (HEAD_DIMS[1:4:2], TARGETS[1:2]) if quick else (HEAD_DIMS, TARGETS)
    return [
        Job(
            f"assemble d={d} {name}",
            functools.partial(_assemble, AttentionConfig(d, target=name), 1 if quick else 3),
        )
        for d in head_dims
        for name in targets
    ]


def _settings(kernel: KernelConfig) -> dict[str, Setting]:
    t = kernel.tiling
    settings: dict[str, Setting] = {
        "d": t.head_dim,
        "tile": t.tile,
        "block_q": t.block_q,
        "target": kernel.target.name,
    }
    settings |= {"dtype": kernel.dtype.name} if kernel.dtype is not F32 else {}
    return settings | ({"causal": kernel.causal} if kernel.causal else {})


def _emit(kernel: KernelConfig) -> str:
    """Build, verify and render, as the first use of a configuration in a process does."""
    build.cache_clear()
    return build(kernel).text


def _warm(config: AttentionConfig, repeats: int) -> Rows:
    kernel = config.kernel()
    lines = _emit(kernel).count("\n")
    times = timed(lambda: _emit(kernel), repeats)
    settings, has_goal = _settings(kernel), config in WARM_GOALS_MS
    goal = Goal("<=", WARM_GOALS_MS[config]) if has_goal else None
    return [
        measured("emit, warm", "ms", [t * MS for t in times], config=settings, goal=goal, headline=has_goal),
        measured(
            "per line",
            "us",
            [t * US / lines for t in times],
            config=settings | {"lines": lines},
            goal=Goal("<=", LINE_GOAL_US),
            headline=has_goal,
        ),
    ]


def _parts(config: AttentionConfig, repeats: int) -> Rows:
    kernel = config.kernel()
    module = emit(kernel)
    parts: dict[str, Work] = {
        "build": lambda: emit(kernel),
        "verify": lambda: require_valid(module),
        "render": lambda: render(module),
    }
    return [
        measured(f"of it {name}", "ms", [t * MS for t in timed(work, repeats)], config=_settings(kernel))
        for name, work in parts.items()
    ]


def _to_cubin(config: AttentionConfig, repeats: int) -> Rows:
    """Time from a config to its cubin at a first launch, in a process that has emitted before."""
    kernel = config.kernel()
    try:
        assembler = find_assembler(target=kernel.target.name)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    times = timed(lambda: assembler.assemble(_emit(kernel), kernel.target.name), repeats)
    goal = Goal("<=", CUBIN_GOAL_S)
    settings = _settings(kernel)
    return [measured("config to cubin", "s", times, config=settings, goal=goal, headline=True)]


def _cold(repeats: int) -> Rows:
    """The processor time of new processes that emit a kernel, with cached bytecode; contestants alternate."""
    with tempfile.TemporaryDirectory() as bytecode:
        return _cold_with(bytecode, repeats)


def _cold_with(bytecode: str, repeats: int) -> Rows:
    # The caller's environment may forbid to write bytecode, and a fresh checkout has none.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

    def run(*command: str) -> None:
        subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            check=True,
            timeout=_COLD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    results: Rows = []
    works: dict[str, Work] = {}
    for name, command in _PROGRAMS.items():
        try:
            run(*command)  # which writes the bytecode
        except subprocess.SubprocessError as error:
            results.append(f"{_shown(command)} could not be measured: {_why(error)}")
        else:
            works[name] = functools.partial(run, *command)
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0, timer=_processor_seconds)
    for name, times in samples.items():
        results.append(measured(f"cold: {_shown(_PROGRAMS[name])}", "ms", [t * MS for t in flat(times)]))
    if _OURS in samples and _LIBRARIES in samples:
        ratio = ratios(samples[_OURS], samples[_LIBRARIES])
        goal = Goal("<=", COLD_GOAL)
        results.append(measured(f"cold: {_OURS} / {_LIBRARIES}", "x", ratio, goal=goal, headline=True))
    return results


def _shown(command: Sequence[str]) -> str:
    return f"python {shlex.join(command)}"


def _processor_seconds(work: Work) -> float:
    """The processor time, of user and system, of the processes that `work` starts and awaits."""
    import resource  # which Windows does not have

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Runs the tool in a separate process, and prints the top-level modules that it has imported.
_LIST_MODULES: Final = """
import contextlib, io, json, runpy, sys
sys.argv = sys.argv[1:]
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
    runpy.run_module("ptxgen", run_name="__main__", alter_sys=True)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def _imports() -> Rows:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_MODULES, *_EMIT[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=_COLD_TIMEOUT_S,
        )
    except subprocess.SubprocessError as error:
        return [f"what ptxgen emit imports is not known: {_why(error)}"]
    heavy = heavy_among(json.loads(done.stdout))
    return [
        measured(
            "heavy modules imported by ptxgen emit",
            "modules",
            [len(heavy)],
            config={"found": ",".join(heavy) or "none"},
            goal=Goal("<=", 0),
        ),
        f"heavy modules are: {', '.join(HEAVY)}",
    ]


def heavy_among(modules: list[str]) -> list[str]:
    """The top-level modules among `modules` that emission must not import."""
    return [name for name in HEAVY if name in modules]


def _why(error: subprocess.SubprocessError) -> str:
    """The last line that a failed process wrote, or the error itself if it wrote none."""
    message = getattr(error, "stderr", None) or ""
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    return text.strip().splitlines()[-1] if text.strip() else str(error)


def _assemble(config: AttentionConfig, repeats: int) -> Rows:
    kernel = config.kernel()
    built = build(kernel)
    settings = _settings(kernel)
    try:
        assembler = find_assembler(target=kernel.target.name)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    assemblies: list[Assembly] = []
    times = [
        seconds(lambda: assemblies.append(assembler.assemble(built.text, kernel.target.name)))
        for _ in range(repeats)
    ]
    usage = assemblies[-1].kernel(built.kernel.name)
    resources = KernelResources(kernel, usage.registers, True, built.kernel.dynamic_shared_bytes)
    spilled = usage.spill_store_bytes + usage.spill_load_bytes
    facts = {
        "registers": (usage.registers, "per thread"),
        "shared memory": (resources.shared_bytes, "bytes"),
        "occupancy": (100 * resources.occupancy, "%"),
        "SASS, padding included": (code_bytes(assemblies[-1].cubin) // _INSTRUCTION_BYTES, "instr."),
    }
    return [
        measured("spilled", "bytes", [spilled], config=settings, goal=Goal("<=", 0)),
        *(measured(name, unit, [value], config=settings) for name, (value, unit) in facts.items()),
        measured(f"time of {assembler.name}", "ms", [t * MS for t in times], config=settings),
    ]


def code_bytes(cubin: bytes) -> int:
    """Bytes of machine code in a cubin, an ELF file: of its sections `.text.<kernel>`."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, offset + size * n) for n in range(count)]
    start = sections[names][4]
    return sum(nbytes for name, _, _, _, _, nbytes in sections if cubin.startswith(b".text.", start + name))

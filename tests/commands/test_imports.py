"""The modules that each command imports: a command waits for no room that it does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flash.commands.emit import FORWARD, KERNELS
from ptxgen.commands.main import commands

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("cuda", "torch", "jax", "cupy", "numba", "triton", "cutlass")
DEVELOPERS = ("benchmarks", "tools")
CALLS = ("flash.adapters", "flash.cpu", "flash.distributed", "flash.gradients")  # what computes attention
LAUNCHES = (
    "ptxgen.interpreter",
    "ptxgen.kernels",
    "ptxgen.runtime.assembler",
    "ptxgen.runtime.cache",
    "ptxgen.runtime.cuda",
)
PROVERS = ("ptxgen.check.prove", "ptxgen.parse")
OTHER_COMMANDS = ("ptxgen.frontends", "ptxgen.mutation", "ptxgen.program", "ptxgen.report")
# Emission of a kernel for a forward pass or gradients needs no arrays of a caller.
ARRAYS = ("flash.calls", "flash.decode", "flash.host", "flash.launch", "flash.reference")
EMITTING = (
    *("ptxgen.dsl.builder", "ptxgen.isa", "ptxgen.check.verify", "ptxgen.text", "flash.device"),
    "flash.kernels",
)
NEVER = (*FRAMEWORKS, "tools")
OF_EMIT = (*NEVER, "jinja2", *DEVELOPERS, *CALLS, *LAUNCHES, *PROVERS, *OTHER_COMMANDS)
EVERYTHING = (*OF_EMIT, *ARRAYS, *EMITTING, "numpy", "flash.mods", "flash.scores", "flash.problem")
OF_FLASH = (
    *NEVER,
    "benchmarks",
    *CALLS,
    *ARRAYS,
    "flash.device",
    "flash.kernels",
    "flash.mods",
    "flash.scores",
)

# The words of a command, and the rooms and packages that it does not import.
TABLE = {
    "--version": (*EVERYTHING, "flash"),
    "--help": EVERYTHING,
    "completion bash": EVERYTHING,
    "cache info": tuple(room for room in EVERYTHING if room != "ptxgen.runtime.cache"),
    "emit --help": (*OF_EMIT, *ARRAYS, *EMITTING),
    "emit --list-targets": (*OF_EMIT, *ARRAYS, *EMITTING),
    "emit --head-dim 64 --list-tiles": (*OF_EMIT, *ARRAYS, *EMITTING),
    "emit --head-dim 16": (*OF_EMIT, *ARRAYS),
    "emit decode --help": (*OF_EMIT, "flash.contract.gradients"),
    "emit decode --head-dim 16": (*OF_EMIT, "flash.contract.gradients"),
    "emit append --head-dim 16": (*OF_EMIT, "flash.contract.gradients"),
    "emit merge --head-dim-v 16": (*OF_EMIT, "flash.contract.gradients"),
    "emit backward --owner keys --head-dim 16": (*OF_EMIT, *ARRAYS),
    "emit sum": (*OF_EMIT, *ARRAYS),
    "emit round": (*OF_EMIT, *ARRAYS),
    "emit widen --matrix Q --head-dim 16 --dtype e4m3 --target sm_90a": (*OF_EMIT, *ARRAYS),
    "check --help": (
        *OF_FLASH,
        *OTHER_COMMANDS,
        "jinja2",
        "ptxgen.dsl",
        "ptxgen.kernels",
        "ptxgen.runtime.cuda",
    ),
    "run --help": (*OF_FLASH, "jinja2", "ptxgen.mutation", "ptxgen.program", "ptxgen.report"),
    "run-program --help": (*OF_FLASH, "jinja2", "ptxgen.mutation", "ptxgen.report"),
    "debug --help": (*OF_FLASH, "jinja2", "ptxgen.mutation", "ptxgen.program"),
    "report --help": (*OF_FLASH, "jinja2", "ptxgen.frontends", "ptxgen.mutation", "ptxgen.program"),
    "mutate --help": (*OF_FLASH, "jinja2", "ptxgen.program", "ptxgen.report"),
    "context-parallel --help": (
        *NEVER,
        "benchmarks",
        *ARRAYS,
        *EMITTING,
        *LAUNCHES,
        *PROVERS,
        *OTHER_COMMANDS,
        "flash.adapters",
        "flash.cpu",
    ),
    "bench --help": (
        *NEVER,
        "flash.adapters",
        "flash.distributed",
        "jinja2",
        "ptxgen.mutation",
        "ptxgen.program",
    ),
    "tune --help": (*NEVER, "benchmarks", "flash.adapters", "flash.distributed", "flash.gradients", "jinja2"),
    "demo --help": (
        *NEVER,
        "benchmarks",
        "flash.adapters",
        "flash.distributed",
        "flash.gradients",
        "jinja2",
        *OTHER_COMMANDS,
    ),
}
SLOW = ("run", "run-program", "debug", "report", "mutate", "context-parallel", "bench", "tune", "demo")

PROGRAM = """
import sys
from ptxgen.__main__ import main
try:
    code = main()
except SystemExit as end:
    code = end.code
print("", code, *sys.modules, sep="\\n", file=sys.stderr)
"""


def imported(words: list[str]) -> list[str]:
    """The modules that a command has imported at its end, in a process of its own."""
    argv = [sys.executable, "-c", PROGRAM, *words]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    code, *modules = ended.stderr.split()
    assert code in ("0", "None")
    return modules


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] if line.split()[0] in SLOW else []) for line in TABLE],
)
def test_a_command_imports_no_room_that_it_does_without(line: str, tmp_path: Path) -> None:
    words = line.split()
    if words[0] == "emit" and not {"--help", "--list-targets", "--list-tiles"} & {*words}:
        words += ["-o", str(tmp_path / "out.ptx")]
    modules = imported(words)
    unwanted = [m for m in modules if any(m == room or m.startswith(f"{room}.") for room in TABLE[line])]
    assert unwanted == []
    assert "ptxgen.commands.main" in modules


def test_every_command_is_in_the_table() -> None:
    named = {line.split()[0] for line in TABLE if not line.startswith("-")}
    assert named == set(commands())


def test_every_kernel_of_emit_is_in_the_table() -> None:
    emitted = {words[1] for line in TABLE if (words := line.split())[0] == "emit" and "--help" not in words}
    assert {kernel for kernel in emitted if not kernel.startswith("-")} == {*KERNELS} - {FORWARD}


def test_every_room_of_the_table_exists() -> None:
    for room in {room for rooms in TABLE.values() for room in rooms}:
        path = ROOT / room.replace(".", "/")
        assert (
            room.split(".")[0] not in ("ptxgen", "flash")
            or path.is_dir()
            or path.with_suffix(".py").is_file()
        )

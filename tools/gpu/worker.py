"""One process of a part: `python -m tools.gpu.worker --part NAME …`, which `tools/gpu_session.py` starts.

It does the units of its part one after the other, and appends to the journal when one begins and ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flash.silicon.ledger import RAN, RIGHT, WRONG
from ptxgen.errors import PoisonedContextError, PtxGenError
from ptxgen.runtime.cuda import cuda_backend
from tools.commands.launched_texts import driver_version, launched
from tools.commands.silicon_runs import Run, append
from tools.commands.witness_launch import ORDINAL
from tools.gpu import device
from tools.gpu.journal import BEGIN, COMPLETE, END, UNITS, Journal
from tools.gpu.order import new_texts_first
from tools.gpu.phases import DEVICE, LEDGER
from tools.gpu.predictions import predicted
from tools.gpu.results import FAILED, MISSING, PASSED, ordered
from tools.gpu.unit import MissingError, Unit
from tools.gpu.watch import now_utc

POISONED: Final = 3  # exit code after a unit that has destroyed the CUDA context
_MODULES: Final = {name: f"tools.gpu.{name}" for name in ("smoke", "timing", "counters", "sanitizer")}
_SHOWN: Final = 300  # characters of an error


def main(argv: Sequence[str] | None = None) -> int:
    """Do the units of a part; 0 if the process got to the end, whatever the verdicts are."""
    arguments = _arguments(argv)
    if arguments.rehearse:
        importlib.import_module("tools.gpu.rehearsal").install()
    if arguments.part == DEVICE:
        print(json.dumps(device.asked()))
        return 0
    end_with_parent()
    facts = {"run": arguments.run, "part": arguments.part, "worker": arguments.worker}
    journal = Journal(arguments.journal, facts)
    if arguments.part not in _MODULES:
        tests = importlib.import_module("tools.gpu.pytest_run")
        return int(tests.run_tests(arguments, journal, history_of(arguments)))
    module = importlib.import_module(_MODULES[arguments.part])
    units = module.units(arguments)
    if arguments.fault:
        faulty = importlib.import_module("tools.gpu.rehearsal").faulty(arguments.fault)
        units = [faulty, *units]
    return do_all(units, journal, arguments)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.gpu.worker", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--part", required=True)
    add("--journal", type=Path)
    add("--history", type=Path, help="JSON: run and verdict of each unit")
    add("--output", type=Path, help="the folder of results")
    add("--run", type=int, default=0)
    add("--seed", type=int, default=0)
    add("--worker", type=int, default=0)
    add("--workers", type=int, default=1)
    add("--seconds", type=float, default=0.0, help="after which no unit begins")
    add("--rehearse", action="store_true")
    add("--fault", default="")
    return parser.parse_args(argv)


def end_with_parent() -> None:
    """End this process and all that it starts when the one that started it ends, however that ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # alone with what it has started
        threading.Thread(target=wait, daemon=True).start()


def history_of(arguments: argparse.Namespace) -> dict[str, tuple[int, str]]:
    """Run and verdict of the units of the part."""
    result = json.loads(arguments.history.read_text(encoding="utf-8"))
    return {unit: (run, verdict) for unit, (run, verdict) in result.items()}


def do_all(units: Sequence[Unit], journal: Journal, arguments: argparse.Namespace) -> int:
    """Do the units that this run has still to do, in order, as long as there is time; and before them, in
    every process, those that others are compared with.
    """
    began = time.monotonic()
    by_name = {unit.name: unit for unit in units}
    journal.write(UNITS, units=list(by_name))
    todo = new_texts_first(
        ordered(by_name, history_of(arguments), arguments.run), by_name, arguments.output / LEDGER
    )
    first = [unit.name for unit in units if unit.always] if todo else []
    for name in [*first, *(name for name in todo if name not in first)]:
        if time.monotonic() - began >= arguments.seconds:
            break
        if not _do(by_name[name], journal, arguments.output / LEDGER):
            return POISONED
    journal.write(COMPLETE)
    return 0


def _do(unit: Unit, journal: Journal, ledger: Path) -> bool:
    """Do one unit, and record the texts that it launched in the ledger. Returns whether the CUDA context is
    still valid.
    """
    began = time.monotonic()
    journal.write(BEGIN, unit=unit.name)
    whole, message = True, ""
    result: dict[str, Any] = {}
    with launched() as seen:
        try:
            result |= unit.work()
            verdict = result.pop("verdict", PASSED)
        except MissingError as error:
            verdict, message = MISSING, str(error)
        except PtxGenError as error:
            verdict, message = FAILED, str(error)[:_SHOWN]
            whole = not isinstance(error, PoisonedContextError)
        except Exception as error:  # the fault of one unit, which is reported
            at = traceback.extract_tb(error.__traceback__)[-1]
            verdict, message = (
                FAILED,
                f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"[:_SHOWN],
            )
    texts = result.pop("texts", seen.take())
    for row in (*result.get("calls", ()), *result.get("counters", ())):
        if row.get("who", "ours") == "ours" and (ahead := predicted(texts, row)):
            row["predicted"] = ahead
    line = {
        "verdict": verdict,
        "seconds": round(time.monotonic() - began, 1),
        "when": now_utc(),
        "said": message,
    }
    journal.write(END, unit=unit.name, **{**line, **result, "texts": list(texts)})
    if texts:
        _tell(ledger, f"{journal.facts['part']}: {unit.name}", verdict, texts)
    return whole


def _tell(ledger: Path, source: str, verdict: str, texts: Mapping[str, str]) -> None:
    """Record in the ledger that texts ran, and the verdict; a launch under counters, whose results nothing
    judges, only "ran".
    """
    backend = cuda_backend()
    device = backend.device_properties(ORDINAL)
    came = {PASSED: RAN if source.startswith("counters") else RIGHT, FAILED: WRONG}.get(verdict, RAN)
    driver = driver_version(backend, ORDINAL)
    append(ledger, Run(source, device.name, f"{device.major}.{device.minor}", driver, came, texts))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may wait for a kernel that hangs

"""Record on a GPU what its instructions give: `python tests/vectors/record.py`.

Each family of instructions becomes one compressed file of tests/vectors/sm_NN, from which
tests/vectors/test_vectors.py compares them with the interpreter ever after, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from gpu_runs import ORDINAL, not_here, run_on_gpu
from vectors import memory_families, register_families
from vectors.cases import Array, Case
from vectors.compare import compare
from vectors.store import SUFFIX, load, save

from ptxgen.errors import PoisonedContextError, PtxGenError
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.target import target_for_device

HERE: Final = Path(__file__).resolve().parent
FAMILIES: Final[Mapping[str, Callable[[], Iterator[Case]]]] = {
    "mma": register_families.mma,
    "approximations": register_families.approximations,
    "fp8": register_families.fp8,
    "roundings": register_families.roundings,
    "matrices": memory_families.matrices,
    "wgmma": memory_families.wgmma,
    "tensor_copies": memory_families.tensor_copies,
}
CASE_SECONDS: Final = 20.0  # after which a kernel hangs; all end in microseconds
FAMILY_SECONDS: Final = 120.0

_EPILOG = """\
Every family is recorded in a process of its own, since a kernel that goes wrong takes the CUDA
context of its process with it; what was recorded before is kept, and the exit status is 1.
--compare prints, for every case that is recorded, how far the interpreter is from the GPU.
"""


class HangError(Exception):
    """A kernel does not end."""


def within(seconds: float, work: Callable[[], None]) -> None:
    """Does the work; raises what it raises, or `HangError` if it takes longer."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            raised.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HangError(f"does not end within {seconds:g} s")
    if raised:
        raise raised[0]


def launched(backend: CudaBackend, case: Case) -> Array:
    """What the GPU gives."""
    out = np.zeros(case.shape, case.dtype)
    run_on_gpu(case.ptx, "k", args=case.arguments(out), grid=case.grid, block=case.block, backend=backend)
    return out


def recorded(
    cases: Iterable[Case], run: Callable[[Case], Array], seconds: float = CASE_SECONDS
) -> tuple[list[tuple[Case, Array]], dict[str, str]]:
    """The outputs, and why others have none; the first that hangs or destroys the context is the
    last.
    """
    done: list[tuple[Case, Array]] = []
    failed: dict[str, str] = {}
    for case in cases:

        def work(case: Case = case) -> None:
            done.append((case, run(case)))

        try:
            within(seconds, work)
        except (HangError, PoisonedContextError) as error:
            failed[case.name] = str(error)
            break
        except PtxGenError as error:
            failed[case.name] = str(error)
    return done, failed


def record_family(name: str, backend: CudaBackend, folder: Path) -> int:
    """Writes one family's file; 0 if nothing failed."""
    device = backend.device_properties(ORDINAL)
    target = target_for_device(device.major, device.minor)
    cases = [c for c in FAMILIES[name]() if not not_here(c.target, device.major, device.minor)]
    if not cases:
        sys.stdout.write(f"{name}: this GPU has none of it\n")
        return 0
    done, failed = recorded(cases, lambda case: launched(backend, case))
    sm = f"sm_{device.major}{device.minor}"
    facts = {
        "family": name,
        "device": device.name,
        "sm": sm,
        "driver": "{}.{}".format(*device.driver_version),
        "assembler": backend.version(target),
        "target": target.name,
        "failed": failed,
    }
    path = folder / sm / f"{name}{SUFFIX}"
    save(path, facts, done)
    size = path.stat().st_size
    sys.stdout.write(f"{name}: {len(done)} of {len(cases)} cases, {size} bytes in {path}\n")
    for case, why in failed.items():
        sys.stdout.write(f"  {case}: {why}\n")
    sys.stdout.flush()
    return int(bool(failed))


def in_processes(names: Sequence[str], folder: Path) -> int:
    """Each family in a process of its own."""
    status = 0
    for name in names:
        command = [sys.executable, str(HERE / "record.py"), "--alone", "--family", name, "--out", str(folder)]
        try:
            status |= subprocess.run(command, check=False, timeout=FAMILY_SECONDS).returncode != 0
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"{name}: not recorded within {FAMILY_SECONDS:g} s\n")
            status = 1
    return status


def print_comparison(folder: Path) -> int:
    """Prints how far the interpreter is from what is recorded; 0 if it is near enough."""
    files = sorted(folder.glob(f"*/*{SUFFIX}"))
    if not files:
        sys.stdout.write(f"nothing is recorded in {folder}\n")
    wrong = 0
    for path in files:
        facts, cases = load(path)
        sys.stdout.write(
            f"{facts['family']} on {facts['device']} ({facts['sm']}), driver {facts['driver']}, "
            f"{facts['assembler']}\n"
        )
        for case, output in cases:
            result = compare(case.on(facts["target"]), output)
            wrong += bool(result.problem)
            sys.stdout.write(f"  {result}\n")
    return int(bool(wrong))


def main(argv: Sequence[str] | None = None) -> int:
    """Record the named families, or all; 1 if any case failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog="record.py",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--family", action="append", choices=sorted(FAMILIES), help="record this one (repeatable)"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of sm_NN (default: tests/vectors)")
    parser.add_argument("--compare", action="store_true", help="print differences, record nothing")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.compare:
        return print_comparison(arguments.out)
    backend = cuda_backend()
    if why := backend.why_unavailable():
        sys.stderr.write(f"record.py: needs a GPU to record from: {why}\n")
        return 2
    names = arguments.family or list(FAMILIES)
    if arguments.alone:
        status = max(record_family(name, backend, arguments.out) for name in names)
        if threading.active_count() > 1:
            os._exit(status)  # a thread waits for a kernel that hangs; it would wait at the end too
        return status
    return in_processes(names, arguments.out)

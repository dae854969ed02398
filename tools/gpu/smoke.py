"""The smoke of a GPU: the demo's kernels against float64, and each family of instructions against the
interpreter and against the results recorded in tests/vectors.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from flash.commands import demo
from ptxgen.runtime.cuda import cuda_backend
from ptxgen.target import target_for_device
from tools.gpu.results import FAILED, PASSED, SKIPPED
from tools.gpu.rooms import TESTS, with_tests
from tools.gpu.unit import Unit

_SMALL: Final = ("--head-dim", "16", "--seq", "24")  # the demo of a rehearsal
_FEW: Final = 2  # cases of a family in a rehearsal, and
_FAMILIES: Final = ("matrices", "tensor_copies")  # those whose results are not those of one GPU
_SHOWN: Final = 3  # cases that are named


def units(arguments: argparse.Namespace) -> list[Unit]:
    """The units of the part: the demo, then each family of instructions."""
    with_tests()
    recording = importlib.import_module("vectors.recording")
    small = arguments.rehearse
    new: Path = arguments.output / "vectors"
    return [
        Unit("demo", functools.partial(demonstrated, _SMALL if small else ())),
        *(
            Unit(
                f"vectors {name}", functools.partial(compared, recording, name, new, _FEW if small else None)
            )
            for name in (_FAMILIES if small else recording.FAMILIES)
        ),
    ]


def demonstrated(words: Sequence[str]) -> dict[str, Any]:
    """The verdict of `ptxgen demo`, with the errors of its kernels on the GPU."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = demo.main([*words, "--json"])
    if not printed.getvalue():
        return {"verdict": FAILED, "said": errors.getvalue().strip()}
    kernels = json.loads(printed.getvalue())["kernels"]
    on_gpu = all("cuda" in kernel["errors"] for kernel in kernels)
    shown = [
        "; ".join([f"{kernel['configuration']}: error {kernel['errors'].get('cuda')}", *kernel["failures"]])
        for kernel in kernels
    ]
    return {"verdict": FAILED if code or not on_gpu else PASSED, "said": ", ".join(shown)}


def compared(recording: Any, family: str, new: Path, most: int | None) -> dict[str, Any]:
    """The verdict on at most `most` cases of a family: whether the GPU's results are the interpreter's,
    and those of tests/vectors. The cases of a family that is not recorded there are written to the folder
    `new`.
    """
    backend = cuda_backend()
    gpu = backend.device_properties(recording.ORDINAL)
    sm, target = f"sm_{gpu.major}{gpu.minor}", target_for_device(gpu.major, gpu.minor).name
    cases = [
        c for c in recording.FAMILIES[family]() if not recording.not_here(c.target, gpu.major, gpu.minor)
    ]
    if not cases:
        return {"verdict": SKIPPED, "said": f"{gpu.name} has none of it"}
    cases = list(itertools.islice(cases, most))
    done, failed = recording.recorded(cases, functools.partial(recording.launched, backend))
    wrong = [f"{name}: {why}" for name, why in failed.items()]
    results = [recording.compare(case.on(target), output) for case, output in done]
    wrong += [str(result) for result in results if result.problem]
    path = TESTS / "vectors" / sm / f"{family}{recording.SUFFIX}"
    comparison = f"not recorded for {sm}"
    if path.is_file():
        known = {case.name: output for case, output in recording.load(path)[1]}
        others = [c.name for c, out in done if c.name in known and not _same(known[c.name], out)]
        comparison = f"{len(others)} unlike {path.relative_to(TESTS.parent)}"
        wrong += [f"{name}: not what is recorded" for name in others]
    elif most is None and not wrong:
        with contextlib.redirect_stdout(io.StringIO()):
            recording.record_family(family, backend, new)
        comparison += f", now in {new}"
    message = "; ".join([f"{len(done)} of {len(cases)} cases", comparison, *wrong[:_SHOWN]])
    return {"verdict": FAILED if wrong else PASSED, "said": message}


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(
        np.ascontiguousarray(one).view(np.uint8), np.ascontiguousarray(other).view(np.uint8)
    )

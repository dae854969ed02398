"""Kernels of numba-cuda's documentation, which the package has among its tests."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptxgen.frontends import numba
from tools.public.cuda_text import random
from tools.public.rows import STOPPED, Source
from tools.public.trial import Trial

NUMBA: Final = Source("numba-cuda, documentation", package="numba-cuda")


def _kernel(file: str, example: str, **names: Any) -> Any:
    """The kernel of an example, of which the documentation shows the lines between two marks."""
    spec = importlib.util.find_spec("numba.cuda.tests.doc_examples")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).with_name(file)
    text = path.read_text()
    before, _, rest = text.partition(f"{example}.begin\n")
    code = textwrap.dedent(rest.partition(f"# {example}.end")[0].partition("# magictoken")[0])
    space = {"cuda": importlib.import_module("numba.cuda"), **names}
    # Lines as in the file, so that findings name them.
    exec(compile("\n" * (before.count("\n") + 1) + code, str(path), "exec"), space)
    return next(value for value in space.values() if hasattr(value, "py_func"))


def _launch(trial: Trial, kernel: Any, grid: Any, block: Any, args: list[Any]) -> None:
    outcome = numba.run(kernel, grid, block, args, raise_on_report=False)
    trial.note(outcome, block)


@NUMBA.row()
def fast_matmul(trial: Trial) -> None:
    """A product with tiles in shared memory, of sizes that are no multiples of a tile."""
    a, b, out = random(20, 37), random(37, 25, seed=2), np.zeros((20, 25), np.float32)
    float32 = importlib.import_module("numba").float32
    kernel = _kernel("test_matmul.py", "ex_fast_matmul", TPB=16, float32=float32)
    _launch(trial, kernel, (3, 3), (16, 16), [a, b, out])
    trial.close("out", out, a.astype(np.float64) @ b, 1e-5)


@NUMBA.row()
def array_sum(trial: Trial) -> None:
    """The sum of an array in shared memory, written over its first element."""
    data = np.arange(256)
    int32 = importlib.import_module("numba").int32
    kernel = _kernel("test_reduction.py", "ex_reduction.kernel", nelem=256, int32=int32)
    _launch(trial, kernel, 1, 256, [data])
    trial.close("the sum", data[:1], [255 * 128], 1e-9)


@NUMBA.row(
    STOPPED, "`cg.this_grid()` is in a library that only a linker adds", says="cudaCGGetIntrinsicHandle"
)
def solve_heat_equation(trial: Trial) -> None:
    """Heat in a rod, with barriers for the whole grid."""
    data = np.zeros(100)
    data[50] = 1000
    kernel = _kernel("test_laplace.py", "ex_laplace.kernel")
    _launch(trial, kernel, 2, 64, [data, data.copy(), 10, 0.25])
    trial.close("heat", [data.sum()], [1000], 1e-9)

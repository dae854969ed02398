"""Kernels of FlagGems, launched by its host code, which asks PyTorch for a GPU when it is imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from tools.public.rows import STOPPED, Source
from tools.public.trial import Trial

FLAG_GEMS: Final = Source("FlagGems", package="flag-gems==5.0.2", needs=("sqlalchemy", "PyYAML"))
_GPU: Final = SimpleNamespace(name="GPU", multi_processor_count=8, major=8, minor=0, total_memory=1 << 36)


@contextmanager
def _ops() -> Iterator[Any]:
    """A context with FlagGems' operators, in which PyTorch seems to have a GPU, as far as FlagGems asks."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: _GPU.name,
        "get_device_properties": lambda *_: _GPU,
        "get_device_capability": lambda *_: (_GPU.major, _GPU.minor),
        "device": lambda *_: contextlib.nullcontext(),
    }
    torch = importlib.import_module("torch")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.dict(os.environ, {"GEMS_VENDOR": "nvidia", "FLAGGEMS_CACHE_DIR": folder}),
    ):
        yield importlib.import_module("flag_gems.ops")


def _x(*shape: int, seed: int = 1) -> Any:
    torch = importlib.import_module("torch")
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _f() -> Any:
    return importlib.import_module("torch.nn.functional")


@FLAG_GEMS.row()
def softmax(trial: Trial) -> None:
    """Softmax of rows."""
    x = _x(6, 100)
    with _ops() as ops, trial.triton():
        got = ops.softmax(x, 1)
    trial.close("the result", got, x.double().softmax(1), 1e-5)


@FLAG_GEMS.row()
def layer_norm(trial: Trial) -> None:
    """LayerNorm, several rows a program."""
    x, w, b = _x(6, 100), _x(100, seed=2), _x(100, seed=3)
    with _ops() as ops, trial.triton():
        got = ops.layer_norm(x, (100,), w, b, 1e-5)[0]
    wanted = _f().layer_norm(x.double(), (100,), w.double(), b.double(), 1e-5)
    trial.close("the result", got, wanted, 1e-5)


@FLAG_GEMS.row()
def rms_norm(trial: Trial) -> None:
    """RMSNorm."""
    x, w = _x(6, 100), _x(100, seed=2)
    with _ops() as ops, trial.triton():
        got = ops.rms_norm(x, (100,), w, 1e-5)
    trial.close("the result", got, _f().rms_norm(x.double(), (100,), w.double(), 1e-5), 1e-5)


@FLAG_GEMS.row(
    STOPPED, "it is written with block pointers, which Triton 3.9 has no more", says="Block pointers"
)
def gelu(trial: Trial) -> None:
    """GELU, code that FlagGems generates."""
    x = _x(600)
    with _ops() as ops, trial.triton():
        got = ops.gelu(x)
    trial.close("the result", got, _f().gelu(x.double()), 1e-5)


@FLAG_GEMS.row()
def mm(trial: Trial) -> None:
    """A product in float16, tuned."""
    a, b = _x(40, 100).half(), _x(100, 30, seed=2).half()
    with _ops() as ops, trial.triton():
        got = ops.mm(a, b)
    trial.close("the result", got, a.double() @ b.double(), 1e-3)


@FLAG_GEMS.row()
def sum_dim(trial: Trial) -> None:
    """Sums of rows."""
    x = _x(6, 300)
    with _ops() as ops, trial.triton():
        got = ops.sum_dim(x, [1])
    trial.close("the result", got, x.double().sum(1), 1e-5)


@FLAG_GEMS.row()
def cumsum(trial: Trial) -> None:
    """Running sums of rows, a reduction and a scan."""
    x = _x(3, 300)
    with _ops() as ops, trial.triton():
        got = ops.cumsum(x, 1)
    trial.close("the result", got, x.double().cumsum(1), 1e-5)


@FLAG_GEMS.row()
def sort(trial: Trial) -> None:
    """Rows sorted by digits, whose counts programs pass on through global memory."""
    x = _x(2, 100)
    with _ops() as ops, trial.triton():
        values, indices = ops.sort(x, 1)
    wanted = x.sort(1)
    trial.close("values", values, wanted.values, 1e-9)
    trial.close("indices", indices, wanted.indices, 1e-9)


@FLAG_GEMS.row()
def topk(trial: Trial) -> None:
    """The largest five of each row."""
    x = _x(6, 100)
    with _ops() as ops, trial.triton():
        values, indices = ops.topk(x, 5)
    wanted = x.topk(5)
    trial.close("values", values, wanted.values, 1e-9)
    trial.close("indices", indices, wanted.indices, 1e-9)


@FLAG_GEMS.row()
def argmax(trial: Trial) -> None:
    """The index of the largest of each row."""
    x = _x(6, 100)
    with _ops() as ops, trial.triton():
        got = ops.argmax(x, 1)
    trial.close("the result", got, x.argmax(1), 1e-9)

"""Small kernels for the tests of the DSL: one value per thread, computed by the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.target import target
from ptxgen.text import render
from ptxgen.types import TYPES, u64

THREADS = 32


def builder(name: str = "kernel", *, on: str = "sm_80", threads: int = THREADS) -> KernelBuilder:
    return KernelBuilder(name, target=target(on), threads=threads)


def own_place(k: KernelBuilder, to: Pointer) -> Pointer:
    """Where thread t keeps its element: to[t]."""
    return to.plus(k.cvt(k.thread_id() * to.dtype.nbytes, dtype=u64))


def computed(
    body: Callable[..., Value], *arrays: np.ndarray[Any, Any], threads: int = THREADS
) -> np.ndarray[Any, Any]:
    """What `body(k, own element of each array, …)` gives in each thread.

    The module is also verified, printed and parsed back on the way.
    """
    k = builder(threads=threads)
    out = k.param("out", u64)
    inputs = [k.pointer(f"in{n}", TYPES[_type(a)]) for n, a in enumerate(arrays)]
    result = body(k, *[k.load(own_place(k, p)) for p in inputs])
    k.store(own_place(k, Pointer(k.cvta_to(out, space="global"), "global", result.type)), result)
    module = k.build()
    require_valid(module)
    assert parse(render(module)) == module
    given = np.zeros(threads, result.type.dtype)
    run(module, grid=1, block=threads, args=[given, *arrays], dynamic_smem=smem(module))
    return given


def smem(module: ir.Module) -> int:
    return module.kernels[0].dynamic_shared_bytes


def lanes(dtype: str = "uint32", threads: int = THREADS) -> np.ndarray[Any, Any]:
    return np.arange(threads).astype(dtype)


def _type(array: np.ndarray[Any, Any]) -> str:
    return {"u": "u", "i": "s", "f": "f"}[array.dtype.kind] + str(8 * array.dtype.itemsize)


def refused(error: type[Exception], message: str) -> Any:
    """Expect the error with exactly this message."""
    return pytest.raises(error, match=rf"\A{re.escape(message)}\Z")


def instructions(k: KernelBuilder) -> list[ir.Instr]:
    return [s for s in k.build().kernels[0].body if isinstance(s, ir.Instr)]

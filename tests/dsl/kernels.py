"""Small kernels for the tests of the DSL: one value per thread, computed by the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, Result, run
from ptxgen.parse import parse
from ptxgen.target import target
from ptxgen.text import render
from ptxgen.types import TYPES, u64

THREADS = 32
LOCKSTEP = ("lockstep",)
SCHEDULES = ("lockstep", PCT(0), PCT(1))


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
    arguments = np.zeros(threads, result.type.dtype)
    run(module, grid=1, block=threads, args=[arguments, *arrays], dynamic_smem=smem(module))
    return arguments


def launch(
    k: KernelBuilder,
    *arguments: Any,
    program: Any = None,
    grid: Any = 1,
    schedules: Any = SCHEDULES,
    **how: Any,
) -> list[Result]:
    """The results of a kernel, or of a changed `program` of it, under all sanitizers, in each of these orders
    of its warps. An array for a tensor map gets the kernel's boxes.
    """
    module, boxes = k.build(), k.tma.boxes()
    require_valid(module)
    args = [
        boxes[p.name].of(a) if p.name in boxes else a
        for p, a in zip(module.kernels[0].params, arguments, strict=True)
    ]
    how = {"block": k.threads, "dynamic_smem": smem(module), "sanitize": True, **how}
    return [run(program or module, grid=grid, args=args, schedule=schedule, **how) for schedule in schedules]


def is_noticed(k: KernelBuilder, program: str, *arguments: Any, **how: Any) -> bool:
    """Whether a changed program of a kernel is trapped or reported in one of the orders of its warps."""
    for schedule in SCHEDULES:
        fresh = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            (result,) = launch(
                k, *fresh, program=program, schedules=(schedule,), raise_on_report=False, **how
            )
        except TrapError:
            return True
        if result.reports:
            return True
    return False


def changed(k: KernelBuilder, pattern: str, by: str, count: int | None = None) -> str:
    """The text of a kernel with each match replaced, of which there must be one, or `count`."""
    text, matches = re.subn(pattern, by, render(k.build()))
    assert matches if count is None else matches == count
    return text


def smem(module: ir.Module) -> int:
    return module.kernels[0].dynamic_shared_bytes


def lanes(dtype: str = "uint32", threads: int = THREADS) -> np.ndarray[Any, Any]:
    return np.arange(threads).astype(dtype)


def _type(array: np.ndarray[Any, Any]) -> str:
    return {"u": "u", "i": "s", "f": "f"}[array.dtype.kind] + str(8 * array.dtype.itemsize)


def instructions(k: KernelBuilder) -> list[ir.Instr]:
    return [s for s in k.build().kernels[0].body if isinstance(s, ir.Instr)]


def opcodes(k: KernelBuilder, *, drop_unread: bool = False) -> list[str]:
    body = k.build(drop_unread=drop_unread).kernels[0].body
    return [s.opcode for s in body if isinstance(s, ir.Instr)]

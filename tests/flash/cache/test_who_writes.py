"""Which part of a call over a cache writes the new rows and rotates the queries: the attending kernel, a
kernel that only appends, or numpy; each exactly once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver

import flash
from flash.contract.cache_builds import AppendBuild
from flash.decode import operation, plan
from flash.problem.rotary import rotary_tables
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.usefixtures("unproved")]

JOINS, ATTENDS, APPENDS, NUMPY = "attends and writes", "attends", "appends", "numpy"
DIM = 16


def watch(patch: pytest.MonkeyPatch) -> list[str]:
    """The list of what writes or attends from now on, in its order."""
    did: list[str] = []
    launch_step, append = plan.launch_step, operation.append_on_cpu

    def launching(kernel: Any, *rest: Any) -> Any:
        features = kernel.config.features
        joins = features.appended is not None or features.rotation is not None
        did.append(APPENDS if isinstance(kernel, AppendBuild) else JOINS if joins else ATTENDS)
        return launch_step(kernel, *rest)

    patch.setattr(plan, "launch_step", launching)
    patch.setattr(operation, "append_on_cpu", lambda call: (did.append(NUMPY), append(call))[1])
    return did


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize(
    ("backend", "how", "does"),
    [
        ("cpu", {}, [NUMPY]),
        ("cpu", {"turns": True}, [NUMPY]),
        ("cpu", {"queries": 0}, [NUMPY]),
        ("cpu", {"rows": False}, []),
        ("interpreter", {}, [JOINS]),
        ("interpreter", {"turns": True}, [JOINS]),
        ("interpreter", {"queries": 0}, [NUMPY]),
        ("interpreter", {"dense": False}, [ATTENDS, NUMPY]),
        ("interpreter", {"dense": False, "turns": True}, [ATTENDS, NUMPY]),
        ("interpreter", {"rows": False, "turns": True}, [ATTENDS]),
        ("cuda", {}, [JOINS]),
        ("cuda", {"turns": True}, [JOINS]),
        ("cuda", {"queries": 0}, [APPENDS]),
        ("cuda", {"queries": 0, "turns": True}, [APPENDS]),
        ("cuda", {"there": False}, [ATTENDS, APPENDS]),
        ("cuda", {"rows": False, "turns": True}, [JOINS]),
        ("cuda", {"rows": False, "turns": True, "queries": 0}, []),
        ("cuda", {"rows": False}, [ATTENDS]),
    ],
)  # fmt: skip
def test_new_rows_are_written_once_by_whom_can(
    backend: Any, how: dict[str, Any], does: list[str], page_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver(FakeDevice(sm=80)))
    did = watch(monkeypatch)
    wanted = called("cpu", page_size, driver, did, **how)
    result = called(backend, page_size, driver, did, **how)
    assert did == does
    for mine, theirs in zip(result, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def called(
    backend: Any,
    page_size: int | None,
    driver: FakeDriver,
    did: list[str],
    *,
    queries: int = 2,
    rows: bool = True,
    turns: bool = False,
    dense: bool = True,
    there: bool = True,
) -> list[Any]:
    """What a call returns, and the keys and values of the second sequence; `did` is then what it did."""
    on_gpu, rng = backend == "cuda", np.random.default_rng(0)
    cache = flash.KVCache(
        1, 2, 2, DIM, 16, page_size=page_size, backend=backend, cuda=CudaBackend(driver) if on_gpu else None
    )
    old, k, v = (rng.standard_normal((2, 2, n, DIM), dtype=np.float32) for n in (5, 3, 3))
    q = rng.standard_normal((2, 4, queries, DIM), dtype=np.float32)
    cache.append(0, old, old)
    did.clear()
    if not dense:
        k, v = (np.repeat(x, 2, axis=3)[..., ::2] for x in (k, v))
    arguments: dict[str, Any] = {"k": k, "v": v} if rows else {}
    if turns:
        arguments["rotary_cos"], arguments["rotary_sin"] = rotary_tables(8, 16)
    if on_gpu:
        arguments = {
            n: on_device(driver, x) if there or n not in ("k", "v") else x for n, x in arguments.items()
        }
    out = flash.attention_with_kvcache(on_device(driver, q) if on_gpu else q, cache, layer=0, **arguments)
    result = out.numpy() if on_gpu else out
    return [result, cache.keys(0, 1), cache.values(0, 1)]

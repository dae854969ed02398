"""Configurations of a kernel are ranked, by the clock or by the model, and launches take the best one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import TensorOnGpu, without_assembler
from fake_driver import A100, FakeDriver

import ptxgen as px
from ptxgen import Pointer, f16, f32, u32
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.kernels.function import KernelFunction
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.tuning import Ranking, TunedKernel, tuned
from ptxgen.tuning.model import HIDING_WARPS

N = 5000
FACTOR = 2.0


def doubled(k: Any, X: Pointer[f32], n: u32, *, block: int, fault: str = "") -> None:  # type: ignore[type-arg, valid-type]
    k.note("each element twice")
    if fault == "shared":
        k.shared("room", (1 << 12, 1 << 12))
    i = k.block_id() * block + k.thread_id()
    with k.when(i < (n + 1 if fault == "bounds" else n)):
        X[i] = X[i] * (3.0 if fault == "result" else FACTOR)
    if fault == "race":
        X[0] = k.cvt(i, dtype=f32, rnd="rn")


def of_block(*, block: int, **_: str) -> int:
    return block


def grid(*, block: int, **_: str) -> int:
    return -(-N // block)


def kernel(**choices: Any) -> KernelFunction:
    return KernelFunction(doubled, threads=of_block, **choices)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuned.json"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU on which a launch takes as many milliseconds as its CTA has threads more or less than 256."""
    without_assembler(monkeypatch)
    driver = FakeDriver(A100)

    def elapsed(_: CudaBackend, work: Callable[[], object], *__: int, **___: int) -> float:
        work()
        return abs(driver.launches[-1].block[0] - 256.0)

    monkeypatch.setattr(CudaBackend, "elapsed_ms", elapsed)
    return driver


def test_bad_configurations_are_named_and_the_others_ranked(file: Path) -> None:
    faults = "result", "bounds", "shared", "race"
    listed = [{"block": 2048}, {"block": 128}, *({"block": 128, "fault": fault} for fault in faults)]
    f, x = px.autotune(listed, file=file)(kernel()), np.arange(N, dtype=np.float32)
    ranking = f.tune(grid, x, N, expected={"X": 2 * x})
    assert (x == np.arange(N)).all()
    assert ranking.best.configuration == "block=128"
    problems = {c.configuration: c.problem for c in ranking.candidates[1:]}
    assert problems.pop("block=2048") == "kernel doubled: threads must be 1..1024 on sm_80, got 2048"
    words = {
        "result": "wrong result: X[1] is 3, expected 2; 4999 of 5000 elements differ",
        "bounds": "wants to read 4 bytes of global memory",
        "shared": "67108864 bytes of shared memory",
        "race": "no barrier orders the two",
    }
    for fault, text in words.items():
        assert text in problems.pop(f"block=128, fault={fault!r}")
    assert not problems
    lines = str(ranking).splitlines()
    assert lines[0] == "doubled on sm_80 (A100 SXM4 40 GB), by the model, not measured: X=[5000], n=5000"
    assert lines[2].split()[:3] == ["1", "block=128", "128"]
    assert len(lines) == 3 + 5
    f[grid](x, N)
    assert (x == 2.0 * np.arange(N)).all()


def test_few_warps_rank_after_others(file: Path) -> None:
    @px.autotune([{"kib": 160}, {"kib": 1}], file=file)
    @px.kernel(threads=32, target="sm_80")
    def copied(k: Any, X: Pointer[f32], *, kib: int) -> None:  # type: ignore[type-arg, valid-type]
        room = k.shared("room", (kib, 256))
        room[0, k.thread_id()] = X[k.thread_id()]
        X[k.thread_id()] = room[0, k.thread_id()] + 1

    x = np.zeros(32, np.float32)
    first, last = copied.tune(1, x).candidates
    assert (first.configuration, last.configuration) == ("kib=1", "kib=160")
    assert last.warps < HIDING_WARPS <= first.warps
    copied[1](x)
    assert (x == 1).all()


def test_the_model_of_tensor_cores_prefers_fewer_loads_for_a_product(file: Path) -> None:
    @px.autotune(file=file, tile=(32, 64))
    @px.kernel(threads=128)
    def gemm(k: Any, A: Pointer[f16], B: Pointer[f16], C: Pointer[f32], n: u32, *, tile: int) -> None:  # type: ignore[type-arg, valid-type]
        a, b, c = k.matrix(A, n, n), k.matrix(B, n, n), k.matrix(C, n, n)
        row, column = k.block_id("y") * tile, k.block_id("x") * tile
        acc = k.accumulator((tile, tile))
        with k.pipeline(a.across((tile, 32), row), b.across((tile, 32), column), stages=2) as (x, y):
            acc.mma(x, y.T)
        c.store(acc, row, column)

    n = 64
    a, b = (np.random.default_rng(i).standard_normal((n, n)).astype(np.float16) for i in range(2))
    c = np.zeros((n, n), np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    ranking = gemm.tune(lambda *, tile: (n // tile, n // tile), a, b, c, n, expected={"C": want}, atol=1e-3)
    assert all(one.works and one.unit for one in ranking.candidates)
    by_sectors = {one.configuration: one.cost for one in ranking.candidates}
    assert by_sectors["tile=64"] < 4 * by_sectors["tile=32"]  # a quarter of the CTAs, with half their loads
    assert not c.any()


def test_nothing_is_judged_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    by_model = tuned.by_model
    monkeypatch.setattr(tuned, "by_model", lambda name, *of: judged.append(name) or by_model(name, *of))
    x, ranges = np.ones(N, np.float32), {"block": (64, 128)}
    first = px.autotune(file=file, **ranges)(kernel()).tune(grid, x, N)
    assert judged == ["block=64", "block=128"]
    again = px.autotune(file=file, **ranges)(kernel())
    assert again.tune(grid, x, N) == first
    assert px.autotune(file=file, block=(64, 128, 256))(kernel()).tune(grid, x, N).best.works
    assert judged == ["block=64", "block=128", "block=256"]
    again.tune(grid, x[:100], 100)
    again.tune(grid, x, N, expected={"X": 2 * x})
    assert judged[3:] == ["block=64", "block=128"] * 2
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    again.tune(grid, x, N)
    assert judged[7:] == ["block=64", "block=128"]


def test_a_launch_takes_a_ranking_of_its_texts_and_extents(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    launch = KernelFunction.launch
    monkeypatch.setattr(
        KernelFunction, "launch", lambda of, *a, **how: taken.append(how["block"]) or launch(of, *a, **how)
    )
    make = px.autotune(file=file, block=(96, 64))
    x = np.ones(N, np.float32)
    make(kernel()).tune(grid, x, N)
    data = json.loads(file.read_text())
    data["rankings"][0]["candidates"].sort(key=lambda row: row["configuration"])
    assert data["rankings"][0]["candidates"][0]["configuration"] == "block=64"
    file.write_text(json.dumps(data))
    f = make(kernel())
    f[grid](x, N)
    f[grid](x[:64], 64)  # no ranking: the first configuration
    f[grid](x, N, block=128)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    make(kernel())[grid](x, N)
    assert taken == [64, 96, 128, 96]
    assert (x[-1:] == 2 * 2 * 5).all()


def test_a_gpu_ranks_by_its_clock_on_copies(driver: FakeDriver, file: Path) -> None:
    f = px.autotune(file=file, block=(64, 512, 256))(
        kernel(cuda=CudaBackend(driver), cache=ModuleCache(None))
    )
    x = TensorOnGpu(driver, np.ones(N, np.float32), 0)
    f[grid](x, N, stream=0)
    launches = [(launch.block[0], launch.values["X"] == x.pointer) for launch in driver.launches]
    rounds = [(64, False), (512, False), (256, False)]
    assert launches == [*rounds * 21, (256, True)]
    f[grid](x, N, stream=0)
    assert len(driver.launches) == len(launches) + 1
    ranking = f.tune(grid, x, N, stream=0)
    assert len(driver.launches) == len(launches) + 1  # it was measured by the launch
    assert ranking.is_by_the_clock
    assert [one.configuration for one in ranking.candidates] == ["block=256", "block=64", "block=512"]
    assert str(ranking).splitlines()[0] == "doubled on Fake A100, measured: X=[5000], n=5000"
    host = np.ones(N, np.float32)
    wrong = f.tune(
        grid, host, N, repeats=2, expected={"X": host * 2}
    )  # the GPU that is simulated computes nothing
    with pytest.raises(ConfigError, match="none of 3 configurations works:\n  block=64: wrong result: X"):
        _ = wrong.best
    assert (host == 1).all()


def test_rankings_need_no_file() -> None:
    x = np.ones(N, np.float32)
    ranking = px.autotune(block=(64, 128), key=("n",))(kernel()).tune(grid, x, N)
    assert ranking.problem == {"n": N}
    assert px.autotune(block=(64, 128), key=("n",))(kernel()).tune(grid, x, N) == ranking
    assert Ranking.of_json(json.loads(json.dumps(ranking.as_json()))) == ranking


ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (
        lambda: px.autotune()(kernel()),
        "autotune of kernel doubled: give either a list of configurations, as in autotune([{'block': 128}]), "
        "or ranges of parameters, as in autotune(block=(64, 128))",
    ),
    "name": (
        lambda: px.autotune(blocks=(64,))(kernel()),
        "autotune of kernel doubled: 'blocks' is no keyword-only parameter of the kernel (block, fault) and "
        "not 'threads'; did you mean 'block'?",
    ),
    "range": (
        lambda: px.autotune(block=64)(kernel()),  # type: ignore[arg-type]
        "autotune of kernel doubled: block must be a tuple, a list or a range of one value or more, got 64",
    ),
    "list": (
        lambda: px.autotune([64])(kernel()),  # type: ignore[list-item]
        "autotune of kernel doubled: configurations must be a list of dicts, each with one value or more, "
        "got [64]",
    ),
    "twice": (
        lambda: px.autotune(block=(64, 64))(kernel()),
        "autotune of kernel doubled: the configuration block=64 is there twice; remove one",
    ),
    "hash": (
        lambda: px.autotune(block=([64],))(kernel()),
        "autotune of kernel doubled: the values of block=[64] must be hashable",
    ),
    "key": (
        lambda: px.autotune(block=(64,), key=("m",))(kernel()),
        "autotune of kernel doubled: key has 'm', which is no argument of the kernel (X, n)",
    ),
    "keys": (
        lambda: px.autotune(block=(64,), key="n")(kernel()),
        "autotune of kernel doubled: key must be a tuple of names of arguments, got 'n'",
    ),
    "function": (
        lambda: px.autotune(block=(64,))(3),  # type: ignore[arg-type]
        "autotune: it needs a kernel, got 3; write @ptxgen.autotune(...) above @ptxgen.kernel(...)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_configurations_that_a_kernel_cannot_have_are_refused(case: str) -> None:
    make, text = ERRORS[case]
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == text


def tuned_kernel(file: Path) -> TunedKernel:
    return px.autotune(block=(64,), file=file)(kernel())


def test_wrong_arguments_of_tune_are_refused(file: Path) -> None:
    x, f = np.ones(N, np.float32), tuned_kernel(file)
    for how, text in (
        ({"expected": [x]}, "expected must be a dict of arrays by name, got [array(["),
        ({"expected": {"Y": x}}, "expected has 'Y', which is no array of the kernel"),
        ({"expected": {"X": x[1:]}}, "expected['X'] must have shape [5000], got [4999]"),
        ({"repeats": 0}, "repeats must be an integer from 1 to 2**20, got 0"),
    ):
        with pytest.raises(LaunchError) as refused:
            f.tune(grid, x, N, **how)  # type: ignore[arg-type]
        assert str(refused.value).startswith(f"autotune of kernel doubled: {text}")
    with pytest.raises(TypeError, match="a launch needs a grid"):
        f(x, N)
    with pytest.raises(TypeError, match=r"the function for grid must take all .* it got an .* 'block'"):
        f.tune(lambda: 1, x, N)
    file.write_text("[]")
    with pytest.raises(ConfigError) as broken:
        f.tune(grid, x, N)
    assert str(broken.value) == (
        f"autotune: {file} is no file of rankings (list indices must be integers or slices, not str); name "
        "another file, or remove it"
    )
    with pytest.raises(ConfigError) as unwritable:
        tuned_kernel(file / "no" / "folder.json").tune(grid, x, N)
    assert str(unwritable.value).startswith("autotune: ")

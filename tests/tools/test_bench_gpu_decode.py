"""The measures of decoding on a GPU, on a fake one that interprets kernels, and on which every
launch takes 1.5 ms.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bench_results import by_name
from device_arrays import interpret, interpreting
from fake_driver import FakeDriver

import flash
from benchmarks import bench_command as bench
from benchmarks.measure import gpu_decode as bench_gpu_decode
from benchmarks.measure.decode import Decoding
from benchmarks.measure.gpu_decode import LARGE, TOKEN, Batch
from flash.commands.measure import device as bench_device
from flash.commands.measure import gpu as bench_gpu
from flash.commands.measure import torch_peer as bench_torch
from flash.commands.measure.record import Goal, Measurement
from ptxgen.runtime.cuda import CudaBackend

LAUNCH_S = 1.5e-3
SMALL = Batch(Decoding("bf16", 16, 4, 2, 96, 1), 2)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(version=1000)  # too old for cubins: programs stay text
    driver.gpu_ms = LAUNCH_S * 1e3
    interpreting(driver)
    monkeypatch.setattr(bench_gpu_decode, "torch_with_gpu", lambda: (None, "no comparison"))
    return driver


@pytest.fixture
def gpu(driver: FakeDriver) -> bench_device.Gpu:
    return bench_device.open_gpu(CudaBackend(driver))


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [0, 16])
def test_the_share_of_the_copy_bandwidth_is_bytes_over_time(
    page_size: int, gpu: bench_device.Gpu, driver: FakeDriver
) -> None:
    gpu.copy_rate = 1e9
    one = Decoding("bf16", 16, 4, 2, 96, 1, page_size)
    result = by_name(bench_gpu_decode.bandwidth(gpu, Batch(one, 2), repeats=2))
    splits = result["decoding"].config["splits"]
    assert splits == 2  # of 64 keys each: the fake GPU has room for all
    entries = [launch.entry.split("_")[0] for launch in driver.launches]
    assert entries == ["attention", "merge"] * 4
    assert result["decoding"].median == pytest.approx(2 * LAUNCH_S * 1e6)
    # K and V, Q and O, and parts with their lse that are written and read.
    nbytes = 2 * (2 * 2 * 96 * 16 * 2 + 2 * 4 * 16 * 2 + 2 * 4 * splits * 17 * 4)
    rate = nbytes / (2 * LAUNCH_S)
    assert result["decoding, read + written"].median == pytest.approx(rate / 1e12)
    share = result["decoding, of the copy ceiling"]
    assert share.median == pytest.approx(100 * rate / 1e9)
    assert (share.goal, share.headline) == (Goal(">=", 85), True)
    assert 0 < result["error of decoding / numpy"].median < 2
    assert driver.memory == {}


@pytest.mark.slow
def test_without_a_copy_ceiling_there_is_no_share(gpu: bench_device.Gpu) -> None:
    result = by_name(bench_gpu_decode.bandwidth(gpu, SMALL, repeats=1))
    assert "decoding, of the copy ceiling" not in result


def test_the_copy_ceiling_is_kept_for_what_is_held_against_it(
    gpu: bench_device.Gpu, driver: FakeDriver
) -> None:
    driver.on_launch = lambda _: None
    bench_gpu.copy_ceiling(gpu, repeats=2, nbytes=1 << 20)
    assert gpu.copy_rate == pytest.approx(2 * (1 << 20) / LAUNCH_S)


@pytest.mark.slow
def test_a_kernel_that_reads_one_page_only_is_found_out(gpu: bench_device.Gpu, driver: FakeDriver) -> None:
    one = Decoding("bf16", 16, 4, 2, 96, 1, 16)

    def astray(launch: Any) -> None:
        if launch.entry.startswith("attention"):
            table = driver.view(launch.values["block_table"], 2 * 6 * 4)
            table.reshape(-1, 4)[:] = table[:4]
        interpret(driver, launch)

    driver.on_launch = astray
    error = by_name(bench_gpu_decode.bandwidth(gpu, Batch(one, 2), repeats=1))["error of decoding / numpy"]
    assert error.goal is not None
    assert not error.goal.met_by(error.median)


@pytest.mark.slow
def test_a_token_is_timed_without_torch(gpu: bench_device.Gpu) -> None:
    result = bench_gpu_decode.latency(gpu, SMALL, 2, 1)
    assert result[0] == "no comparison"
    launches = 2  # in two splits: attention and the merge
    assert by_name(result)["a token, ours"].median == pytest.approx(launches * LAUNCH_S * 1e6)
    step = by_name(result)["a token, ours, step"]
    assert step.median == pytest.approx(launches * LAUNCH_S * 1e6)  # it also appends, in the first


@pytest.mark.slow
def test_a_token_is_compared_with_torch_in_launches_and_in_graphs(
    gpu: bench_device.Gpu, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes(ms: float) -> Any:
        def work() -> None:
            driver._clock_ms += ms

        return work

    def tensor(array: Any) -> Any:
        return SimpleNamespace(to=lambda *_: flash.to_device(array, cuda=gpu.backend))

    torch = SimpleNamespace(from_numpy=lambda array: tensor(array), float32="float32")
    monkeypatch.setattr(bench_gpu_decode, "torch_with_gpu", lambda: (torch, ""))
    monkeypatch.setattr(bench_gpu_decode, "sdpa_of_a_token", lambda *_: takes(6.0))
    graphs = iter([takes(1.0), takes(2.0), takes(4.0)])
    monkeypatch.setattr(bench_gpu_decode, "graphed", lambda *_: next(graphs))
    step = Batch(Decoding("f32", 16, 4, 2, 96, 1))
    result = by_name(bench_gpu_decode.latency(gpu, step, 2, 1))
    ours = result["a token, ours"].median
    assert result["a token, torch"].median == pytest.approx(6000)
    assert result["latency of ours / torch"].median == pytest.approx(ours / 6000)
    assert result["a token, ours, step, graph"].median == pytest.approx(2000)
    assert result["latency of ours / torch, graph"].median == pytest.approx(0.25)


@pytest.mark.slow
def test_nothing_comes_to_the_host_while_tokens_are_decoded(
    gpu: bench_device.Gpu, driver: FakeDriver
) -> None:
    driver.on_launch = lambda _: None
    (result,) = bench_gpu_decode.copied(gpu, layers=1, tokens=2, head_dim=16)
    assert isinstance(result, Measurement)
    assert (result.median, result.goal) == (0, Goal("<=", 0))
    assert "cuMemcpyDtoHAsync" not in driver.names()
    assert {launch.entry.split("_")[0] for launch in driver.launches} >= {"append", "attention"}


def test_what_comes_to_the_host_is_counted(gpu: bench_device.Gpu) -> None:
    counter = bench_gpu_decode.HostCopies(gpu.backend)
    cache = flash.KVCache(1, 1, 1, 8, 4, backend="cuda", cuda=counter)
    row = flash.to_device(bench_gpu_decode.normal((1, 1, 3, 8))[0], cuda=gpu.backend)
    cache.append(0, row, row)
    assert counter.nbytes == 0
    cache.keys(0, 0)
    assert counter.nbytes == 2 * 3 * 8 * 4


def test_the_large_step_has_half_a_gibibyte_in_groups_of_eight() -> None:
    one = LARGE.one
    assert 2 * LARGE.items * one.kv_heads * one.seq_k * one.head_dim * 2 == 512 << 20
    assert one.heads == 8 * one.kv_heads
    assert (TOKEN.items, TOKEN.one.seq_k) == (1, 1024)


def test_the_jobs_of_decoding_come_behind_the_ceilings(gpu: bench_device.Gpu) -> None:
    labels = [job.label for job in bench._jobs("gpu", gpu, False)]
    assert labels[:2] == ["FMA ceiling", "copy ceiling"]
    assert labels[-5:] == [
        "decode 16 sequences, page 0",
        "decode 16 sequences, page 64",
        "decode 16 sequences, page 128",
        "decode a token",
        "decode with a cache",
    ]


def test_torch_attends_to_shared_heads(torch: Any) -> None:
    q, k, v = (torch.zeros(1, heads, n, 8) for heads, n in ((4, 1), (2, 5), (2, 5)))
    assert bench_torch.sdpa_of_a_token(torch, q, k, v)().shape == (1, 4, 1, 8)


def test_a_graph_is_captured_behind_calls_on_its_own_stream() -> None:
    log: list[str] = []

    class Within:
        def __init__(self, *what: object, **how: object) -> None:
            self.what = f"{what[0]} {how.get('stream', '')}".strip()

        def __enter__(self) -> None:
            log.append(f"begin {self.what}")

        def __exit__(self, *_: object) -> None:
            log.append("end")

    cuda = SimpleNamespace(
        Stream=lambda: "own",
        stream=Within,
        graph=Within,
        synchronize=lambda: log.append("wait"),
        CUDAGraph=lambda: SimpleNamespace(__str__=lambda _: "graph", replay=lambda: "replayed"),
    )
    replay = bench_torch.graphed(SimpleNamespace(cuda=cuda), lambda: log.append("work"))
    assert replay() == "replayed"
    assert log[:6] == ["begin own", "work", "work", "work", "end", "wait"]
    assert log[6].endswith("own")
    assert log[7:] == ["work", "end"]

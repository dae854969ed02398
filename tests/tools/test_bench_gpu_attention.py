"""The measures of attention and gradients on a GPU, on a fake one that interprets kernels, and on which
every launch takes 20 ms.
"""

from __future__ import annotations

import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from bench_results import by_name
from fake_driver import A100
from fake_gpu import Machine

from benchmarks.measure import gpu_attention, gpu_gradients
from benchmarks.measure.gpu_attention import PUBLISHED, Call, OnDevice
from flash.commands.measure import device as bench_device
from flash.commands.measure.record import Measurement, Work
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import CudaBackend

LAUNCH_S = 20e-3
SMALL = {"tokens": 96, "width": 32}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Machine:
    driver = Machine()
    driver.gpu_ms = LAUNCH_S * 1e3
    monkeypatch.setattr(CudaBackend, "compile", lambda *given: given[1].encode())
    for module in (gpu_attention, gpu_gradients):
        monkeypatch.setattr(module, "torch_with_gpu", lambda: (None, "no comparison"))
    return driver


@pytest.fixture
def gpu(driver: Machine) -> bench_device.Gpu:
    return bench_device.open_gpu(CudaBackend(driver))


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Call("f16", 16, 48, True, **SMALL), 2e-3),
        pytest.param(Call("bf16", 32, 96, False, **SMALL), 2e-2, marks=pytest.mark.slow),
        (Call("e4m3", 16, 96, False, **SMALL), 1e-1),
        pytest.param(Call("f32", 16, 96, True, "ieee", **SMALL), 1e-5, marks=pytest.mark.slow),
    ],
    ids=lambda given: given.dtype if isinstance(given, Call) else "",
)
def test_a_call_is_measured_by_what_its_result_needs(call: Any, error: float, gpu: bench_device.Gpu) -> None:
    gpu.tensor_flops = 1e9
    result = gpu_attention.forward(gpu, call, 1, 2)
    assert result[0] == "no comparison"
    named = by_name(result)
    assert named["ours"].median == pytest.approx(20)
    batch, heads, seq, dim = call.size
    pairs = batch * heads * (seq * (seq + 1) // 2 if call.causal else seq * seq)
    assert named["ours, useful"].median == pytest.approx(4 * dim * pairs / LAUNCH_S / 1e12)
    assert 0 < named["ours, error"].median < error
    share = named.get("ours, of the tensor core ceiling")
    assert (share is None) == (call.dtype in ("e4m3", "f32"))


GROUPED = Call("bf16", 16, 48, True, tokens=48, heads=4, kv_heads=2, head_dim_v=8, window=16)
LATENT = Call("bf16", 576, 64, True, tokens=64, head_dim_v=512, heads=2, kv_heads=1, shared_kv=True)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("call", [GROUPED, LATENT], ids=["window", "latents"])
def test_heads_windows_and_latents_are_measured(call: Call, gpu: bench_device.Gpu) -> None:
    named = by_name(gpu_attention.forward(gpu, call, 1, 1))
    batch, heads, seq, dim = call.size
    rows = range(1, seq + 1)
    seen = sum(min(row, call.window or seq) for row in rows)
    flops = 2 * batch * heads * seen * (dim + (call.head_dim_v or dim))
    assert call.flops == flops
    assert named["ours, useful"].median == pytest.approx(flops / LAUNCH_S / 1e12)
    assert 0 < named["ours, error"].median < 2e-2


def test_published_shapes_have_eight_queries_for_a_key_and_one_sequence() -> None:
    sizes = {(call.head_dim, call.seq, call.causal): call.sizes for call in PUBLISHED}
    assert all(of[0][:2] == (1, 64) and of[1][:2] == (1, 8) for of in sizes.values())
    assert set(sizes) >= {(128, 4096, False), (128, 16384, True), (192, 8192, True), (64, 8192, True)}
    assert {seq for dim, seq, causal in sizes if dim == 128 and causal} >= {512, 1024, 2048}
    assert sizes[192, 8192, True][2:] == ((1, 8, 8192, 128), (1, 64, 8192, 128))
    assert [call.settings["window"] for call in PUBLISHED if call.window] == [1024]


def test_a_gpu_that_is_not_hopper_is_not_asked_for_what_only_hopper_computes() -> None:
    gpu = bench_device.open_gpu(CudaBackend(Machine(A100)))
    labels = [job.label for job in gpu_attention.attention_jobs(gpu, quick=False)]
    assert not any("e4m3" in label for label in labels)
    hopper = bench_device.open_gpu(CudaBackend(Machine()))
    more = {job.label for job in gpu_attention.attention_jobs(hopper, quick=False)} - set(labels)
    assert any("e4m3" in label for label in more)


def test_a_kernel_that_writes_nothing_has_no_small_error(gpu: bench_device.Gpu, driver: Machine) -> None:
    driver.on_launch = lambda _: None
    result = by_name(gpu_attention.forward(gpu, Call("f16", 16, 48, False, **SMALL), 1, 1))
    assert not result["ours, error"].median < 1


@pytest.mark.slow
def test_all_tiles_are_measured_beside_the_one_that_a_launch_chooses(gpu: bench_device.Gpu) -> None:
    call = Call("f16", 64, 96, True, tokens=96, width=64)
    *result, last = gpu_attention.tiles(gpu, call, 1, 1, least_tile=176)
    names = [item.config["tile"] for item in result if isinstance(item, Measurement)]
    assert names == ["chosen", "64x176", "128x176"]
    assert isinstance(last, Measurement)
    assert (last.name, last.median) == ("time of the chosen tile / the best", pytest.approx(1.0))


@pytest.mark.slow
def test_gradients_are_measured(gpu: bench_device.Gpu) -> None:
    call = Call("f16", 16, 48, True, **SMALL)
    result = gpu_gradients.backward(gpu, call, 1, 1)
    assert [item for item in result if isinstance(item, str)] == ["no comparison"]
    named = by_name(result)
    assert {f"gradients, {way}" for way in gpu_gradients.WAYS} <= named.keys()
    launches = named["gradients, ours"].median / 20
    assert launches == pytest.approx(round(launches))
    useful = 2.5 * call.flops / (named["gradients, ours"].median / 1e3) / 1e12
    assert named["gradients, ours, useful"].median == pytest.approx(useful)


@pytest.mark.slow
def test_sweeps_without_kernels_are_remarks(gpu: bench_device.Gpu) -> None:
    result = gpu_gradients.backward(gpu, Call("f32", 16, 48, True, "ieee", **SMALL), 1, 1)
    one, in_order, _ = [item for item in result if isinstance(item, str)]
    assert one.startswith(
        "gradients, ours in one sweep, were not measured: AttentionGradient: one sweep has no "
    )
    assert in_order.startswith(
        "gradients, ours in one sweep in order, were not measured: AttentionGradient: "
    )


def test_the_ceiling_comes_before_what_is_held_against_it(gpu: bench_device.Gpu) -> None:
    labels = [job.label for job in gpu_attention.attention_jobs(gpu, quick=True)]
    assert labels == [
        "tensor core ceiling",
        "assemble the kernels",
        "dtype=f16 d=128 N=4096 causal=True",
        "tiles d=128 causal=False",
        "tiles d=128 causal=True",
    ]
    assert gpu_attention.tensor_ceiling(gpu, repeats=1) == ["no comparison"]
    labels = [job.label for job in gpu_gradients.gradient_gpu_jobs(gpu, quick=True)]
    assert labels == [
        "assemble the kernels of gradients",
        "gradients d=128 N=4096 causal=False",
        "gradients d=128 N=4096 causal=True",
    ]


def test_gradients_of_short_and_of_long_rows_are_timed_beside_flash_attention_and_cudnn() -> None:
    calls = gpu_gradients.gradient_calls(quick=False).values()
    assert {(call.head_dim, call.causal) for call in calls} == {
        (d, causal) for d in (64, 128) for causal in (False, True)
    }
    assert {call.seq for call in calls} == {512, 1024, 2048, 4096, 8192, 16384}
    assert {call.size[0] * call.seq for call in calls} == {16384}
    assert set(gpu_gradients.PEERS) == {"FLASH_ATTENTION", "CUDNN_ATTENTION"}


@pytest.mark.slow
def test_a_kernel_that_is_not_launched_leaves_a_remark(
    gpu: bench_device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_attention, "COMPARED_SEQ", 48)
    launches = OnDevice.launches

    def refuse(arrays: OnDevice, gpu: bench_device.Gpu, config: AttentionConfig) -> Work:
        def fail() -> None:
            raise BackendError("refused\nat length")

        return fail if config.target == "sm_90" else launches(arrays, gpu, config)

    monkeypatch.setattr(OnDevice, "launches", refuse)
    result = gpu_attention.forward(gpu, Call("f16", 16, 48, True, **SMALL), 1, 1)
    assert result[:2] == [
        "ours, mma.sync of {'dtype': 'f16', 'd': 16, 'N': 48, 'causal': True} was not launched: refused",
        "no comparison",
    ]
    assert "ours" in by_name(result)


@pytest.fixture
def with_torch(driver: Machine, torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """PyTorch on the host, as if it used the fake GPU, with a backend that computes there; whatever is
    measured takes 1 ms more.
    """
    seconds = bench_device.Gpu.seconds
    monkeypatch.setattr(bench_device.Gpu, "seconds", lambda gpu, work: seconds(gpu, work) + 1e-3)
    for module in (gpu_attention, gpu_gradients):
        monkeypatch.setattr(module, "torch_with_gpu", lambda: (torch, ""))
        monkeypatch.setattr(module, "on_gpu", lambda torch, array, _: torch.from_numpy(array))
        monkeypatch.setattr(module, "PEERS", ("MATH", "NONE"))
    return driver


@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_backends_of_torch_are_measured_beside_ours(gpu: bench_device.Gpu, torch: ModuleType) -> None:
    call = Call("f16", 16, 48, True, **SMALL)
    result = gpu_attention.forward(gpu, call, 1, 1)
    assert result[0] == f"torch {torch.__version__} has no backend NONE"
    assert by_name(result)["torch MATH, error"].median < 2e-3
    assert "speed of ours / torch MATH" in by_name(result)
    result = gpu_gradients.backward(gpu, call, 1, 1)
    speeds = [name for name in by_name(result) if "speed" in name]
    assert speeds == [f"gradients, speed of {way} / torch MATH" for way in gpu_gradients.WAYS]
    assert by_name(result)["largest difference from torch MATH"].median < 1e-2
    (remark,) = [item for item in result if isinstance(item, str)]
    assert remark.startswith("gradients by torch NONE were not measured: ")


def test_the_product_of_torch_is_beside_the_peak_on_paper(
    gpu: bench_device.Gpu, driver: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Matrix:
        def __matmul__(self, _: Matrix) -> None:
            driver._clock_ms += 1.5

    torch = SimpleNamespace(randn=lambda *_, **__: Matrix(), bfloat16=None)
    monkeypatch.setattr(gpu_attention, "torch_with_gpu", lambda: (torch, ""))
    monkeypatch.setattr(bench_device.Gpu, "clocks", lambda _: {"clocks.max.sm": "1980 MHz"})
    result = by_name(gpu_attention.tensor_ceiling(gpu, repeats=1))
    assert result["tensor core ceiling"].median == pytest.approx(2 * 8192**3 / 1.5e-3 / 1e12)
    assert result["tensor core peak on paper"].median == pytest.approx(1070, rel=1e-3)
    assert result["tensor core peak on paper"].config == {"clock_mhz": 1980}


@pytest.mark.slow
def test_kernels_are_assembled_by_several_threads(gpu: bench_device.Gpu, driver: Machine) -> None:
    every = [Call("f16", 16, seq, True, **SMALL) for seq in (48, 96)]
    assert gpu_attention.prepared(gpu, every) == []
    assert len(driver.launches) == 2
    assert gpu_gradients.prepared(gpu, every[:1]) == []
    assert len(driver.launches) > 2


def test_one_thread_makes_the_kernels_of_a_config(
    gpu: bench_device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: dict[AttentionConfig, set[int]] = {}
    calls = 0

    def launches(arrays: OnDevice, _: bench_device.Gpu, config: AttentionConfig) -> Work:
        def launch() -> None:
            nonlocal calls
            calls += 1
            built.setdefault(config, set()).add(threading.get_ident())
            time.sleep(0.02)  # another thread would have begun the next call
            if arrays.call.seq == 16:
                raise BackendError("of this call")

        return launch

    monkeypatch.setattr(OnDevice, "launches", launches)
    every = [Call("f16", dim, seq, True, **SMALL) for seq in (16, 48, 96) for dim in (16, 32)]
    gpu_attention.prepared(gpu, every)
    assert [len(threads) for threads in built.values()] == [1, 1]
    assert calls == 6

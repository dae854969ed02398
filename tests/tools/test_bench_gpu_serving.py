"""The measures of serving on a GPU, on a fake one that interprets kernels; a launch takes 20 ms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench_results import by_name
from fake_gpu import Machine

from benchmarks.measure import gpu_serving
from benchmarks.measure.gpu_serving import Tokens
from benchmarks.measure.serving import Serving, unavoidable_bytes
from flash.commands.measure import device as bench_device
from ptxgen.runtime.cuda import CudaBackend

LAUNCH_S = 20e-3
PACKED = Serving("f32", 16, 4, 2, 16, ((3, 20), (1, 40), (1, 16)))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Machine:
    driver = Machine()
    driver.gpu_ms = LAUNCH_S * 1e3
    monkeypatch.setattr(CudaBackend, "compile", lambda *args: args[1].encode())
    return driver


@pytest.fixture
def gpu(driver: Machine) -> bench_device.Gpu:
    gpu = bench_device.open_gpu(CudaBackend(driver))
    gpu.copy_rate = 1e9
    return gpu


@pytest.mark.slow
def test_a_packed_batch_is_measured_by_bytes_and_operations(gpu: bench_device.Gpu) -> None:
    named = by_name(gpu_serving.serve(gpu, PACKED, 1, 1))
    assert named["serving"].median == pytest.approx(20)
    seen = (18 + 19 + 20) + 40 + 16  # the last query sees all keys
    assert named["serving, useful"].median == pytest.approx(4 * 16 * 4 * seen / LAUNCH_S / 1e12)
    share = 100 * unavoidable_bytes(PACKED) / LAUNCH_S / 1e9
    assert named["serving, of the copy ceiling"].median == pytest.approx(share)
    assert 0 < named["serving, error"].median < 1e-5


def test_the_error_is_that_of_the_last_query_of_each_sequence(
    gpu: bench_device.Gpu, driver: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flash.contract.built_kernel.BuiltKernel.require_proved", lambda _: None)

    def astray(launch: Any) -> None:
        driver.interpret(launch)
        out = driver.view(launch.values["O"], 5 * 4 * 16 * 4).view(np.float32).reshape(5, 4, 16)
        out[3] += 1  # the only query of the second sequence

    driver.on_launch = astray
    named = by_name(gpu_serving.serve(gpu, PACKED, 1, 1))
    launches = named["serving, error"].median
    assert launches == pytest.approx(round(launches), abs=1e-4)
    assert launches >= 1


@pytest.mark.slow
def test_tokens_over_latents_are_measured(gpu: bench_device.Gpu) -> None:
    step = Tokens("latents", 576, 512, 2, 64, heads=4)
    named = by_name(gpu_serving.decode_tokens(gpu, step, 1, 1))
    launches = named["latents"].median / 20
    assert launches == pytest.approx(round(launches))
    nbytes = 2 * 2 * (64 * 576 + 4 * (576 + 512))
    assert named["latents, needed"].median == pytest.approx(nbytes / launches / LAUNCH_S / 1e12)
    flops = 2 * 2 * 4 * 64 * (576 + 512)
    assert named["latents, useful"].median == pytest.approx(flops / launches / LAUNCH_S / 1e12)
    assert 0 < named["latents, error"].median < 2e-2


def test_latents_are_for_hopper(gpu: bench_device.Gpu) -> None:
    labels = [job.label for job in gpu_serving.serving_gpu_jobs(gpu, quick=True)]
    assert labels == ["serving page 16, 66 sequences, most queries 1024", "latents of 1 sequences, 8192 keys"]

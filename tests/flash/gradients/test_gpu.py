"""The gradients on a fake GPU, whose launches the interpreter does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, TorchOnGpu, interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from gradient_calls import assert_near, call_of, packed_call, reference
from judge import rounded_normal

import flash
from flash.gradients.kernel import Gradients
from flash.operands.dtypes import F16
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]
CONFIG = flash.AttentionConfig(head_dim=8, dtype="f16", causal=True)
COPIES = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}
Make = Callable[[flash.AttentionConfig], flash.AttentionGradient]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    without_assembler(monkeypatch)
    return interpreting(FakeDriver(FakeDevice(sm=80), FakeDevice(sm=80)))


@pytest.fixture
def make(driver: FakeDriver) -> Make:
    return lambda config: flash.AttentionGradient(config, cuda=CudaBackend(driver), cache=ModuleCache(None))


def there(driver: FakeDriver, arrays: dict[str, Any], ordinal: int = 0) -> dict[str, CudaArray]:
    return {n: on_device(driver, a, ordinal) for n, a in arrays.items()}


def fetched(found: Any) -> Gradients[Any]:
    """Copies on the host of gradients on a GPU."""
    return Gradients(*(a.numpy() for a in found[:3]), {n: a.numpy() for n, a in found.arrays.items()})


def kernels(driver: FakeDriver) -> list[str]:
    return ["_".join(launch.entry.split("_")[:3]) for launch in driver.launches]


def test_host_arrays_are_copied_there_and_back(driver: FakeDriver, make: Make) -> None:
    arrays = call_of(CONFIG)
    result = make(CONFIG).launch(**arrays, backend="cuda")
    assert_near(result, reference(arrays, causal=True), F16)
    assert all(isinstance(a, np.ndarray) for a in result[:3])
    assert kernels(driver) == ["attention_gradient_queries", "attention_gradient_keys"]
    names = driver.names()
    assert names.index("cuLaunchKernel") > names.index("cuMemcpyHtoDAsync")
    assert names.index("cuMemcpyDtoHAsync") > names.index("cuLaunchKernel")
    assert names.count("cuMemcpyHtoDAsync") == len(arrays)  # nothing of the results is copied there
    held = [m for m in driver.memory.values() if m.data.size > 2 * 20 * 4]  # D is kept
    assert held == []


def test_tensors_of_the_host_are_copied_there_and_back(make: Make, torch: ModuleType) -> None:
    arrays = call_of(CONFIG)
    result = make(CONFIG).launch(**{n: torch.from_numpy(a) for n, a in arrays.items()}, backend="cuda")
    assert all(isinstance(a, torch.Tensor) for a in result[:3])
    assert_near(
        Gradients(*(host_array(view(a, "gradient")) for a in result[:3]), {}),
        reference(arrays, causal=True),
        F16,
    )


def test_given_host_arrays_of_any_strides_are_written(make: Make) -> None:
    arrays = call_of(CONFIG)
    room = {f"d{n}": np.full((*arrays[n].shape[:-1], 11), 7, np.float16) for n in "qkv"}
    arguments = {n: a[..., 3:] for n, a in room.items()}
    result = make(CONFIG).launch(**arrays, **arguments, backend="cuda")
    assert [result.dq is arguments["dq"], result.dk is arguments["dk"], result.dv is arguments["dv"]] == [
        True
    ] * 3
    assert_near(result, reference(arrays, causal=True), F16)
    assert all((a[..., :3] == 7).all() for a in room.values())


def test_arrays_on_a_gpu_are_used_in_place_and_results_are_there_too(driver: FakeDriver, make: Make) -> None:
    arrays = call_of(CONFIG, batch=2, heads=4, kv_heads=2)
    dlse = rounded_normal(np.random.default_rng(1), arrays["lse"].shape)
    result = make(CONFIG).launch(**there(driver, {**arrays, "dlse": dlse}, 1))
    assert not COPIES & set(driver.names())
    assert {launch.ordinal for launch in driver.launches} == {1}
    assert_near(fetched(result), reference(arrays, dlse=dlse, causal=True), F16)


def test_repeated_calls_use_the_same_kernels_and_memory(driver: FakeDriver, make: Make) -> None:
    kernel, arrays = make(CONFIG), call_of(CONFIG)
    arguments = there(driver, {**arrays, **{f"d{n}": np.zeros_like(arrays[n]) for n in "qkv"}})
    kernel.launch(**arguments)
    driver.calls.clear()
    launches = len(driver.launches)
    kernel.launch(**arguments)
    assert driver.names().count("cuLaunchKernel") == len(driver.launches) - launches == 2
    assert not {"cuMemAlloc", "cuModuleLoadDataEx", "cuMemsetD8Async", *COPIES} & set(driver.names())


@pytest.mark.slow
def test_one_sweep_clears_its_sums_before_each_call(driver: FakeDriver) -> None:
    kernel = flash.AttentionGradient(
        CONFIG, deterministic=False, sweeps=1, cuda=CudaBackend(driver), cache=ModuleCache(None)
    )
    arrays = call_of(CONFIG, seq_k=70)
    for call in range(2):
        driver.calls.clear()
        result = kernel.launch(**there(driver, arrays))
        assert_near(fetched(result), reference(arrays, causal=True), F16)
        names = driver.names()
        assert names.count("cuMemsetD8Async") == 1
        assert names.index("cuMemsetD8Async") < names.index("cuLaunchKernel")
        assert kernels(driver)[3 * call :] == [
            "attention_gradient_deltas", "attention_gradient_keys", "attention_gradient_sums"
        ]  # fmt: skip


@pytest.mark.slow
def test_another_alignment_of_addresses_is_found_out(driver: FakeDriver, make: Make) -> None:
    kernel, arrays = make(CONFIG), call_of(CONFIG)
    arguments = there(driver, arrays)
    kernel.launch(**arguments)
    odd = driver.place(np.zeros(arrays["q"].size + 1, np.float16)) + 2
    shifted = CudaArray(odd, arrays["q"])
    driver.view(odd, arrays["q"].nbytes)[:] = arrays["q"].reshape(-1).view(np.uint8)
    result = fetched(kernel.launch(**{**arguments, "q": shifted}))
    assert_near(result, reference(arrays, causal=True), F16)
    assert "align2" in driver.launches[-1].entry
    half = CudaArray(driver.place(np.zeros(arrays["dout"].size + 1, np.float16)) + 1, arrays["dout"])
    with pytest.raises(
        LaunchError, match=r"^AttentionGradient\.launch: dout must begin at a multiple of 2 bytes"
    ):
        kernel.launch(**{**arguments, "dout": half})


def test_each_stream_has_its_own_memory_for_d(driver: FakeDriver, make: Make) -> None:
    kernel, arguments = make(CONFIG), there(driver, call_of(CONFIG))
    first, second = driver.make_stream(), driver.make_stream()
    for stream in (first, second, first):
        kernel.launch(**arguments, stream=stream)
    assert [launch.stream for launch in driver.launches] == [first, first, second, second, first, first]
    used = [launch.values["D"] for launch in driver.launches]
    assert used[0] == used[1] == used[4] == used[5]
    assert used[2] == used[3] != used[0]


def test_memory_of_torch_is_from_its_pool_and_on_its_stream(
    driver: FakeDriver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a captured graph writes is then kept for it by torch, and nothing is allocated beside torch."""
    torch, arrays, kernel = TorchOnGpu(driver, 1, monkeypatch), call_of(CONFIG), make(CONFIG)
    arguments = {n: torch.tensor(a) for n, a in arrays.items()}
    for _ in range(2):
        driver.calls.clear()
        torch.made.clear()
        result = kernel.launch(**arguments)
        assert "cuMemAlloc" not in driver.names()
        *_, rows = torch.made  # behind dq, dk and dv
        assert {launch.values["D"] for launch in driver.launches[-2:]} == {rows.pointer}
        assert {launch.stream for launch in driver.launches[-2:]} == {torch.stream}
        assert_near(fetched(result), reference(arrays, causal=True), F16)


def test_calls_of_several_threads_on_one_stream_do_not_mix(
    driver: FakeDriver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arguments = make(CONFIG), there(driver, call_of(CONFIG))
    kernel.launch(**arguments)
    backend = kernel._gradient.gpu.backend
    launch = backend.launch

    def slow(*how: Any) -> None:
        launch(*how)
        time.sleep(0.01)  # so that other threads run between two launches

    monkeypatch.setattr(backend, "launch", slow)
    threads = [threading.Thread(target=kernel.launch, kwargs=arguments) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernels(driver) == ["attention_gradient_queries", "attention_gradient_keys"] * 4


@pytest.mark.slow
def test_gradients_of_arrays_of_scores_follow_in_the_order_of_their_kernels(
    driver: FakeDriver, make: Make
) -> None:
    config = flash.AttentionConfig(8, dtype="f16", bias="f32", sink=True)
    rng = np.random.default_rng(2)
    scores = {"bias": rounded_normal(rng, (1, 2, 1, 24)), "sink": rounded_normal(rng, (2,))}
    arrays = call_of(config, **scores)
    result = make(config).launch(**there(driver, {**arrays, **scores}), wanted=["bias", "sink"])
    assert_near(fetched(result), reference(arrays, **scores), F16)
    assert kernels(driver) == [
        "attention_gradient_queries",
        "attention_gradient_keys",
        "attention_gradient_scores",
        "sum_terms_f32",
        "sum_terms_f32",
    ]


PACKED = flash.AttentionConfig(8, dtype="f16", varlen=True, causal=True, sink=True)
LENGTHS = {
    "cu_seqlens_q": np.array([0, 5, 5, 17], np.int32),
    "cu_seqlens_k": np.array([0, 9, 12, 28], np.int32),
}


def test_packed_sequences_on_a_gpu(driver: FakeDriver, make: Make) -> None:
    arrays, exact = packed_call(PACKED, 20, 30, LENGTHS)
    kernel = make(PACKED)
    most = {"max_seqlen_q": 12, "max_seqlen_k": 16}
    # The first call has terms of rows that the second one has not.
    for ends in (np.array([0, 12, 12, 17], np.int32), LENGTHS["cu_seqlens_q"]):
        arguments = {**arrays, **LENGTHS, "cu_seqlens_q": ends}
        result = kernel.launch(**there(driver, arguments), **most, wanted=["sink"])
    got = fetched(result)
    assert_near(got, exact, F16)
    assert not got.dq[17:].any()
    assert not got.dk[28:].any()
    assert not got.dv[28:].any()


def test_packed_sequences_of_the_host(make: Make) -> None:
    arrays, exact = packed_call(PACKED, 20, 30, LENGTHS)
    kernel = make(PACKED)
    assert_near(kernel.launch(**arrays, **LENGTHS, wanted=["sink"], backend="cuda"), exact, F16)
    arguments = {f"d{n}": np.full_like(arrays[n], 7) for n in "qkv"}
    kernel.launch(**arrays, **LENGTHS, **arguments, wanted=["sink"], backend="cuda")
    assert (arguments["dq"][17:] == 7).all()
    assert (arguments["dk"][28:] == 7).all()
    np.testing.assert_allclose(arguments["dv"][:28].astype(float), exact.dv[:28], atol=2e-2)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seq_q": 0}, {"seq_k": 0}], ids=str)
def test_calls_without_scores_on_a_gpu(sizes: dict[str, int], driver: FakeDriver, make: Make) -> None:
    arrays = call_of(CONFIG, **sizes)
    result = fetched(make(CONFIG).launch(**there(driver, arrays)))
    for array, like in zip(result[:3], "qkv", strict=True):
        assert array.shape == arrays[like].shape
        assert not array.any()


@pytest.mark.slow
def test_a_seed_on_a_gpu_is_that_of_the_call(driver: FakeDriver, make: Make) -> None:
    config = flash.AttentionConfig(8, dtype="f16", dropout=0.4)
    kernel = make(config)
    for seed in (3, 4):
        arrays = call_of(config, dropout_seed=seed)
        result = kernel.launch(**there(driver, arrays), dropout_seed=seed)
        assert_near(fetched(result), reference(arrays, dropout=0.4, dropout_seed=seed), F16)

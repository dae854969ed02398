"""The life that calls of every kind have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, kernel_on, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver

import flash
from flash.calls import backend as backends
from flash.contract.built_kernel import BuiltKernel
from flash.decode.kernel import DecodeKernel
from ptxgen import interpreter
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.cuda import CudaBackend

DIM = 16
ONE, EIGHT = (np.ones((1, 1, rows, DIM), np.float32) for rows in (1, 8))
ENDS = np.array([0, 3], np.int32)
Q = np.random.default_rng(0).standard_normal((5, 1, DIM)).astype(np.float32)
FILES_OF_ATTENTION = 18
FILES_OF_TOKEN = 27

CALLS: dict[str, Callable[[], Any]] = {
    "attention": lambda: flash.attention(ONE, EIGHT, EIGHT),
    "attention_varlen": lambda: flash.attention_varlen(Q[:3], Q[:3], Q[:3], ENDS, ENDS),
    "AttentionKernel": lambda: flash.AttentionKernel(flash.AttentionConfig(DIM)).launch(ONE, EIGHT, EIGHT),
    "attention_backward": lambda: flash.attention_backward(
        ONE, ONE, EIGHT, EIGHT, ONE, np.zeros((1, 1, 1), np.float32)
    ),
    "DecodeKernel": lambda: DecodeKernel(flash.AttentionConfig(DIM)).launch(
        ONE, EIGHT, EIGHT, seqused_k=np.array([8], np.int32)
    ),
    "merge_partials": lambda: flash.merge_partials([ONE], [ONE[..., 0]]),
}
OF_THE_HOST_ALONE = ("DecodeKernel", "merge_partials")  # no array is copied to a GPU for these


@pytest.fixture(autouse=True)
def _without_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """To prove a kernel takes longer than to run it."""
    monkeypatch.setattr(BuiltKernel, "require_proved", lambda _: None)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[object]]:
    """A function that sets PTXGEN_BACKEND, and returns the list of what the interpreter then runs."""
    run = interpreter.run

    def setting(name: str) -> list[object]:
        ran: list[object] = []

        def running(*arguments: Any, **how: Any) -> interpreter.Result:
            ran.append(arguments)
            return run(*arguments, **how)

        monkeypatch.setattr(backends, "backend_setting", lambda: name)
        monkeypatch.setattr(interpreter, "run", running)
        return ran

    return setting


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    without_assembler(monkeypatch)
    return interpreting(FakeDriver(FakeDevice(sm=80)))


@pytest.mark.parametrize("call", CALLS)
def test_auto_is_the_backend_of_the_environment(call: str, auto: Callable[[str], list[object]]) -> None:
    """Whoever checks kernels without a GPU sets PTXGEN_BACKEND."""
    ran = auto("cpu")
    CALLS[call]()
    assert not ran
    ran = auto("interpreter")
    CALLS[call]()
    assert ran


@pytest.mark.parametrize("call", OF_THE_HOST_ALONE)
def test_a_gpu_that_a_host_array_cannot_reach_is_refused(
    call: str, auto: Callable[[str], list[object]]
) -> None:
    auto("cuda")
    with pytest.raises(LaunchError, match=r"backend 'cuda' (attends to a cache|merges parts) on a GPU, "):
        CALLS[call]()


def test_rows_of_no_sequence_keep_what_they_have_in_arrays_of_the_host(driver: FakeDriver) -> None:
    config = flash.AttentionConfig(DIM, varlen=True)
    kernel = kernel_on(driver, config)
    out = np.full(Q.shape, 7, np.float32)
    kernel.launch(Q, Q, Q, out=out, cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, backend="cuda")
    assert (out[ENDS[-1] :] == 7).all()
    one = Q[: ENDS[-1]].swapaxes(0, 1)
    np.testing.assert_allclose(out[: ENDS[-1]], flash.attention(one, one, one).swapaxes(0, 1), rtol=1e-5)


def test_a_merge_is_prepared_once_for_arrays_of_one_layout(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flash.decode.merge.cuda_backend", lambda: backend)
    backend, built = CudaBackend(driver), list[object]()
    merging = sys.modules["flash.decode.merge"].merging
    monkeypatch.setattr(
        "flash.decode.merge.merging", lambda *given, **how: built.append(given) or merging(*given, **how)
    )
    for seed in range(3):
        parts = np.random.default_rng(seed).standard_normal((2, 3, 4)).astype(np.float32)
        lses = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        merged, lse = flash.merge_partials(on_device(driver, parts), on_device(driver, lses))
        wanted, of_rows = flash.merge_partials(parts, lses, backend="cpu")
        np.testing.assert_allclose(driver.fetch(merged.pointer, np.empty_like(wanted)), wanted, rtol=1e-5)
        np.testing.assert_allclose(driver.fetch(lse.pointer, np.empty_like(of_rows)), of_rows, rtol=1e-5)
    assert len(built) == 1


def test_what_is_known_of_a_call_does_not_let_another_pass() -> None:
    """Checks that were done are not done again; what they depend on is compared."""
    cache = flash.KVCache(1, 1, 1, DIM, 16)
    cache.append(0, EIGHT, EIGHT)
    flash.attention_with_kvcache(ONE, cache, layer=0)
    memory = np.zeros((2, 1, 1, 1, DIM), np.float32)
    for _ in range(2):
        flash.attention_with_kvcache(memory[0], cache, layer=0, out=memory[1])
    with pytest.raises(LaunchError, match="out must not share memory with q"):
        flash.attention_with_kvcache(memory[0], cache, layer=0, out=memory[0])
    with pytest.raises(LaunchError, match="q must be"):
        flash.attention_with_kvcache(ONE[..., :8], cache, layer=0)
    with pytest.raises(ConfigError, match="causal must be"):
        flash.attention_with_kvcache(ONE, cache, layer=0, causal=1)  # type: ignore[call-overload]
    with pytest.raises(LaunchError, match="return_lse must be"):
        flash.attention_with_kvcache(ONE, cache, layer=0, return_lse=0)  # type: ignore[call-overload]


def files_of(call: Callable[[], object]) -> set[str]:
    """The files of this project that a call enters when all that is kept has been made."""
    roots = {str(Path(package.__file__ or "").parent) for package in (flash, sys.modules["ptxgen"])}
    for _ in range(2):
        call()
    entered: set[str] = set()
    sys.setprofile(lambda frame, *_: entered.add(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    return {file for file in entered if any(file.startswith(root) for root in roots)}


def test_a_warm_call_enters_few_files() -> None:
    """Whoever reads what a call does reads these: a file more is a reason to ask whether it is needed."""
    cache = flash.KVCache(1, 1, 1, DIM, 64)
    result = files_of(lambda: flash.attention(EIGHT, EIGHT, EIGHT, backend="cpu"))
    assert len(result) <= FILES_OF_ATTENTION, sorted(result)
    result = files_of(lambda: flash.attention_with_kvcache(ONE, cache, ONE, ONE, layer=0))
    assert len(result) <= FILES_OF_TOKEN, sorted(result)

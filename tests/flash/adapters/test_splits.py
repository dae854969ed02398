"""`splits` of the functions and of the adapters: the number of splits of the keys, and with it the bits."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting
from fake_driver import FakeDevice, FakeDriver
from numpy.typing import NDArray

import flash
from flash import functions
from flash.launch import kernel_choice, key_splits
from flash.launch.key_splits import Division
from flash.problem.config import AttentionConfig
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

Array = NDArray[Any]
Call = Callable[..., Array]

BATCH, HEADS, QUERIES, KEYS, COLUMNS = 1, 2, 2, 150, 8


@pytest.fixture
def three() -> tuple[Array, ...]:
    """q, k and v of as many heads, whose keys are several tiles."""
    rng = np.random.default_rng(1)
    return tuple(
        rng.standard_normal((BATCH, HEADS, n, COLUMNS), dtype=np.float32) for n in (QUERIES, KEYS, KEYS)
    )


def of_torch(torch: ModuleType) -> dict[str, Call]:
    """The calls of PyTorch's adapters, of arrays of numpy, with the splits and the backend."""
    from flash.adapters import flash_attn
    from flash.adapters.torch import attention, replace_sdpa

    def by(function: Any, **how: Any) -> Call:
        def call(*arrays: Array, splits: Any, backend: Any) -> Array:
            result = function(*map(torch.from_numpy, arrays), splits=splits, backend=backend, **how)
            return result.detach().numpy()  # type: ignore[no-any-return]

        return call

    def flash_attn_form(packed: str) -> Call:
        def call(*arrays: Array, splits: Any, backend: Any) -> Array:
            q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in arrays)
            how = {"num_splits": 0 if splits == "auto" else splits}
            with flash_attn.using_backend(backend):
                if packed == "kv":
                    result = flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **how)
                elif packed == "qkv":
                    q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, k.shape[1] - q.shape[1]))
                    result = flash_attn.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), **how)
                    result = result[:, :QUERIES]
                else:
                    result = flash_attn.flash_attn_func(q, k, v, **how)
            return result.transpose(1, 2).numpy()  # type: ignore[no-any-return]

        return call

    def in_place(*arrays: Array, splits: Any, backend: Any) -> Array:
        with pytest.MonkeyPatch.context() as patch, replace_sdpa(splits=splits):
            patch.setattr(
                "flash.adapters.torch.sdpa.attention", lambda *a, **how: attention(*a, **how, backend=backend)
            )
            result = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, arrays))
        return result.numpy()  # type: ignore[no-any-return]

    def tracked(*arrays: Array, splits: Any, backend: Any) -> Array:
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in arrays)
        out = attention(q, k, v, splits=splits, backend=backend)
        if backend == "interpreter":
            out.square().sum().backward()  # gradients take no splits
        return out.detach().numpy()  # type: ignore[no-any-return]

    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    return {
        "torch": by(attention),
        "torch compiled": by(compiled),
        "torch tracked": tracked,
        "flash_attn": flash_attn_form(""),
        "flash_attn kv": flash_attn_form("kv"),
        "flash_attn qkv": flash_attn_form("qkv"),
        "in place": in_place,
    }


def of_jax(jax: ModuleType) -> dict[str, Call]:
    """The calls of JAX's adapter."""
    from flash.adapters.jax import attention

    def traced(*arrays: Array, splits: Any, backend: Any) -> Array:
        def loss(q: Any, k: Any, v: Any) -> Any:
            out = attention(q, k, v, splits=splits, backend=backend)
            return out.sum(), out

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))  # gradients take no splits
        return np.asarray(gradient(*arrays)[1])

    def now(*arrays: Array, splits: Any, backend: Any) -> Array:
        return np.asarray(attention(*map(jax.numpy.asarray, arrays), splits=splits, backend=backend))

    return {"jax": now, "jax traced": traced}


def wanted(three: tuple[Array, ...], splits: int) -> Array:
    result: Array = flash.AttentionKernel(AttentionConfig(COLUMNS, splits=splits)).launch(
        *three, backend="interpreter"
    )
    return result


FORMS = (
    *("flash", "torch", pytest.param("torch compiled", marks=pytest.mark.slow)),
    *(pytest.param("torch tracked", marks=pytest.mark.slow), "flash_attn"),
    pytest.param("flash_attn kv", marks=pytest.mark.slow),
    *(pytest.param("flash_attn qkv", marks=pytest.mark.slow), "in place", "jax"),
    pytest.param("jax traced", marks=pytest.mark.slow),
)


@pytest.fixture
def call(request: pytest.FixtureRequest) -> Call:
    """The call of the form `request.param`."""
    form = request.param
    if form == "flash":
        return flash.attention  # type: ignore[return-value]
    framework = "jax" if form.startswith("jax") else "torch"
    library: Any = request.getfixturevalue(framework)
    return (of_jax if framework == "jax" else of_torch)(library)[form]


@pytest.mark.slow
@pytest.mark.parametrize("call", FORMS, indirect=True)
def test_a_number_of_splits_gives_its_bits(call: Call, three: tuple[Array, ...]) -> None:
    one, three_splits = (wanted(three, n).tobytes() for n in (1, 3))
    assert one != three_splits
    assert np.ascontiguousarray(call(*three, splits=1, backend="interpreter")).tobytes() == one
    assert np.ascontiguousarray(call(*three, splits=3, backend="interpreter")).tobytes() == three_splits


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The driver of the process's GPU, of which a rule divides the keys by the batch. It is too old for
    every assembler, so that kernels stay PTX.
    """
    built = interpreting(FakeDriver(FakeDevice(), version=1000))
    backend, cache = CudaBackend(built), ModuleCache(None)
    monkeypatch.setattr("flash.kernel.gpu_of", lambda *_: backend)
    monkeypatch.setattr("flash.kernel.cache_of", lambda *_: cache)
    # A batch of one item has as many units as heads of K and V.
    monkeypatch.setattr(key_splits, "choose_division", lambda grid, *_: Division(0, grid.units))
    functions._kernel.cache_clear()
    yield built
    functions._kernel.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ["torch", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("flash", "jax"))], indirect=True
)
def test_with_one_split_a_row_has_the_same_bits_in_every_batch_of_a_gpu(
    call: Call, three: tuple[Array, ...], driver: FakeDriver
) -> None:
    larger = [np.concatenate([x, x, x]) for x in three]
    for splits, launches, is_same in ((1, 1, True), (3, 2, True), ("auto", 2, False)):
        driver.launches.clear()
        alone = call(*three, splits=splits, backend="cuda")
        among = call(*larger, splits=splits, backend="cuda")
        assert len(driver.launches) == 2 * launches
        assert (alone.tobytes() == among[:BATCH].tobytes()) is is_same
        if splits != "auto":
            assert alone.tobytes() == wanted(three, splits).tobytes()


@pytest.fixture(params=["flash", "torch", "jax"])
def packed(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`attention_varlen` of arrays of numpy, with the arrays of the library whose name is the parameter."""
    if request.param == "flash":
        return flash.attention_varlen
    library: Any = request.getfixturevalue(request.param)
    of = importlib.import_module(f"flash.adapters.{request.param}").attention_varlen
    array = library.from_numpy if request.param == "torch" else library.numpy.asarray
    return lambda *arrays, **how: of(*map(array, arrays), **how)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The splits of the configs of which kernels are asked for."""
    splits: list[Any] = []

    def choice(config: AttentionConfig, *more: Any) -> Any:
        splits.append(config.splits)
        return kernel_choice.kernel_of(config, *more)

    monkeypatch.setattr("flash.launch.forward.kernel_of", choice)
    return splits


@pytest.mark.parametrize("splits", ["auto", 1])
def test_kernels_of_packed_sequences_know_the_splits(
    packed: Callable[..., Any], splits: Any, asked: list[Any]
) -> None:
    q, ends = np.ones((3, 1, 8), np.float32), np.array([0, 1, 3], np.int32)
    packed(q, q, q, ends, ends, splits=splits, backend="interpreter")
    assert asked == [splits]


@pytest.mark.parametrize(("num_splits", "splits"), [(1, 1), (0, "auto"), (3, "auto")])
@pytest.mark.parametrize("version", ["hopper", "cute"])
def test_newer_flash_attn_fixes_the_kernel_of_packed_sequences(
    version: str, num_splits: int, splits: Any, torch: ModuleType, flash_attn: Any, asked: list[Any]
) -> None:
    call = importlib.import_module(f"flash.adapters.flash_attn.{version}").flash_attn_varlen_func
    q, ends = torch.ones(3, 1, 8), torch.tensor([0, 1, 3], dtype=torch.int32)
    with flash_attn.using_backend("interpreter"):
        how: Any = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 2, "max_seqlen_k": 2}
        call(q, q, q, num_splits=num_splits, **how)
    assert asked == [splits]


def test_keys_of_packed_sequences_are_not_divided(packed: Callable[..., Any]) -> None:
    q, ends = np.ones((3, 1, 8), np.float32), np.array([0, 1, 3], np.int32)
    with pytest.raises(ConfigError) as caught:
        packed(q, q, q, ends, ends, splits=2, backend="interpreter")
    assert str(caught.value) == (
        "attention_varlen: splits=2 is for batches of sequences of one length; of packed sequences keys are "
        "not divided: use splits=1 or 'auto'"
    )


@pytest.mark.parametrize("call", [f for f in FORMS if f in ("flash", "torch", "jax")], indirect=True)
@pytest.mark.parametrize("splits", [0, 32769, 2.0, None])
def test_what_is_no_number_of_splits_is_refused(call: Call, three: tuple[Array, ...], splits: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        call(*three, splits=splits, backend="cpu")
    assert str(caught.value) == (
        f"attention: splits must be 'auto' or an integer from 1 to 32768, got {splits!r}"
    )


@pytest.mark.usefixtures("torch")
def test_a_block_of_code_takes_splits_or_refuses_them() -> None:
    from flash.adapters.torch import replace_sdpa

    with pytest.raises(ConfigError) as caught:
        replace_sdpa(splits=0)
    assert str(caught.value) == "replace_sdpa: splits must be 'auto' or an integer from 1 to 32768, got 0"


def test_num_splits_of_flash_attn_are_numbers(torch: ModuleType, flash_attn: Any) -> None:
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(LaunchError) as caught:
        flash_attn.flash_attn_func(q, q, q, num_splits=-1)
    assert str(caught.value) == (
        "flash_attn_func: num_splits must be an integer from 0 to 32768, 0 for a choice by the number of "
        "keys, got -1"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
def test_a_model_attends_with_the_splits_of_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from flash.adapters.transformers import attention as ours

    calls: list[dict[str, Any]] = []
    query = torch.zeros(1, 2, 1, 8)
    monkeypatch.setattr(ours, "attention", lambda *_, **how: calls.append(how) or query)
    known: dict[str, Any] = {}
    for registry in (ours.AttentionInterface, ours.AttentionMaskInterface):
        monkeypatch.setattr(registry, "get", lambda _, name: known.get(name), raising=False)
    monkeypatch.setattr(ours.AttentionInterface, "register", known.__setitem__)
    monkeypatch.setattr(ours.AttentionMaskInterface, "register", lambda *_: None)
    assert ours.register("mine", splits=2) == "mine"
    known["mine"](None, query, query, query, None)
    known["mine"](None, query, query, query, None, splits=1)
    assert [how["splits"] for how in calls] == [2, 1]
    with pytest.raises(ConfigError) as caught:
        ours.register("mine", splits=0)
    assert str(caught.value) == "register: splits must be 'auto' or an integer from 1 to 32768, got 0"

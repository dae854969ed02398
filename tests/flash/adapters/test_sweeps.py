"""`deterministic` of the adapters: the sweeps, of kernels on the interpreter, that make gradients."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gradient_calls import assert_near, interpreted_owners

from flash.calls import backend as backend_choice
from flash.gradients.kernel import Gradients
from flash.operands.dtypes import F16
from flash.reference import attention_reference_gradients, attention_varlen_reference_gradients
from ptxgen.errors import LaunchError

TWO, ONE = ["queries", "keys"], ["deltas", "keys", "sums"]
PACKED = ("packed", "packed in one")
ENDS = [0, 2, 5]
COLUMNS = 72  # of Q and V: with at most 64 two sweeps are faster on sm_80
BY: dict[str, Any] = {"backend": "interpreter"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The owners of the kernels of gradients that the interpreter has run."""
    return interpreted_owners(monkeypatch)


@pytest.fixture
def ours(torch: ModuleType) -> ModuleType:
    import flash.adapters.torch

    torch.manual_seed(0)
    return flash.adapters.torch


def three(torch: ModuleType, *shape: int) -> list[Any]:
    return [torch.randn(*shape, dtype=torch.float16, requires_grad=True) for _ in range(3)]


def assert_right(found: Any, wanted: Any) -> None:
    assert_near(Gradients(*found, arrays={}), wanted, F16)


@pytest.mark.slow
@pytest.mark.parametrize(("deterministic", "owners"), [(True, TWO), (False, ONE)])
def test_a_call_of_torch_chooses_the_sweeps(
    ours: Any, torch: ModuleType, launched: list[str], deterministic: bool, owners: list[str]
) -> None:
    arrays = three(torch, 1, 2, 5, COLUMNS)
    how = {"deterministic": deterministic, **BY}
    result = torch.autograd.grad(ours.attention(*arrays, **how).sum(), arrays)
    assert launched == owners
    dense = [x.detach().numpy() for x in arrays]
    assert_right(result, attention_reference_gradients(np.ones((1, 2, 5, COLUMNS)), *dense))
    launched.clear()
    arrays = three(torch, 5, 2, COLUMNS)
    ends = torch.tensor(ENDS, dtype=torch.int32)
    result = torch.autograd.grad(ours.attention_varlen(*arrays, ends, ends, **how).sum(), arrays)
    assert launched == owners
    packed = [x.detach().numpy() for x in arrays]
    wanted = attention_varlen_reference_gradients(np.ones((5, 2, COLUMNS)), *packed, *[np.int32(ENDS)] * 2)
    assert_right(result, wanted)


@pytest.mark.slow
def test_gradients_have_the_same_bits_unless_a_call_says_otherwise(
    ours: Any, torch: ModuleType, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = three(torch, 1, 1, 5, COLUMNS)
    torch.autograd.grad(ours.attention(*arrays, **BY).sum(), arrays)
    assert launched == TWO
    launched.clear()
    monkeypatch.setattr(backend_choice, "backend_setting", lambda: "interpreter")
    torch.autograd.grad(ours.scaled_dot_product_attention(*arrays).sum(), arrays)
    assert launched == TWO


@pytest.mark.parametrize("warn_only", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_deterministic_algorithms_of_torch_are_those_of_the_backward_pass(
    ours: Any, torch: ModuleType, launched: list[str], warn_only: bool
) -> None:
    arrays = three(torch, 1, 1, 5, COLUMNS)
    out = ours.attention(*arrays, deterministic=False, **BY)
    try:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        torch.autograd.grad(out.sum(), arrays, retain_graph=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert launched == TWO
    launched.clear()
    torch.autograd.grad(out.sum(), arrays)
    assert launched == ONE


@pytest.mark.slow
def test_compiled_and_mapped_calls_choose_the_sweeps(
    ours: Any, torch: ModuleType, launched: list[str]
) -> None:
    def loss(*arrays: Any) -> Any:
        return ours.attention(*arrays, deterministic=False, **BY).square().sum()

    arrays = three(torch, 1, 1, 5, COLUMNS)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.autograd.grad(compiled(*arrays), arrays)
    assert launched == ONE
    gradient, plain = torch.func.grad(loss, (0, 1, 2)), [x.detach() for x in arrays]
    for transform, arguments in ((gradient, plain), (torch.func.vmap(gradient), [x[None] for x in plain])):
        launched.clear()
        transform(*arguments)
        assert launched == ONE


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("form", ["dense", *(pytest.param(x, marks=pytest.mark.slow) for x in PACKED)])
def test_the_word_of_flash_attn_chooses_the_sweeps(
    torch: ModuleType, launched: list[str], form: str, deterministic: bool
) -> None:
    """It is False there unless it is given."""
    from flash.adapters import flash_attn

    ends = torch.tensor(ENDS, dtype=torch.int32)
    calls: dict[str, Callable[..., Any]] = {
        "dense": lambda q, k, v, **how: flash_attn.flash_attn_func(q[None], k[None], v[None], **how),
        "packed": lambda *x, **how: flash_attn.flash_attn_varlen_func(*x, ends, ends, 3, 3, **how),
        "packed in one": lambda *x, **how: flash_attn.flash_attn_varlen_qkvpacked_func(
            torch.stack(x, 1), ends, 3, **how
        ),
    }
    arrays = three(torch, 5, 2, COLUMNS)
    with flash_attn.using_backend("interpreter"):
        out = calls[form](*arrays, **({"deterministic": True} if deterministic else {}))
    torch.autograd.grad(out.sum(), arrays)
    assert launched == (TWO if deterministic else ONE)


@pytest.mark.parametrize(
    ("deterministic", "owners"), [pytest.param(True, TWO, marks=pytest.mark.slow), (False, ONE)]
)
def test_a_call_of_jax_chooses_the_sweeps(
    jax: ModuleType, launched: list[str], deterministic: bool, owners: list[str]
) -> None:
    from flash.adapters.jax import attention, attention_varlen

    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 5, 2, COLUMNS), dtype=np.float32).astype(np.float16)
    ends = np.int32(ENDS)
    how: dict[str, Any] = {"deterministic": deterministic, **BY}

    def gradients(attend: Callable[..., Any], *arrays: Any) -> Any:
        return jax.grad(lambda x: attend(*x).astype(np.float32).sum())(arrays)

    dense = [x[None] for x in (q, k, v)]
    result = gradients(lambda *x: attention(*x, layout="bshd", **how), *dense)
    assert launched == owners
    rotation = [x.swapaxes(1, 2) for x in dense]
    wanted = attention_reference_gradients(np.ones((1, 2, 5, COLUMNS)), *rotation)
    assert_right([x.swapaxes(1, 2) for x in result], wanted)
    launched.clear()
    result = jax.jit(lambda *x: gradients(lambda *y: attention_varlen(*y, ends, ends, **how), *x))(q, k, v)
    assert_right(result, attention_varlen_reference_gradients(np.ones((5, 2, COLUMNS)), q, k, v, ends, ends))
    assert launched == owners


def test_it_is_true_or_false(ours: Any, torch: ModuleType, jax: ModuleType) -> None:
    from flash.adapters import flash_attn
    from flash.adapters import jax as of_jax

    q, ends = torch.randn(1, 2, 5, 8), torch.tensor([0, 2], dtype=torch.int32)
    wrong: Any = {"deterministic": None}
    for caller, call in {
        "attention": lambda: ours.attention(q, q, q, **wrong),
        "attention_varlen": lambda: ours.attention_varlen(q[0], q[0], q[0], ends, ends, **wrong),
        "flash_attn_func": lambda: flash_attn.flash_attn_func(q, q, q, **wrong),
    }.items():
        with pytest.raises(LaunchError) as caught:
            call()
        assert str(caught.value) == f"{caller}: deterministic must be True or False, got None"
    x = jax.numpy.zeros((1, 2, 5, 8))
    with pytest.raises(LaunchError, match=r"^attention: deterministic must be True or False, got None$"):
        of_jax.attention(x, x, x, **wrong)
    with pytest.raises(LaunchError, match=r"^attention: deterministic must be a value of Python, which"):
        jax.jit(lambda x, d: of_jax.attention(x, x, x, deterministic=d))(x, True)

"""`scaled_dot_product_attention` of the PyTorch adapter beside PyTorch's math backend."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ptxgen.errors import LaunchError


def math_backend(t: Any, *arrays: Any, **how: Any) -> Any:
    with t.nn.attention.sdpa_kernel(t.nn.attention.SDPBackend.MATH):
        return t.nn.functional.scaled_dot_product_attention(*arrays, **how)


# query, key, value, and the mask's shape or None
SHAPES = {
    "four dimensions": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "two dimensions": ((5, 8), (7, 8), (7, 6)),
    "three dimensions": ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    "five dimensions": ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "one batch of keys": ((2, 4, 5, 8), (1, 4, 7, 8), (4, 7, 8)),
    "one query for all": ((5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "no query": ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "no key": ((2, 4, 5, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
    "no batch": ((0, 4, 5, 8), (0, 4, 7, 8), (0, 4, 7, 8)),
    "no group": ((2, 0, 4, 5, 8), (2, 0, 4, 7, 8), (2, 0, 4, 7, 8)),
    "as many queries as keys": ((1, 2, 7, 8), (1, 2, 7, 8), (1, 2, 7, 8)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(ours: Any, torch: Any, shapes: Any, is_causal: bool) -> None:
    arrays = [torch.randn(shape) for shape in shapes]
    result = ours.scaled_dot_product_attention(*arrays, is_causal=is_causal)
    wanted = math_backend(torch, *arrays, is_causal=is_causal)
    assert result.shape == wanted.shape
    assert result.dtype == wanted.dtype
    torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("kind", ["bool", "float32", "query"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "shape",
    [(), (7,), (5, 7), (5, 1), (2, 4, 5, 7), (2, 1, 1, 7), (4, 1, 7)],
    ids=lambda shape: str(list(shape)),
)
def test_masks(ours: Any, torch: Any, shape: Any, dtype: str, kind: str) -> None:
    of = getattr(torch, dtype)
    arrays = [torch.randn(s, dtype=of) for s in ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6))]
    mask = torch.randn(shape)
    mask = mask > -0.3 if kind == "bool" else mask.to(of if kind == "query" else torch.float32)
    result = ours.scaled_dot_product_attention(*arrays, mask, scale=0.7)
    wanted = math_backend(
        torch, *(x.float() for x in arrays), mask if kind == "bool" else mask.float(), scale=0.7
    )
    eps = torch.finfo(of).eps
    torch.testing.assert_close(result.float(), wanted, atol=8 * eps, rtol=8 * eps)


@pytest.mark.parametrize("mask_dims", [2, 3, 4, 5])
def test_masks_of_five_dimensions(ours: Any, torch: Any, mask_dims: int) -> None:
    arrays = [torch.randn(s) for s in ((2, 3, 2, 5, 8), (3, 2, 7, 8), (2, 1, 2, 7, 8))]
    mask = torch.randn((2, 3, 2, 5, 7)[-mask_dims:])
    result = ours.scaled_dot_product_attention(*arrays, mask)
    torch.testing.assert_close(result, math_backend(torch, *arrays, mask), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("kv_heads", [(2, 2), (1, 1), (2, 1), (6, 3)], ids=str)
@pytest.mark.parametrize("ahead", [(), (2,), (2, 3)], ids=str)
def test_grouped_heads(ours: Any, torch: Any, kv_heads: Any, ahead: Any) -> None:
    arrays = [
        torch.randn(*ahead, heads, rows, 8) for heads, rows in zip((6, *kv_heads), (5, 7, 7), strict=True)
    ]
    result = ours.scaled_dot_product_attention(*arrays, enable_gqa=True)
    wanted = math_backend(torch, *arrays, enable_gqa=True)
    torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)


def test_any_strides(ours: Any, torch: Any) -> None:
    q, k = torch.randn(2, 4, 8, 5).mT, torch.randn(2, 4, 7, 16)[..., ::2]
    v = torch.randn(2, 4, 7, 1).expand(-1, -1, -1, 6)
    result = ours.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(result, math_backend(torch, q, k, v), atol=2e-6, rtol=2e-6)


ORDERS: dict[str, Any] = {
    "projected": lambda t: [t.randn(2, 5, 3, 8).transpose(1, 2) for _ in range(3)],
    "projected together": lambda t: t.randn(2, 5, 3, 3, 8).permute(2, 0, 3, 1, 4),
    "a single row": lambda t: [t.randn(2, n, 3, 8).transpose(1, 2) for n in (1, 5, 5)],
    "contiguous": lambda t: [t.randn(2, 3, 5, 8) for _ in range(3)],
    "contiguous queries": lambda t: [t.randn(2, 3, 5, 8), *t.randn(2, 2, 5, 3, 8).transpose(2, 3)],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_results_have_the_memory_order_of_pytorchs_kernels(ours: Any, torch: Any, order: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = order(torch)
    for mask in (None, torch.randn(2, 3, q.shape[-2], 5)):
        result = ours.scaled_dot_product_attention(q, k, v, mask)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)
        assert result.stride() == wanted.stride()


@pytest.mark.parametrize("ahead", [(2,), (2, 2)], ids=str)
def test_projected_queries_broadcast(ours: Any, torch: Any, ahead: tuple[int, ...]) -> None:
    q, (k, v) = torch.randn(1, 5, 3, 8).transpose(1, 2), torch.randn(2, *ahead, 3, 5, 8)
    result = ours.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(result, math_backend(torch, q, k, v), atol=2e-6, rtol=2e-6)


def test_rows_without_a_key_give_0(ours: Any, torch: Any) -> None:
    arrays = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen[1] = False
    for mask in (seen, torch.zeros(5, 5).masked_fill(~seen, -torch.inf)):
        result = ours.scaled_dot_product_attention(*arrays, mask)
        torch.testing.assert_close(result, math_backend(torch, *arrays, mask), atol=2e-6, rtol=2e-6)
        assert not result[:, :, 1].any()


def test_gradients_of_all_inputs(ours: Any, torch: Any) -> None:
    leaves = [torch.randn(s, requires_grad=True) for s in ((2, 3, 2, 5, 8), (3, 2, 7, 8), (2, 1, 2, 7, 6))]
    leaves.append(torch.randn(3, 1, 5, 7, requires_grad=True))
    result = ours.scaled_dot_product_attention(*leaves)
    wanted = math_backend(torch, *leaves)
    weights = torch.randn_like(wanted)
    both = (torch.autograd.grad(o, leaves, weights) for o in (result, wanted))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=5e-6)


def test_autocast_is_that_of_torch(ours: Any, torch: Any) -> None:
    q = torch.randn(1, 2, 5, 8)
    mixed = [q, q.bfloat16(), q.half()]
    with torch.autocast("cpu", torch.bfloat16):
        result = ours.scaled_dot_product_attention(*mixed, torch.zeros(5, 5))
        wanted = math_backend(torch, *mixed, torch.zeros(5, 5))
    assert result.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(result, wanted, atol=2e-2, rtol=2e-2)


def test_dropout_follows_the_seed_and_keeps_its_share(ours: Any, torch: Any) -> None:
    q = torch.randn(2, 4, 64, 8)
    v = torch.ones(2, 4, 64, 1)
    torch.manual_seed(7)
    first, second = (ours.scaled_dot_product_attention(q, q, v, dropout_p=0.25) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(first, ours.scaled_dot_product_attention(q, q, v, dropout_p=0.25))
    assert not torch.equal(first, second)
    assert abs(first.mean().item() - 1) < 0.05


def elsewhere(torch: Any, device: str, *shape: int) -> Any:
    """A tensor that says that it is on a device which this machine need not have."""
    with torch._subclasses.FakeTensorMode():
        return torch.empty(shape, device=device)


REFUSED: dict[str, tuple[Any, str]] = {
    "type": (
        lambda t: ((t.zeros(2, 3, 8).double(),) * 3, {}),
        "query, key and value must be of one type of float32, float16, bfloat16, got float64, float64, "
        "float64; convert them",
    ),
    "types": (
        lambda t: ((t.zeros(2, 3, 8), t.zeros(2, 3, 8).half(), t.zeros(2, 3, 8)), {}),
        "query, key and value must be of one type of float32, float16, bfloat16, got float32, float16, "
        "float32; convert them",
    ),
    "device": (
        lambda t: ((elsewhere(t, "xpu", 2, 3, 8),) * 3, {}),
        "query must be on the CPU or a CUDA device, got xpu:0; move it, or use PyTorch's function",
    ),
    "devices": (
        lambda t: ((t.zeros(2, 3, 8), t.zeros(2, 3, 8), t.zeros(2, 3, 8, device="meta")), {}),
        "value must be on cpu as query is, got meta; move it",
    ),
    "long rows": (
        lambda t: ((t.zeros(2, 3, 577),) * 3, {}),
        "rows of query and key must have 1 to 576 elements, those of value at most 512, got query "
        "[2, 3, 577], key [2, 3, 577], value [2, 3, 577]; use PyTorch's function",
    ),
    "empty rows": (
        lambda t: ((t.zeros(2, 3, 0),) * 3, {}),
        "rows of query and key must have 1 to 576 elements, those of value at most 512, got query [2, 3, 0], "
        "key [2, 3, 0], value [2, 3, 0]; use PyTorch's function",
    ),
    "rows": (
        lambda t: ((t.zeros(2, 3, 8), t.zeros(2, 4, 8), t.zeros(2, 5, 8)), {}),
        "query and key must have rows of one length, and key and value as many rows, got query [2, 3, 8], "
        "key [2, 4, 8], value [2, 5, 8]",
    ),
    "one dimension": (
        lambda t: ((t.zeros(8),) * 3, {}),
        "query, key and value must have at least 2 dimensions, got query [8], key [8], value [8]; unsqueeze "
        "them",
    ),
    "grouped without heads": (
        lambda t: ((t.zeros(3, 8),) * 3, {"enable_gqa": True}),
        "query, key and value must have at least 3 dimensions, got query [3, 8], key [3, 8], value [3, 8]; "
        "unsqueeze them",
    ),
    "heads": (
        lambda t: ((t.zeros(4, 3, 8), t.zeros(3, 3, 8), t.zeros(3, 3, 8)), {"enable_gqa": True}),
        "the heads of query must be a multiple of those of key and of value, got query [4, 3, 8], key "
        "[3, 3, 8], value [3, 3, 8]",
    ),
    "leading dimensions": (
        lambda t: ((t.zeros(4, 3, 8), t.zeros(3, 3, 8), t.zeros(3, 3, 8)), {}),
        "all dimensions of query, key and value but the last 2 must broadcast, got query [4, 3, 8], key "
        "[3, 3, 8], value [3, 3, 8]",
    ),
    "mask's shape": (
        lambda t: ((t.zeros(4, 3, 8),) * 3, {"attn_mask": t.zeros(2, 4, 3, 3)}),
        "attn_mask must broadcast to [4, 3, 3], the shape of the scores, got [2, 4, 3, 3]",
    ),
    "mask's type": (
        lambda t: ((t.zeros(4, 3, 8),) * 3, {"attn_mask": t.zeros(3, 3).int()}),
        "attn_mask must be bool, float32 or of the type of query, torch.float32, got torch.int32; convert it",
    ),
    "mask and causality": (
        lambda t: ((t.zeros(4, 3, 8),) * 3, {"attn_mask": t.zeros(3, 3), "is_causal": True}),
        "attn_mask and is_causal must not both be given; make the mask causal, and leave is_causal out",
    ),
    "certain dropout": (
        lambda t: ((t.zeros(4, 3, 8),) * 3, {"dropout_p": 1.0}),
        "dropout_p must be a probability from 0 to less than 1, got 1.0",
    ),
    "dropout in words": (
        lambda t: ((t.zeros(4, 3, 8),) * 3, {"dropout_p": "half"}),
        "dropout_p must be a probability from 0 to less than 1, got 'half'",
    ),
    "numpy": (
        lambda t: ((t.zeros(4, 3, 8).numpy(),) * 3, {}),
        "query must be a torch.Tensor, got ndarray; convert it, or call the function of this name in flash, "
        "which takes arrays of any library",
    ),
    "nested": (
        lambda t: ((t.nested.nested_tensor([t.zeros(3, 8)], layout=t.jagged),) * 3, {}),
        "query must be a plain tensor, got a nested one; pass query.values() and its offsets to "
        "flash.adapters.torch.attention_varlen",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(ours: Any, torch: Any, make: Any, message: str) -> None:
    arrays, how = make(torch)
    with pytest.raises(LaunchError) as caught:
        ours.scaled_dot_product_attention(*arrays, **how)
    assert str(caught.value) == f"scaled_dot_product_attention: {message}"


def test_a_refusal_is_what_code_with_a_fallback_for_pytorchs_own_errors_catches(
    ours: Any, torch: Any
) -> None:
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="got float64") as caught:
        ours.scaled_dot_product_attention(q, q, q)
    assert isinstance(caught.value, LaunchError)
    with ours.replace_sdpa(), pytest.raises(RuntimeError, match="got float64"):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with pytest.raises(RuntimeError, match="scale must be a number"):
        ours.scaled_dot_product_attention(*[q.float()] * 3, scale="big")


# -------------------------------------------------------------------------- in PyTorch's place


class Counted:
    """Counts the calls of `attention` behind the function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import flash.adapters.torch.sdpa as module

        self.calls = 0
        self._attention = module.attention
        monkeypatch.setattr(module, "attention", self)

    def __call__(self, *arrays: Any, **how: Any) -> Any:
        self.calls += 1
        return self._attention(*arrays, **how)


@pytest.fixture
def counted(ours: Any, monkeypatch: pytest.MonkeyPatch) -> Counted:
    assert ours
    return Counted(monkeypatch)


def test_the_function_is_replaced_for_a_block(ours: Any, torch: Any, counted: Counted) -> None:
    from torch.nn.functional import scaled_dot_product_attention as imported_before

    q = torch.randn(1, 2, 5, 8)
    wanted = imported_before(q, q, q)
    with ours.replace_sdpa():
        torch.testing.assert_close(torch.nn.functional.scaled_dot_product_attention(q, q, q), wanted)
        torch.testing.assert_close(imported_before(query=q, key=q, value=q), wanted)
        assert counted.calls == 2
        with ours.replace_sdpa():
            imported_before(q, q, q)
        imported_before(q, q, q)
        assert counted.calls == 4
    imported_before(q, q, q)
    assert counted.calls == 4


def test_it_ends_with_an_exception(ours: Any, torch: Any, counted: Counted) -> None:
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(ZeroDivisionError), ours.replace_sdpa():
        raise ZeroDivisionError
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert counted.calls == 0


def test_it_holds_for_its_thread_only(ours: Any, torch: Any, counted: Counted) -> None:
    q = torch.randn(1, 2, 5, 8)
    other = threading.Thread(target=torch.nn.functional.scaled_dot_product_attention, args=(q, q, q))
    with ours.replace_sdpa():
        other.start()
        other.join()
    assert counted.calls == 0


def test_fallback(ours: Any, torch: Any, counted: Counted) -> None:
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    wanted = sdpa(q, q, q, scale=0.3)
    with ours.replace_sdpa(), pytest.raises(LaunchError, match="got float64"):
        sdpa(q, q, q)
    with ours.replace_sdpa(fallback=True):
        assert torch.equal(sdpa(q, q, q, scale=0.3), wanted)
        sdpa(q.float(), q.float(), q.float())
    assert counted.calls == 1


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_modules_of_torch_use_it(ours: Any, torch: Any, counted: Counted, mode: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model.train(mode == "train")
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(mode != "no_grad"):
        wanted = model(x, src_key_padding_mask=padding)
        with ours.replace_sdpa():
            result = model(x, src_key_padding_mask=padding)
    assert counted.calls == 2
    torch.testing.assert_close(result[~padding], wanted[~padding], atol=2e-5, rtol=2e-5)


def test_gradients_of_a_module(ours: Any, torch: Any, counted: Counted) -> None:
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    weights = torch.randn(2, 5, 16)

    def gradients() -> list[Any]:
        out, _ = module(x, x, x, need_weights=False)
        return list(torch.autograd.grad((out * weights).sum(), list(module.parameters())))

    wanted = gradients()
    with ours.replace_sdpa():
        result = gradients()
    assert counted.calls == 1
    for a, b in zip(result, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
def test_compiled_modules_use_it(ours: Any, torch: Any, counted: Counted) -> None:
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    compiled = torch.compile(lambda x: module(x, x, x, need_weights=False)[0], backend="aot_eager")
    wanted = compiled(x)
    with ours.replace_sdpa():
        torch.testing.assert_close(compiled(x), wanted, atol=2e-5, rtol=2e-5)
    assert counted.calls

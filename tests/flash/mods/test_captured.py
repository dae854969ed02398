"""Arrays that functions of scores close over become arrays of `aux` by themselves."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest

import flash
from flash.functions import kernel_of_attention
from flash.mods.blocks import visible_blocks
from flash.mods.closures import with_indexed_arrays
from flash.reference import attention_reference
from flash.scores.aux_arrays import with_captured
from ptxgen.errors import TypeMismatchError

_RNG = np.random.default_rng(5)
Q, K, V = _RNG.standard_normal((3, 1, 2, 24, 16), dtype=np.float32)
SLOPES = np.array([0.5, 0.25], np.float32)
DOCUMENT = np.sort(_RNG.integers(0, 4, 24))  # int64


def of_module(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return DOCUMENT[query] == DOCUMENT[key]


def dense(score_of: Any = None, mask_of: Any = None) -> Any:
    """The results of functions of arrays of all scores, in float64."""
    b, h, q, k = np.ogrid[:1, :2, :24, :24]
    scores = Q.astype(np.float64) @ K.swapaxes(-1, -2) / 4
    scores = scores if score_of is None else score_of(scores, b, h, q, k)
    scores = scores if mask_of is None else np.where(mask_of(b, h, q, k), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V


@pytest.fixture
def attention(torch: Any) -> Any:  # the adapter imports PyTorch
    """`attention` of PyTorch tensors."""
    return importlib.import_module("flash.adapters.torch").attention


@pytest.fixture
def matrices(torch: Any) -> Any:
    """q, k and v as PyTorch tensors."""
    return [torch.from_numpy(x) for x in (Q, K, V)]


def arrays(**functions: Any) -> dict[str, Any]:
    return dict(with_captured("attention", functions).get("aux") or {})


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_numpy_arrays_of_the_closure_are_indexed(backend: Any) -> None:
    slopes, document = SLOPES, DOCUMENT

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s - slopes[h] * abs(q - k)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return document[q] == document[k]

    result = flash.attention(Q, K, V, score_mod=score_mod, mask_mod=mask_mod, backend=backend)
    np.testing.assert_allclose(result, dense(score_mod, mask_mod), atol=1e-5)
    by_reference, _ = attention_reference(Q, K, V, score_mod=score_mod, mask_mod=mask_mod)
    np.testing.assert_allclose(by_reference, dense(score_mod, mask_mod), atol=1e-12)


def test_numpy_arrays_of_the_closure_are_indexed_beside_tensors(attention: Any, matrices: Any) -> None:
    q, k, v = matrices
    fixed = DOCUMENT.copy()
    fixed.flags.writeable = False
    for document in (DOCUMENT, DOCUMENT[::-1], fixed, DOCUMENT.astype(np.uint16)):

        def mask_mod(b: Any, h: Any, q: Any, k: Any, document: Any = document) -> Any:
            return document[q] == document[k]

        result = attention(q, k, v, mask_mod=mask_mod)
        np.testing.assert_allclose(result, dense(mask_of=mask_mod), atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
def test_tensors_of_the_closure_are_indexed(backend: Any, torch: Any, attention: Any, matrices: Any) -> None:
    from torch.nn.attention.flex_attention import and_masks

    slopes, document, scale = torch.from_numpy(SLOPES), torch.from_numpy(DOCUMENT), torch.tensor(0.5)

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * scale - slopes[h] * (q - k).abs()

    mask_mod = and_masks(lambda b, h, q, k: document[q] == document[k], lambda b, h, q, k: q >= k)
    q, k, v = matrices
    wanted = dense(
        lambda s, b, h, q, k: s * 0.5 - SLOPES[h] * abs(q - k),
        lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (q >= k),
    )
    for function in (flash.attention, attention):
        result = function(q, k, v, score_mod=score_mod, mask_mod=mask_mod, backend=backend)
        np.testing.assert_allclose(result, wanted, atol=1e-5)


def test_arrays_are_named_by_the_order_in_which_they_are_indexed() -> None:
    first, second = SLOPES, SLOPES * 2
    one = arrays(score_mod=lambda s, b, h, q, k: s + first[h] + second[h] * first[q])
    assert list(one) == ["captured_0", "captured_1"]
    assert one["captured_0"].ctypes.data == first.ctypes.data
    assert one["captured_1"].ctypes.data == second.ctypes.data


def test_functions_of_other_arrays_share_a_kernel() -> None:
    def kernel(table: Any) -> Any:
        arguments = with_captured("attention", {"score_mod": lambda s, b, h, q, k: s + table[h]})
        return kernel_of_attention(Q, V, False, None, arguments)  # type: ignore[arg-type]

    assert kernel(SLOPES) is kernel(SLOPES * 2)
    assert kernel(SLOPES) is not kernel(SLOPES.astype(np.float16))


def test_an_array_of_both_functions_is_given_once() -> None:
    table = DOCUMENT
    result = arrays(
        score_mod=lambda s, b, h, q, k: s + table[q], mask_mod=lambda b, h, q, k: table[q] == table[k]
    )
    assert list(result) == ["captured_0"]


def test_names_of_aux_are_kept_apart() -> None:
    table = SLOPES
    arguments = {
        "score_mod": lambda s, b, h, q, k, captured_0: s + captured_0[h] * table[h],
        "aux": {"captured_0": SLOPES * 3},
    }
    assert list(arrays(**arguments)) == ["captured_0", "captured_1"]


class Documents:
    def __init__(self, table: Any) -> None:
        self.table = table

    def mask(self, _b: Any, _h: Any, q: Any, k: Any) -> Any:
        return self.table[q] == self.table[k]

    __call__ = mask


def test_arrays_are_those_of_globals_defaults_partials_and_nested_functions() -> None:
    inner = [lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k]]

    def nested(b: Any, h: Any, q: Any, k: Any) -> Any:
        return inner[0](b, h, q, k)

    def with_default(b: Any, h: Any, q: Any, k: Any, table: Any = DOCUMENT) -> Any:
        return table[q] == table[k]

    def with_keyword(b: Any, h: Any, q: Any, k: Any, *, table: Any) -> Any:
        return table[q] == table[k]

    wanted = dense(None, of_module)
    functions = (of_module, nested, with_default, functools.partial(with_keyword, table=DOCUMENT))
    for function in functions:
        np.testing.assert_allclose(flash.attention(Q, K, V, mask_mod=function), wanted, atol=1e-5)


def test_tensors_are_those_of_objects_too(torch: Any) -> None:
    mask = Documents(torch.from_numpy(DOCUMENT))
    for function in (mask, mask.mask):
        result = flash.attention(Q, K, V, mask_mod=function)
        np.testing.assert_allclose(result, dense(None, of_module), atol=1e-5)


def test_python_still_computes_with_arrays_that_it_indexes_itself() -> None:
    table, limits = DOCUMENT, np.array([3, 9])

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        assert len(limits) == 2
        assert isinstance(limits, np.ndarray)
        return (table[q] == table[k]) & (k < int(limits[1])) & (k < limits.max())

    assert list(arrays(mask_mod=mask)) == ["captured_0"]
    assert mask.__closure__[0].cell_contents is limits  # type: ignore[index]


@pytest.mark.sample(2, gate=6)
@pytest.mark.parametrize("kind", ["float64", "int16", "float16", "uint8", "bool", "int64"])
def test_elements_of_other_types_are_converted(kind: str) -> None:
    table = (_RNG.random(24) * 3).astype(kind)

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[k] * 1

    result = flash.attention(Q, K, V, score_mod=score_mod, backend="interpreter")
    np.testing.assert_allclose(result, dense(score_mod), atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
def test_integers_of_64_bits_are_limited_to_32(backend: Any) -> None:
    table = np.array([2**40, -(2**40), 7])

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (table[q] == 2**31 - 1) | (table[q] < -(2**31 - 1)) | (k < table[q])

    wanted = dense(None, lambda b, h, q, k: (q < 2) | (k < 7))
    result = flash.attention(Q, K, V, mask_mod=mask_mod, backend=backend)
    np.testing.assert_allclose(result, wanted, atol=1e-5)


def test_blocks_of_a_function_with_an_array_of_its_closure() -> None:
    with_parameter = visible_blocks(
        lambda b, h, q, k, t: t[q] == t[k], (1, 1, 24, 24), aux={"t": DOCUMENT}, block=(8, 8)
    )
    assert (visible_blocks(of_module, (1, 1, 24, 24), block=(8, 8)) == with_parameter).all()


def test_a_config_has_no_arrays_of_a_closure(torch: Any) -> None:
    for table in (DOCUMENT, torch.from_numpy(DOCUMENT)):
        with pytest.raises(TypeMismatchError) as error:
            flash.AttentionConfig(16, mask_mod=lambda b, h, q, k, table=table: table[q] == 0)
        assert str(error.value) == (
            "AttentionConfig: a function that is traced without arrays cannot index one from outside; take "
            "it as a parameter and give aux={name: array}, in a config aux={name: (type, axes)}"
        )


def test_a_function_without_arrays_is_called_as_it_is() -> None:
    calls: list[str] = []

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        calls.append("here")
        return q >= k

    assert with_indexed_arrays(mask_mod) is mask_mod
    flash.attention(Q, K, V, mask_mod=mask_mod)
    assert calls == ["here"]


@pytest.mark.parametrize(
    ("of_torch", "dtype"), [(False, "complex64"), (True, "datetime64[s]")], ids=["numpy", "PyTorch"]
)
def test_arrays_that_no_kernel_reads_are_refused(
    of_torch: bool, dtype: str, request: pytest.FixtureRequest
) -> None:
    table, function, of = np.zeros(24, dtype), flash.attention, (Q, K, V)
    if of_torch:
        function, of = map(request.getfixturevalue, ("attention", "matrices"))
    with pytest.raises(TypeMismatchError) as error:
        function(*of, mask_mod=lambda b, h, q, k: table[q] == 0)
    assert str(error.value) == (
        "attention: an array that a function of scores indexes must be of float32, float16, bfloat16, "
        "int32, int64, uint8, bool, float64, int8, int16, uint16, with at most 4 axes, "
        f"got {dtype} of shape [24]; convert it before the call"
    )


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_gradients_of_captured_tensors_are_pytorchs(
    torch: Any, attention: Any, matrices: Any, backend: str
) -> None:
    """Of a table by distance, of numbers of heads, of f64 by keys, and of a scalar."""
    q, k, v = matrices
    heads, rows, keys = q.shape[1], torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    drawn = [torch.randn(shape, requires_grad=True) for shape in ((heads, 8), (heads,), (len(keys),), ())]
    near, slopes, gains, shift = learned = [*drawn[:2], drawn[2].double(), drawn[3]]

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * slopes[h] + near[h, (i - j).clamp(0, 7)] * gains[j] + shift * shift * j

    score = (q @ k.repeat_interleave(heads // k.shape[1], 1).mT * q.shape[-1] ** -0.5).double()
    score = score * slopes[:, None, None] + near[:, (rows - keys).clamp(0, 7)] * gains + shift**2 * keys
    wanted = score.softmax(-1) @ v.repeat_interleave(heads // v.shape[1], 1).double()
    got = attention(q, k, v, score_mod=mod, backend=backend)
    for ours, theirs in zip(
        *(torch.autograd.grad(x.square().sum(), learned) for x in (got, wanted)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)


def test_gradients_through_functions_with_captured_tensors_are_pytorchs(torch: Any, attention: Any) -> None:
    table = torch.from_numpy(SLOPES)
    q = torch.from_numpy(Q).requires_grad_()
    other = torch.from_numpy(Q).requires_grad_()
    k, v = torch.from_numpy(K), torch.from_numpy(V)
    attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s) * table[h]).sum().backward()
    scores = torch.tanh(other @ k.mT / 4) * table[:, None, None]
    (torch.softmax(scores, -1) @ v).sum().backward()
    torch.testing.assert_close(q.grad, other.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_compiled_code_is_divided_where_a_function_closes_over_tensors(
    torch: Any, attention: Any, matrices: Any
) -> None:
    tables = [torch.from_numpy(SLOPES).clone()]

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * tables[0][h]

    def layer(q: Any, k: Any, v: Any) -> Any:
        return attention(q * 1, k, v, score_mod=score_mod) + 1

    q, k, v = matrices
    compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(q, k, v), layer(q, k, v), rtol=0, atol=0)
        tables[0].mul_(3)
    tables[0] = torch.ones(2)
    torch.testing.assert_close(compiled(q, k, v), layer(q, k, v), rtol=0, atol=0)
    whole = torch.compile(lambda q, k, v: layer(q, k, v), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a function of scores closes over tensors"):
        whole(q, k, v)

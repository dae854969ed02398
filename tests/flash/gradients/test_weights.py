"""Attention weights as a result, beside float64 on numpy: P times the identity is P."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from judge import rounded_normal

import flash
from flash.reference import attention_reference
from ptxgen.errors import LaunchError

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

RNG = np.random.default_rng(0)
Q, K = rounded_normal(RNG, (2, 4, 6, 16)), rounded_normal(RNG, (2, 2, 9, 16))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "softmax_scale": 0.5},
    "window": {"window": (1, 1), "softcap": 2.0},
    "bias by key": {"bias": rounded_normal(RNG, (4, 1, 9)), "alibi_slopes": abs(rounded_normal(RNG, (4,)))},
    "bias and mask": {"bias": rounded_normal(RNG, (6, 9)), "mask": RNG.random((2, 1, 6, 9)) > 0.5},
    "key bias": {"key_bias": rounded_normal(RNG, (2, 1, 9)), "causal": "top_left"},
    "sink": {"sink": rounded_normal(RNG, (4,)), "causal": True},
}


def exact(**how: Any) -> Any:
    """The weights in float64."""
    identity = np.broadcast_to(np.eye(K.shape[2]), (*K.shape[:2], K.shape[2], K.shape[2]))
    return attention_reference(Q, K, identity, dtype=np.float64, **how)[0]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_weights_of_all_rows_and_of_some(name: str, backend: str) -> None:
    how = CASES[name]
    wanted = exact(**how)
    for rows in (slice(None), slice(2, 4), slice(-1, None), slice(3, 3)):
        if rows != slice(None) and how.get("causal") == "top_left":
            continue
        of_rows = {} if rows == slice(None) else {"rows": rows}
        result = flash.attention_weights(Q, K, **of_rows, backend=backend, **how)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, wanted[:, :, rows], atol=2e-6)


def test_other_layouts_types_and_libraries(torch: ModuleType, jax: ModuleType) -> None:
    wanted = exact(causal=True)
    swapped = flash.attention_weights(Q.swapaxes(1, 2), K.swapaxes(1, 2), layout="bshd", rows=slice(1, 3))
    np.testing.assert_allclose(swapped, exact()[:, :, 1:3], atol=2e-6)
    np.testing.assert_allclose(flash.attention_weights(Q[0], K[0], causal=True), wanted[0], atol=2e-6)
    of_torch = flash.attention_weights(
        torch.tensor(Q).half(), torch.tensor(K).half(), causal=True, bias=torch.zeros(9)
    )
    assert of_torch.dtype == torch.float32
    np.testing.assert_allclose(of_torch, wanted, atol=2e-3)
    of_jax = flash.attention_weights(jax.numpy.asarray(Q), jax.numpy.asarray(K), causal=True)
    assert isinstance(of_jax, jax.Array)
    np.testing.assert_allclose(of_jax, wanted, atol=2e-6)
    assert flash.attention_weights(Q[:, :, :0], K).shape == (2, 4, 0, 9)
    assert flash.attention_weights(Q, K[:, :, :0]).shape == (2, 4, 6, 0)


def later(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    """A function of a mask."""
    return query >= key


def test_what_has_no_weights_is_refused(torch: ModuleType) -> None:
    def refused(q: Any = Q, k: Any = K, **how: Any) -> str:
        with pytest.raises(LaunchError) as raised:
            flash.attention_weights(q, k, **how)
        return str(raised.value)

    for rows, got in ((3, "3"), (slice(0, 4, 2), "slice(0, 4, 2)")):
        assert refused(rows=rows) == (
            f"attention_weights: rows must be a slice with a step of 1, or None, got {got}"
        )
    assert refused(rows=slice(1), mask_mod=later) == (
        "attention_weights: rows must be None with mask_mod, whose functions get the indices of all queries"
    )
    assert refused(rows=slice(1), causal="top_left") == (
        "attention_weights: rows must be None with causal='top_left' and 6 queries of 9 keys, because "
        "positions count from the last query"
    )
    assert refused(bias=np.zeros((5, 5), np.float32)) == (
        "attention_weights: bias must be [batch, heads, seq_q, seq_k] = [2, 4, 6, 9], or of a shape that "
        "broadcasts to it, got [5, 5]"
    )
    assert refused(torch.tensor(Q).requires_grad_(), torch.tensor(K)) == (
        "attention_weights: q requires gradients, which are not computed: they would be lost without a word; "
        "call inside torch.no_grad(), or pass q.detach()"
    )
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'dropout'"):
        flash.attention_weights(Q, K, dropout=0.1)  # type: ignore[call-arg]

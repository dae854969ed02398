"""The largest score of each head, from the functions of PyTorch and JAX."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flash
from flash.reference import max_logit_reference
from ptxgen.errors import LaunchError

pytestmark = pytest.mark.grid

Array = np.ndarray[Any, Any]
ENDS = np.array([0, 7, 20], np.int32)


def inputs(heads: int = 4) -> tuple[Array, ...]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 20, 16)).astype(np.float32) for n in (heads, 2, 2))
    return q, k, v


def packed() -> tuple[Array, ...]:
    """Sequences of 7 and 13 rows."""
    q, k, v = (x[0].swapaxes(0, 1).copy() for x in inputs())
    return q, k, v


WANTED = flash.attention(*inputs(), causal=True, return_max_logit=True, backend="cpu")[1]
OF_PACKED = flash.attention_varlen(*packed(), ENDS, ENDS, return_max_logit=True, backend="cpu")[1]


def test_what_is_wanted_is_that_of_the_reference() -> None:
    q, k, _ = inputs()
    assert np.allclose(WANTED, max_logit_reference(q, k, causal=True), rtol=1e-6)
    q, k, _ = (x.swapaxes(0, 1)[None] for x in packed())
    rows = (slice(0, 7), slice(7, 20))
    own = [max_logit_reference(q[:, :, of], k[:, :, of])[0] for of in rows]
    assert np.allclose(OF_PACKED, own, rtol=1e-6)


class TestTorch:
    @pytest.fixture(autouse=True)
    def adapter(self, torch: ModuleType) -> None:
        self.torch: Any = torch
        self.of: Any = importlib.import_module("flash.adapters.torch")
        self.attention: Any = self.of.attention  # compiled code does not import
        self.tensors = [torch.from_numpy(x) for x in inputs()]

    def test_results_are_those_of_flash(self) -> None:
        for asked in ({}, {"return_lse": True}):
            out, *lse, result = self.of.attention(*self.tensors, causal=True, return_max_logit=True, **asked)
            assert len(lse) == len(asked)
            assert np.array_equal(result, WANTED)
        into = self.torch.empty_like(out)
        same, again = self.of.attention(*self.tensors, causal=True, return_max_logit=True, out=into)
        assert same is into
        assert np.array_equal(again, WANTED)
        swapped = [x.transpose(1, 2) for x in self.tensors]
        result = self.of.attention(*swapped, causal=True, return_max_logit=True, layout="bshd")[1]
        assert np.array_equal(result, WANTED)

    def test_it_has_no_gradient_and_changes_none(self) -> None:
        grads = []
        for asked in ({}, {"return_max_logit": True}):
            q, k, v = (x.clone().requires_grad_() for x in self.tensors)
            out, lse, *tops = self.of.attention(q, k, v, causal=True, return_lse=True, **asked)
            assert lse.requires_grad
            assert not any(top.requires_grad for top in tops)
            (out.square().sum() + lse.sum()).backward()
            grads.append((q.grad, k.grad, v.grad))
        assert all(map(self.torch.equal, *grads))
        of = self.torch.func.grad(lambda q: self.attended(q)[0].sum())
        plain = self.torch.func.grad(lambda q: self.of.attention(q, *self.tensors[1:], causal=True).sum())
        assert self.torch.equal(of(self.tensors[0]), plain(self.tensors[0]))

    def attended(self, q: Any) -> Any:
        return self.attention(q, *self.tensors[1:], causal=True, return_max_logit=True)

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
    def test_it_has_no_tangent(self) -> None:
        q, *_ = self.tensors
        (_, top), (_, of_top) = self.torch.func.jvp(self.attended, (q,), (q,))
        assert np.array_equal(top, WANTED)
        assert not of_top.any()

    def test_compiled_code_and_mapped_calls_have_it(self) -> None:
        q, *_ = self.tensors
        compiled = self.torch.compile(self.attended, fullgraph=True, backend="aot_eager")
        assert np.array_equal(compiled(q)[1], WANTED)
        several = self.torch.stack([q, -q])
        result = self.torch.func.vmap(self.attended)(several)[1]
        assert np.array_equal(result[0], WANTED)
        assert np.array_equal(result[1], self.attended(-q)[1])
        ends = self.torch.from_numpy(ENDS)
        rows = [self.torch.from_numpy(x) for x in packed()]

        def varlen(q: Any) -> Any:
            return self.of.attention_varlen(q, *rows[1:], ends, ends, return_max_logit=True)[1]

        assert np.array_equal(varlen(rows[0]), OF_PACKED)
        mapped = self.torch.func.vmap(varlen)(self.torch.stack([rows[0], rows[0] * 2]))
        assert np.array_equal(mapped, np.stack([OF_PACKED, varlen(rows[0] * 2)]))
        meta = [x.to("meta") for x in (*rows, ends, ends)]
        out, top = self.of.attention_varlen(*meta, return_max_logit=True, max_seqlen_q=20)
        assert (out.shape, top.shape, top.dtype) == ((20, 4, 16), (2, 4), self.torch.float32)
        three = [x[:, 0] for x in self.tensors]  # [batch * heads, rows, head_dim]
        for arrays in (three, [x.to("meta") for x in three]):
            assert self.of.attention(*arrays, return_max_logit=True)[1].shape == (2,)

    def test_calls_over_a_cache_have_it(self) -> None:
        q, k, v = self.tensors
        cache = flash.KVCache(1, 2, 2, 16, 64, backend="cpu")
        out, result = self.of.attention_with_kvcache(q, cache, k, v, layer=0, return_max_logit=True)
        assert np.array_equal(result, WANTED)
        again = self.of.attention_with_kvcache(q, cache, layer=0, return_lse=True, return_max_logit=True)
        assert np.array_equal(again[2], WANTED)
        assert np.array_equal(again[0], out)

    def test_operators_pass_the_checks_of_torch(self) -> None:
        schema = {
            a.name: a.default_value for a in self.torch.ops.ptxgen_flash.attention.default._schema.arguments
        }
        assert "return_max_logit" in schema
        results = self.torch.ops.ptxgen_flash.attention.default._schema.returns
        assert len(results) == 3


class TestJax:
    @pytest.fixture(autouse=True)
    def adapter(self, jax: ModuleType) -> None:
        self.jax: Any = jax
        self.of: Any = importlib.import_module("flash.adapters.jax")
        self.arrays = [jax.numpy.asarray(x) for x in inputs()]

    def attended(self, q: Any, **asked: Any) -> Any:
        return self.of.attention(q, *self.arrays[1:], causal=True, return_max_logit=True, **asked)

    def test_results_are_those_of_flash(self) -> None:
        q, *_ = self.arrays
        for call in (self.attended, self.jax.jit(self.attended)):
            assert np.array_equal(call(q)[1], WANTED)
        assert np.array_equal(self.attended(q, return_lse=True)[2], WANTED)
        several = self.jax.vmap(self.attended)(self.jax.numpy.stack([q, -q]))[1]
        assert np.array_equal(several, np.stack([WANTED, self.attended(-q)[1]]))

        def varlen(q: Any) -> Any:
            _, k, v = packed()
            return self.of.attention_varlen(q, k, v, ENDS, ENDS, max_seqlen_q=20, return_max_logit=True)[1]

        rows = self.jax.numpy.asarray(packed()[0])
        assert np.array_equal(varlen(rows), OF_PACKED)
        assert np.array_equal(self.jax.jit(varlen)(rows), OF_PACKED)

    def test_it_is_a_constant_for_gradients(self) -> None:
        q, *_ = self.arrays

        def loss(q: Any, weight: float) -> Any:
            out, lse, top = self.attended(q, return_lse=True)
            return (out**2).sum() + lse.sum() + weight * top.sum()

        zero, one = (self.jax.grad(loss)(q, weight) for weight in (0.0, 1.0))
        assert np.array_equal(zero, one)
        assert np.asarray(zero).any()
        (_, top), _ = self.jax.value_and_grad(
            lambda q: (lambda found: (found[0].sum(), found[1]))(self.attended(q)), has_aux=True
        )(q)
        assert np.array_equal(top, WANTED)

    def test_what_is_no_flag_is_refused(self) -> None:
        with pytest.raises(LaunchError, match="attention: return_max_logit must be True or False, got 3"):
            self.of.attention(*self.arrays, return_max_logit=3)


@pytest.mark.parametrize("name", ["dense.flash_attn_func", "hopper.flash_attn_func", "cute.flash_attn_func"])
def test_functions_of_other_libraries_do_not_take_it(name: str, torch: ModuleType) -> None:
    room, _, function = name.partition(".")
    call = getattr(importlib.import_module(f"flash.adapters.flash_attn.{room}"), function)
    q = torch.ones(1, 3, 2, 8)
    with pytest.raises(TypeError, match="return_max_logit"):
        call(q, q, q, return_max_logit=True)

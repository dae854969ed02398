"""Forward-mode derivatives of attention of tensors on the host: tangents of the results for tangents of q, k
and v, by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from flash.adapters.torch.vmap import MATRICES
from ptxgen.errors import LaunchError

_ONCE: Final = (
    "tangents of forward-mode differentiation are computed, but not differentiated again; take one "
    "derivative, or use torch.nn.functional.scaled_dot_product_attention with "
    "torch.nn.attention.SDPBackend.MATH"
)
Results = tuple[Tensor, ...]
_DIFFERENTIATED: Final = 2  # results that have tangents: out and lse


@dataclass(frozen=True, eq=False)
class Computation:
    """A call of the function `caller` by operators. `results` computes out, lse and others from tensors of
    the call, `tangents` the tangents of out and lse from these tensors, out, lse, and the tangents of q, k
    and v.
    """

    caller: str
    results: Callable[..., Results]
    tangents: Callable[..., Results]

    def __call__(self, tensors: Sequence[Tensor | None]) -> Results:
        """The results, out and lse with their tangents."""
        results: Results = _Results.apply(self, *tensors)
        return results


class _Once(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """An autograd function of a `Computation` and tensors that refuses to be differentiated."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.caller = inputs[0].caller

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise LaunchError(f"{ctx.caller}: {_ONCE}")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise LaunchError(f"{ctx.caller}: {_ONCE}")


class _Tangents(_Once):
    """An autograd function that computes the tangents of out and lse."""

    @staticmethod
    def forward(of: Computation, *tensors: Any) -> Results:
        return of.tangents(*tensors)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _one_by_one(_Tangents, info, dims, *args)


class _Results(_Once):
    """An autograd function that computes out and lse, whose tangents `_Tangents` computes, and other
    results.
    """

    @staticmethod
    def forward(of: Computation, *tensors: Any) -> Results:
        return of.results(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.of, ctx.caller = inputs[0], inputs[0].caller
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[_DIFFERENTIATED:])
        ctx.save_for_forward(*inputs[1:], *output[:_DIFFERENTIATED])
        ctx.others = len(output) - _DIFFERENTIATED

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        of_results = _Tangents.apply(ctx.of, *ctx.saved_tensors, *tangents[: len(MATRICES)])
        return (*of_results, *[None] * ctx.others)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _one_by_one(_Results, info, dims, *args)


def _one_by_one(function: Any, info: Any, dims: Any, of: Computation, *tensors: Any) -> Any:
    """The results of all samples of torch.func.vmap, one sample after another, and their mapped axes."""
    results = [
        function.apply(
            of, *(x if axis is None else x.select(axis, n) for x, axis in zip(tensors, dims[1:], strict=True))
        )
        for n in range(info.batch_size)
    ]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

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
Results = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Computation:
    """What a call of the function `who` computes by operators: `results` gives out and lse of tensors, and
    `tangents` those of out and lse, of the tensors, out and lse, and the tangents of q, k and v.
    """

    who: str
    results: Callable[..., Results]
    tangents: Callable[..., Results]

    def __call__(self, tensors: Sequence[Tensor | None]) -> Results:
        """out and lse, with their tangents."""
        found: Results = _Results.apply(self, *tensors)
        return found


class _Once(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """A function of a `Computation` and tensors that has no further derivative, and whose samples under
    torch.func.vmap are computed one after another.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.who = inputs[0].who

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise LaunchError(f"{ctx.who}: {_ONCE}")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise LaunchError(f"{ctx.who}: {_ONCE}")


class _Tangents(_Once):
    """The tangents of out and lse."""

    @staticmethod
    def forward(of: Computation, *given: Any) -> Results:
        return of.tangents(*given)

    @staticmethod
    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        return _one_by_one(_Tangents, info, dims, *given)


class _Results(_Once):
    """out and lse, of which `_Tangents` computes the tangents."""

    @staticmethod
    def forward(of: Computation, *tensors: Any) -> Results:
        return of.results(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.of, ctx.who = inputs[0], inputs[0].who
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(*inputs[1:], *output)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        return _Tangents.apply(ctx.of, *ctx.saved_tensors, *tangents[: len(MATRICES)])

    @staticmethod
    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        return _one_by_one(_Results, info, dims, *given)


def _one_by_one(function: Any, info: Any, dims: Any, of: Computation, *given: Any) -> Any:
    """The results of all samples of torch.func.vmap, and their mapped axes."""
    found = [
        function.apply(
            of, *(x if axis is None else x.select(axis, n) for x, axis in zip(given, dims[1:], strict=True))
        )
        for n in range(info.batch_size)
    ]
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True)), (0, 0)

"""Backward passes of operators, as further operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl

from flash.adapters.torch import flops, library
from flash.adapters.torch.settings import Schema
from flash.adapters.torch.tensors import in_transform, require_no_tracking
from flash.adapters.torch.vmap import WITH_GRADIENTS, Dense, Mapped, Varlen
from flash.problem.outputs import LSE
from ptxgen.arrays.views import WITH_TANGENT
from ptxgen.errors import LaunchError

_PAGES: Final = "block_table"  # the tensor that says that keys are in pages
_DIFFERENTIATED: Final = 2  # results that have gradients: out and lse
_NOT_OF_PAGES: Final = "keys in pages have no gradients"
NOT_OF_AUX: Final = (
    "transforms of torch.func and tangents do not reach the arrays that functions of scores index"
)


def differentiate(
    forward: Any,
    settings: Schema,
    schema: str,
    names: Sequence[str],
    compute: Callable[..., tuple[Tensor, ...]],
    where: type[Dense] | type[Varlen],
    pairs: Callable[[flops.Arguments], int],
) -> Callable[..., tuple[Tensor, ...]]:
    """Give the operator `forward`, which is `ptxgen_flash::caller` for the caller of `settings` and has the
    results out, lse and others, a backward pass of the first two: the new operator of the name with
    `_backward`; and both a rule for torch.func.vmap. Returns the operator for calls inside transforms of
    torch.func.

    The operator has the arguments of `schema`: tensors called `names`, aux, and those of `settings`.
    `compute` computes, from dout, dlse, out, lse, a flag for each of `WITH_GRADIENTS` and of the tensors in
    aux, whether it is wanted, and these arguments, the gradients of `WITH_GRADIENTS` and a list of those of
    aux; those that are not wanted have no elements. `where` says where vmap puts a mapped axis, `pairs` how
    many pairs of queries and keys a call has.
    """
    caller, aux, with_lse = settings.caller, len(names), settings.names.index(LSE.option)

    def fake(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, wanted: Any, *args: Any) -> Any:  # noqa: ARG001
        named = dict(zip(names, args, strict=False))
        tensors = [*map(named.get, WITH_GRADIENTS), *(args[aux] or ())]
        gradients = [
            torch.empty_like(tensor, memory_format=torch.contiguous_format) if asked else dout.new_empty((0,))
            for tensor, asked in zip(tensors, wanted, strict=True)
        ]
        return (*gradients[: len(WITH_GRADIENTS)], gradients[len(WITH_GRADIENTS) :])

    back = library.declare(
        f"{caller}_backward",
        f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {schema}) -> "
        f"({', '.join(['Tensor'] * len(WITH_GRADIENTS))}, Tensor[])",
        compute,
        fake,
    )
    flops.count(back, pairs, is_backward=True)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        arrays = inputs[aux] or []
        needed = [name for name, asked in zip(names, ctx.needs_input_grad, strict=False) if asked]
        needed += _of_aux(ctx.needs_input_grad, aux, len(arrays))
        if dict(zip(names, inputs, strict=False)).get(_PAGES) is not None:
            require_no_tracking(caller, needed, _NOT_OF_PAGES)
        ctx.settings = inputs[aux + 1 :]
        if not ctx.settings[with_lse]:
            require_no_tracking(caller, needed, "the operator was called without return_lse=True")
        ctx.set_materialize_grads(False)
        ctx.has_aux = inputs[aux] is not None
        ctx.mark_non_differentiable(*output[_DIFFERENTIATED:])
        ctx.save_for_backward(*inputs[:aux], *arrays, *output[:_DIFFERENTIATED])

    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, *_: None) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        arrays = tensors[aux:] if ctx.has_aux else None
        needed = dict(zip(names, ctx.needs_input_grad, strict=False))
        # Inside transforms, where a call refuses tensors of aux with gradients, this is one flag for all.
        of_aux = ctx.needs_input_grad[aux]
        wanted = [*of_aux] if isinstance(of_aux, (list, tuple)) else [False] * len(arrays or ())
        *computed, of_arrays = (of_back if in_transform() else back)(
            torch.zeros_like(out) if dout is None else dout,
            dlse,
            out,
            lse,
            [*[needed.get(name, False) for name in WITH_GRADIENTS], *wanted],
            *tensors[:aux],
            arrays,
            *ctx.settings,
        )
        of = dict(zip(WITH_GRADIENTS, computed, strict=True))
        of_tensors = [of.get(name) if needed[name] else None for name in names]
        of_elements = [x if asked else None for x, asked in zip(of_arrays, wanted, strict=True)]
        return (*of_tensors, arrays and of_elements, *[None] * len(ctx.settings))

    rules = Mapped(settings, where, names)
    ready = _Formula(caller, forward, save, backward, rules.forward).registered()
    of_back = _Formula(caller, back, _save_nothing, _refusing(caller), rules.backward).registered()
    return ready


@dataclass(frozen=True)
class _Formula:
    """The backward pass of an operator of the function `caller`, the tensors that it keeps for that, and its
    rule for torch.func.vmap, which takes the operator for calls inside transforms.
    """

    caller: str
    operator: Any
    save: Callable[..., None]
    backward: Callable[..., Any]
    rule: Callable[..., Any]

    def registered(self) -> Callable[..., Any]:
        """Register all in PyTorch's dispatcher. Returns the operator for calls inside transforms:
        torch.func.grad and its like take no registered formula but a `torch.autograd.Function`, also
        below a mapping.
        """
        formula, name = self, self.operator._schema.name

        def in_any(*arguments: Any) -> Any:
            return Differentiated.apply(*arguments) if in_transform() else formula.operator(*arguments)

        rule = functools.partial(self.rule, in_any)
        # `torch.library.register_autograd` registers the same kernel, but cannot check tangents.
        kernel = make_autograd_impl(self.operator, Info(self.backward, self.save))
        library.differentiate(self.operator, self.caller, kernel)
        torch.library.register_vmap(name, rule, lib=library.LIBRARY)

        class Differentiated(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
            """The operator with its backward pass, as a `torch.autograd.Function`."""

            @staticmethod
            def forward(*arguments: Any) -> Any:
                return formula.operator(*arguments)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                formula.save(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *of_results: Any) -> Any:
                return formula.backward(ctx, *of_results)

            @staticmethod
            def jvp(*_: Any) -> Any:
                # Tangents inside torch.func.grad, where no argument of the call shows them.
                raise LaunchError(f"{formula.caller}: an argument {WITH_TANGENT.format('it')}")

            @staticmethod
            def vmap(info: Any, dims: Any, *arguments: Any) -> Any:
                return rule(info, dims, *arguments)

        return in_any


def _of_aux(needed: Sequence[Any], begin: int, count: int) -> list[str]:
    """The tensors of aux among those that need gradients, by the order of all tensors."""
    return [f"aux tensor {n}" for n, asked in enumerate(needed[begin : begin + count]) if asked is True]


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """Save nothing: for an operator whose backward pass raises."""


def _refusing(caller: str) -> Callable[..., Any]:
    def backward(*_: Any) -> Any:
        raise LaunchError(
            f"{caller}: second derivatives are not computed: the backward pass has no backward pass of its "
            "own; differentiate once, or use torch.nn.functional.scaled_dot_product_attention with "
            "torch.nn.attention.SDPBackend.MATH"
        )

    return backward

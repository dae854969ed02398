"""The backward passes of `attention` and `attention_varlen`, on the CPU, as operators of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash.adapters.torch import library
from flash.adapters.torch.settings import Settings
from flash.adapters.torch.tensors import in_transform, require_gradients_on, require_no_tracking
from flash.adapters.torch.vmap import DIFFERENTIABLE, MATRICES, Dense, Mapped, Varlen
from flash.cpu.gradients import attention_gradients_cpu
from flash.problem.sequences import each_sequence
from flash.scores.feature import summed_to
from flash.scores.features import split_by_axes
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import LaunchError

Array = NDArray[Any]

NOT_INTO_OUT: Final = "calls with out=... are not differentiated"
NOT_OF_AUX: Final = "functions of scores are not differentiated by the arrays that they index"


class Forward(NamedTuple):
    """What a backward pass reads: gradients of the results, results, inputs, the arrays of scores
    and of lengths by name, and what `Settings.scores` needs beside them.
    """

    dout: Tensor
    dlse: Tensor | None
    out: Tensor
    lse: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    arrays: Mapping[str, Tensor | None]
    seed: Tensor | None
    aux: list[Tensor] | None
    settings: Settings
    lengths: Mapping[str, Tensor | None] = MappingProxyType({})

    def numpy(self, tensor: Tensor) -> Array:
        """The memory of a tensor as an array."""
        return host_array(view(tensor.detach(), "tensor"))

    def heads_first(self, tensor: Tensor) -> Array:
        """The memory of q or a tensor like it as [batch, heads, seq, dim]."""
        found = self.numpy(tensor)
        if found.ndim == 3:
            return found[np.newaxis]
        return found if self.settings.layout == "bhsd" else found.transpose(0, 2, 1, 3)

    @property
    def scores(self) -> dict[str, Any]:
        """The arguments about scores, with arrays of numpy."""
        given = {name: None if t is None else self.numpy(t) for name, t in self.arrays.items()}
        aux = None if self.aux is None else [self.numpy(t) for t in self.aux]
        return self.settings.scores(given, self.seed, aux)

    def results(self, wanted: Sequence[bool]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """New tensors for the gradients of q, k and v, and of those of `DIFFERENTIABLE` that are
        wanted.
        """
        arrays = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, asked in zip(DIFFERENTIABLE, wanted, strict=True)
            if asked and (tensor := self.arrays.get(name)) is not None
        }
        return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in self[4:7]], arrays


def dense(forward: Forward, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The gradients of q, k, v and `DIFFERENTIABLE`; a tensor without elements for what is not
    wanted.
    """
    three, arrays = forward.results(wanted)
    first = forward.heads_first
    dq, dk, dv = map(first, three)
    q = first(forward.q)
    rows = q.shape[:3]
    attention_gradients_cpu(
        first(forward.dout),
        q,
        first(forward.k),
        first(forward.v),
        first(forward.out),
        forward.numpy(forward.lse).reshape(rows),
        dq,
        dk,
        dv,
        {name: forward.numpy(t) for name, t in arrays.items()},
        dlse=None if forward.dlse is None else forward.numpy(forward.dlse).reshape(rows),
        softmax_scale=forward.settings.softmax_scale,
        causal=forward.settings.causality,
        **forward.scores,
    )
    return _in_order(forward, three, arrays)


def varlen(forward: Forward, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The gradients of packed sequences, by numpy, as `dense` gives them for a batch."""
    three, arrays = forward.results(wanted)
    q, k, v, out, dout = (
        forward.numpy(t).swapaxes(0, 1)[None]
        for t in (forward.q, forward.k, forward.v, forward.out, forward.dout)
    )
    lse = forward.numpy(forward.lse)[None]
    dlse = None if forward.dlse is None else forward.numpy(forward.dlse)[None]
    dq, dk, dv = (forward.numpy(t.zero_()).swapaxes(0, 1)[None] for t in three)
    ends: Any = {name: None if t is None else forward.numpy(t) for name, t in forward.lengths.items()}
    of_all = len(ends["cu_seqlens_q"]) - 1, q.shape[1]
    of_heads, others = split_by_axes(forward.scores, of_all)
    sums = {name: np.zeros(of_all, np.float32) for name in arrays}
    for b, rows, keys in each_sequence(**ends):
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        attention_gradients_cpu(
            dout[:, :, rows],
            q[:, :, rows],
            k[:, :, keys],
            v[:, :, keys],
            out[:, :, rows],
            lse[:, :, rows],
            dq[:, :, rows],
            dk[:, :, keys],
            dv[:, :, keys],
            {name: total[b : b + 1] for name, total in sums.items()},
            dlse=None if dlse is None else dlse[:, :, rows],
            softmax_scale=forward.settings.softmax_scale,
            causal=forward.settings.causality,
            first_batch=b,
            **own,
            **others,
        )
    for name, tensor in arrays.items():
        forward.numpy(tensor)[...] = summed_to(sums[name], tuple(tensor.shape))
    return _in_order(forward, three, arrays)


def _in_order(forward: Forward, three: list[Tensor], arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    nothing = [forward.q.new_empty((0,)) for name in DIFFERENTIABLE if name not in arrays]
    return (*three, *(arrays[name] if name in arrays else nothing.pop() for name in DIFFERENTIABLE))


# ------------------------------------------------------------------------------------- operators


def differentiate(
    forward: Any,
    who: str,
    schema: str,
    names: Sequence[str],
    read: Callable[..., Forward],
    compute: Callable[..., tuple[Tensor, ...]],
    where: type[Dense] | type[Varlen],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give the operator `forward`, which is `ptxgen_flash::who` with the results out and lse, a
    backward pass: the new operator `ptxgen_flash::who_backward`; and both a rule for
    torch.func.vmap. Returns the operator for calls inside torch.func.grad.

    The operator has the arguments of `schema`: tensors called `names`, aux, and those of `Settings`.
    `read` makes a `Forward` of dout, dlse, out, lse and these arguments, `compute` the gradients of
    a `Forward`, and a flag for each of `DIFFERENTIABLE`, whether it is wanted. `where` says where
    vmap puts a mapped axis.
    """
    aux = len(names)

    def run(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, wanted: Any, *given: Any) -> Any:
        return compute(read(dout, dlse, out, lse, *given), wanted)

    def fake(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, wanted: Any, *given: Any) -> Any:
        known = read(dout, dlse, out, lse, *given)
        return _in_order(known, *known.results(wanted))

    back = library.declare(
        f"{who}_backward",
        f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {schema}) -> "
        f"({', '.join(['Tensor'] * (len(MATRICES) + len(DIFFERENTIABLE)))})",
        run,
        fake,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        arrays = inputs[aux] or []
        needed = [name for name, asked in zip(names, ctx.needs_input_grad, strict=False) if asked]
        require_gradients_on(who, inputs[0].device, needed)
        require_no_tracking(who, _of_aux(ctx.needs_input_grad, aux, len(arrays)), NOT_OF_AUX)
        ctx.settings = inputs[aux + 1 :]
        if not Settings(*ctx.settings).return_lse:
            require_no_tracking(who, needed, "the operator was called without return_lse=True")
        ctx.set_materialize_grads(False)
        ctx.has_aux = inputs[aux] is not None
        ctx.save_for_backward(*inputs[:aux], *arrays, *output)

    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        *given, out, lse = ctx.saved_tensors
        arrays = given[aux:] if ctx.has_aux else None
        needed = dict(zip(names, ctx.needs_input_grad, strict=False))
        run = of_back if torch.is_grad_enabled() and in_transform() else back
        found = run(
            torch.zeros_like(out) if dout is None else dout,
            dlse,
            out,
            lse,
            [needed.get(name, False) for name in DIFFERENTIABLE],
            *given[:aux],
            arrays,
            *ctx.settings,
        )
        of = dict(zip((*MATRICES, *DIFFERENTIABLE), found, strict=True))
        own = [of.get(name) if needed[name] else None for name in names]
        return (*own, arrays and [None] * len(arrays), *[None] * len(ctx.settings))

    rules = Mapped(who, where, names)
    ready = _Formula(forward, save, backward, functools.partial(rules.forward, forward)).registered()
    of_back = _Formula(
        back, _save_nothing, _refusing(who), functools.partial(rules.backward, back)
    ).registered()
    return ready


@dataclass(frozen=True)
class _Formula:
    """What is registered for an operator: the context of its backward pass, the backward pass, and
    the rule for torch.func.vmap.
    """

    operator: Any
    save: Callable[..., None]
    backward: Callable[..., Any]
    rule: Callable[..., Any]

    def registered(self) -> Callable[..., Any]:
        """Register all in PyTorch's dispatcher. Returns the operator for calls inside torch.func.grad
        and its like, which take no registered formula but a `torch.autograd.Function`.
        """
        formula, name = self, self.operator._schema.name
        torch.library.register_autograd(name, self.backward, setup_context=self.save, lib=library.LIBRARY)
        torch.library.register_vmap(name, self.rule, lib=library.LIBRARY)

        class Differentiated(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
            """The operator with its formula."""

            @staticmethod
            def forward(*given: Any) -> Any:
                return formula.operator(*given)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                formula.save(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *of_results: Any) -> Any:
                return formula.backward(ctx, *of_results)

            @staticmethod
            def vmap(info: Any, dims: Any, *given: Any) -> Any:
                return formula.rule(info, dims, *given)

        return Differentiated.apply  # type: ignore[no-any-return]


def _of_aux(needed: Sequence[Any], begin: int, count: int) -> list[str]:
    """The tensors of aux among those that need gradients, by the order of all tensors."""
    return [f"aux tensor {n}" for n, asked in enumerate(needed[begin : begin + count]) if asked is True]


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For an operator whose backward pass raises."""


def _refusing(who: str) -> Callable[..., Any]:
    def backward(*_: Any) -> Any:
        raise LaunchError(
            f"{who}: second derivatives are not computed: the backward pass has no backward pass of its own; "
            "differentiate once, or use torch.nn.functional.scaled_dot_product_attention with "
            "torch.nn.attention.SDPBackend.MATH"
        )

    return backward

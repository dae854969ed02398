"""`attention` of torch tensors, as operators of PyTorch's dispatcher."""

from __future__ import annotations

from typing import Any, Final, Literal, Unpack

from torch import Tensor

from flash.adapters.torch.flops import pairs_of_dense
from flash.adapters.torch.operators import Operators
from flash.adapters.torch.tensors import causality_of
from flash.adapters.torch.vmap import MATRICES, Dense
from flash.launch.options import ATTENTION, DEFAULTS, AttentionOptions
from flash.scores.features import ScoreArguments, takes

_OPERATORS: Final = Operators(ATTENTION, MATRICES, (), ScoreArguments, Dense, pairs_of_dense)

_MASKS: Final[tuple[Literal["mask", "bias"], ...]] = (
    "mask",
    "bias",
)  # as which a `torch.nn.attention.bias.CausalBias` is taken


class Arguments(AttentionOptions, ScoreArguments, total=False):
    """All arguments that are given by name."""

    out: Tensor | None
    stream: object


@takes(Arguments, **DEFAULTS)
def attention(q: Tensor, k: Tensor, v: Tensor, **arguments: Unpack[Arguments]) -> Any:
    """`flash.attention` of torch tensors, as the operator `ptxgen_flash::attention`, which
    torch.compile, torch.export, torch.func.vmap, autograd and autocast know.

    All arguments, shapes and results are those of `flash.attention`, and so are the exceptions. With
    `dropout` and no `dropout_seed`, the seed is a number of torch's generator on the CPU, so that
    `torch.manual_seed` repeats a call; a seed may be an int64 tensor with one element on the CPU.
    A `torch.nn.attention.bias.CausalBias` as `mask` or `bias` is the causality that it means.
    Under autocast q, k, v, bias and key_bias become of the type of autocast.

    max_logit has no gradient. Those of q, k, v, alibi_slopes, bias, key_bias and sink, from those of out and
    of lse, are those of `flash.attention_backward`, with its exceptions, by the backend of the call: on a
    GPU for tensors there, on the stream that is current in the backward pass; for tensors on the CPU "auto"
    is PTXGEN_BACKEND, else "cpu". They are of first order. Unless `deterministic`, kernels sum that of q by
    atomics in any order, as `flash.attention_backward` has it, but not where
    `torch.are_deterministic_algorithms_enabled()` when the backward pass runs.

    Raises `LaunchError` for tensors that require gradients with `out`, or in `aux` inside transforms of
    torch.func; for distributed and
    nested tensors; and for what is no tensor.
    """
    causal = arguments.get("causal", False)
    for name in _MASKS:
        if causal is False and (causal := causality_of(arguments.get(name), q, k)):
            arguments["causal"] = causal
            arguments[name] = None
    return _OPERATORS.call({"q": q, "k": k, "v": v}, arguments, Arguments, attention)

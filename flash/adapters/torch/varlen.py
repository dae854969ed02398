"""`attention_varlen` of torch tensors, as operators of PyTorch's dispatcher."""

from __future__ import annotations

from typing import Any, Final, Unpack

from torch import Tensor

from flash.adapters.torch.flops import pairs_of_packed
from flash.adapters.torch.operators import Operators
from flash.adapters.torch.vmap import MATRICES, Varlen
from flash.launch.options import DEFAULTS, VARLEN, VarlenOptions
from flash.scores.features import VarlenArguments, takes

_STARTS: Final = ("cu_seqlens_q", "cu_seqlens_k")
_OPTIONAL: Final = ("seqused_q", "seqused_k", "block_table", "rotary_cos", "rotary_sin")
_OPERATORS: Final = Operators(
    VARLEN, (*MATRICES, _STARTS[0]), (_STARTS[1], *_OPTIONAL), VarlenArguments, Varlen, pairs_of_packed
)


class Arguments(VarlenOptions, VarlenArguments, total=False):
    """All arguments that are given by name."""

    block_table: Tensor | None
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    out: Tensor | None
    stream: object


@takes(Arguments, **DEFAULTS)
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    **arguments: Unpack[Arguments],
) -> Any:
    """`flash.attention_varlen` of torch tensors, as the operator `ptxgen_flash::attention_varlen`.

    All arguments, shapes and results are those of `flash.attention_varlen`; what this function adds
    is as in `flash.adapters.torch.attention`. `max_seqlen_k`, the most keys of a sequence, is read by
    gradients of tensors on a GPU alone, which without it launch CTAs for as many keys as k has rows.
    The gradients of rows of no sequence are 0. With `block_table` there are none: `LaunchError` is raised.
    """
    options: dict[str, Any] = dict(arguments)
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    tensors |= {name: options.pop(name, None) for name in _OPTIONAL}
    return _OPERATORS.call(tensors, options, Arguments, attention_varlen)

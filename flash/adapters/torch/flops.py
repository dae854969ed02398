"""What `torch.utils.flop_counter.FlopCounterMode` counts for the operators of attention: the products of
matrices for all pairs of a query and a key, 2 FLOPs for a multiplication with its addition. Pairs that a mask
hides count, too, as PyTorch counts its attention (`sdpa_flop_count` in that module).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch.utils.flop_counter import register_flop_formula

from flash.adapters.torch.tensors import PLAIN

_FLOPS_PER_FMA: Final = 2

Arguments = Mapping[str, Any]  # of a call of an operator, by name


def count(operator: Any, pairs: Callable[[Arguments], int], *, is_backward: bool = False) -> None:
    """Let PyTorch count an operator that attends to the values "v" or "v_cache" with the queries "q".
    `pairs` is the number of products of a row of q and a row of k of a call, in all heads.
    """
    names = [argument.name for argument in operator._schema.arguments]

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:  # noqa: ARG001
        named = dict(zip(names, args, strict=False)) | kwargs
        values = named["v"] if "k_cache" not in named else named["v_cache"]
        dim, dim_v = named["q"].shape[-1], named.get("head_dim_v") or values.shape[-1]
        columns = dim + dim_v
        if is_backward:  # scores again, the gradients of weights, and of Q, K and V those that are wanted
            columns += sum(itertools.compress((dim, dim, dim_v), named["wanted"]))
        return int(_FLOPS_PER_FMA * pairs(named) * columns)

    register_flop_formula(operator.overloadpacket, get_raw=True)(formula)


def pairs_of_dense(arguments: Arguments) -> int:
    """The pairs of a call of `attention`."""
    keys = arguments["k"].shape[1 if arguments["layout"] == "bshd" else -2]
    return int(math.prod(arguments["q"].shape[:-1]) * keys)


def pairs_of_packed(arguments: Arguments) -> int:
    """The pairs of a call of `attention_varlen`; an upper bound where lengths are not known."""
    q, k, table = arguments["q"], arguments["k"], arguments["block_table"]
    rows = _lengths(arguments["cu_seqlens_q"], arguments["seqused_q"])
    keys = _lengths(arguments["cu_seqlens_k"], arguments["seqused_k"])
    if rows is None or keys is None:
        axis = 1 if arguments["kv_layout"] == "NHD" else 2  # of the rows of a page
        most = k.shape[0] if table is None else table.shape[1] * k.shape[axis]
        return int(q.shape[0] * q.shape[1] * (arguments["max_seqlen_k"] or most))
    return int(q.shape[1] * sum(a * b for a, b in zip(rows, keys, strict=True)))


def _lengths(starts: Any, used: Any) -> list[int] | None:
    """How many rows each sequence has, by seqused or cu_seqlens; None if not known. Waits for a GPU."""
    source = used if used is not None else starts
    if type(source) not in PLAIN or source.is_meta:
        return None
    lengths: list[int] = (used if used is not None else starts.diff()).tolist()
    return lengths


def pairs_of_caches(arguments: Arguments) -> int:
    """The pairs of a call of `flash_attn_with_kvcache`; an upper bound where lengths are not known."""
    q, k, cache = arguments["q"], arguments["k"], arguments["k_cache"]
    new = 0 if k is None else k.shape[1]
    capacity = cache.shape[1] * (1 if arguments["block_table"] is None else arguments["block_table"].shape[1])
    before = _lengths(None, arguments["lengths"])
    if before is None:
        known = arguments["lengths"] is None and arguments["length"] is not None
        before = [arguments["length"] if known else capacity - new] * q.shape[0]
    return int(q.shape[1] * q.shape[2] * sum(n + new for n in before))

"""What `torch.utils.flop_counter.FlopCounterMode` counts for the operators.

The products of matrices of all pairs of a query and a key, 2 for a multiplication with its addition: of pairs
that a mask hides, too, as PyTorch counts its own attention (`sdpa_flop_count` in that module).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.utils.flop_counter import register_flop_formula

_FLOPS_PER_FMA: Final = 2

Given = Mapping[str, Any]  # the arguments of a call of an operator, by name


def count(operator: Any, pairs: Callable[[Given], int], *, is_backward: bool = False) -> None:
    """Let PyTorch count an operator that attends to the values "v" or "v_cache" with the queries "q".
    `pairs` is the number of products of a row of q and a row of k of a call, in all heads.
    """
    names = [argument.name for argument in operator._schema.arguments]

    def formula(*args: Any, out_val: Any = None, **given: Any) -> int:  # noqa: ARG001
        named = dict(zip(names, args, strict=False)) | given
        values = named["v"] if "k_cache" not in named else named["v_cache"]
        dim, dim_v = named["q"].shape[-1], named.get("head_dim_v") or values.shape[-1]
        # Backward: scores again, and the gradients of weights, of V, of Q and of K.
        columns = 3 * dim + 2 * dim_v if is_backward else dim + dim_v
        return int(_FLOPS_PER_FMA * pairs(named) * columns)

    register_flop_formula(operator.overloadpacket, get_raw=True)(formula)


def pairs_of_dense(given: Given) -> int:
    """Those of `attention`."""
    keys = given["k"].shape[1 if given["layout"] == "bshd" else -2]
    return int(math.prod(given["q"].shape[:-1]) * keys)


def pairs_of_packed(given: Given) -> int:
    """Those of `attention_varlen`; where lengths are not known (fake tensors), an upper bound."""
    q, k, table = given["q"], given["k"], given["block_table"]
    rows = _lengths(given["cu_seqlens_q"], given["seqused_q"])
    keys = _lengths(given["cu_seqlens_k"], given["seqused_k"])
    if rows is None or keys is None:
        page = 1 if table is None else table.shape[1] * k.shape[1 if given["kv_layout"] == "NHD" else 2]
        return int(
            q.shape[0] * q.shape[1] * (given["max_seqlen_k"] or (k.shape[0] if table is None else page))
        )
    return int(q.shape[1] * sum(a * b for a, b in zip(rows, keys, strict=True)))


def _lengths(starts: Any, used: Any) -> list[int] | None:
    """How many rows each sequence has; None if that is not known. Waits for a GPU."""
    given = used if used is not None else starts
    if given is None or type(given) not in (torch.Tensor, torch.nn.Parameter) or given.device.type == "meta":
        return None
    found: list[int] = (used if used is not None else starts.diff()).tolist()
    return found


def pairs_of_caches(given: Given) -> int:
    """Those of `flash_attn_with_kvcache`."""
    q, k, cache = given["q"], given["k"], given["k_cache"]
    new = 0 if k is None else k.shape[1]
    capacity = cache.shape[1] * (1 if given["block_table"] is None else given["block_table"].shape[1])
    before = _lengths(None, given["lengths"])
    if before is None:
        known = given["lengths"] is None and given["length"] is not None
        before = [given["length"] if known else capacity - new] * q.shape[0]
    return int(q.shape[1] * q.shape[2] * sum(n + new for n in before))

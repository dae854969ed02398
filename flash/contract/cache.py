"""The launch contracts of the cache kernels other than attention: the kernel that appends new rows
to a cache, and the kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from flash.contract.cache_builds import AppendBuild, MergeBuild
from flash.contract.common import (
    Words,
    launch_contract,
    operand_meanings,
    operand_stride_meanings,
    stride_meanings,
)
from flash.contract.forward import (
    NOT_WRITTEN_MEANWHILE,
    ONE_PLACE,
    cache_layout,
    cache_room,
    rotary_words,
    turned_together,
)
from flash.kernels.append import COUNTS, AppendConfig
from flash.kernels.append import MAX_ROWS as MAX_APPENDED
from flash.kernels.append import WARPS as APPEND_WARPS
from flash.kernels.merge import MAX_ROWS, MERGE_STRIDES
from flash.kernels.merge import WARPS as MERGE_WARPS
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, F32_BYTES, DType
from flash.problem.features import MAX_SPLITS

_EXACTLY: Final = "block and grid are exactly as given"


def append_contract(made: AppendBuild) -> dict[str, Any]:
    """The contract of an append kernel."""
    config = made.config
    rows: Any = "new_rows"
    words = "new_rows"
    if config.rotary_dim:
        rows, words = {"plus": ["new_rows", "q_rows"]}, "(new_rows + q_rows)"
    types = {name: config.element_of(name) for name in config.arrays}
    types |= {operand.name: operand.dtype for operand in config.operands}
    return launch_contract(
        made,
        Words(
            kind="append",
            computes={
                "dtype": config.dtype.name,
                "head_dim": config.head_dim,
                "head_dim_v": config.head_dim_v,
                **rotary_words(config.rotary_dim, interleaved=config.interleaved),
            },
            meanings=_append_meanings(config, types),
            types=types,
            written=("K", "V", "Q_OUT"),
            grid={
                "formula": f"(ceil({words} / {APPEND_WARPS}), 1, 1)",
                "x": {"ceil_div": [rows, APPEND_WARPS], "times": []},
            },
            constraints=_append_constraints(config),
            more={"layout": cache_layout(config.features)},
        ),
    )


def _append_meanings(config: AppendConfig, types: dict[str, DType]) -> dict[str, str]:
    features = config.features
    places = (
        f"pages, kv_heads, {features.page_size}"
        if features.page_size
        else (f"{features.kv_batch}, kv_heads, seq_k")
    )
    uses = {
        "K_NEW": ("the new keys, read", "batch, kv_heads, n, head_dim"),
        "V_NEW": ("the new values, read", "batch, kv_heads, n, head_dim_v"),
        "K": ("the keys of the cache, written", f"{places}, head_dim"),
        "V": ("the values of the cache, written", f"{places}, head_dim_v"),
        "Q": ("the queries, read", "batch, heads, seq_q, head_dim"),
        "Q_OUT": ("the turned queries, written", "batch, heads, seq_q, head_dim"),
        "COS": ("the cosines of the angles, read", "positions, rotary_dim / 2"),
        "SIN": ("the sines of the angles, read", "positions, rotary_dim / 2"),
    }
    meanings = {
        name: f"device address of {uses[name][0]}: {types[name].name} [{uses[name][1]}], strides as below"
        for name in config.arrays
    }
    meanings |= operand_meanings(_of_append(config, operand) for operand in config.operands)
    meanings |= {
        "new_rows": "new rows of all heads of K: batch * kv_heads * n",
        "n": "new rows of each head of K",
        "kv_heads": "heads of K and V",
        "seq_k": cache_room(features, MAX_APPENDED),
        "q_rows": "rows of all heads of Q: batch * heads * seq_q",
        "seq_q": "queries of each head",
        "heads": "heads of Q",
        "positions": (
            "rows of COS and SIN; row r of a sequence is turned by the angles of position r, less "
            "its padding, 0 for padding, and at most the last"
        ),
    }
    meanings |= {number.name: number.meaning for number in features.numbers}
    for name, (steps, _) in config.arrays.items():
        meanings |= stride_meanings(name, steps, types[name])
    return meanings | operand_stride_meanings(config.operands)


def _of_append(config: AppendConfig, operand: Operand) -> Operand:
    """`operand` with its meaning for an append kernel."""
    n = COUNTS.name if config.counted else "n"
    words = {
        "seqused_k": (
            f"how many rows each sequence has with the new ones: new row i of {n} becomes row "
            f"seqused_k - {n} + i, or none if that is negative"
        ),
        "k_scale": "what new rows of K are divided by, above 0",
        "v_scale": "what new rows of V are divided by, above 0",
        "cache_batch_idx": "which sequence of K and V each item of the batch is of",
    }
    return replace(operand, meaning=words.get(operand.name, operand.meaning))


def _append_constraints(config: AppendConfig) -> Iterator[str]:
    yield from turned_together(config.rotary_dim, interleaved=config.interleaved)
    yield "all arrays, and their strides in bytes, are multiples of their elements' size"
    yield "the last dimension of all arrays is dense (stride 1)"
    yield ONE_PLACE
    yield _EXACTLY
    yield "what is written shares no memory with what is read, or with anything else written"
    yield NOT_WRITTEN_MEANWHILE


def merge_contract(made: MergeBuild) -> dict[str, Any]:
    """The contract of a merge kernel."""
    config = made.config
    types = {"PARTS": config.parts, "LSES": F32, "O": config.dtype, "LSE": F32}
    of_lse = (
        "device address of the merged log-sum-exp, written: natural logarithm, f32 [batch, heads, "
        "seq_q], dense; -inf for a row of which no part has a key"
    )
    meanings = {
        "PARTS": (
            f"device address of the parts, read: {config.parts.name} [batch, heads, seq_q, splits, "
            "head_dim_v], strides as below; a part whose lse is -inf may hold anything"
        ),
        "LSES": (
            "device address of the log-sum-exp of each part, read: natural logarithm, f32 [batch * "
            "heads * seq_q, splits], strides as below"
        ),
        "O": (
            f"device address of the result, written: {config.dtype.name} [batch, heads, seq_q, "
            "head_dim_v], strides as below"
        ),
        "LSE": of_lse,
        "rows": f"rows of O: batch * heads * seq_q, 1 to {MAX_ROWS}",
        "seq_q": "queries of each head",
        "heads": "heads of O",
        "splits": f"parts of each row, 1 to {MAX_SPLITS}",
    }
    for name, steps in MERGE_STRIDES.items():
        meanings |= stride_meanings(name, steps, types[name])
    parts, result = (config.width * types[name].nbytes for name in ("PARTS", "O"))
    return launch_contract(
        made,
        Words(
            kind="merge",
            computes={
                "dtype": config.dtype.name,
                "parts_dtype": config.parts.name,
                "head_dim_v": config.head_dim_v,
            },
            meanings=meanings,
            types=types,
            written=("O", "LSE"),
            grid={
                "formula": f"(ceil(rows / {MERGE_WARPS}), 1, 1)",
                "x": {"ceil_div": ["rows", MERGE_WARPS], "times": []},
            },
            constraints=[
                f"PARTS, and its strides in bytes, are multiples of {parts} bytes; those of O of "
                f"{result}; LSES, its strides and LSE are multiples of {F32_BYTES}",
                "the last dimension of PARTS and O is dense (stride 1)",
                _EXACTLY,
                "O and LSE share no memory with what is read or each other, and no two indices of "
                "O name one element",
            ],
            more={
                "lse": of_lse
                if config.return_lse
                else "not written: the kernel was made with return_lse=False"
            },
        ),
    )

"""The launch contracts of the cache kernels other than attention: the kernel that appends new rows
to a cache, and the kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.contract.common import (
    Words,
    launch_contract,
    meanings_of_pointers,
    meanings_of_strides,
    promised_launch,
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
from flash.kernels.merge import MAX_ROWS, MERGED_LSE, MergeConfig
from flash.kernels.merge import WARPS as MERGE_WARPS
from flash.operands.declared import Operand
from flash.operands.dtypes import F32_BYTES
from flash.problem.features import MAX_SPLITS
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.contract.expressions import CEIL_DIV, expression

_EXACTLY: Final = "block and grid are exactly as given"


def append_contract(made: BuiltKernel, config: AppendConfig) -> dict[str, Any]:
    """The contract of the append kernel of a configuration."""
    rows = expression("new_rows + q_rows" if config.rotary_dim else "new_rows")
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
            meanings=_append_meanings(config),
            ctas={CEIL_DIV: [rows, APPEND_WARPS]},
            constraints=_append_constraints(config),
            more={"layout": cache_layout(config.features)},
        ),
    )


def append_promise(config: AppendConfig) -> GlobalContract:
    """The contract of an append kernel in the form that the proof of global accesses takes:
    `new_rows` is batch * kv_heads * n, `q_rows` batch * heads * seq_q.
    """
    features = config.features
    bounds = dict.fromkeys(("batch", *config.counts), (1, MAX_APPENDED))
    bounds |= {n.name: n.bounds for n in features.numbers if n.bounds is not None}
    equal = {"new_rows": "batch * kv_heads * n"}
    rows = "new_rows"
    if config.rotary_dim:
        equal["q_rows"] = "batch * heads * seq_q"
        rows = "new_rows + q_rows"
    if features.page_size:
        bounds["table_columns"] = (1, MAX_APPENDED // features.page_size)
        equal["seq_k"] = f"{features.page_size} * table_columns"
    arrays = (*config.arrays, *config.operands)
    return promised_launch(arrays, bounds, f"({rows} + {APPEND_WARPS - 1}) // {APPEND_WARPS}", equal)


def _append_meanings(config: AppendConfig) -> dict[str, str]:
    features, arrays = config.features, config.arrays
    operands = [_of_append(config, operand) for operand in config.operands]
    meanings = meanings_of_pointers((*arrays, *operands))
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
    return meanings | meanings_of_strides((*arrays, *operands))


def _of_append(config: AppendConfig, operand: Operand) -> Operand:
    """`operand` with its meaning for an append kernel."""
    n = COUNTS.name if config.counted else "n"
    words = {
        "seqused_k": (
            f"how many rows each sequence has with the new ones: new row i of {n} becomes row "
            f"seqused_k - {n} + i, or none if that is negative"
        ),
        **{f"{what}_scale": _divisor(config, what) for what in "kv"},
        "cache_batch_idx": "which sequence of K and V each item of the batch is of",
    }
    return replace(operand, meaning=words.get(operand.name, operand.meaning))


def _divisor(config: AppendConfig, what: str) -> str:
    """The meaning of the scales of K ("k") or V ("v")."""
    if not config.features.per_token:
        return f"what new rows of {what.upper()} are divided by, above 0"
    return (
        f"what each new row of {what.upper()} is divided by: its largest finite magnitude / "
        f"{config.stored.largest:g}, at least 2**-126"
    )


def _append_constraints(config: AppendConfig) -> Iterator[str]:
    yield from turned_together(config.rotary_dim, interleaved=config.interleaved)
    yield "all arrays, and their strides in bytes, are multiples of their elements' size"
    yield "the last dimension of all arrays is dense (stride 1)"
    yield ONE_PLACE
    yield _EXACTLY
    yield "what is written shares no memory with what is read, or with anything else written"
    yield NOT_WRITTEN_MEANWHILE


def merge_contract(made: BuiltKernel, config: MergeConfig) -> dict[str, Any]:
    """The contract of the merge kernel of a configuration."""
    arrays = config.arrays
    meanings = meanings_of_pointers((*arrays, MERGED_LSE)) | meanings_of_strides(arrays)
    meanings |= {
        "rows": f"rows of O: batch * heads * seq_q, 1 to {MAX_ROWS}",
        "seq_q": "queries of each head",
        "heads": "heads of O",
        "splits": f"parts of each row, 1 to {MAX_SPLITS}",
    }
    alignments = {array.name: array.alignment for array in arrays}
    return launch_contract(
        made,
        Words(
            kind="merge",
            computes={
                "dtype": config.dtype.name,
                "parts_dtype": config.parts.name,
                "head_dim_v": config.head_dim_v,
                **({"plus_is_empty": True} if config.plus_is_empty else {}),
            },
            meanings=meanings,
            ctas={CEIL_DIV: ["rows", MERGE_WARPS]},
            constraints=[
                f"PARTS, and its strides in bytes, are multiples of {alignments['PARTS']} bytes; "
                f"those of O of {alignments['O']}; LSES, its strides and LSE are multiples of "
                f"{F32_BYTES}",
                "the last dimension of PARTS and O is dense (stride 1)",
                _EXACTLY,
                "O and LSE share no memory with what is read or each other, and no two indices of "
                "O name one element",
            ],
            more={
                "lse": meanings["LSE"]
                if config.return_lse
                else "not written: the kernel was made with return_lse=False"
            },
        ),
    )


def merge_promise(config: MergeConfig) -> GlobalContract:
    """The contract of a merge kernel in the form that the proof of global accesses takes. `rows`
    counts the rows of all heads of all batches; `LSES` has `splits` elements for each row.
    """
    bounds = dict.fromkeys(("heads", "seq_q", "batch", "rows"), (1, MAX_ROWS))
    bounds["splits"] = (1, MAX_SPLITS)
    blocks = f"(rows + {MERGE_WARPS - 1}) // {MERGE_WARPS}"
    return promised_launch(config.arrays, bounds, blocks, {"rows": "batch * heads * seq_q"})

"""The launch contracts of the kernels of gradients: those that own queries, keys or scores, and the
kernel that sums the terms of the gradients of arrays of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.contract.common import Words, launch_contract, meanings_of_pointers, meanings_of_strides
from flash.contract.forward import CAUSAL, NOT_WRITTEN_MEANWHILE
from flash.kernels.sum_terms import AXES, WARPS, SumConfig
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, F32_BYTES
from flash.problem.gradients import (
    DELTAS,
    KEYS,
    QUERIES,
    SCORES,
    SUMS,
    SUMS_OF_QUERIES,
    GradientConfig,
    gradient_arrays,
    gradient_matrices,
    row_numbers,
    sums_of_queries,
)
from flash.problem.limits import max_seq
from ptxgen.contract.expressions import CEIL_DIV, DIV, TIMES, Expression, product

_EXACTLY: Final = "block and grid are exactly as given"
_FROM_FORWARD: Final = {QUERIES: "O and LSE are", DELTAS: "O and LSE are", KEYS: "LSE is", SCORES: "LSE is"}
_ENDED: Final = (
    "of the same options, arrays and numbers, that has ended: launch this one behind it on the same stream"
)


def gradient_contract(made: BuiltKernel, config: GradientConfig) -> dict[str, Any]:
    """The contract of the kernel of gradients of a configuration."""
    t = config.tiling
    return launch_contract(
        made,
        Words(
            kind="backward",
            computes={
                "dtype": config.dtype.name,
                "precision": t.operands.name if config.dtype is F32 else None,
                "head_dim": t.head_dim,
                "head_dim_v": t.head_dim_v,
                "owner": config.owner,
                "block_rows": t.block,
                **({"tile": t.tile} if t.tile else {}),
            },
            meanings=gradient_parameters(config),
            ctas=_ctas(config),
            constraints=_constraints(config),
            more={
                "alignment": config.alignment,
                "layout": _layout(config),
                "causal": {"mode": config.causal or "none", "meaning": CAUSAL[config.causal]},
            },
            equal=_shares_of_bias() if config.owner == SCORES else {},
        ),
    )


def gradient_parameters(config: GradientConfig) -> dict[str, str]:
    """The meaning of each parameter of a kernel of gradients."""
    features, longest = config.features, max_seq(config.features)
    arrays = [_explained(config, array) for array in gradient_arrays(config)]
    rows_q, rows_k = features.row_counts
    least_q, least_k = (
        int(config.owner == SCORES or own) for own in (config.owns_rows, config.owner == KEYS)
    )
    whose = "of all sequences" if features.varlen else "of each head"
    none = {QUERIES: "keys dQ is 0", KEYS: "queries dK and dV are 0"}.get(config.owner)
    without = {rows_k if config.owner == QUERIES else rows_q: f"; without {none}"} if none else {}
    meanings = meanings_of_pointers(arrays) | meanings_of_strides(arrays)
    meanings |= {
        rows_q: f"queries {whose}, {least_q} to {longest}{without.get(rows_q, '')}",
        rows_k: f"keys {whose}, {least_k} to {longest}{without.get(rows_k, '')}",
        "heads": "heads of Q and of the output, at least 1",
        "group": (
            "heads / kv_heads, a whole number: query head h reads key/value head h / group, rounded down"
        ),
        "softmax_scale": "factor of Q K^T before the softmax, that of the forward launch",
    }
    return meanings | {number.name: number.meaning for number in config.numbers}


def _explained(config: GradientConfig, array: Operand) -> Operand:
    """An array with what a host must know of it beside its role."""
    if array.name in {term.name for term in config.terms}:
        axes = array.axes if len(array.axes) == AXES else (*array.axes[:2], "1", array.axes[2])
        return replace(array, meaning=f"the sum kernel takes it as X of [{', '.join(axes)}]")
    if array.name == "LSE":
        return replace(array, meaning="-inf of a row that sees no key and has no sink")
    return array


def _ctas(config: GradientConfig) -> Expression:
    """The number of CTAs along x, as `GradientBuild.promised` has it."""
    t, features = config.tiling, config.features
    if config.owner == SCORES:
        keys, queries = {CEIL_DIV: ["seq_k", t.tile]}, {CEIL_DIV: ["seq_q", t.block]}
        return product(keys, queries, "bias_heads", "bias_batch")
    if config.owns_rows:
        return product({CEIL_DIV: [features.longest_q, t.block]}, "heads", "batch")
    return product({CEIL_DIV: [config.longest_k, t.block]}, "kv_heads", "batch", t.slices)


def _shares_of_bias() -> dict[str, Expression]:
    """How many batch items, and heads, share one of the bias: what the proof does not need."""
    return {"batch": {TIMES: ["bias_batch", "over_batch"]}, "over_heads": {DIV: ["heads", "bias_heads"]}}


def _layout(config: GradientConfig) -> str:
    """Where the rows of the matrices lie."""
    strides = "the last dimension of all matrices is dense; the strides of the others are parameters"
    if not config.features.varlen:
        return (
            f"{strides}, so that [batch, heads, seq, dim], [batch, seq, heads, dim] and views of a larger "
            "buffer all work"
        )
    return (
        f"the sequences of a batch lie one after another; {strides}. Sequences may be empty. Rows that are "
        "in no sequence, or beyond what is used of one, are neither read nor written. Elsewhere seq_q and "
        "seq_k are a sequence's own numbers of queries and keys"
    )


def _constraints(config: GradientConfig) -> Iterator[str]:
    features, owner = config.features, config.owner
    matrices = [array.name for array in gradient_matrices(config)]
    numbers = [array.name for array in (*row_numbers(config), *config.terms)]
    sums = "".join(f"; {array.name} of {array.alignment}" for array in sums_of_queries(config))
    written = [array.name for array in gradient_arrays(config) if array.is_written]
    given = [array.name for array in gradient_matrices(config) if array.is_written]
    operands = [o.name for o in features.operands]
    of_operands = f"; {_and(operands)}, and their strides, of their elements' size" if operands else ""
    whose = "their" if len(matrices) > 1 else "its"
    yield (
        f"{_and(matrices)}, and {whose} strides in bytes, are multiples of {config.alignment} bytes"
        f"{f'; {_and(numbers)} of {F32_BYTES}' if numbers else ''}{sums}{of_operands}"
    )
    yield f"the last dimension of {_and(matrices)} is dense (stride 1)"
    yield "heads is a multiple of kv_heads"
    if owner == SCORES:
        yield "bias_batch is 1 or batch, and bias_heads is 1 or heads"
    yield f"{_EXACTLY}: the batch is known from the number of CTAs" if owner != SCORES else _EXACTLY
    several = f"{_and(written)} share" if len(written) > 1 else f"{written[0]} shares"
    unique = f", and no two indices of {_or(given)} name one element" if given else ""
    other = " or each other" if len(written) > 1 else ""
    yield f"{several} no memory with what is read{other}{unique}"
    if owner in _FROM_FORWARD:
        yield (
            f"{_FROM_FORWARD[owner]} what a forward launch with the same arrays and numbers wrote, by a "
            "kernel of the same options with return_lse"
        )
    yield from _order(config)
    terms = [term.name for term in config.terms]
    if terms and features.varlen:
        yield (
            f"{_and(terms)} {'hold' if len(terms) > 1 else 'holds'} 0 before the launch, which writes "
            "nothing for rows that a sequence does not have"
        )
    if terms:
        yield f"launches of the sum kernel, one for each of {_and(terms)}, come behind this one"
    if features.varlen:
        yield NOT_WRITTEN_MEANWHILE


def _order(config: GradientConfig) -> Iterator[str]:
    """What the launch relies on of other launches of the call."""
    if config.writes_deltas:
        yield (
            "this launch is the first of the gradients of a call: it writes D, which those with owner keys "
            "and owner scores read"
        )
    elif config.owner == SUMS:
        yield f"{SUMS_OF_QUERIES} was added to by a launch with owner keys in one sweep, {_ENDED}"
    else:
        one_sweep = config.tiling.adds_queries
        before = "queries, or deltas in one sweep," if config.owner == SCORES else "queries,"
        yield f"D was written by a launch with owner {'deltas,' if one_sweep else before} {_ENDED}"
        if one_sweep:
            yield (
                f"{SUMS_OF_QUERIES} holds 0 before the launch, whose CTAs add to it by atomics in any order: "
                "its last bits may differ from launch to launch. A launch with owner sums comes behind this "
                "one and writes dQ"
            )


def _and(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def _or(names: Sequence[str]) -> str:
    return " or of ".join(names)


def sum_contract(made: BuiltKernel, config: SumConfig) -> dict[str, Any]:
    """The contract of the kernel that sums terms."""
    meanings = meanings_of_pointers(config.arrays) | meanings_of_strides(config.arrays)
    for n in range(AXES):
        meanings[f"m{n}"] = f"elements of Y along axis {n}: 1 if all of X are summed, else n{n}"
        meanings[f"r{n}"] = f"elements of X for each of Y along axis {n}: n{n} / m{n}"
    meanings["sums"] = "elements of Y: the product of m0 to m3"
    meanings["terms"] = "elements of X for each element of Y: the product of r0 to r3"
    x, y = (array.name for array in config.arrays)
    return launch_contract(
        made,
        Words(
            kind="sum",
            computes={"dtype": config.dtype.name},
            meanings=meanings,
            ctas={CEIL_DIV: ["sums", WARPS]},
            constraints=[
                f"{x} and {y}, and their strides in bytes, are multiples of their elements' size",
                _EXACTLY,
                f"{y} shares no memory with {x}, and no two indices of {y} name one element",
                f"{x} was written by a launch that has ended: launch this one behind it on the same stream",
            ],
            more={
                "layout": (
                    "Y is the gradient of an array of scores as [batch, heads, queries, keys], with extent 1 "
                    "along the axes that the array does not have or was broadcast along"
                )
            },
        ),
    )

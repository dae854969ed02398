"""The launches of the kernels of gradients: those that own queries, keys or scores, and the
kernel that sums the terms of the gradients of arrays of scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from flash.contract.forward import CAUSAL, NOT_WRITTEN_MEANWHILE
from flash.contract.launches import (
    EXACTLY,
    HEADS,
    WHOLE_GROUPS,
    Launch,
    constraints_of_arrays,
    listed,
    mapped_strides,
    size,
    sizes_of_heads,
)
from flash.kernels.rounded_elements import THREADS, ElementsConfig
from flash.kernels.sum_terms import AXES, WARPS, SumConfig
from flash.kernels.widened_rows import ROWS, WideConfig
from flash.operands.declared import Number, Operand
from flash.operands.dtypes import F32
from flash.problem.gradient_arrays import gradient_arrays, gradient_matrices
from flash.problem.gradient_maps import gradient_maps
from flash.problem.gradients import (
    BEGUN_CTAS,
    DELTAS,
    ELEMENTS,
    KEYS,
    ORDER_OF_SUMS,
    QUERIES,
    SCORES,
    SUM_BLOCKS,
    SUMS,
    SUMS_OF_QUERIES,
    WIDE,
    GradientConfig,
)
from flash.problem.limits import MAX_CTAS, MAX_SEQ, max_seq
from ptxgen.contract.expressions import CEIL_DIV, DIV, PLUS, TIMES, Expression, product

_FROM_FORWARD: Final = {
    QUERIES: "O and LSE are",
    DELTAS: "O and LSE are",
    KEYS: "LSE is",
    SCORES: "LSE is",
    ELEMENTS: "LSE is",
}
_ENDED: Final = (
    "of the same options, arrays and numbers, that has ended: launch this one behind it on the same stream"
)


def of_gradients(config: GradientConfig) -> Launch:
    """The launches of the kernel of gradients of a configuration."""
    t = config.tiling
    return Launch(
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
        arrays=[_explained(config, array) for array in gradient_arrays(config)],
        scalars=(*_scalars(config),),
        ctas=_ctas(config),
        equal={"heads": HEADS} | config.features.scale_blocks,
        maps=gradient_maps(config),
        constraints=_constraints(config),
        more={
            "alignment": config.alignment,
            "layout": _layout(config),
            "causal": {"mode": config.causal or "none", "meaning": CAUSAL[config.causal]},
        },
        of_hosts=_OF_BIAS if config.owner == SCORES else _sum_blocks(config),
    )


def _sum_blocks(config: GradientConfig) -> dict[str, Expression]:
    """The number of blocks of sums of dQ of a head, if the kernel has such blocks."""
    if config.sum_block is None:
        return {}
    full: Expression = {CEIL_DIV: [config.features.row_counts[0], config.sum_block[0]]}
    return {SUM_BLOCKS.name: {PLUS: [full, "batch"]} if config.features.varlen else full}


def _scalars(config: GradientConfig) -> Iterator[Number]:
    """The sizes of launches, and the other scalars."""
    features, longest = config.features, max_seq(config.features)
    rows_q, rows_k = features.row_counts
    whose = "of all sequences" if features.varlen else "of each head"
    least_q, least_k = (
        int(config.owner == SCORES or is_owner) for is_owner in (config.owns_rows, not config.owns_rows)
    )
    without_q = "; without queries dK and dV are 0" if config.owner == KEYS else ""
    without_k = "; without keys dQ is 0" if config.owner == QUERIES else ""
    yield from sizes_of_heads(
        size(rows_q, longest, f"queries {whose}, {least_q} to {longest}{without_q}", least=least_q),
        size(rows_k, longest, f"keys {whose}, {least_k} to {longest}{without_k}", least=least_k),
        "that of the forward launch",
    )
    yield from config.numbers
    for name in features.scale_blocks:
        yield size(name, -(-longest // features.scale_block), least=0)


def _explained(config: GradientConfig, array: Operand) -> Operand:
    """An array with what a host must know of it besides its role."""
    if array.name in {term.name for term in config.terms} and config.owner != ELEMENTS:
        axes = array.axes if len(array.axes) == AXES else (*array.axes[:2], "1", array.axes[2])
        return replace(array, meaning=f"the sum kernel takes it as X of [{', '.join(axes)}]")
    if array.name == "LSE":
        return replace(array, meaning="-inf of a row that sees no key and has no sink")
    return array


def _ctas(config: GradientConfig) -> Expression:
    """The number of CTAs along x."""
    t, features = config.tiling, config.features
    if config.owner == SCORES:
        keys, queries = {CEIL_DIV: ["seq_k", t.tile]}, {CEIL_DIV: ["seq_q", t.block]}
        return product(keys, queries, "bias_heads", "bias_batch")
    if config.owns_rows:
        return product({CEIL_DIV: [features.longest_q, t.block]}, "heads", "batch")
    return product({CEIL_DIV: [config.longest_k, t.block]}, "kv_heads", "batch", t.slices)


# How many batch items, and heads, share one of the bias: what the proof does not need.
_OF_BIAS: Final[dict[str, Expression]] = {
    "batch": {TIMES: ["bias_batch", "over_batch"]},
    "over_heads": {DIV: ["heads", "bias_heads"]},
}


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
    yield from constraints_of_arrays(gradient_arrays(config))
    yield WHOLE_GROUPS
    if mapped := gradient_maps(config):
        yield mapped_strides(mapped)
    if owner == SCORES:
        yield "bias_batch is 1 or batch, and bias_heads is 1 or heads"
    yield f"{EXACTLY}: the batch is known from the number of CTAs" if owner != SCORES else EXACTLY
    if owner in _FROM_FORWARD:
        yield (
            f"{_FROM_FORWARD[owner]} what a forward launch with the same arrays and numbers wrote, by a "
            "kernel of the same options with return_lse"
        )
    if config.is_fp8:
        wide = [array.name for array in gradient_matrices(config) if array.name.endswith(WIDE)]
        yield f"{listed(wide)} are what launches of the kernel of widened rows, that have ended, wrote as W"
    yield from _order(config)
    terms = [term.name for term in config.terms]
    if owner == ELEMENTS:
        yield (
            f"{listed(terms)} {'hold' if len(terms) > 1 else 'holds'} 0 before the launch, whose CTAs add to "
            "them in any order, with the same bits. Launches of the kernel of rounded elements, one for "
            "each, follow"
        )
        terms = []
    if terms and features.varlen:
        yield (
            f"{listed(terms)} {'hold' if len(terms) > 1 else 'holds'} 0 before the launch, which writes "
            "nothing for rows that a sequence does not have"
        )
    if terms:
        yield f"launches of the sum kernel, one for each of {listed(terms)}, come behind this one"
    if features.varlen:
        yield NOT_WRITTEN_MEANWHILE


def _order(config: GradientConfig) -> Iterator[str]:
    """The constraints on the order of this launch and other launches of a call."""
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
            how = "by atomics in any order: its last bits may differ from launch to launch"
            if config.adds_in_order:
                how = f"in a fixed order. {ORDER_OF_SUMS} and {BEGUN_CTAS} hold 0 before the launch, too"
            yield (
                f"{SUMS_OF_QUERIES} holds 0 before the launch, whose CTAs add to it {how}. A launch with "
                "owner sums comes behind this one and writes dQ"
            )


def of_sums(config: SumConfig) -> Launch:
    """The launches of the kernel that sums terms: an axis of n elements becomes m sums of r terms each."""
    axes = range(AXES)
    scalars = [
        *[size(f"r{n}", MAX_CTAS, f"elements of X for each of Y along axis {n}: n{n} / m{n}") for n in axes],
        *[
            size(f"m{n}", MAX_CTAS, f"elements of Y along axis {n}: 1 if all of X are summed, else n{n}")
            for n in axes
        ],
        *[size(f"n{n}", MAX_CTAS) for n in axes],
        size("sums", MAX_CTAS, "elements of Y: the product of m0 to m3"),
        size("terms", MAX_CTAS, "elements of X for each element of Y: the product of r0 to r3"),
    ]
    equal = {f"n{n}": product(f"m{n}", f"r{n}") for n in axes}
    equal |= {"sums": product(*[f"m{n}" for n in axes]), "terms": product(*[f"r{n}" for n in axes])}
    return Launch(
        kind="sum",
        computes={"dtype": config.dtype.name},
        arrays=config.arrays,
        scalars=scalars,
        ctas={CEIL_DIV: ["sums", WARPS]},
        equal=equal,
        constraints=(
            *constraints_of_arrays(config.arrays),
            EXACTLY,
            "X was written by a launch that has ended: launch this one behind it on the same stream",
        ),
        more={
            "layout": (
                "Y is the gradient of an array of scores as [batch, heads, queries, keys], with extent 1 "
                "along the axes that the array does not have or was broadcast along"
            )
        },
    )


def of_elements(config: ElementsConfig) -> Launch:
    """The launches of the kernel that rounds exact sums."""
    return Launch(
        kind="round",
        computes={"dtype": config.dtype.name},
        arrays=config.arrays,
        scalars=[size("elements", MAX_CTAS, "elements of Y: those of the array whose gradient it is")],
        ctas={CEIL_DIV: ["elements", THREADS]},
        equal={},
        constraints=(
            *constraints_of_arrays(config.arrays),
            EXACTLY,
            "X was added to by a launch with owner elements that has ended: launch this one behind it on the "
            "same stream",
        ),
        more={"layout": "Y is dense, in the order of the elements of X"},
    )


def of_widening(config: WideConfig) -> Launch:
    """The launches of the kernel that writes rows of fp8 in bf16."""
    longest, rows = MAX_SEQ, config.scale_block
    scalars = [
        size("group", MAX_CTAS, "heads that share a scale: heads / kv_heads, a whole number"),
        size("rows", longest, "rows of each head"),
        *(size(name, MAX_CTAS) for name in ("batch", "kv_heads")),
        size("heads", MAX_CTAS, "heads of X"),
        *([size("blocks", -(-longest // rows))] if rows else []),
    ]
    return Launch(
        kind="widen",
        computes={"dtype": config.dtype.name, "columns": config.columns},
        arrays=config.arrays,
        scalars=scalars,
        ctas=product({CEIL_DIV: ["rows", ROWS]}, "heads", "batch"),
        equal={"heads": HEADS} | ({"blocks": {CEIL_DIV: ["rows", rows]}} if rows else {}),
        constraints=(*constraints_of_arrays(config.arrays), WHOLE_GROUPS, EXACTLY),
        more={"layout": "the last dimension of X and W is dense; the strides of the others are parameters"},
    )

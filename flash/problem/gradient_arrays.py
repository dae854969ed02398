"""The arrays that gradient kernels read and write: matrices, numbers of rows and sums."""

from __future__ import annotations

from typing import Final

from flash.families.request import natural_alignment
from flash.families.wgmma_gradient import CONSUMERS
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, I32
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

_MATRICES: Final = {
    QUERIES: ("Q", "K", "V", "dO", "O", "dQ"),
    KEYS: ("Q", "K", "V", "dO", "dK", "dV"),
    SCORES: ("Q", "K", "V", "dO"),
    ELEMENTS: ("Q", "K", "V", "dO"),
    DELTAS: ("dO", "O"),
    SUMS: ("dQ",),
}
# The factors of the products that sum gradients, and that of D, which kernels of fp8 also read in bf16.
_WIDENED: Final = {QUERIES: ("K_wide", "dO_wide"), KEYS: ("Q_wide", "dO_wide")}


def gradient_arrays(config: GradientConfig) -> tuple[Operand, ...]:
    """All arrays of a gradient kernel, in the order of its pointer parameters."""
    of_sums = (*sums_of_queries(config), *order_of_sums(config))
    of_kernel = (*row_numbers(config), *of_sums, *config.terms)
    return (*gradient_matrices(config), *of_kernel, *config.features.operands)


def gradient_matrices(config: GradientConfig) -> tuple[Operand, ...]:
    """The matrices that a gradient kernel reads and writes, such as Q, dO and dK."""
    t, features = config.tiling, config.features
    rows_q, rows_k = features.row_counts
    queries, keys = ("heads", rows_q), ("kv_heads", rows_k)
    of_d, of_d_v = (t.head_dim, "head_dim"), (t.head_dim_v, "head_dim_v")
    every = [
        ("Q", queries, of_d, "the queries, read"),
        ("K", keys, of_d, "the keys, read"),
        ("V", keys, of_d_v, "the values, read"),
        ("dO", queries, of_d_v, "the gradient of the output, read"),
        ("O", queries, of_d_v, "the output, read"),
        ("dQ", queries, of_d, "the gradient of the queries, written"),
        ("dK", keys, of_d, "the gradient of the keys, written"),
        ("dV", keys, of_d_v, "the gradient of the values, written"),
    ]
    matrices = [one for one in every if one[0] in _MATRICES[config.owner]]
    if config.is_fp8:
        for wide in _WIDENED[config.owner]:
            name, rows, columns, _ = next(one for one in every if one[0] == wide.removesuffix(WIDE))
            matrices.append((wide, rows, columns, f"the numbers of {name} times their scales, read"))
    return tuple(
        Operand(
            name,
            config.type_of(name),
            tuple({"batch": "batch", "head": heads, "row": rows}[step] for step in features.steps),
            columns=columns,
            last=last,
            steps=features.steps,
            role=role,
            is_written=role.endswith("written"),
            align=config.alignment,
        )
        for name, (heads, rows), (columns, last), role in matrices
    )


def row_numbers(config: GradientConfig) -> tuple[Operand, ...]:
    """LSE, D, and the gradient of LSE if the kernel reads it: an f32 for each row of each head."""
    if config.owner == SUMS:
        return ()
    writes = config.writes_deltas
    roles = {
        "LSE": "the log-sum-exp (natural logarithm) of each row's scaled scores, read",
        "D": "the sum of O times its gradient over each row, less the gradient of LSE, "
        + ("written" if writes else "read"),
    }
    if config.reads_dlse:
        roles["dLSE"] = "the gradient of LSE, read"
    axes = () if config.features.varlen else ("batch",)
    return tuple(
        Operand(
            name,
            F32,
            (*axes, "heads", config.features.row_counts[0]),
            role=role,
            is_written=name == "D" and writes,
            is_dense=True,
        )
        for name, role in roles.items()
    )


def sums_of_queries(config: GradientConfig) -> tuple[Operand, ...]:
    """The sums of dQ in f32, before they are multiplied by the scale: a dense row of head_dim for each
    row of each head; none in a kernel without them.
    """
    if config.owner != SUMS and not config.tiling.adds_queries:
        return ()
    axes = () if config.features.varlen else ("batch",)
    rows, columns, last = config.features.row_counts[0], config.tiling.head_dim, "head_dim"
    if config.sum_block is not None:
        block_rows, block_columns = config.sum_block
        rows, columns, last = SUM_BLOCKS.name, block_rows * block_columns, f"{block_rows} * {block_columns}"
    return (
        Operand(
            SUMS_OF_QUERIES,
            F32,
            (*axes, "heads", rows),
            columns=columns,
            last=last,
            role="the sums of the gradient of the queries before their scale, "
            + ("read" if config.owner == SUMS else "added to"),
            is_written=config.owner != SUMS,
            is_dense=True,
            align=natural_alignment(columns, columns, F32),
        ),
    )


def order_of_sums(config: GradientConfig) -> tuple[Operand, ...]:
    """The counters by which CTAs add to sums of dQ in a fixed order: of the CTAs that have added to each half
    of a block, and of the CTAs that have begun; none in a kernel without an order.
    """
    if not config.adds_in_order:
        return ()
    axes = () if config.features.varlen else ("batch",)
    role = "the CTAs that have added to each half of a block of sums, 0 before the launch, read and written"
    of_blocks = Operand(
        ORDER_OF_SUMS,
        I32,
        (*axes, "heads", SUM_BLOCKS.name),
        columns=CONSUMERS,
        last=str(CONSUMERS),
        role=role,
        is_written=True,
        is_dense=True,
    )
    role = "the CTAs that have begun, 0 before the launch, read and written"
    return of_blocks, Operand(BEGUN_CTAS, I32, ("1",), role=role, is_written=True, is_dense=True)

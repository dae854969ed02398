"""The arrays of an attention kernel, as its parameters, its contract and its launches take them."""

from __future__ import annotations

from flash.operands.declared import Operand
from flash.operands.dtypes import I32
from flash.problem.kernel_config import KernelConfig


def arrays_of(config: KernelConfig) -> tuple[Operand, ...]:
    """Q, K, V, O, the other outputs, the operands of the features, and the counter of tickets if the kernel
    takes tickets, in the order of the kernel's pointers.
    """
    return (*matrices(config), *outputs(config), *config.features.operands, *tickets(config))


def tickets(config: KernelConfig) -> tuple[Operand, ...]:
    """The counter from which CTAs take the numbers of their parts; empty if they do not."""
    role = "a counter, 0 before a launch and again behind it, read and written"
    counter = Operand("tickets", I32, ("1",), role=role, is_written=True, is_dense=True)
    return (counter,) if config.takes_tickets else ()


def matrices(config: KernelConfig) -> tuple[Operand, ...]:
    """The matrices Q, K, V and O of the attention problem, in this order."""
    t, features = config.tiling, config.features
    rows_q, rows_k = features.row_counts
    new = features.appended is not None
    of_keys = f"read{', and new rows written' if new else ''}"
    mx = features.mx
    of_scores = (t.head_dim, "head_dim") if mx is None else (t.head_dim // mx.format.in_byte, mx.of_scores)
    bytes_of = ", two in a byte, of which the first is its lower half" if of_scores[0] < t.head_dim else ""
    return tuple(
        Operand(
            name,
            of,
            tuple([_extent(config, name, heads, rows, step) for step in features.steps_of(name)]),
            columns=of.in_row(columns),
            last=of.length(last),
            steps=features.steps_of(name),
            role=role,
            is_written=name == "O" or (new and name in ("K", "V")),
            align=config.alignment_of(name),
            shape=f"{rows}, {heads}, {last}" if rows in ("total_q", "total_k") else "",
        )
        for name, heads, rows, columns, last, role in (
            ("Q", "heads", rows_q, *of_scores, f"the queries{bytes_of}, read"),
            ("K", "kv_heads", rows_k, *of_scores, f"the keys{bytes_of}, {of_keys}"),
            ("V", "kv_heads", rows_k, t.head_dim_v, "head_dim_v", f"the values, {of_keys}"),
            ("O", "heads", rows_q, t.head_dim_v, "head_dim_v", "the output, written"),
        )
        for of in [config.element_of(name)]
    )


def outputs(config: KernelConfig) -> tuple[Operand, ...]:
    """The arrays that the kernel writes besides O: LSE and the largest score, if wanted."""
    return tuple([output.operand(config.features) for output in config.outputs])


def _extent(config: KernelConfig, name: str, heads: str, rows: str, step: str) -> str:
    """The extent of the axis `step` of one of Q, K, V and O."""
    features = config.features
    of_keys = name in ("K", "V")
    return {
        "batch": features.kv_batch if of_keys else "batch",
        "head": heads,
        "row": str(features.page_size) if of_keys and features.page_size else rows,
        "split": "splits",
        "page": "pages",
    }[step]

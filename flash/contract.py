"""The launch contract of a forward kernel: all that a host program in any language needs to launch
it.

`parameters` is the one place that says what each kernel parameter means.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

from flash.config import KernelConfig
from flash.dtypes import F32_BYTES, DType
from flash.features import NO_FEATURES, Features
from flash.launch import MAX_CTAS, max_seq
from ptxgen import ir
from ptxgen.check.budget import static_shared_bytes
from ptxgen.check.global_contract import Axis, GlobalArray, GlobalContract
from ptxgen.runtime.plan import param_slots

SCHEMA: Final = 1  # of the dictionary; raised when a key changes its meaning


@functools.cache
def parameters(dtype: DType, features: Features = NO_FEATURES) -> dict[str, str]:
    """What each parameter of a kernel for Q, K, V and O of this type means, in the kernel's
    order.
    """
    rows = {"Q": "head_dim", "K": "head_dim", "V": "head_dim_v", "O": "head_dim_v"}
    sizes = {
        "Q": "batch, heads, seq_q",
        "K": "batch, kv_heads, seq_k",
        "V": "batch, kv_heads, seq_k",
        "O": "batch, heads, seq_q",
    }
    use = {
        "Q": "the queries, read",
        "K": "the keys, read",
        "V": "the values, read",
        "O": "the output, written",
    }
    meanings = {
        name: (
            f"device address of {use[name]}: {dtype.name} [{sizes[name]}, {rows[name]}], strides "
            "as below"
        )
        for name in rows
    }
    meanings["LSE"] = (
        "device address of the log-sum-exp of each row's scaled scores, written: natural "
        "logarithm, f32 [batch, heads, seq_q], dense; -inf for a row that sees no key"
    )
    for operand in features.operands:
        meanings[operand.name] = (
            f"device address of {operand.name}: {operand.dtype.name} "
            f"[{', '.join(operand.axes)}], read, strides as below; {operand.meaning}"
        )
    steps = {
        "batch": "one batch to the next",
        "head": "one head to the next",
        "row": "one sequence position to the next",
    }
    for name in rows:
        for what, step in steps.items():
            meanings[f"{name}_{what}_stride"] = (
                f"elements (of {dtype.nbytes} bytes) from {step} in {name}; any sign, 0 repeats"
            )
    longest = max_seq(features)
    lse = "LSE is the sink" if features.sink else "LSE is -inf"
    meanings["seq_q"] = f"queries of each head, 1 to {longest}"
    meanings["seq_k"] = f"keys of each head, 0 to {longest}; with 0 the output is 0 and {lse}"
    meanings["heads"] = "heads of Q and O, at least 1"
    meanings["group"] = (
        "heads / kv_heads, a whole number: query head h reads key/value head h / group, rounded "
        "down"
    )
    meanings["softmax_scale"] = "factor of Q K^T before the softmax, usually 1 / sqrt(head_dim)"
    meanings |= {number.name: number.meaning for number in features.numbers}
    for operand in features.operands:
        for axis in operand.axes:
            meanings[operand.stride(axis)] = (
                f"elements (of {operand.dtype.nbytes} bytes) from one to the next of {axis} in "
                f"{operand.name}; any sign, 0 repeats"
            )
    return meanings


CAUSAL: Final[dict[str, str]] = {
    "": "none: every query sees every key",
    "bottom_right": (
        "query i sees the keys 0 to i + seq_k - seq_q, so the last query sees every key; a row "
        "that sees none gives 0"
    ),
    "top_left": "query i sees the keys 0 to i; keys beyond the last query are seen by none",
}


def contract(config: KernelConfig, module: ir.Module, text: str) -> dict[str, Any]:
    """The contract of the kernel of `config` as plain data for JSON; `text` is the module as
    rendered.

    Sizes and offsets are in bytes unless the key says elements.
    """
    kernel = module.kernels[0]
    t = config.tiling
    meanings = parameters(config.dtype, config.features)
    return {
        "schema": SCHEMA,
        "entry": kernel.name,
        "target": module.target,
        "ptx_version": ".".join(str(part) for part in module.version),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "dtype": config.dtype.name,
        "precision": config.precision,
        "head_dim": t.head_dim,
        "head_dim_v": t.head_dim_v,
        "tile": t.tile,
        "block_q": t.block_q,
        "parameters": [
            {
                "name": s.name,
                "type": s.type,
                "offset": s.offset,
                "size": s.nbytes,
                "meaning": meanings[s.name],
            }
            for s in param_slots(kernel.params)
        ],
        "block": [t.threads, 1, 1],
        "grid": {
            **_grid(config),
            "y": 1,
            "z": 1,
        },
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "static_shared_bytes": static_shared_bytes(kernel),
        "alignment": config.alignment,
        "constraints": _constraints(config, kernel),
        "layout": (
            "the last dimension of Q, K, V and O is dense; the strides of the others are "
            "parameters, so that [batch, heads, seq, dim], [batch, seq, heads, dim] and views of "
            "a larger buffer all work"
        ),
        "causal": {"mode": config.causal or "none", "meaning": CAUSAL[config.causal]},
        "lse": meanings["LSE"]
        if config.return_lse
        else "not written: the kernel was made with return_lse=False",
    }


def _times(factors: list[int]) -> str:
    return "".join(f" * {factor}" for factor in factors)


def _grid(config: KernelConfig) -> dict[str, Any]:
    """How many CTAs there are along x. Rows that are packed are those of all heads of a group."""
    t = config.tiling
    slices = [t.value_slices] if t.value_slices > 1 else []
    if config.packed:
        rows, heads = "seq_q * group", "(heads / group)"
        sizes: tuple[Any, Any] = {"times": ["seq_q", "group"]}, {"div": ["heads", "group"]}
    else:
        rows, heads = sizes = "seq_q", "heads"
    return {
        "formula": f"(ceil({rows} / {t.block_q}) * {heads} * batch{_times(slices)}, 1, 1)",
        "x": {"ceil_div": [sizes[0], t.block_q], "times": [sizes[1], "batch", *slices]},
    }


def _constraints(config: KernelConfig, kernel: ir.Kernel) -> list[str]:
    shared = kernel.dynamic_shared_bytes
    constraints = [
        f"Q, K, V and O, and their strides in bytes, are multiples of {config.alignment} bytes; "
        f"LSE is a multiple of {F32_BYTES}",
        "the last dimension of Q, K, V and O is dense (stride 1)",
        f"seq_q and seq_k are at most {max_seq(config.features)}",
        *([f"seq_q * group is at most {max_seq(config.features)}"] if config.packed else []),
        "heads is a multiple of kv_heads",
        "block and grid are exactly as given: the batch is known from the number of CTAs",
        f"the grid has 1 to {MAX_CTAS} CTAs: with no query there is nothing to launch",
        "O and LSE share no memory with what is read or each other, and no two indices of O name "
        "one element",
        f"the device runs {config.target}"
        + (
            " and nothing else (architecture-specific target)"
            if config.target.suffix
            else " or later"
        ),
    ]
    if shared > config.target.shared_per_block:
        constraints.append(
            "before the first launch set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the "
            f"function to {shared}"
        )
    return constraints


def global_contract(config: KernelConfig) -> GlobalContract:
    """The same contract as the proof of global accesses takes it.

    `batch` and `kv_heads` are no parameters: the grid and `group` carry them.
    """
    t = config.tiling
    arrays = [
        _array(config, name, heads, rows, columns)
        for name, heads, rows, columns in (
            ("Q", "heads", "seq_q", t.head_dim),
            ("K", "kv_heads", "seq_k", t.head_dim),
            ("V", "kv_heads", "seq_k", t.head_dim_v),
            ("O", "heads", "seq_q", t.head_dim_v),
        )
    ]
    strides = tuple(f"{a.pointer}_{step}_stride" for a in arrays for step in _STEPS)
    if config.return_lse:
        row = Axis("seq_q", F32_BYTES)
        heads = Axis("batch * heads", f"{F32_BYTES} * seq_q")
        arrays.append(GlobalArray("LSE", (heads, row), F32_BYTES, F32_BYTES))
    longest = max_seq(config.features)
    for operand in config.features.operands:
        nbytes = operand.dtype.nbytes
        axes = tuple(Axis(axis, f"{nbytes} * {operand.stride(axis)}") for axis in operand.axes)
        arrays.append(GlobalArray(operand.name, axes, nbytes, nbytes))
        strides += tuple(operand.stride(axis) for axis in operand.axes)
    bounds = {  # first what others are multiplied with: the proof does away with the last one first
        "group": (1, MAX_CTAS),
        "seq_q": (1, longest),
        "seq_k": (0, longest),
        "batch": (1, MAX_CTAS),
        "kv_heads": (1, MAX_CTAS),
        "heads": (1, MAX_CTAS),
        **{n.name: n.bounds for n in config.features.numbers if n.bounds is not None},
    }
    equal = {"heads": "group * kv_heads"}
    rows, of = "seq_q", "heads"
    if config.packed:
        rows, of = "rows", "kv_heads"
        bounds["rows"], equal["rows"] = (1, longest), "seq_q * group"
    blocks = f"({rows} + {t.block_q - 1}) // {t.block_q}"
    grid = f"{blocks} * {of} * batch * {t.value_slices}", 1, 1
    return GlobalContract(tuple(arrays), strides, bounds, grid, equal)


_STEPS: Final = ("batch", "head", "row")


def _array(config: KernelConfig, name: str, heads: str, rows: str, columns: int) -> GlobalArray:
    extents, nbytes = ("batch", heads, rows), config.dtype.nbytes
    axes = tuple(
        Axis(extent, f"{nbytes} * {name}_{step}_stride")
        for extent, step in zip(extents, _STEPS, strict=True)
    )
    return GlobalArray(name, axes, columns * nbytes, config.alignment)

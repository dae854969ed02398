"""The verified kernels other than attention: the kernel that appends new rows to a cache, and the
kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flash.contract.built_kernel import Made
from flash.kernels import append, merge
from flash.kernels.append import AppendConfig, append_kernel
from flash.kernels.merge import MERGE_STRIDES, MergeConfig, merge_kernel
from flash.operands.dtypes import F32_BYTES
from flash.problem.features import MAX_SPLITS
from ptxgen import ir
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.verify import require_valid


class AppendBuild(Made):
    """A verified append kernel."""

    def __init__(self, config: AppendConfig, module: ir.Module) -> None:
        super().__init__(module, append.THREADS, config.target)
        self.config = config

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.cache.append_contract`."""
        # Imported here, because emitting text does not need it.
        from flash.contract.cache import append_contract

        return append_contract(self)

    @property
    def promised(self) -> GlobalContract:
        """The contract of the launches; `new_rows` is batch * kv_heads * n, `q_rows` batch * heads
        * seq_q.
        """
        config, features = self.config, self.config.features
        page_size = features.page_size
        of_cache: dict[str, int | str] = {
            "batch": features.kv_batch,
            "page": "pages",
            "head": "kv_heads",
            "row": page_size or "seq_k",
        }
        extents: dict[str, dict[str, int | str]] = {
            "K": of_cache,
            "V": of_cache,
            "K_NEW": {"batch": "batch", "head": "kv_heads", "row": "n"},
            "V_NEW": {"batch": "batch", "head": "kv_heads", "row": "n"},
            "Q": {"batch": "batch", "head": "heads", "row": "seq_q"},
            "Q_OUT": {"batch": "batch", "head": "heads", "row": "seq_q"},
            "COS": {"row": "positions"},
            "SIN": {"row": "positions"},
        }
        arrays, strides = [], []
        for name, (steps, columns) in config.arrays.items():
            nbytes = config.element_of(name).nbytes
            axes = (Axis(extents[name][s], f"{nbytes} * {name}_{s}_stride") for s in steps)
            arrays.append(GlobalArray(name, tuple(axes), columns * nbytes, nbytes))
            strides += [f"{name}_{step}_stride" for step in steps]
        for operand in config.operands:
            nbytes = operand.dtype.nbytes
            axes = (Axis(operand.extent(a), f"{nbytes} * {operand.stride(a)}") for a in operand.axes)
            arrays.append(GlobalArray(operand.name, tuple(axes), nbytes, nbytes))
            strides += [operand.stride(axis) for axis in operand.axes]
        bounds = dict.fromkeys(("batch", *config.counts), (1, append.MAX_ROWS))
        bounds |= {n.name: n.bounds for n in features.numbers if n.bounds is not None}
        equal: dict[str, int | str] = {"new_rows": "batch * kv_heads * n"}
        rows = "new_rows"
        if config.rotary_dim:
            equal["q_rows"] = "batch * heads * seq_q"
            rows = "new_rows + q_rows"
        if page_size:
            bounds["table_columns"] = (1, append.MAX_ROWS // page_size)
            equal["seq_k"] = f"{page_size} * table_columns"
        grid = (f"({rows} + {append.WARPS - 1}) // {append.WARPS}", 1, 1)
        return GlobalContract(tuple(arrays), tuple(strides), bounds, grid, equal)


@lru_cache(maxsize=64)
def append_build(config: AppendConfig) -> AppendBuild:
    """The append kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = append_kernel(config)
    require_valid(module)
    return AppendBuild(config, module)


class MergeBuild(Made):
    """A verified merge kernel."""

    def __init__(self, config: MergeConfig, module: ir.Module) -> None:
        super().__init__(module, merge.THREADS, config.target)
        self.config = config

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.cache.merge_contract`."""
        # Imported here, because emitting text does not need it.
        from flash.contract.cache import merge_contract

        return merge_contract(self)

    @property
    def promised(self) -> GlobalContract:
        """The contract of the launches. `rows` counts the rows of all heads of all batches; `LSES`
        has `splits` elements for each row.
        """
        config = self.config
        parts, result = config.parts.nbytes, config.dtype.nbytes
        axes = [("batch", "batch"), ("head", "heads"), ("row", "seq_q")]
        of_parts = (*axes, ("split", "splits"))
        rows = Axis("batch * heads * seq_q", f"{F32_BYTES} * LSES_row_stride")
        arrays = [
            GlobalArray(
                "PARTS",
                tuple(Axis(n, f"{parts} * PARTS_{s}_stride") for s, n in of_parts),
                config.head_dim_v * parts,
                config.width * parts,
            ),
            GlobalArray(
                "LSES", (rows, Axis("splits", f"{F32_BYTES} * LSES_split_stride")), F32_BYTES, F32_BYTES
            ),
            GlobalArray(
                "O",
                tuple(Axis(n, f"{result} * O_{s}_stride") for s, n in axes),
                config.head_dim_v * result,
                config.width * result,
            ),
        ]
        if config.return_lse:
            of_rows = (Axis("batch * heads * seq_q", F32_BYTES),)
            arrays.append(GlobalArray("LSE", of_rows, F32_BYTES, F32_BYTES))
        strides = tuple(f"{array}_{step}_stride" for array, steps in MERGE_STRIDES.items() for step in steps)
        bounds = dict.fromkeys(("heads", "seq_q", "batch", "rows"), (1, merge.MAX_ROWS))
        bounds["splits"] = (1, MAX_SPLITS)
        equal = {"rows": "batch * heads * seq_q"}
        grid = (f"(rows + {merge.WARPS - 1}) // {merge.WARPS}", 1, 1)
        return GlobalContract(tuple(arrays), strides, bounds, grid, equal)


@lru_cache(maxsize=64)
def merge_build(config: MergeConfig) -> MergeBuild:
    """The merge kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = merge_kernel(config)
    require_valid(module)
    return MergeBuild(config, module)

"""The verified kernels of gradients, and the contract of their launches."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.kernels.gradient_rows import deltas, rounded_sums
from flash.kernels.mma_gradient_keys import gradient_of_keys
from flash.kernels.mma_gradient_queries import gradient_of_queries
from flash.kernels.mma_gradient_scores import gradient_of_scores
from flash.kernels.sum_terms import AXES, THREADS, WARPS, SumConfig, sum_kernel
from flash.operands.declared import Operand
from flash.problem.gradients import DELTAS, KEYS, QUERIES, SCORES, SUMS, GradientConfig, gradient_arrays
from flash.problem.limits import MAX_CTAS, max_seq
from ptxgen import ir
from ptxgen.check.verify import require_valid

if TYPE_CHECKING:
    from ptxgen.check.prove.contract import GlobalContract


class GradientBuild(BuiltKernel):
    """A verified kernel of gradients."""

    def __init__(self, config: GradientConfig, module: ir.Module) -> None:
        super().__init__(module, config.tiling.threads, config.target)
        self.config = config

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The matrices, the numbers of rows, and the operands."""
        return gradient_arrays(self.config)

    @property
    def promised(self) -> GlobalContract:
        """The contract of the kernel's launches, as the proofs take it."""
        # Imported here, because emitting text does not need it.
        from flash.contract.common import promised_launch

        config, t, features = self.config, self.config.tiling, self.config.features
        of_queries = config.owns_rows
        rows_q, rows_k = features.row_counts
        longest = max_seq(features)
        bounds = {  # factors of other sizes first: the proof eliminates the last size first
            "group": (1, MAX_CTAS),
            rows_q: (int(of_queries), longest),
            rows_k: (int(not of_queries), longest),
            "batch": (1, MAX_CTAS),
            "kv_heads": (1, MAX_CTAS),
            "heads": (1, MAX_CTAS),
            **{n.name: n.bounds for n in config.numbers if n.bounds is not None},
        }
        rows, heads, slices = features.longest_q, "heads", 1
        if not of_queries:
            rows, heads, slices = config.longest_k, "kv_heads", t.slices
        if config.owner == SCORES:
            tiles = f"(seq_k + {t.tile - 1}) // {t.tile} * ((seq_q + {t.block - 1}) // {t.block})"
            equal = {"heads": "group * kv_heads"}
            blocks = f"{tiles} * bias_heads * bias_batch"
            bounds |= {rows_q: (1, longest), rows_k: (1, longest)}
            return promised_launch(gradient_arrays(config), bounds, blocks, equal)
        blocks = f"({rows} + {t.block - 1}) // {t.block} * {heads} * batch * {slices}"
        return promised_launch(gradient_arrays(config), bounds, blocks, {"heads": "group * kv_heads"})

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.gradient_launches.gradient_contract`."""
        from flash.contract.gradient_launches import gradient_contract

        return gradient_contract(self, self.config)


EMITTERS: Final = {
    QUERIES: gradient_of_queries,
    KEYS: gradient_of_keys,
    SCORES: gradient_of_scores,
    DELTAS: deltas,
    SUMS: rounded_sums,
}


def emit_gradient(config: GradientConfig) -> ir.Module:
    """The module of a configuration; not verified."""
    return EMITTERS[config.owner](config)


@lru_cache(maxsize=128)
def verified_gradient(config: GradientConfig) -> GradientBuild:
    """The kernel of gradients of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = emit_gradient(config)
    require_valid(module)
    return GradientBuild(config, module)


def gradient_build(config: GradientConfig) -> GradientBuild:
    """The kernel of gradients of a configuration, for a launch: no fault is known in its accesses to
    memory.

    Raises `VerifyError` for a fault of the generator's.
    """
    made = verified_gradient(config)
    made.require_proved()
    return made


class SumBuild(BuiltKernel):
    """A verified kernel that sums terms of gradients."""

    def __init__(self, config: SumConfig, module: ir.Module) -> None:
        super().__init__(module, THREADS, config.target)
        self.config = config

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The terms and their sums."""
        return self.config.arrays

    @property
    def promised(self) -> GlobalContract:
        """The contract of the kernel's launches, as the proofs take it: an axis of n elements has m
        sums of r terms each.
        """
        # Imported here, because emitting text does not need it.
        from flash.contract.common import promised_launch

        names = [f"{of}{n}" for of in "rmn" for n in range(AXES)]
        bounds = dict.fromkeys((*names, "sums", "terms"), (1, MAX_CTAS))
        equal = {f"n{n}": f"m{n} * r{n}" for n in range(AXES)}
        equal |= {
            name: " * ".join(f"{of}{n}" for n in range(AXES)) for name, of in (("sums", "m"), ("terms", "r"))
        }
        return promised_launch(self.arrays, bounds, f"(sums + {WARPS - 1}) // {WARPS}", equal)

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.gradient_launches.sum_contract`."""
        from flash.contract.gradient_launches import sum_contract

        return sum_contract(self, self.config)


@lru_cache(maxsize=16)
def verified_sum(config: SumConfig) -> SumBuild:
    """The kernel that sums terms. Raises `VerifyError` for a fault of the generator's."""
    module = sum_kernel(config)
    require_valid(module)
    return SumBuild(config, module)


def sum_build(config: SumConfig) -> SumBuild:
    """The kernel that sums terms, for a launch: no fault is known in its accesses to memory. Raises
    `VerifyError` for a fault of the generator's.
    """
    made = verified_sum(config)
    made.require_proved()
    return made

"""The verified kernels of gradients, and the contract of their launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from flash.contract.built_kernel import BuiltKernel
from flash.kernels.gradient_rows import deltas, rounded_sums
from flash.kernels.mma_gradient_keys import gradient_of_keys
from flash.kernels.mma_gradient_queries import gradient_of_queries
from flash.kernels.mma_gradient_scores import gradient_of_scores
from flash.kernels.sum_terms import SumConfig, sum_kernel
from flash.kernels.wgmma_gradient_keys import wgmma_gradient_of_keys
from flash.kernels.wgmma_gradient_queries import wgmma_gradient_of_queries
from flash.kernels.wgmma_rounded_sums import wgmma_rounded_sums
from flash.kernels.widened_rows import WideConfig, widened_rows
from flash.operands.declared import Operand
from flash.problem.gradient_arrays import gradient_arrays
from flash.problem.gradient_maps import gradient_maps
from flash.problem.gradients import DELTAS, KEYS, QUERIES, SCORES, SUMS, GradientConfig
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.collector import uncollected
from ptxgen.tensormap import Boxes

if TYPE_CHECKING:
    from flash.contract.launches import Launch


class GradientBuild(BuiltKernel):
    """A verified kernel of gradients."""

    config: GradientConfig

    def _emitted(self) -> ir.Module:
        return emit_gradient(self.config)

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The matrices, the numbers of rows, and the operands."""
        return gradient_arrays(self.config)

    @property
    def maps(self) -> Mapping[str, Boxes]:
        """The tensor maps among the kernel's parameters: which boxes it copies, by matrix."""
        return gradient_maps(self.config)

    @property
    def launches(self) -> Launch:
        """The declaration of the kernel's launches."""
        from flash.contract.gradient_launches import of_gradients

        return of_gradients(self.config)


EMITTERS: Final = {
    QUERIES: gradient_of_queries,
    KEYS: gradient_of_keys,
    SCORES: gradient_of_scores,
    DELTAS: deltas,
    SUMS: rounded_sums,
}
WGMMA_EMITTERS: Final = {
    QUERIES: wgmma_gradient_of_queries,
    KEYS: wgmma_gradient_of_keys,
    SUMS: wgmma_rounded_sums,
}


def emit_gradient(config: GradientConfig) -> ir.Module:
    """The module of a configuration of a kernel of gradients; not verified."""
    with uncollected():
        return (WGMMA_EMITTERS if config.has_wgmma else EMITTERS)[config.owner](config)


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
    kernel = verified_gradient(config)
    kernel.require_proved()
    return kernel


class SumBuild(BuiltKernel):
    """A verified kernel that sums terms of gradients."""

    config: SumConfig

    def _emitted(self) -> ir.Module:
        return sum_kernel(self.config)

    @property
    def launches(self) -> Launch:
        """The declaration of the kernel's launches."""
        from flash.contract.gradient_launches import of_sums

        return of_sums(self.config)


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
    kernel = verified_sum(config)
    kernel.require_proved()
    return kernel


class WideBuild(BuiltKernel):
    """A verified kernel that writes rows of fp8 in bf16."""

    config: WideConfig

    def _emitted(self) -> ir.Module:
        return widened_rows(self.config)

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The rows, their scales and what is written."""
        return self.config.arrays

    @property
    def launches(self) -> Launch:
        """The declaration of the kernel's launches."""
        from flash.contract.gradient_launches import of_widening

        return of_widening(self.config)


@lru_cache(maxsize=16)
def verified_wide(config: WideConfig) -> WideBuild:
    """The kernel that widens rows. Raises `VerifyError` for a fault of the generator's."""
    module = widened_rows(config)
    require_valid(module)
    return WideBuild(config, module)


def wide_build(config: WideConfig) -> WideBuild:
    """The kernel that widens rows, for a launch: no fault is known in its accesses to memory. Raises
    `VerifyError` for a fault of the generator's.
    """
    kernel = verified_wide(config)
    kernel.require_proved()
    return kernel

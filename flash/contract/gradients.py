"""The verified kernels of gradients, and the contract of their launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from flash.contract.built_kernel import BuiltKernel
from flash.kernels.gradient_rows import deltas, rounded_sums
from flash.kernels.mma_gradient_elements import gradient_of_elements
from flash.kernels.mma_gradient_keys import gradient_of_keys
from flash.kernels.mma_gradient_queries import gradient_of_queries
from flash.kernels.mma_gradient_scores import gradient_of_scores
from flash.kernels.rounded_elements import ElementsConfig, rounded_elements
from flash.kernels.sum_terms import SumConfig, sum_kernel
from flash.kernels.wgmma_gradient_keys import wgmma_gradient_of_keys
from flash.kernels.wgmma_gradient_queries import wgmma_gradient_of_queries
from flash.kernels.wgmma_rounded_sums import wgmma_rounded_sums
from flash.kernels.widened_rows import WideConfig, widened_rows
from flash.operands.declared import Operand
from flash.problem.gradient_arrays import gradient_arrays
from flash.problem.gradient_maps import gradient_maps
from flash.problem.gradients import DELTAS, ELEMENTS, KEYS, QUERIES, SCORES, SUMS, GradientConfig
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
    ELEMENTS: gradient_of_elements,
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


AuxiliaryConfig = SumConfig | ElementsConfig | WideConfig


class AuxiliaryBuild(BuiltKernel):
    """A verified kernel that sums terms of gradients, rounds exact sums, or writes rows of fp8 in bf16."""

    config: AuxiliaryConfig

    def _emitted(self) -> ir.Module:
        return _emit_auxiliary(self.config)

    @property
    def launches(self) -> Launch:
        """The declaration of the kernel's launches."""
        from flash.contract.gradient_launches import of_elements, of_sums, of_widening

        match self.config:
            case SumConfig():
                return of_sums(self.config)
            case ElementsConfig():
                return of_elements(self.config)
            case WideConfig():
                return of_widening(self.config)


def _emit_auxiliary(config: AuxiliaryConfig) -> ir.Module:
    match config:
        case SumConfig():
            return sum_kernel(config)
        case ElementsConfig():
            return rounded_elements(config)
        case WideConfig():
            return widened_rows(config)


@lru_cache(maxsize=32)
def verified_auxiliary(config: AuxiliaryConfig) -> AuxiliaryBuild:
    """The auxiliary kernel of a config, verified: it adds up partial gradients, rounds exact sums, or
    converts rows of a narrow type to a wider one. Raises `VerifyError` for a fault of the generator.
    """
    module = _emit_auxiliary(config)
    require_valid(module)
    return AuxiliaryBuild(config, module)


def auxiliary_build(config: AuxiliaryConfig) -> AuxiliaryBuild:
    """The kernel of `verified_auxiliary` for a launch, after the prover has found no fault in its accesses to
    memory. Raises `VerifyError` for a fault of the generator.
    """
    kernel = verified_auxiliary(config)
    kernel.require_proved()
    return kernel

"""From a kernel's configuration to its verified module and text, once for each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from flash.contract.built_kernel import BuiltKernel
from flash.contract.resources import KernelResources
from flash.operands.declared import Operand
from flash.problem.arrays import arrays_of
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import maps_of
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.collector import uncollected
from ptxgen.tensormap import Boxes

if TYPE_CHECKING:
    from flash.contract.launches import Launch


class Build(BuiltKernel):
    """A verified forward kernel. `registers` is None until the kernel has been loaded on a GPU of
    this process.
    """

    config: KernelConfig

    def __init__(self, config: KernelConfig, module: ir.Module) -> None:
        super().__init__(config, module)
        self.registers: int | None = None  # registers of a thread

    def _emitted(self) -> ir.Module:
        return emit(self.config)

    @cached_property
    def arrays(self) -> tuple[Operand, ...]:
        """Q, K, V, O, LSE if the kernel writes it, and the operands."""
        return arrays_of(self.config)

    @property
    def maps(self) -> Mapping[str, Boxes]:
        """The tensor maps among the kernel's parameters: which boxes it copies, by array."""
        return maps_of(self.config)

    @property
    def launches(self) -> Launch:
        """The declaration of the forward kernel's launches."""
        from flash.contract.forward import launches_of

        return launches_of(self.config)

    @property
    def resources(self) -> KernelResources:
        """The resources of the kernel: with the assembled register count if it has been loaded,
        else with an estimate.
        """
        return KernelResources(
            self.config,
            self.config.tiling.registers if self.registers is None else self.registers,
            self.registers is not None,
            self.header.dynamic_shared_bytes,
        )


def emit(config: KernelConfig) -> ir.Module:
    """The module of a configuration, as its family of kernels emits it; not verified."""
    with uncollected():
        return config.family.emit(config)


@lru_cache(maxsize=256)
def build(config: KernelConfig) -> Build:
    """The forward kernel of a configuration.

    Raises `VerifyError` if the generated module has a problem, which would be a fault of the
    generator's.
    """
    module = emit(config)
    require_valid(module)
    return Build(config, module)


def proved_build(config: KernelConfig) -> Build:
    """The forward kernel of a configuration, for a launch: no fault is known in its accesses to
    shared and global memory.

    Raises what `build` and `BuiltKernel.require_proved` raise.
    """
    kernel = build(config)
    kernel.require_proved()
    return kernel

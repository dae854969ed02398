"""From a kernel's configuration to its verified module and text, once for each configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flash.config import KernelConfig
from flash.contract import contract, global_contract
from flash.forward import attention_forward
from flash.mma_forward import mma_attention_forward
from flash.resources import KernelResources
from flash.tiling import Tiling
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.runtime.plan import ParamSlot, param_slots
from ptxgen.text import render

if TYPE_CHECKING:
    from ptxgen.check.global_verdicts import GlobalProof
    from ptxgen.check.proof_verdicts import Proof


@dataclass(eq=False)
class Build:
    """A verified kernel. `registers` is there once it has been loaded on a GPU of this process."""

    config: KernelConfig
    module: ir.Module
    registers: int | None = None  # of a thread

    @property
    def kernel(self) -> ir.Kernel:
        """The module's one kernel."""
        return self.module.kernels[0]

    @cached_property
    def text(self) -> str:
        """The module as PTX."""
        return render(self.module)

    @cached_property
    def slots(self) -> tuple[ParamSlot, ...]:
        """Where the kernel's parameters lie."""
        return param_slots(self.kernel.params)

    @cached_property
    def proof(self) -> Proof:
        """What is proved of the kernel's shared-memory accesses and barriers, for any arguments."""
        # Here, because text alone is emitted without it.
        from ptxgen.check.proof import prove_shared

        return prove_shared(self.module, block=self.config.tiling.threads)

    @cached_property
    def global_proof(self) -> GlobalProof:
        """What is proved of the kernel's accesses to global memory, for every launch that the
        contract allows.
        """
        from ptxgen.check.global_proof import prove_global

        threads, promised = self.config.tiling.threads, global_contract(self.config)
        return prove_global(self.module, block=threads, contract=promised)

    @cached_property
    def is_faulty(self) -> bool:
        """Whether a proof shows that something is wrong."""
        of_shared = bool(self.proof.problems or self.proof.violations)
        return of_shared or bool(self.global_proof.violations)

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.contract`."""
        return contract(self.config, self.module, self.text)

    @property
    def resources(self) -> KernelResources:
        """With the assembled register count if the kernel has been loaded, else an estimate."""
        return KernelResources(
            self.config,
            self.config.tiling.registers if self.registers is None else self.registers,
            self.registers is not None,
            self.kernel.dynamic_shared_bytes,
        )


@lru_cache(maxsize=256)
def build(config: KernelConfig) -> Build:
    """The kernel of a configuration.

    Raises `VerifyError` if the generated module has a problem, which would be a fault of the
    generator's.
    """
    make = attention_forward if isinstance(config.tiling, Tiling) else mma_attention_forward
    module = make(config)
    require_valid(module)
    return Build(config, module)


def proved_build(config: KernelConfig) -> Build:
    """The kernel of a configuration that is to run: nothing wrong is known of its accesses to
    shared and global memory.

    What the proofs leave unknown passes; `Build.proof` and `Build.global_proof` tell. Raises what
    `build` raises, and `VerifyError` if a proof shows a fault, which would be one of the
    generator's, too.
    """
    made = build(config)
    if made.is_faulty:
        from ptxgen.check.global_proof import require_global
        from ptxgen.check.proof import require_proved

        require_proved(made.proof)
        require_global(made.global_proof)
    return made

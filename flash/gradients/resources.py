"""What the kernels of gradients cost."""

from __future__ import annotations

from typing import NamedTuple

from flash.contract.built_kernel import BuiltKernel
from ptxgen.target import Target


class GradientResources(NamedTuple):
    """The resources of a kernel of gradients on its target. `shared_bytes` is dynamic shared memory of
    a CTA; there is no static shared memory.
    """

    name: str
    target: Target
    threads: int
    shared_bytes: int

    @classmethod
    def of(cls, made: BuiltKernel) -> GradientResources:
        """The resources of a kernel."""
        return cls(made.kernel.name, made.target, made.threads, made.kernel.dynamic_shared_bytes)

    @property
    def ctas_per_sm(self) -> int:
        """How many CTAs one multiprocessor holds at once by threads and shared memory. Registers, which
        only the assembler knows, may allow fewer.
        """
        return self.target.blocks_per_sm_for(self.threads, 0, self.shared_bytes)

    def __str__(self) -> str:
        return (
            f"{self.name} for {self.target}, {self.threads} threads, {self.shared_bytes} bytes of shared "
            f"memory, at most {self.ctas_per_sm} CTAs per SM"
        )

"""A generated kernel with its text and the proofs of its accesses and barriers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from flash.operands.declared import Operand
from flash.problem.limits import MAX_CTAS
from flash.problem.tensor_maps import map_name
from ptxgen import ir
from ptxgen.errors import BackendError
from ptxgen.runtime.attributes import NO_ATTRIBUTES, LaunchAttributes
from ptxgen.target import Target
from ptxgen.tensormap import Boxes, TensorMap
from ptxgen.text import render

if TYPE_CHECKING:
    from flash.contract.launches import Launch
    from ptxgen.check.prove import GlobalProof, Proof, Proofs
    from ptxgen.check.prove.contract import GlobalContract
    from ptxgen.runtime.assembler_log import KernelUsage
    from ptxgen.runtime.plan import ParamSlot
    from ptxgen.runtime.proof_cache import Obligation

# Which devices run a target, besides its own architecture, by the target's suffix.
_LATER: Final = {
    "": " or later",
    "f": " or later of its family (family-specific target)",
    "a": " and nothing else (architecture-specific target)",
}


class BuiltKernel(ABC):
    """A verified kernel of a configuration."""

    def __init__(self, config: Any, module: ir.Module) -> None:
        self.config = config
        self._module: ir.Module | None = module
        self.target: Target = config.target

    @property
    def module(self) -> ir.Module:
        """The module, emitted anew if the kernel was released."""
        module = self._module
        if module is None:
            module = self._module = self._emitted()
        return module

    @abstractmethod
    def _emitted(self) -> ir.Module:
        """The module of the configuration, emitted now."""

    def release(self) -> None:
        """Let go of the instructions, most of the memory of a kernel, which launches of the assembled kernel
        do without: they take the text, the header and the parameters alone.
        """
        _ = self.text, self.slots
        vars(self).pop("_obligation", None)
        self._module = None

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The arrays to which the kernel's pointers point, in the order of the pointers."""
        arrays: tuple[Operand, ...] = self.config.arrays
        return arrays

    @property
    @abstractmethod
    def launches(self) -> Launch:
        """The declaration of the kernel's launches; emitting text does not need it."""

    @property
    def promised(self) -> GlobalContract:
        """The contract of the kernel's launches, as the proofs take it."""
        return self.launches.promised

    @property
    def contract(self) -> dict[str, Any]:
        """The contract of the kernel's launches for a host program in any language, with what each
        parameter means, as plain data for JSON (`docs/embedding.md`).
        """
        from flash.contract.launches import described_array
        from ptxgen.check.verify.budget import static_shared_bytes
        from ptxgen.contract import SCHEMA
        from ptxgen.contract.expressions import formula

        kernel, of = self.kernel, self.launches
        return {
            "schema": SCHEMA,
            "kind": of.kind,
            "entry": kernel.name,
            "target": self.module.target,
            "ptx_version": ".".join(str(part) for part in self.module.version),
            "sha256": hashlib.sha256(self.text.encode()).hexdigest(),
            **of.computes,
            "parameters": of.parameters(self.slots),
            "arrays": [described_array(array) for array in of.arrays],
            "sizes": of.sizes,
            "block": [self.threads, 1, 1],
            "grid": {"formula": f"({formula(of.ctas)}, 1, 1)", "x": of.ctas, "y": 1, "z": 1},
            "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
            "static_shared_bytes": static_shared_bytes(kernel),
            **({"programmatic": True} if self.attributes.programmatic else {}),
            **of.more,
            "constraints": [*of.constraints, *self._constraints()],
        }

    def _constraints(self) -> Iterator[str]:
        """The constraints on the launches of every kernel, as sentences."""
        target, shared = self.target, self.header.dynamic_shared_bytes
        yield f"the grid has 1 to {MAX_CTAS} CTAs: with no query there is nothing to launch"
        yield f"the device runs {target}{_LATER[target.suffix]}"
        if self.attributes.programmatic:
            yield (
                "a launch may have CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION (cuLaunchKernelEx): "
                "the kernel then begins before the one before it in the stream has ended, and waits for it "
                "by griddepcontrol.wait before it reads or writes memory; without it, it begins later"
            )
        if shared > target.shared_per_block:
            yield (
                "before the first launch set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the "
                f"function to {shared}"
            )

    @property
    def maps(self) -> Mapping[str, Boxes]:
        """The tensor maps among the parameters: which boxes the kernel copies, by array."""
        return {}

    @property
    def attributes(self) -> LaunchAttributes:
        """The launch attributes (`cuLaunchKernelEx`) of the kernel."""
        return NO_ATTRIBUTES

    @property
    def kernel(self) -> ir.Kernel:
        """The module's one kernel."""
        return self.module.kernels[0]

    @cached_property
    def header(self) -> ir.Kernel:
        """The module's one kernel without its statements."""
        return replace(self.kernel, body=())

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return self.header.threads

    @cached_property
    def text(self) -> str:
        """The module as PTX."""
        return render(self.module)

    @cached_property
    def slots(self) -> tuple[ParamSlot, ...]:
        """The offset, size and type of each of the kernel's parameters."""
        # Imported here, because emitting text does not need it.
        from ptxgen.runtime.plan import param_slots

        return param_slots(self.header.params)

    @property
    def smallest_maps(self) -> dict[str, TensorMap]:
        """By parameter, a tensor map with the boxes that the kernel copies; the tensor has one element."""
        return {map_name(array): boxes.smallest() for array, boxes in self.maps.items()}

    @cached_property
    def proofs(self) -> Proofs:
        """The proofs of the kernel's accesses to memory and of its barriers, for every launch
        that the contract allows; from the cache on disk if it has them.
        """
        # Imported here, because emitting text does not need it.
        from ptxgen.runtime.proof_cache import proof_cache

        return proof_cache().proofs(self._obligation)

    @cached_property
    def _obligation(self) -> Obligation:
        """What the proofs of the kernel are about."""
        from ptxgen.runtime.proof_cache import Obligation

        return Obligation(self.module, self.text, self.threads, self.promised, self.smallest_maps)

    @property
    def proof(self) -> Proof:
        """The proof of accesses to shared memory and of barriers."""
        return self.proofs.shared

    @property
    def global_proof(self) -> GlobalProof:
        """The proof of accesses to global memory."""
        assert self.proofs.global_memory is not None
        return self.proofs.global_memory

    @cached_property
    def is_faulty(self) -> bool:
        """Whether a proof shows a fault. The cache on disk has no proof that does."""
        # Imported here, because emitting text does not need it.
        from ptxgen.runtime.proof_cache import proof_cache

        if "proofs" not in vars(self) and proof_cache().has(self._obligation):
            return False
        of_shared = bool(self.proof.problems or self.proof.violations)
        return of_shared or bool(self.global_proof.violations)

    @cached_property
    def assembled(self) -> KernelUsage | None:
        """The assembler's counts for the kernel; None without an assembler. Raises `AssemblerError`
        if it refuses the text.
        """
        # Imported here, because emitting text does not need it.
        from ptxgen.runtime.assembler import find_assembler

        try:
            assembler = find_assembler(target=self.target.name)
        except BackendError:
            return None
        return assembler.assemble(self.text, self.target.name).kernel(self.kernel.name)

    def require_proved(self) -> None:
        """Raise `VerifyError` if a proof shows a fault, which would be one of the generator's.
        Accesses that the proofs leave unknown pass; the proofs list them.
        """
        if self.is_faulty:
            self.proofs.require()

"""Proof, before a launch, that a kernel accesses memory only where it may.

`prove` gives verdicts on the accesses to shared memory, on the barriers, on what warps do together, and with
a contract on the accesses to global memory. `docs/proofs.md` says why the proofs are sound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.check.prove.contract import GlobalContract
from ptxgen.check.prove.global_memory import global_proof
from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.shared_memory import STEPS, Bound, shared_proof
from ptxgen.check.prove.subject import subject_of
from ptxgen.check.prove.verdicts import PROVED, RACES, UNKNOWN, VIOLATION, Proof
from ptxgen.errors import VerifyError
from ptxgen.fragments import OK, UNSURE, WRONG, fragment, pretty
from ptxgen.ir import Module


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proof of a kernel's shared memory, its barriers and what its warps do together, and the proof of
    its global memory, which is None without a contract.
    """

    shared: Proof
    global_memory: GlobalProof | None

    @property
    def complete(self) -> bool:
        """Whether every access, every barrier and every instruction of a warp is proved. Races, waits for
        mbarriers and barriers of clusters are not judged.
        """
        return self.shared.complete and (self.global_memory is None or self.global_memory.complete)

    def __str__(self) -> str:
        return "\n".join([*map(str, self._parts), RACES])

    def report(self) -> str:
        """The counts, then the problems and every verdict that is not `proved`; and that races are not
        judged.
        """
        return "\n".join([*(part.report() for part in self._parts), RACES])

    _repr_pretty_ = pretty

    def _repr_html_(self) -> str:
        """The counts of each kind in a notebook, and what is not proved."""
        is_wrong = any(part.violations for part in self._parts) or self.shared.problems
        rest = "\n".join(str(each) for part in self._parts for each in part.unproved)
        counted = [(name, Counter(v.verdict for v in of)) for part in self._parts for name, of in part.kinds]
        return fragment(
            f"proof of {self.shared.kernel}",
            f"{'complete' if self.complete else 'wrong' if is_wrong else 'not complete'}; {RACES}",
            OK if self.complete else WRONG if is_wrong else UNSURE,
            head=("", PROVED, VIOLATION, UNKNOWN),
            rows=[(name, count[PROVED], count[VIOLATION], count[UNKNOWN]) for name, count in counted],
            texts=[("not proved", rest, True)],
        )

    @property
    def _parts(self) -> tuple[Proof | GlobalProof, ...]:
        return (self.shared,) if self.global_memory is None else (self.shared, self.global_memory)

    def require(self) -> None:
        """Raise `VerifyError` if anything is shown to be wrong; unknown verdicts pass."""
        require_proved(self.shared)
        if self.global_memory is not None:
            require_global(self.global_memory)


def prove(
    ptx: str | Module,
    entry: str | None = None,
    *,
    block: int | tuple[int, ...],
    contract: GlobalContract | None = None,
    dynamic_smem: int | None = None,
    dynamic_align: int = 1,
    params: Mapping[str, Bound] | None = None,
) -> Proofs:
    """Prove the accesses of a kernel to memory, its barriers, and that the lanes come together which
    instructions of a warp name. Races are not judged.

    `ptx` is text or a module, `entry` a kernel's name (may be left out if there is one kernel),
    `block` the number of threads along x, y and z. `contract` has the arrays in global memory that
    the kernel may access, and the conditions that each launch meets; without it, global memory is
    not proved.

    The other arguments are for shared memory. `dynamic_smem` is the size of the launch's dynamic
    shared memory in bytes (default: the end of the kernel's last region; without regions it is not
    known). `dynamic_align` is the alignment of its address in bytes, if the launch is known to give
    more than the text asks for; no manual promises more, but kernels of Triton rely on 1024 on
    sm_90. `params` bounds integer parameters: a number, the lowest and the highest number, or a
    range; for a parameter that is a tensor map or the address of one, it has the `TensorMap`.
    Raises `LaunchError` for arguments that do not fit, `ParseError` for text that cannot be read.
    """
    subject = subject_of(ptx, entry, block)
    shared = shared_proof(subject, dynamic_smem, dynamic_align, params)
    return Proofs(shared, None if contract is None else global_proof(subject, contract))


def prove_shared(
    ptx: str | Module,
    entry: str | None = None,
    *,
    block: int | tuple[int, ...],
    dynamic_smem: int | None = None,
    dynamic_align: int = 1,
    params: Mapping[str, Bound] | None = None,
    steps: int = STEPS,
) -> Proof:
    """The proof of shared memory, barriers and warps that `prove` gives, without global memory. What takes
    more than `steps` is unknown.
    """
    subject = subject_of(ptx, entry, block)
    return shared_proof(subject, dynamic_smem, dynamic_align, params, steps)


def prove_global(
    ptx: str | Module, entry: str | None = None, *, block: int | tuple[int, ...], contract: GlobalContract
) -> GlobalProof:
    """The proof of global memory that `prove` gives, without shared memory."""
    return global_proof(subject_of(ptx, entry, block), contract)


def require_proved(proof: Proof) -> None:
    """Raise `VerifyError` if the proof shows that an access to shared memory, a barrier or an instruction
    of a warp is wrong.
    """
    _require("shared memory", (*proof.problems, *proof.violations))


def require_global(proof: GlobalProof) -> None:
    """Raise `VerifyError` if the proof shows that an access to global memory is wrong."""
    _require("global memory", proof.violations)


def _require(which: str, wrong: tuple[object, ...]) -> None:
    if wrong:
        listed = "\n".join(f"* {w}" for w in wrong)
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        raise VerifyError(f"{which}: {count}:\n{listed}", wrong)

"""Proof, before a launch, that a kernel accesses memory only where it may."""

from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.proof import Proofs, prove, prove_global, prove_shared, require_global, require_proved
from ptxgen.check.prove.shared_memory import Bound
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Proof, Verdict, Witness

__all__ = [
    "PROVED",
    "UNKNOWN",
    "VIOLATION",
    "Bound",
    "GlobalProof",
    "Proof",
    "Proofs",
    "Verdict",
    "Witness",
    "prove",
    "prove_global",
    "prove_shared",
    "require_global",
    "require_proved",
]

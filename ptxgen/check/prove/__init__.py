"""Proof, before a launch, that a kernel accesses memory only where it may."""

from ptxgen.check.prove.proof import (
    PROVED,
    UNKNOWN,
    VIOLATION,
    Bound,
    GlobalProof,
    Proof,
    Proofs,
    Verdict,
    Witness,
    prove,
    prove_global,
    prove_shared,
    require_global,
    require_proved,
)

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

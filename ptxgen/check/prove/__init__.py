"""Proof, before a launch, that a kernel accesses memory only where it may."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptxgen.check.prove.global_verdicts import GlobalProof
    from ptxgen.check.prove.proof import (
        Proofs,
        prove,
        prove_global,
        prove_shared,
        require_global,
        require_proved,
    )
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

# Imported at first use: a launch whose kernel has a stored proof does not need the prover.
_ROOMS: Final = {
    **dict.fromkeys(("PROVED", "UNKNOWN", "VIOLATION", "Proof", "Verdict", "Witness"), "verdicts"),
    "Bound": "shared_memory",
    "GlobalProof": "global_verdicts",
}


def _public(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ptxgen.check.prove' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ptxgen.check.prove.{_ROOMS.get(name, 'proof')}"), name)


if not TYPE_CHECKING:  # for a type checker, any name would exist
    __getattr__ = _public

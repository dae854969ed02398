"""The prover is asked in every test of it, whatever proofs are stored."""

from __future__ import annotations

import pytest

from flash.contract.catalogue import build
from ptxgen.runtime.cache import ModuleCache


@pytest.fixture(autouse=True)
def _without_stored_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proof is read from disk or stored there, and kernels that other tests have built are built again."""
    monkeypatch.setattr("ptxgen.runtime.proof_cache.default_cache", lambda: ModuleCache(None))
    build.cache_clear()

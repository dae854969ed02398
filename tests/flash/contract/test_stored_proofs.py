"""Stored proofs of generated kernels: what a second process reads is what the first has proved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from conformance import KINDS

from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import build
from flash.contract.gradients import gradient_build
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from ptxgen.check.prove import Proofs
from ptxgen.runtime.cache import DiskCache, ModuleCache
from ptxgen.runtime.proof_cache import Obligation, ProofCache
from ptxgen.target import target

ROOT = Path(__file__).resolve().parents[3]


def forward(kind: str) -> Callable[[], BuiltKernel]:
    return lambda: build(KINDS[kind].config().kernel())


def gradient(owner: str) -> Callable[[], BuiltKernel]:
    config = AttentionConfig(64, dtype="f16", causal=True)
    return lambda: gradient_build(
        gradient_config(config, owner, target("sm_80"), 16, with_dlse=True, wanted=())
    )


KERNELS = {
    **{kind: forward(kind) for kind in ("simt", "mma f16", "wgmma f16", "latent", "fp8 e4m3")},
    **{f"gradient of {owner}": gradient(owner) for owner in ("queries", "keys")},
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stored_proof_of_a_kernel_is_the_proof(kernel: str, tmp_path: Path) -> None:
    built = KERNELS[kernel]()
    cache = ProofCache(DiskCache(tmp_path / "cache", 1 << 20))
    about = built._obligation
    first = cache.proofs(about)
    assert cache.has(about)
    second = cache.proofs(about)
    assert second is not first
    for one, other in ((first.shared, second.shared), (first.global_memory, second.global_memory)):
        assert one is not None
        assert other is not None
        assert asdict(one) == asdict(other)


def test_a_kernel_with_a_stored_proof_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskCache(tmp_path / "cache", 1 << 20)
    monkeypatch.setattr("ptxgen.runtime.proof_cache.default_cache", lambda: ModuleCache(disk))
    of = build(AttentionConfig(16).kernel())
    proofs = BuiltKernel.proofs.func(of)  # type: ignore[attr-defined]  # whatever this kernel holds

    def prove(_: Obligation) -> Proofs:
        raise AssertionError("the kernel is proved again")

    monkeypatch.setattr(Obligation, "prove", prove)
    build.cache_clear()
    again = build(AttentionConfig(16).kernel())
    assert again is not of
    again.require_proved()
    assert "proofs" not in vars(again)
    assert again.proofs == proofs
    assert again.proofs is again.proofs


FIRST_LAUNCH = """
import sys
import flash
from flash.contract.catalogue import proved_build
proved_build(flash.AttentionConfig(16).kernel())
print("ptxgen.check.prove.proof" in sys.modules)
"""


def test_a_second_process_does_not_import_the_prover(tmp_path: Path) -> None:
    environment = {**os.environ, "PTXGEN_CACHE": "on", "PTXGEN_CACHE_DIR": str(tmp_path / "cache")}
    for imported in (True, False):
        ran = subprocess.run(
            [sys.executable, "-c", FIRST_LAUNCH],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert ran.stdout == f"{imported}\n"

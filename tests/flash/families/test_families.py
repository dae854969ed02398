"""Families of forward kernels: which one takes a problem, why not the others, what each says of itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from flash import AttentionConfig
from flash.contract.catalogue import emit
from flash.families.choice import FAMILIES, WORKLOADS, families_of, family_of, refusals
from flash.families.family import Family
from flash.families.mma import MMA
from flash.families.simt import SIMT
from flash.families.tcgen05 import TCGEN05
from flash.families.tcgen05_fp8 import TCGEN05_FP8
from flash.families.tcgen05_latent import TCGEN05_LATENT
from flash.families.tcgen05_mx import TCGEN05_MX, TCGEN05_NV
from flash.families.tcgen05_split import TCGEN05_SPLIT
from flash.families.wgmma import WGMMA
from flash.families.wgmma_fp8 import FP8
from flash.families.wgmma_latent import LATENT
from flash.families.wgmma_split import SPLIT
from ptxgen.target import target
from ptxgen.text import render

HOPPER = target("sm_90a")
LATENTS = {"head_dim": 576, "head_dim_v": 512, "dtype": "bf16", "shared_kv": True}
SETTINGS: dict[Family[Any], dict[str, Any]] = {
    TCGEN05_NV: {"head_dim": 64, "dtype": "e4m3", "scale_block": "nv"},
    TCGEN05_MX: {"head_dim": 64, "dtype": "e4m3", "scale_block": "mx"},
    TCGEN05_FP8: {"head_dim": 64, "dtype": "e4m3", "target": "sm_100a"},
    FP8: {"head_dim": 64, "dtype": "e4m3"},
    TCGEN05_LATENT: {**LATENTS, "target": "sm_100a"},
    LATENT: {**LATENTS, "target": "sm_90a"},
    SPLIT: {"head_dim": 64, "precision": "f32_grade", "target": "sm_90a"},
    WGMMA: {"head_dim": 64, "dtype": "f16", "target": "sm_90a"},
    TCGEN05_SPLIT: {"head_dim": 64, "precision": "f32_grade", "target": "sm_100a"},
    TCGEN05: {"head_dim": 64, "dtype": "f16", "target": "sm_100a"},
    MMA: {"head_dim": 64, "dtype": "f16"},
    SIMT: {"head_dim": 64},
}
EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def test_every_family_is_tried() -> None:
    assert list(SETTINGS) == list(FAMILIES)


@EVERY
def test_a_family_computes_its_problem_and_emits_its_kernel(family: Family[Any]) -> None:
    config = AttentionConfig(**SETTINGS[family])
    kernel = config.kernel()
    assert kernel.family is family is family_of(kernel.tiling)
    assert kernel.name.startswith(f"attention_forward_{family.entry}")
    assert kernel.name in render(emit(kernel))
    assert family.target in (None, kernel.target.name)
    assert config.element in family.dtypes


@EVERY
def test_a_family_refuses_what_it_does_not_multiply(family: Family[Any]) -> None:
    for other, settings in SETTINGS.items():
        request = AttentionConfig(**settings).tile_request
        if not family.computes(request):
            assert family.why_not(request, HOPPER) == family.multiplies, other.name


def test_the_first_family_without_a_reason_takes_a_problem() -> None:
    request = AttentionConfig(64, dtype="f16").tile_request
    blackwell, others = target("sm_100a"), "tcgen05 is of sm_100a, sm_103a and their families alone"
    assert families_of(request) == [WGMMA, TCGEN05, MMA]
    assert refusals(request, HOPPER) == {}
    wgmma = {WGMMA: "wgmma is of sm_90a alone"}
    assert refusals(request, target("sm_80")) == {**wgmma, TCGEN05: others}
    assert refusals(request, blackwell) == wgmma
    narrow = "tensor maps take rows of multiples of 16 bytes"
    assert refusals(request, blackwell, 8) == {**wgmma, TCGEN05: narrow}
    assert refusals(request, HOPPER, 8) == {WGMMA: narrow, TCGEN05: others}
    assert families_of(AttentionConfig(64, precision="tf32").tile_request) == [MMA]
    assert families_of(AttentionConfig(64).tile_request) == [SIMT]


def test_a_tiling_of_another_family_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^a tiling of mma is wanted, got Tiling$"):
        MMA.require(AttentionConfig(64).kernel().tiling)


def test_named_problems_have_families_of_their_own() -> None:
    for settings in WORKLOADS.values():
        families = families_of(AttentionConfig(**settings, dtype="bf16").tile_request)
        assert families[:2] == [TCGEN05_LATENT, LATENT]
        assert f"head_dim is {settings['head_dim']}" in (AttentionConfig.__doc__ or "")


def test_a_mask_leaves_large_tiles_to_mma() -> None:
    config = AttentionConfig(64, dtype="bf16", mask=True, tile=64, target="sm_103a")
    assert config.kernel().family is MMA


@pytest.mark.slow
@EVERY
def test_a_process_that_emits_a_kernel_imports_no_other_family(family: Family[Any]) -> None:
    program = (
        "import sys, flash\n"
        "from flash.contract.catalogue import emit\n"
        f"emit(flash.AttentionConfig(**{SETTINGS[family]!r}).kernel())\n"
        f"others = {[other.emitter.partition(':')[0] for other in FAMILIES]!r}\n"
        "print(*(name for name in others if name in sys.modules))\n"
    )
    built = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    own = family.emitter.partition(":")[0]
    # Those whose parts the others take.
    shared = {WGMMA.emitter.partition(":")[0]} if family.target else set()
    of_tcgen05 = TCGEN05_NV, TCGEN05_MX, TCGEN05_FP8, TCGEN05  # each takes parts of those after it
    after = of_tcgen05[of_tcgen05.index(family) + 1 :] if family in of_tcgen05 else ()
    after = (TCGEN05,) if family is TCGEN05_LATENT else after
    shared |= {other.emitter.partition(":")[0] for other in after}
    assert own in built.stdout.split()
    assert set(built.stdout.split()) <= {own, *shared}

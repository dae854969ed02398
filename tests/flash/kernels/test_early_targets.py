"""Kernels of f32 for GPUs before Turing, whose targets the assemblers of CUDA 13 do not know."""

from __future__ import annotations

from typing import Any

import pytest
from conformance import arrays_of, check
from error_texts import refused
from gradient_runs import case
from gradient_runs import check as check_gradients
from kernel_runs import assert_proved, mostly_nightly

from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError, ConfigError
from ptxgen.runtime.assembler import Assembler, find_assembler
from ptxgen.target import EARLY_TARGETS

MANY: dict[str, Any] = {"causal": True, "alibi": True, "dropout": 0.1, "softcap": 2.0}


@pytest.mark.judged
@pytest.mark.parametrize("name", mostly_nightly(EARLY_TARGETS, ["sm_61"]))
def test_attention_is_right_and_proved(name: str) -> None:
    config = AttentionConfig(40, head_dim_v=24, causal=True, target=name, return_lse=True)
    check(config, arrays_of(config, 45, 70, heads=2))
    assert_proved(config)


@pytest.mark.judged
@pytest.mark.nightly
@pytest.mark.parametrize("name", EARLY_TARGETS)
@pytest.mark.parametrize("head_dim", [64, 80])
def test_gradients_are_right(name: str, head_dim: int) -> None:
    check_gradients(case(40, 70, head_dim, dtype="f32", causal=True, target=name))


@pytest.mark.parametrize("name", EARLY_TARGETS)
@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 192, 248])
@pytest.mark.parametrize("settings", [{}, MANY, {"varlen": True}, {"varlen": True, "page_size": 16}], ids=str)
def test_default_tiles_do_not_spill(
    name: str, head_dim: int, settings: dict[str, Any], early_assembler: Assembler
) -> None:
    built = build(AttentionConfig(head_dim, target=name, **settings).kernel())
    usage = early_assembler.assemble(built.text, name).kernel(built.kernel.name)
    assert (usage.spill_store_bytes, usage.stack_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"dtype": "f16"},
            "dtype='f16' needs sm_75 or later, whose tensor cores the kernel uses, got sm_61; use "
            "dtype='f32'",
        ),
        (
            {"precision": "tf32"},
            "precision='tf32' needs sm_80 or later, whose tensor cores and asynchronous copies the kernel "
            "uses, got sm_61; use precision='ieee'",
        ),
        (
            {"head_dim": 256},
            "head_dim=256, head_dim_v=256, tile=16, block_q=16 needs 51200 bytes of shared memory, but sm_61 "
            "allows 49152 bytes per block; no tile fits; use a target with more shared memory, or "
            "backend='cpu'",
        ),
    ],
)
def test_what_these_gpus_do_not_compute_is_refused(settings: dict[str, Any], said: str) -> None:
    with refused(ConfigError, f"AttentionConfig: {said}"):
        AttentionConfig(**{"head_dim": 64, "target": "sm_61", **settings})


def test_an_assembler_of_cuda_13_says_where_there_is_one_for_these_gpus(assembler: Assembler) -> None:
    if assembler.knows("sm_61"):
        pytest.skip(f"{assembler} is of CUDA 12")
    with pytest.raises(BackendError, match="no PTX assembler that knows sm_61 found") as error:
        find_assembler(target="sm_61")
    assert str(error.value).endswith(
        "\nto get one: pip install nvidia-cuda-nvcc-cu12, since CUDA 13 no longer knows these GPUs, and name "
        "its ptxas in PTXGEN_PTXAS"
    )

"""What the assembler makes of the kernel for Hopper."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kernel_runs import assert_no_spill, main_loop_of, nightly

from flash.contract.catalogue import build
from flash.families.wgmma import WgmmaTiling
from flash.problem.config import AttentionConfig
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.sass import Disassembler

pytestmark = pytest.mark.ptxas

LONGEST_LOOP = {64: 400, 128: 440, 256: 410}  # machine instructions of a turn
TURNS = ("SYNC", "ARV")  # barriers at which a warpgroup takes its turn, and gives it on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "how"),
    [
        *((head_dim, {}) for head_dim in (128, 256)),
        nightly(64, {"block_q": 128}),
        *(nightly(d, {"varlen": True, "causal": True, "return_lse": True}) for d in (128, 256)),
        *(nightly(d, {"pack_gqa": True, "causal": True}) for d in (128, 256)),
        *(nightly(d, {"varlen": True, "page_size": 1, "causal": True}) for d in (128, 256)),
        (128, {"scheduler": "mirrored", "causal": True}),
        *(nightly(d, {"scheduler": "static"}) for d in (128, 256)),
        nightly(64, {"scheduler": "static", "block_q": 128}),
        nightly(64, {"scheduler": "mirrored", "causal": True, "block_q": 128}),
        nightly(256, {"scheduler": "mirrored", "causal": True}),
    ],
    ids=str,
)
def test_exponentials_are_computed_while_a_product_is_under_way(
    head_dim: int, how: dict[str, Any], assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", **how)
    path = main_loop_of(config, assembler).path
    products = [at for at, one in enumerate(path) if one.name == "HGMMA"]
    waits = [at for at, one in enumerate(path) if one.opcode.startswith("WARPGROUP.DEPBAR")]
    exponentials = [at for at, one in enumerate(path) if one.opcode.startswith("MUFU.EX2")]
    assert len(waits) == 2  # for the scores, and for the output
    assert products[-1] < waits[0]
    assert len(exponentials) >= config.kernel().tiling.tile // 2
    assert all(waits[0] < at < waits[1] for at in exponentials)
    assert not [one for one in path if one.name == "R2UR"]
    assert len(path) <= LONGEST_LOOP[head_dim]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "how"),
    [
        (64, {}),
        nightly(64, {"causal": True, "return_lse": True}),
        nightly(64, {"varlen": True, "causal": True, "return_lse": True}),
        nightly(64, {"scheduler": "static"}),
        nightly(64, {"scheduler": "mirrored", "causal": True}),
        nightly(96, {}),
        nightly(96, {"causal": True}),
    ],
    ids=str,
)
def test_of_three_warpgroups_one_multiplies_while_others_compute_exponentials(
    head_dim: int, how: dict[str, Any], assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", **how)
    t = config.kernel().tiling
    assert isinstance(t, WgmmaTiling)
    assert t.checks_sums
    path = main_loop_of(config, assembler).path
    taken, arguments = ([n for n, one in enumerate(path) if one.opcode.startswith(f"BAR.{b}")] for b in TURNS)
    (wait,) = (n for n, one in enumerate(path) if one.opcode.startswith("WARPGROUP.DEPBAR"))
    products = [n for n, one in enumerate(path) if one.name == "HGMMA"]
    exponentials = [n for n, one in enumerate(path) if one.opcode.startswith("MUFU.EX2")]
    polynomials = t.tile // 2 // t.by_polynomial if t.by_polynomial else 0
    assert taken[0] < products[0]
    assert products[-1] < arguments[0] < wait < exponentials[0]
    assert len(taken) == len(arguments) == 1
    assert len(exponentials) == t.tile // 2 - polynomials
    assert sum(one.name == "FMNMX" for one in path) == 2 * polynomials  # no maxima
    assert not [one for one in path if one.name == "R2UR"]
    assert len(path) <= LONGEST_LOOP[64]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"head_dim": 128}, [24, 240]),
        nightly({"head_dim": 128, "window": (128, None), "scheduler": "static"}, [40, 232]),
        nightly({"head_dim": 64, "block_q": 192}, [32, 160]),
        nightly({"head_dim": 128, "varlen": True, "page_size": 16}, [40, 232]),
        nightly({"head_dim": 128, "varlen": True, "page_size": 8}, [56, 224]),
    ],
    ids=str,
)
def test_no_role_uses_more_registers_than_it_has(
    how: dict[str, Any], wanted: list[int], assembler: Assembler, disassembler: Disassembler
) -> None:
    config = AttentionConfig(dtype="f16", target="sm_90a", causal=True, return_lse=True, **how)
    built = assembler.assemble(build(config.kernel()).text, "sm_90a")
    result = disassembler.instructions(built.cubin)
    changes = [at for at, one in enumerate(result) if one.name == "USETMAXREG"]
    counts = [int(result[at].operands.split()[-1], 16) for at in changes]
    assert counts == wanted
    for at, end, count in zip(changes, [*changes[1:], len(result)], counts, strict=True):
        used = [int(n) for one in result[at:end] for n in re.findall(r"\bR(\d+)\b", one.operands)]
        assert max(used) < count


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("block_q", ["auto", 192])
@pytest.mark.parametrize(
    "features",
    [
        {"window": (5, 5), "softcap": 5.0, "alibi": True, "sink": True},
        {"bias": "bf16", "dropout": 0.1, "softcap": 3.0},
        {"mask": True, "causal": True},
        {"key_bias": "f32", "dropout": 0.1, "causal": True},
    ],
    ids=str,
)
def test_no_feature_spills(
    features: dict[str, Any], head_dim: int, block_q: Any, assembler: Assembler
) -> None:
    arguments = {**features, "block_q": "auto" if head_dim == 256 else block_q}  # no tile fits 256 and 192
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", **arguments)
    assert isinstance(config.kernel().tiling, WgmmaTiling)
    assert_no_spill(config, assembler)

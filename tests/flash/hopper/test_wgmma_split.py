"""The forward kernels of f32 as pairs of f16 for Hopper and Blackwell, on the interpreter with sanitizers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import forward_errors
import numpy as np
import pytest
from conformance import KINDS, check
from kernel_runs import Problem, nightly, run_forward
from refusals import refusal

from flash import AttentionKernel, DecodeKernel
from flash.contract.catalogue import build
from flash.families.choice import offered_tiles
from flash.families.request import TileRequest
from flash.families.tcgen05_split import TCGEN05_SPLIT, SplitTcgen05Tiling
from flash.families.wgmma_split import SPLIT, SplitWgmmaTiling
from flash.operands.dtypes import F32
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.errors import ConfigError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.sass import Disassembler
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
LARGEST = np.finfo(np.float32).max


grade = KINDS["split"].config
BLACKWELL = "split on sm_100a"
EVERY_KIND = pytest.mark.parametrize("kind", ["split", BLACKWELL])


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_tile_offered_is_right(head_dim: int) -> None:
    offered = offered_tiles(head_dim, head_dim, target("sm_90a"), "f32", "f32_grade")
    for tile, block_q in offered:
        config = AttentionConfig(
            head_dim, precision="f32_grade", target="sm_90a", return_lse=True, tile=tile, block_q=block_q
        )
        if isinstance(config.kernel().tiling, SplitWgmmaTiling):
            check(config, Problem(block_q + 5, 3 * tile + 3, head_dim, head_dim).arrays())
    assert max(offered) == {64: (176, 64), 128: (80, 64)}[head_dim]


@pytest.mark.slow
@pytest.mark.sample(1, gate=4)
@EVERY_KIND
@pytest.mark.parametrize("dim", [16, 80, 128])
@pytest.mark.parametrize("pack_gqa", [False, True])
def test_query_heads_share_key_heads(dim: int, pack_gqa: bool, kind: str) -> None:
    # Of 80 columns one slab of the tile of Q has none.
    kernel = AttentionKernel(KINDS[kind].config(dim, causal=True, pack_gqa=pack_gqa))
    q, k, v = Problem(20, 37, dim, dim, batch=2, heads=3, kv_heads=1).arrays()
    q[:, 1] *= 1e9  # scaled, where others are not
    v[..., 1] *= 1e-9
    result = kernel.launch(q, k, v, backend="interpreter")
    wanted = AttentionKernel(grade(dim, causal=True)).launch(q, k, v, backend="cpu")
    for one, other in zip(result, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@EVERY_KIND
@pytest.mark.parametrize("pack_gqa", [False, True])
def test_queries_are_rotated_before_they_are_split(pack_gqa: bool, kind: str) -> None:
    q, k, v = Problem(20, 96, 16, 16, heads=2, kv_heads=1).arrays()
    angles = np.random.default_rng(1).uniform(0, 6, (96, 8))
    turns: Any = {
        "rotary_cos": np.cos(angles).astype(np.float32),
        "rotary_sin": np.sin(angles).astype(np.float32),
    }
    kernel = DecodeKernel(KINDS[kind].config(causal=True, pack_gqa=pack_gqa))
    used = np.array([90], np.int32)
    result, wanted = (
        kernel.launch(q, k, v, seqused_k=used, backend=backend, **turns) for backend in ("interpreter", "cpu")
    )
    for one, other in zip(result, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6)


# ------------------------------------------------------------------------------------------
# numerics


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["normal", "positive", "peaked"])
@pytest.mark.parametrize("on", ["sm_90a", "sm_100a"])
def test_the_error_is_at_most_twice_that_of_f32(head_dim: int, kind: str, on: str) -> None:
    pytest.importorskip("torch")
    arrays = dict(forward_errors.inputs(head_dim))[kind]
    wanted, _ = attention_reference(*arrays)
    ours, of_f32 = (
        forward_errors.error(out, wanted)
        for out in (forward_errors.of_kernel(arrays, "f32_grade", on), forward_errors.of_torch(arrays))
    )
    assert ours <= 2 * of_f32


@EVERY_KIND
def test_low_parts_that_f16_holds_as_subnormal_numbers_count(kind: str) -> None:
    q, k, v = Problem(20, 40, 16, 16).arrays()
    for x in (q, k, v):  # the largest of a row is near 1, and others begin at 2^-9
        x[..., 1:] *= np.float32(2.0**-9)
    check(KINDS[kind].config(softmax_scale=4.0), (q, k, v))


@EVERY_KIND
def test_one_key_with_all_the_weight_gives_its_value(kind: str) -> None:
    q, k, v = Problem(20, 40, 16, 16).arrays()
    q[..., 0], k[..., 0] = 1, -200
    k[..., 7, 0] = 200
    out, _, _ = run_forward(KINDS[kind].config(softmax_scale=1.0), (q, k, v), sanitize=True)
    np.testing.assert_allclose(out, np.broadcast_to(v[..., 7:8, :], out.shape), rtol=3e-7)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("sink", [25.0, 1000.0, -1000.0, -np.inf])
def test_a_sink_takes_no_digit_from_the_weights_that_it_exceeds(sink: float, target: str) -> None:
    config = replace(grade(sink=True, causal="top_left"), target=target, block_q="auto")
    arrays = Problem(40, 70, 16, 16).arrays()
    check(config, arrays, {"sink": np.full(arrays[0].shape[1], sink, np.float32)})


# ------------------------------------------------------------------------------------------
# synchronisation, proofs, what the assembler makes of it


@pytest.mark.ptxas
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, nightly(128)])
def test_each_element_is_multiplied_three_times(
    head_dim: int, assembler: Assembler, disassembler: Disassembler
) -> None:
    config = AttentionConfig(head_dim, precision="f32_grade", target="sm_90a")
    built = assembler.assemble(build(config.kernel()).text, "sm_90a")
    assert built.advisories == ()
    t = config.kernel().tiling
    result = disassembler.instructions(built.cubin)
    products = sum(one.name == "HGMMA" for one in result)
    steps = (t.score_columns + t.tile) // 16
    assert products % (3 * steps) == 0


# ------------------------------------------------------------------------------------------
# the choice

TOO_WIDE = "rows of more than 128 columns leave no room for two tiles of pairs of f16"


def why_not(head_dim: int = 64, head_dim_v: int | None = None, **how: Any) -> str:
    config = AttentionConfig(head_dim, head_dim_v, **{"precision": "f32_grade", **how})
    said = SPLIT.why_not(config.tile_request, target("sm_90a"))
    assert isinstance(config.kernel("sm_90a").tiling, SplitWgmmaTiling) == (not said)
    return said


def test_the_table_of_the_choice() -> None:
    assert why_not() == ""
    assert why_not(128, 20, causal=True, bias="f32", dropout=0.1, stages=2, tile=32) == ""
    assert why_not(varlen=True, page_size=48) == ""
    wanted = "wgmma multiplies f16 and bf16 here, and pairs of f16 for 'f32_grade'"
    assert why_not(precision="tf32") == why_not(precision="ieee") == wanted
    assert why_not(132) == why_not(64, 192) == TOO_WIDE
    assert why_not(62) == "tensor maps take rows of multiples of 16 bytes"
    assert why_not(block_q=32) == "block_q=32: a warpgroup has 64 rows"
    request = TileRequest(128, 128, F32, tile=128, precision="f32_grade")
    too_large = "tile=128, block_q=128 with stages=2 does not fit shared memory"
    assert SPLIT.why_not(request, target("sm_90a")) == too_large
    tiles = [AttentionConfig(d, precision="f32_grade", target="sm_90a").kernel().tiling for d in (64, 128)]
    assert [(t.block_q, t.tile) for t in tiles] == [(128, 128), (128, 64)]


def test_blackwell_has_one_row_tile_and_sums_of_at_most_80_keys() -> None:
    def tiling(*dims: int, **how: Any) -> SplitTcgen05Tiling:
        config = AttentionConfig(*dims, precision="f32_grade", target="sm_103a", **how)
        return TCGEN05_SPLIT.require(config.kernel().tiling)

    sizes = [(t.block_q, t.tile, t.stages) for t in map(tiling, (64, 80, 128))]
    assert sizes == [(128, 80, 4), (128, 64, 2), (128, 64, 2)]
    assert tiling(64, 128).tensor_columns == 512
    assert tiling(64, mask=True).tile == 32
    request = AttentionConfig(64, precision="f32_grade", target="sm_80", tile=64, varlen=True).tile_request
    assert TCGEN05_SPLIT.why_not(request, target("sm_90a")) == (
        "tcgen05 is of sm_100a, sm_103a and their families alone"
    )
    assert TCGEN05_SPLIT.why_not(replace(request, stages=9), target("sm_100a")) == (
        "tile=64, stages=9 does not fit shared memory or registers"
    )
    assert TCGEN05_SPLIT.why_not(replace(request, tile=128), target("sm_100a")) == (
        "tile=128: a sum takes at most 80 keys"
    )


def test_three_consumers_are_refused_with_the_sizes_that_there_are() -> None:
    assert refusal(
        AttentionConfig, 64, error=ConfigError, precision="f32_grade", target="sm_90a", block_q=192
    ) == (
        "AttentionConfig: head_dim=64, head_dim_v=64, tile=32, block_q=192 has no division among threads "
        "that fits the registers of sm_90a; the largest tile that fits is 176, with block_q=64"
    )


@pytest.mark.parametrize("block_q", [64, 128])
def test_sizes_of_other_kernels_do_not_go_to_mma_sync(block_q: int) -> None:
    assert refusal(
        AttentionConfig,
        128,
        error=ConfigError,
        precision="f32_grade",
        target="sm_90a",
        tile=96,
        block_q=block_q,
    ) == (
        f"AttentionConfig: head_dim=128, head_dim_v=128, tile=96, block_q={block_q} has no division among "
        "threads that fits the registers of sm_90a; the largest tile that fits is "
        + {64: "80, with block_q=64", 128: "64, with block_q=128"}[block_q]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "on", "block_q", "said"),
    [
        (16, "sm_90a", 64, "wgmma, three of f16 for one of f32, with tiles copied by TMA"),
        (18, "sm_90a", 64, "mma.sync: tensor maps take rows of multiples of 16 bytes"),
        (16, "sm_100a", 128, TCGEN05_SPLIT.products),
        (16, "sm_103f", "auto", TCGEN05_SPLIT.products),
        (18, "sm_100a", 128, "mma.sync: tensor maps take rows of multiples of 16 bytes"),
        (16, "sm_100a", 64, "mma.sync: block_q=64: a CTA has one row tile of 128 rows"),
        (132, "sm_100a", "auto", f"mma.sync: {TOO_WIDE}"),
    ],
)
def test_launches_say_what_they_multiply_with(dim: int, on: str, block_q: int | str, said: str) -> None:
    config = AttentionConfig(dim, precision="f32_grade", target=on, tile=16, block_q=block_q)
    kernel, arguments = AttentionKernel(config), Problem(40, 50, dim, dim).arrays()
    assert f"products: {said}\n" in kernel.explain(*arguments, backend="interpreter")
    out, wanted = (kernel.launch(*arguments, backend=backend) for backend in ("interpreter", "cpu"))
    np.testing.assert_allclose(out, wanted, atol=3e-6)

"""The forward kernel for Hopper of f32, as pairs of f16, on the interpreter with the sanitizers on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import forward_errors
import numpy as np
import pytest
from conformance import KINDS, check
from kernel_runs import Problem, assert_no_spill, nightly, run_forward

from flash import AttentionKernel, DecodeKernel
from flash.contract.catalogue import build
from flash.families.choice import offered_tiles
from flash.families.request import TileRequest
from flash.families.wgmma_split import SPLIT, SPLIT_BLOCKS_Q, SplitWgmmaTiling
from flash.operands.dtypes import F32
from flash.problem.config import AttentionConfig
from flash.problem.tensor_maps import map_name, maps_of
from flash.reference import attention_reference
from ptxgen.check.verify import verify
from ptxgen.errors import ConfigError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.sass import find_disassembler
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
LARGEST = np.finfo(np.float32).max


grade = KINDS["split"].config


# ------------------------------------------------------------------------------------------
# semantics


def test_divided_keys_are_multiplied_by_wgmma() -> None:
    config = AttentionConfig(32, 20, precision="f32_grade", target="sm_90a", tile=32, splits=3)
    kernel, arrays = AttentionKernel(config), Problem(40, 150, 32, 20).arrays()
    out = kernel.launch(*arrays, backend="interpreter")
    wanted, _ = attention_reference(*arrays)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-6)
    said = kernel.explain(*arrays, backend="interpreter")
    assert "products: wgmma, three of f16 for one of f32, with tiles copied by TMA\n" in said


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


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("dim", [16, 80, 128])
@pytest.mark.parametrize("pack_gqa", [False, True])
def test_query_heads_share_key_heads(dim: int, pack_gqa: bool) -> None:
    # Of 80 columns one slab of the tile of Q has none.
    kernel = AttentionKernel(grade(dim, causal=True, pack_gqa=pack_gqa))
    q, k, v = Problem(20, 37, dim, dim, batch=2, heads=3, kv_heads=1).arrays()
    q[:, 1] *= 1e9  # scaled, where others are not
    v[..., 1] *= 1e-9
    found = kernel.launch(q, k, v, backend="interpreter")
    wanted = AttentionKernel(grade(dim, causal=True)).launch(q, k, v, backend="cpu")
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("page_size", [None, 16])
def test_sequences_of_their_own_lengths_are_right(page_size: int | None) -> None:
    rng = np.random.default_rng(2)
    lengths = (70, 3, 0, 40)
    begins = np.cumsum((0, *lengths)).astype(np.int32)
    q, k, v = (rng.standard_normal((begins[-1], heads, 24)).astype(np.float32) for heads in (2, 1, 1))
    given: dict[str, Any] = {"cu_seqlens_q": begins, "cu_seqlens_k": begins, "causal": True}
    if page_size:
        tables = np.arange(4 * 5, dtype=np.int32).reshape(4, 5)
        pages = rng.standard_normal((2, 20, 1, page_size, 24)).astype(np.float32)
        for n, length in enumerate(lengths):
            for at in range(length):
                page = tables[n, at // page_size]
                pages[0, page, :, at % page_size] = k[begins[n] + at]
                pages[1, page, :, at % page_size] = v[begins[n] + at]
        del given["cu_seqlens_k"]
        given |= {"block_table": tables, "seqused_k": np.array(lengths, np.int32)}
        k, v = pages
    config = AttentionConfig(
        24, precision="f32_grade", target="sm_90a", varlen=True, causal=True, page_size=page_size
    )
    del given["causal"]
    kernel = AttentionKernel(config)
    found = kernel.launch(q, k, v, backend="interpreter", **given)
    wanted = kernel.launch(q, k, v, backend="cpu", **given)
    np.testing.assert_allclose(found, wanted, atol=3e-6)


def test_queries_are_rotated_before_they_are_split() -> None:
    q, k, v = Problem(20, 96, 16, 16, heads=2, kv_heads=1).arrays()
    angles = np.random.default_rng(1).uniform(0, 6, (96, 8))
    turns: Any = {
        "rotary_cos": np.cos(angles).astype(np.float32),
        "rotary_sin": np.sin(angles).astype(np.float32),
    }
    kernel = DecodeKernel(grade(causal=True, pack_gqa=True))
    used = np.array([90], np.int32)
    found, wanted = (
        kernel.launch(q, k, v, seqused_k=used, backend=backend, **turns) for backend in ("interpreter", "cpu")
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6)


# ------------------------------------------------------------------------------------------
# numerics


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["normal", "positive", "peaked"])
def test_the_error_is_at_most_twice_that_of_f32(head_dim: int, kind: str) -> None:
    pytest.importorskip("torch")
    arrays = dict(forward_errors.inputs(head_dim))[kind]
    wanted, _ = attention_reference(*arrays)
    ours, of_f32 = (
        forward_errors.error(out, wanted)
        for out in (forward_errors.of_kernel(arrays, "f32_grade", "sm_90a"), forward_errors.of_torch(arrays))
    )
    assert ours <= 2 * of_f32


@pytest.mark.sample(1)
@pytest.mark.parametrize("exponent", [-100, 14, 100])
@pytest.mark.parametrize("block_q", SPLIT_BLOCKS_Q)
def test_rows_beyond_the_range_of_f16_are_scaled(exponent: int, block_q: int) -> None:
    q, k, v = Problem(block_q + 3, 50, 40, 24).arrays()
    far, of_rows = np.float32(2.0**exponent), np.float32(2.0) ** (np.arange(50, dtype=np.float32) % 40 - 20)
    of_queries = np.float32(2.0) ** (np.arange(block_q + 3, dtype=np.float32) % 40 - 20)
    how: Any = {"block_q": block_q}
    check(grade(40, 24, **how), (q * far, k / far, v * of_rows[:, None]))
    check(grade(40, 24, softmax_scale=2.0**-17, **how), (q, k * of_rows[:, None], v / far))
    check(grade(40, 24, softmax_scale=2.0**-17, **how), (q * of_queries[:, None], k, v))


def test_low_parts_that_f16_holds_as_subnormal_numbers_count() -> None:
    q, k, v = Problem(20, 40, 16, 16).arrays()
    for x in (q, k, v):  # the largest of a row is near 1, and others begin at 2^-9
        x[..., 1:] *= np.float32(2.0**-9)
    check(grade(softmax_scale=4.0), (q, k, v))


def test_one_key_with_all_the_weight_gives_its_value() -> None:
    q, k, v = Problem(20, 40, 16, 16).arrays()
    q[..., 0], k[..., 0] = 1, -200
    k[..., 7, 0] = 200
    out, _, _ = run_forward(grade(softmax_scale=1.0), (q, k, v), sanitize=True)
    np.testing.assert_allclose(out, np.broadcast_to(v[..., 7:8, :], out.shape), rtol=3e-7)


def test_a_large_value_of_a_key_without_weight_takes_no_digit_from_others() -> None:
    q, k, v = Problem(20, 40, 16, 16).arrays()
    q[..., 0] = 1
    k[..., 33, 0], v[..., 33, :] = -300, 1e30
    check(grade(softmax_scale=1.0), (q, k, v))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("sink", [25.0, 1000.0, -1000.0, -np.inf])
def test_a_sink_takes_no_digit_from_the_weights_that_it_exceeds(sink: float, target: str) -> None:
    config = replace(grade(sink=True, causal="top_left"), target=target)
    arrays = Problem(40, 70, 16, 16).arrays()
    check(config, arrays, {"sink": np.full(arrays[0].shape[1], sink, np.float32)})


def test_values_near_the_largest_f32_stay_finite() -> None:
    q, k, v = Problem(40, 40, 16, 16).arrays()
    v[:] = -LARGEST / 64  # a sum of 40 of them is finite, and one of LARGEST with them
    v[..., 33, :] = LARGEST  # seen by few rows, and hidden from others of its tile
    out, _, _ = run_forward(grade(causal="top_left"), (q, k, v), sanitize=True)
    wanted, _ = attention_reference(q, k, v, causal="top_left")
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out / LARGEST, wanted / LARGEST, atol=2e-6)


# ------------------------------------------------------------------------------------------
# synchronisation, proofs, what the assembler makes of it


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize(
    "how",
    [
        {"head_dim": 16},
        {"head_dim": 128, "tile": "auto", "block_q": "auto", "causal": True},
        {"head_dim": 72, "head_dim_v": 40, "window": (3, 4), "block_q": 128},
        {"head_dim": 64, "bias": "f32", "sink": True, "alibi": True},
        {"head_dim": 64, "head_dim_v": 128, "pack_gqa": True, "causal": True},
        {"head_dim": 64, "varlen": True, "page_size": 16},
    ],
    ids=str,
)
def test_every_access_and_barrier_is_proved(how: dict[str, Any]) -> None:
    proofs = build(grade(**how).kernel()).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


def test_the_tiling_says_what_the_kernel_has() -> None:
    for config in (grade(), grade(64, block_q=128, causal=True), grade(96, 64, stages=3)):
        kernel = config.kernel()
        made = build(kernel).module
        (found,) = made.kernels
        assert not verify(made)
        assert found.threads == kernel.tiling.threads
        assert kernel.tiling.shared_bytes - 3072 < found.dynamic_shared_bytes <= kernel.tiling.shared_bytes
        assert [p.name for p in found.params[-4:]] == [map_name(array) for array in maps_of(kernel)]


@pytest.mark.ptxas
@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "features"),
    [
        (64, {}),
        (128, {"causal": True, "return_lse": True}),
        nightly(128, {}),
        nightly(64, {"causal": True, "return_lse": True}),
        nightly(64, {"tile": 144, "causal": True}),
        *(nightly(d, {"block_q": 64, "causal": True}) for d in (64, 128)),
        *(nightly(d, {"window": (5, 5), "softcap": 5.0, "alibi": True, "sink": True}) for d in (64, 128)),
        *(nightly(d, {"bias": "f32", "dropout": 0.1, "softcap": 3.0}) for d in (64, 128)),
        *(nightly(d, {"mask": True, "causal": True}) for d in (64, 128)),
        *(nightly(d, {"varlen": True, "page_size": 16, "pack_gqa": True}) for d in (64, 128)),
        nightly(64, {"head_dim_v": 128}),
        nightly(128, {"head_dim_v": 64}),
    ],
    ids=str,
)
def test_no_kernel_spills(head_dim: int, features: dict[str, Any], assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, precision="f32_grade", target="sm_90a", **features)
    assert isinstance(config.kernel().tiling, SplitWgmmaTiling)
    assert_no_spill(config, assembler)


@pytest.mark.ptxas
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, nightly(128)])
def test_each_element_is_multiplied_three_times(head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, precision="f32_grade", target="sm_90a")
    made = assembler.assemble(build(config.kernel()).text, "sm_90a")
    assert made.advisories == ()
    t = config.kernel().tiling
    found = find_disassembler().instructions(made.cubin)
    products = sum(one.name == "HGMMA" for one in found)
    steps = (t.score_columns + t.tile) // 16
    assert products % (3 * steps) == 0


# ------------------------------------------------------------------------------------------
# the choice


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
    wide = "rows of more than 128 columns leave no room for two tiles of pairs of f16"
    assert why_not(132) == why_not(64, 192) == wide
    assert why_not(62) == "tensor maps take rows of multiples of 16 bytes"
    assert why_not(block_q=32) == "block_q=32: a warpgroup has 64 rows"
    request = TileRequest(128, 128, F32, tile=128, precision="f32_grade")
    too_large = "tile=128, block_q=128 with stages=2 does not fit shared memory"
    assert SPLIT.why_not(request, target("sm_90a")) == too_large
    tiles = [AttentionConfig(d, precision="f32_grade", target="sm_90a").kernel().tiling for d in (64, 128)]
    assert [(t.block_q, t.tile) for t in tiles] == [(128, 128), (128, 64)]


def test_three_consumers_are_refused_with_the_sizes_that_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(64, precision="f32_grade", target="sm_90a", block_q=192)
    assert str(caught.value) == (
        "AttentionConfig: head_dim=64, head_dim_v=64, tile=32, block_q=192 has no division among threads "
        "that fits the registers of sm_90a; the largest tile that fits is 176, with block_q=64"
    )


@pytest.mark.parametrize("block_q", [64, 128])
def test_sizes_of_other_kernels_do_not_go_to_mma_sync(block_q: int) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(128, precision="f32_grade", target="sm_90a", tile=96, block_q=block_q)
    assert str(caught.value) == (
        f"AttentionConfig: head_dim=128, head_dim_v=128, tile=96, block_q={block_q} has no division among "
        "threads that fits the registers of sm_90a; the largest tile that fits is "
        + {64: "80, with block_q=64", 128: "64, with block_q=128"}[block_q]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "said"),
    [
        (16, "wgmma, three of f16 for one of f32, with tiles copied by TMA"),
        (18, "mma.sync: tensor maps take rows of multiples of 16 bytes"),
    ],
)
def test_launches_say_what_they_multiply_with(dim: int, said: str) -> None:
    config = AttentionConfig(dim, precision="f32_grade", target="sm_90a", tile=16, block_q=64)
    kernel, given = AttentionKernel(config), Problem(40, 50, dim, dim).arrays()
    assert f"products: {said}\n" in kernel.explain(*given, backend="interpreter")
    out, wanted = (kernel.launch(*given, backend=backend) for backend in ("interpreter", "cpu"))
    np.testing.assert_allclose(out, wanted, atol=3e-6)

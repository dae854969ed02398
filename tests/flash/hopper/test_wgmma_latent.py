"""The kernel for Hopper where V is the first columns of K and rows are wide (multi-head latent attention).
Its own PTX, run on the interpreter with the sanitizers on.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from device_arrays import without_assembler
from fake_gpu import Machine
from kernel_runs import assert_no_spill, main_loop_of, nightly, run_forward
from refusals import refusal

from flash import AttentionConfig, AttentionGradient, AttentionKernel, DecodeKernel, cache_kernels
from flash.contract.catalogue import build
from flash.families.choice import refusals
from flash.families.mma import MMA
from flash.families.wgmma import WgmmaTiling
from flash.families.wgmma_latent import LATENT
from flash.problem.tensor_maps import maps_of
from flash.reference import attention_reference
from ptxgen.errors import ConfigError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
MLA = (576, 512)
LATENT_ON_HOPPER: dict[str, Any] = {"dtype": "f16", "target": "sm_90a", "shared_kv": True}
SMALL = (264, 128)  # 320 columns with padding: 64 of O for each consumer


def config_of(dims: tuple[int, int] = SMALL, **how: Any) -> AttentionConfig:
    return KINDS["latent"].config(*dims, **how)


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.slow
@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (40, 9), "stages": 3}], ids=str)
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
def test_any_number_of_tiles_is_dealt_to_both_warpgroups(tiles: int, how: dict[str, Any]) -> None:
    config = config_of(**how)
    check(config, arrays_of(config, 40, 32 * tiles - 7), schedule=PCT(tiles))


def gaps(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    return (query + 90 >= key) & ((query + 90 - key < 8) | (key < 20))


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("seq_k", [64, 130, 96])
def test_tiles_in_a_gap_are_no_warpgroups_turn(seq_k: int) -> None:
    config = config_of(mask_mod=gaps)
    q, k, v = arrays_of(config, 9, seq_k)
    wanted, sums = attention_reference(q, k, v, mask_mod=gaps)
    k[..., 32:64, :] = np.nan  # of the tile of keys that no query sees; the last tile is always loaded
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=2e-3)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nan", "inf"])
def test_numbers_that_are_not_finite_reach_the_rows_that_see_them_and_no_others(name: str) -> None:
    config = config_of(causal=True, softmax_scale=0.05)
    q, k, v = arrays_of(config, 70, 90)
    q[..., 7] = 0.5  # the score of an infinite key is infinite, not the product 0 * infinity
    clean, clean_lse, _ = run_forward(config, (q, k, v))
    k[..., -20, 7], k[..., -4, 7] = float(name), float(name)
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    seen = np.arange(70) >= 50
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=True, softmax_scale=0.05)
    assert np.isnan(wanted[..., seen, :]).all()
    assert np.isnan(out[..., seen, :]).all()
    np.testing.assert_array_equal(out[..., ~seen, :], clean[..., ~seen, :])
    np.testing.assert_array_equal(lse[..., ~seen], clean_lse[..., ~seen])


# ------------------------------------------------------------------------------------------
# caches, packed heads


# ------------------------------------------------------------------------------------------
# synchronisation, proofs, and what the assembler makes of it


KERNELS: dict[str, dict[str, Any]] = {
    "decode": {"splits": False, "page_size": 0},
    "splits": {"splits": True, "page_size": 0},
    "pages": {"splits": True, "page_size": 64},
    "wide boxes": {"splits": False, "page_size": 16},
    "pages of a row": {"splits": True, "page_size": 1},
    "pages of three rows": {"splits": False, "page_size": 3},
}


def made_of(name: str) -> Any:
    how = KERNELS[name]
    config = AttentionConfig(*MLA, dtype="bf16", target="sm_90a", causal=True, shared_kv=True)
    cache = cache_kernels.CacheConfig(page_size=how["page_size"] or None)
    return cache_kernels.decode(config, cache, splits=how["splits"], group=128)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "name",
    ["pages", "pages of a row", *map(nightly, ("decode", "splits", "wide boxes", "pages of three rows"))],
)
def test_no_default_kernel_spills_or_moves_descriptors_in_its_loop(name: str, assembler: Assembler) -> None:
    built = made_of(name)
    assert_no_spill(built, assembler)
    names = [one.name for one in main_loop_of(built, assembler).path]
    # Scores of a warpgroup's tile, and its columns of O of that and of the other warpgroup's.
    assert names.count("HGMMA") == 576 // 16 + 2 * (64 // 16)
    assert names.count("R2UR") <= 1  # of the parity that waits compare, not of descriptors


def test_values_have_no_tensor_map_and_gathered_keys_neither() -> None:
    for config in (config_of(), config_of(MLA, tile=64, causal=True), config_of(stages=4)):
        assert list(maps_of(config.kernel())) == ["Q", "K", "O"]
    assert list(maps_of(config_of(varlen=True, seqused_k=True, page_size=1).kernel())) == ["Q", "O"]


# ------------------------------------------------------------------------------------------
# the choice, launches, messages


def test_narrow_rows_have_the_kernels_of_other_values() -> None:
    q, k, v = arrays_of(config_of(), 20, 35)
    q, k, v = q[..., :192].copy(), k[..., :192].copy(), v[..., :128].copy()
    for name, tiling in (("sm_90a", True), ("sm_80", False)):
        how: dict[str, Any] = {"dtype": "f16", "target": name, "tile": 16, "block_q": 64}
        config = AttentionConfig(192, 128, shared_kv=True, **how)
        assert isinstance(config.kernel().tiling, WgmmaTiling) == tiling
        assert config.kernel() == AttentionConfig(192, 128, **how).kernel()
        k[..., :128] = v
        out = AttentionKernel(config).launch(q, k, backend="interpreter")
        wanted = AttentionKernel(AttentionConfig(192, 128, **how)).launch(q, k, v, backend="interpreter")
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 2])
def test_a_gpu_gives_the_bits_of_the_interpreter(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    config = config_of(splits=splits)
    kernel = AttentionKernel(config, cuda=CudaBackend(Machine()), cache=ModuleCache(None))
    q, k, _ = arrays_of(config, 70, 90)
    for one, other in zip(*(kernel.launch(q, k, backend=b) for b in ("cuda", "interpreter")), strict=True):
        np.testing.assert_array_equal(one, other)
    said = kernel.explain(q, k, backend="interpreter")
    assert "values:   the first 128 columns of k\n" in said
    assert "products: wgmma, with tiles copied by TMA\n" in said


def test_the_contract_says_that_values_are_keys() -> None:
    contract = build(config_of(MLA, tile="auto").kernel()).contract
    said = (
        "V is K: it has the same address and the same strides, and the values are the first head_dim_v "
        "columns of the keys"
    )
    assert said in contract["constraints"]
    assert [p["name"] for p in contract["parameters"] if p["kind"] == "tensor_map"] == [
        "Q_map",
        "K_map",
        "O_map",
    ]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"target": "sm_90"}, "wgmma is of sm_90a alone"),
        ({"block_q": 128}, "block_q=128: a CTA has 64 rows of so many columns"),
        ({"head_dim": 320, "head_dim_v": 264}, "head_dim_v=264 takes 384 columns, and K has 320"),
    ],
    ids=str,
)
def test_what_no_kernel_of_latents_computes_reads_v_again(how: dict[str, Any], why: str) -> None:
    config = AttentionConfig(**{"head_dim": 576, "head_dim_v": 512, **LATENT_ON_HOPPER, **how})
    assert config.kernel().family is MMA
    assert refusals(config.tile_request, target(str(config.target)))[LATENT] == why


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"head_dim": 320, "head_dim_v": 321},
            "AttentionConfig: head_dim_v must be at most head_dim=320 with shared_kv, where V is columns "
            "of K, got 321",
        ),
        (
            {"tile": 64, "stages": 3},
            "AttentionConfig: head_dim=576, head_dim_v=512, tile=64, block_q=32 needs 356352 bytes of shared",
        ),
        ({"shared_kv": 1}, "AttentionConfig: shared_kv must be True or False, got 1"),
    ],
    ids=str,
)
def test_what_no_kernel_computes_is_refused(how: dict[str, Any], message: str) -> None:
    arguments = {"head_dim": 576, "head_dim_v": 512, **LATENT_ON_HOPPER, **how}
    with pytest.raises(ConfigError) as error:
        AttentionConfig(**arguments)
    assert str(error.value).startswith(message)


def test_values_and_new_rows_are_refused() -> None:
    config = AttentionConfig(32, 16, dtype="f16", shared_kv=True)
    q, k, v = (np.zeros((1, 1, 4, n), np.float16) for n in (32, 32, 16))
    said = "V is the first 16 columns of K; leave it out, or use AttentionConfig(shared_kv=False, ...)"
    assert (
        refusal(AttentionKernel(config).launch, q, k, v, backend="cpu")
        == f"launch: v must not be given, because the config says shared_kv: {said}"
    )
    used = np.array([4], np.int32)
    assert refusal(DecodeKernel(config).launch, q, k, None, k, v, seqused_k=used, backend="cpu") == (
        f"DecodeKernel.launch: k and v must not be given, because the config says shared_kv: {said}"
    )
    with pytest.raises(ConfigError, match=r"a kernel that appends writes rows of K and of V, and with"):
        cache_kernels.decode(config, cache_kernels.CacheConfig(), append=True)
    with pytest.raises(ConfigError, match=re.escape("got shared_kv=True; pass v, and add its gradients")):
        AttentionGradient(config)
    wanted = AttentionKernel(AttentionConfig(32, 16, dtype="f16")).launch(q, k, v, backend="cpu")
    np.testing.assert_array_equal(AttentionKernel(config).launch(q, k, backend="cpu"), wanted)
    np.testing.assert_array_equal(DecodeKernel(config).launch(q, k, seqused_k=used, backend="cpu"), wanted)

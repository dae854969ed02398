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
from judge import assert_attention_is_accurate
from kernel_runs import assert_no_spill, in_pages, nightly, run_forward

from flash import AttentionConfig, AttentionGradient, AttentionKernel, DecodeKernel, cache_kernels
from flash.contract.catalogue import build, emit
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.families.wgmma import WgmmaTiling
from flash.problem.tensor_maps import maps_of
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.check.verify import verify
from ptxgen.errors import BackendError, ConfigError, LaunchError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.sass import find_disassembler, main_loop

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
MLA = (576, 512)
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
@pytest.mark.parametrize("seq_k", [130, 96, 64])
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


USED = np.array([140, 3], np.int32)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that launches on the interpreter run, with all sanitizers."""
    run, names = interpreter.run, []

    def watched(module: Any, *given: Any, **how: Any) -> Any:
        names.append(module.kernels[0].name)
        return run(module, *given, **{"sanitize": True, **how})

    monkeypatch.setattr(interpreter, "run", watched)
    return names


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [0, 16, 64, 1, 3, 100])
@pytest.mark.parametrize("heads", [5, nightly(128)])
@pytest.mark.parametrize("seq_q", [1, 2])
def test_heads_of_a_latent_cache_are_packed(
    seq_q: int, heads: int, page_size: int, splits: int, kernels: list[str]
) -> None:
    config = config_of(MLA, tile="auto", dtype="bf16", causal=True)
    rng = np.random.default_rng(1)
    q, cache = (
        rng.standard_normal(shape).astype(config.element.numpy)
        for shape in ((2, heads, seq_q, 576), (2, 1, 192, 576))
    )
    keys = [cache[b, :, :n].copy() for b, n in enumerate(USED)]
    for b, n in enumerate(USED):
        cache[b, :, n:] = np.nan
    given: dict[str, Any] = {"seqused_k": USED, "splits": splits, "backend": "interpreter"}
    if page_size:
        columns = -(-192 // page_size)
        table = rng.permutation(2 * columns).reshape(2, columns).astype(np.int32)
        cache, given["block_table"] = in_pages(cache, page_size, table), table
    out, lse = DecodeKernel(config).launch(q, cache, **given)
    assert "latent_wgmma" in kernels[0]
    assert "_packed_" in kernels[0]
    assert len(kernels) == 1 + (splits > 1)
    arithmetic = arithmetic_of_config(config, PARTS_OF_F32 if splits > 1 else 0.0)
    for b, k in enumerate(keys):
        assert_attention_is_accurate(
            out[b : b + 1],
            lse[b : b + 1],
            q[b : b + 1],
            k[None],
            k[None, ..., :512],
            softmax_scale=config.scale,
            causal=True,
            arithmetic=arithmetic,
        )


@pytest.mark.parametrize(
    ("dims", "page_size", "padding"),
    [
        (SMALL, 1, 0),
        pytest.param((376, 296), 5, 3, marks=pytest.mark.slow),  # the second half of V lacks columns
        pytest.param(MLA, 64, 7, marks=pytest.mark.slow),  # rows of boxes, but for the padding
    ],
    ids=str,
)
def test_rows_of_latent_pages_are_gathered(
    dims: tuple[int, int], page_size: int, padding: int, kernels: list[str]
) -> None:
    config = config_of(dims, causal=True)
    rng = np.random.default_rng(4)
    q, cache = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((2, 3, 2, dims[0]), (2, 1, 70, dims[0]))
    )
    used, pads = np.array([70, 33], np.int32), np.array([padding, 0], np.int32)
    keys = [cache[b, :, pads[b] : used[b]].copy() for b in range(2)]
    for b in range(2):
        cache[b, :, used[b] :] = cache[b, :, : pads[b]] = np.nan
    table = rng.permutation(2 * -(-70 // page_size)).reshape(2, -1).astype(np.int32)
    given: dict[str, Any] = {"seqused_k": used, "block_table": table, "backend": "interpreter"}
    given |= {"leftpad_k": pads} if padding else {}
    out, lse = DecodeKernel(config).launch(q, in_pages(cache, page_size, table), **given)
    assert "latent_wgmma" in kernels[0]
    for b, k in enumerate(keys):
        one, arithmetic = slice(b, b + 1), arithmetic_of_config(config)
        how: dict[str, Any] = {"softmax_scale": config.scale, "causal": True, "arithmetic": arithmetic}
        values = k[None, ..., : dims[1]]
        assert_attention_is_accurate(out[one], lse[one], q[one], k[None], values, **how)


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_packed_sequences_are_attention_by_themselves(together: bool, kernels: list[str]) -> None:
    config = config_of(varlen=True, causal=True, pack_gqa=together)
    rng = np.random.default_rng(2)
    q, k = (rng.standard_normal((n, h, 264)).astype(np.float16) for n, h in ((150, 2), (140, 1)))
    cu_q, cu_k = (np.cumsum([0, *n]).astype(np.int32) for n in ((64, 1, 85), (70, 33, 37)))
    out, lse = AttentionKernel(config).launch(
        q, k, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, backend="interpreter"
    )
    assert "latent" in kernels[0]
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        own = k[keys].swapaxes(0, 1)[None]
        assert_attention_is_accurate(
            out[rows].swapaxes(0, 1)[None],
            lse[None, :, rows],
            q[rows].swapaxes(0, 1)[None],
            own,
            own[..., : SMALL[1]],
            softmax_scale=config.scale,
            causal=True,
            arithmetic=arithmetic_of_config(config),
        )


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


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("name", KERNELS)
def test_every_access_and_barrier_is_proved(name: str) -> None:
    proofs = made_of(name).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("how", [{"varlen": True, "window": (99, 5)}, {"bias": "f32", "sink": True}], ids=str)
def test_every_access_of_wide_rows_is_proved(how: dict[str, Any]) -> None:
    proofs = build(config_of(MLA, tile="auto", **how).kernel()).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "name",
    ["pages", "pages of a row", *map(nightly, ("decode", "splits", "wide boxes", "pages of three rows"))],
)
def test_no_default_kernel_spills_or_moves_descriptors_in_its_loop(name: str, assembler: Assembler) -> None:
    made = made_of(name)
    assembly = assembler.assemble(made.text, "sm_90a")
    usage = assembly.kernel(made.kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0
    assert assembly.advisories == ()
    try:
        loop = main_loop(find_disassembler().instructions(assembly.cubin))
    except BackendError as error:
        pytest.skip(str(error))
    assert loop is not None
    names = [one.name for one in loop.path]
    # Scores of a warpgroup's tile, and its columns of O of that and of the other warpgroup's.
    assert names.count("HGMMA") == 576 // 16 + 2 * (64 // 16)
    assert names.count("R2UR") <= 1  # of the parity that waits compare, not of descriptors


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("dims", [MLA, SMALL, (512, 512), (320, 256)])
@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize(
    "how", [{}, {"causal": True, "window": (9, 0), "softcap": 3.0}, {"mask": True, "bias": "f32"}], ids=str
)
def test_no_tile_offered_spills(
    dims: tuple[int, int], tile: int, how: dict[str, Any], assembler: Assembler
) -> None:
    assert_no_spill(config_of(dims, tile=tile, **how), assembler)


def test_the_tiling_says_what_the_kernel_has() -> None:
    for config in (config_of(), config_of(MLA, tile=64, causal=True), config_of(stages=4)):
        kernel = config.kernel()
        made = emit(kernel)
        (found,) = made.kernels
        assert not verify(made)
        assert found.threads == kernel.tiling.threads
        assert kernel.tiling.shared_bytes - 2048 < found.dynamic_shared_bytes <= kernel.tiling.shared_bytes
        assert list(maps_of(kernel)) == ["Q", "K", "O"]
    assert list(maps_of(config_of(varlen=True, seqused_k=True, page_size=1).kernel())) == ["Q", "O"]


def test_a_config_of_wide_shared_rows_is_for_the_target_that_has_its_kernel() -> None:
    assert AttentionConfig(*MLA, dtype="f16", shared_kv=True).target == "sm_90a"
    assert AttentionConfig(192, 128, dtype="f16", shared_kv=True).target is None


# ------------------------------------------------------------------------------------------
# the choice, launches, messages


def test_narrow_rows_have_the_kernels_of_other_values() -> None:
    q, k, v = arrays_of(config_of(), 40, 50, heads=2)
    q, k, v = q[..., :192].copy(), k[..., :192].copy(), v[..., :128].copy()
    for target, tiling in (("sm_90a", True), ("sm_80", False)):
        how: dict[str, Any] = {"dtype": "f16", "target": target, "tile": 16, "block_q": 64}
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


ALONE = "AttentionConfig: head_dim=576 with shared_kv is for kernels with wgmma alone, and "
OTHERS = "; use other sizes"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"target": "sm_90"}, f"{ALONE}wgmma is of sm_90a alone; use target='sm_90a', got 'f16' and 'sm_90'"),
        (
            {"dtype": "f32"},
            f"{ALONE}wgmma multiplies f16 and bf16 here; use dtype='f16' or 'bf16', got 'f32' and 'sm_90a'",
        ),
        (
            {"dtype": "f32", "target": "sm_80"},
            f"{ALONE}wgmma multiplies f16 and bf16 here"
            "; use dtype='f16' or 'bf16' and target='sm_90a', got 'f32' and 'sm_80'",
        ),
        ({"tile": 16}, "AttentionConfig: tile must be one of 32, 64, 'auto', got 16"),
        ({"block_q": 128}, "AttentionConfig: block_q must be one of 64, 'auto', got 128"),
        ({"tile": 64, "stages": 3}, f"{ALONE}tile=64 with stages=3 does not fit shared memory{OTHERS}"),
        (
            {"head_dim": 577},
            "AttentionConfig: head_dim must be an integer from 1 to 576 with shared_kv, got 577",
        ),
        (
            {"head_dim": 320, "head_dim_v": 321},
            "AttentionConfig: head_dim_v must be at most head_dim=320 with shared_kv, where V is columns "
            "of K, got 321",
        ),
        (
            {"head_dim": 320, "head_dim_v": 264},
            "AttentionConfig: head_dim=320 with shared_kv is for kernels with wgmma alone, and head_dim_v=264"
            f" takes 384 columns, and K has 320{OTHERS}",
        ),
        ({"shared_kv": 1}, "AttentionConfig: shared_kv must be True or False, got 1"),
    ],
    ids=str,
)
def test_what_no_kernel_computes_is_refused(how: dict[str, Any], message: str) -> None:
    given = {"head_dim": 576, "head_dim_v": 512, "dtype": "f16", "target": "sm_90a", "shared_kv": True, **how}
    with pytest.raises(ConfigError) as error:
        AttentionConfig(**given)
    assert str(error.value).startswith(message)


def test_values_and_new_rows_are_refused() -> None:
    config = AttentionConfig(32, 16, dtype="f16", shared_kv=True)
    q, k, v = (np.zeros((1, 1, 4, n), np.float16) for n in (32, 32, 16))
    said = "V is the first 16 columns of K; leave it out, or use AttentionConfig(shared_kv=False, ...)"
    with pytest.raises(LaunchError) as error:
        AttentionKernel(config).launch(q, k, v, backend="cpu")
    assert str(error.value) == f"launch: v must not be given, because the config says shared_kv: {said}"
    used = np.array([4], np.int32)
    with pytest.raises(LaunchError) as error:
        DecodeKernel(config).launch(q, k, None, k, v, seqused_k=used, backend="cpu")
    assert str(error.value) == (
        f"DecodeKernel.launch: k and v must not be given, because the config says shared_kv: {said}"
    )
    with pytest.raises(ConfigError, match=r"a kernel that appends writes rows of K and of V, and with"):
        cache_kernels.decode(config, cache_kernels.CacheConfig(), append=True)
    with pytest.raises(ConfigError, match=re.escape("got shared_kv=True; pass v, and add its gradients")):
        AttentionGradient(config)
    wanted = AttentionKernel(AttentionConfig(32, 16, dtype="f16")).launch(q, k, v, backend="cpu")
    np.testing.assert_array_equal(AttentionKernel(config).launch(q, k, backend="cpu"), wanted)
    np.testing.assert_array_equal(DecodeKernel(config).launch(q, k, seqused_k=used, backend="cpu"), wanted)

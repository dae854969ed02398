"""The forward kernel for Hopper where the rows of a tile are not those of one array: packed sequences,
packed heads, and tiles that functions leave out. Its own PTX, run with the sanitizers on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, assert_no_spill, nightly, run_forward

from flash.calls.step import launch_step
from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of_config
from flash.families.wgmma import WgmmaTiling
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.problem.tensor_maps import maps_of
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.interpreter import PCT, Result
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
HEADS, KV_HEADS = 2, 1
# Blocks are 64 rows: none, one, a block less one, a block, one more, several; whole ones next to others.
LENGTHS_Q = (0, 64, 1, 63, 65, 128, 0, 30)
LENGTHS_K = (5, 40, 0, 17, 33, 16, 3, 50)
SENTINEL = 7.0


def config_of(head_dim: int = 16, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    small = {"dtype": "f16", "target": "sm_90a", "return_lse": True, "tile": 16, "block_q": 64}
    config = AttentionConfig(head_dim, head_dim_v, **{**small, **how})
    assert isinstance(config.kernel().tiling, WgmmaTiling)
    return config


def ends(lengths: Sequence[int], gap: int = 0) -> Array:
    return np.cumsum([gap, *lengths]).astype(np.int32)


def packed(config: AttentionConfig, total_q: int, total_k: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    sizes = (total_q, HEADS, config.head_dim), (total_k, KV_HEADS, config.head_dim)
    shapes = (*sizes, (total_k, KV_HEADS, config.value_dim))
    q, k, v = (rng.standard_normal(s).astype(config.element.numpy) for s in shapes)
    return q, k, v


def run_sequences(
    config: AttentionConfig, arrays: tuple[Array, Array, Array], monkeypatch: pytest.MonkeyPatch, **how: Any
) -> tuple[Array, Array]:
    """(out, lse) of packed sequences; rows of O of no sequence are `SENTINEL`."""
    run = interpreter.run
    more = {name: how.pop(name) for name in ("schedule",) if name in how}
    with monkeypatch.context() as patched:
        patched.setattr(
            interpreter, "run", lambda *a, **given: run(*a, **{"sanitize": True, **given, **more})
        )
        out = np.full((len(arrays[0]), HEADS, config.value_dim), SENTINEL, config.element.numpy)
        _, lse = AttentionKernel(config).launch(*arrays, out=out, backend="interpreter", **how)
    return out, lse


def judge_sequences(
    config: AttentionConfig,
    arrays: tuple[Array, Array, Array],
    cu_q: Array,
    cu_k: Array,
    out: Array,
    lse: Array,
) -> None:
    """Each sequence is as accurate as attention by itself, and the other rows are as they were."""
    q, k, v = arrays
    untouched = np.ones(len(q), bool)
    for b in range(len(cu_q) - 1):
        queries, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        untouched[queries] = False
        assert_attention_is_accurate(
            out[queries].swapaxes(0, 1)[None],
            lse[None, :, queries],
            *(x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys])),
            softmax_scale=config.scale,
            causal=config.causal,
            window=config.window,
            arithmetic=arithmetic_of_config(config),
        )
    assert (out[untouched] == SENTINEL).all()


# ------------------------------------------------------------------------------------------
# packed sequences


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": "bottom_right"},
        {"causal": "top_left", "block_q": 128, "dtype": "bf16"},
        {"window": (20, 9), "stages": 3},
        {"causal": True, "pack_gqa": True},
        {"pack_gqa": True, "block_q": 128, "dtype": "bf16"},
        {"head_dim": 72, "head_dim_v": 40, "block_q": 128},
        {"head_dim": 128, "head_dim_v": 96, "causal": True},
    ],
    ids=str,
)
def test_each_sequence_is_attention_by_itself(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(varlen=True, **how)
    cu_q, cu_k = ends(LENGTHS_Q, 3), ends(LENGTHS_K, 2)
    arrays = packed(config, cu_q[-1] + 5, cu_k[-1] + 1)
    out, lse = run_sequences(config, arrays, monkeypatch, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    judge_sequences(config, arrays, cu_q, cu_k, out, lse)


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"pack_gqa": True}], ids=str)
def test_what_the_next_sequence_holds_does_not_matter(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, cu = config_of(varlen=True, **how), ends((70, 20))
    q, k, v = packed(config, 90, 90)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    calm, calm_lse = run_sequences(config, (q, k, v), monkeypatch, **lengths)
    q[70:], k[70:], v[70:] = np.nan, np.inf, np.nan
    wild, wild_lse = run_sequences(config, (q, k, v), monkeypatch, **lengths)
    np.testing.assert_array_equal(wild[:70], calm[:70])
    np.testing.assert_array_equal(wild_lse[:, :70], calm_lse[:, :70])
    assert np.isnan(wild[70:]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", [{}, {"pack_gqa": True, "block_q": 128}], ids=str)
def test_every_order_of_the_warps_gives_sequences_the_same_bits(
    how: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(varlen=True, causal=True, **how)
    cu_q, cu_k = ends((65, 20)), ends((50, 33))
    arrays, lengths = packed(config, 85, 83), {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    wanted = run_sequences(config, arrays, monkeypatch, **lengths)
    found = run_sequences(config, arrays, monkeypatch, schedule=PCT(seed), **lengths)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_keys_and_values_of_packed_heads_have_tensor_maps() -> None:
    assert list(maps_of(config_of(pack_gqa=True).kernel())) == ["K", "V"]
    of = maps_of(config_of(varlen=True).kernel())
    assert {name: len(boxes.box) for name, boxes in of.items()} == dict.fromkeys("QKVO", 3)
    contract = build(config_of(pack_gqa=True).kernel()).contract
    assert any(line.startswith("the strides of K and V are positive") for line in contract["constraints"])


GARBAGE = {
    "negative": [-5, -1, -(2**31), -7],
    "huge": [2**31 - 1, 2**30, 2**31 - 7, 2**31 - 1],
    "decreasing": [70, 30, 10, 0],
    "mixed": [-(2**31), 2**31 - 1, 3, 2**31 - 1],
}


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("paged", [False, True])
def test_nothing_outside_the_arrays_is_accessed_whatever_the_lengths_hold(name: str, paged: bool) -> None:
    """Without the checks of a launch."""
    config = config_of(varlen=True, causal=True, window=(9, None), page_size=16 if paged else None)
    made, rows, longest = build(config.kernel()), 70, 70
    q, k, v = packed(config, rows, rows)
    bad = np.array(GARBAGE[name], np.int32)
    arrays = {"Q": q, "K": k, "V": v, "O": np.zeros((rows, HEADS, 16), q.dtype), "cu_seqlens_q": bad}
    if paged:
        arrays |= {n: x[:64].reshape(4, 16, 1, 16).swapaxes(1, 2) for n, x in (("K", k), ("V", v))}
        arrays |= {"seqused_k": bad[1:].copy(), "block_table": bad[None].repeat(3, axis=0)}
    else:
        arrays["cu_seqlens_k"] = bad[::-1].copy()
    rows_first = {"Q", "O"} if paged else {"Q", "K", "V", "O"}
    views = {n: view(x.swapaxes(0, 1) if n in rows_first else x, n) for n, x in arrays.items()}
    views["LSE"] = view(np.zeros((HEADS, rows), np.float32), "LSE")
    sizes = {"total_q": rows, "total_k": rows, "seq_k": 64, "table_columns": 4, "pages": 4, "batch": 3}
    sizes |= {"heads": HEADS, "kv_heads": KV_HEADS, "group": HEADS // KV_HEADS, "max_seqlen_q": longest}
    values = {**sizes, **config.numbers, "softmax_scale": 1.0, "section": 2}
    launch_step(made, views, values, -(-longest // 64) * HEADS * 3).interpret(sanitize=True)


# ------------------------------------------------------------------------------------------
# pages


def in_pages(rows: Array, cu: Array, table: Array, size: int) -> Array:
    """[rows, kv_heads, dim] of all sequences in pages, [pages, kv_heads, size, dim]; the rest is NaN."""
    found = np.full((table.max() + 2, rows.shape[1], size, rows.shape[2]), np.nan, rows.dtype)
    for b in range(len(cu) - 1):
        for n, row in enumerate(rows[cu[b] : cu[b + 1]]):
            found[table[b, n // size], :, n % size] = row
    return found


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize(
    ("size", "how"),
    [
        (16, {"causal": True}),
        (32, {"tile": 16, "window": (30, 4)}),
        (16, {"tile": 48, "pack_gqa": True}),
        (48, {"tile": 32, "causal": True, "block_q": 128}),
        (16, {"tile": "auto", "block_q": "auto", "head_dim": 64}),
    ],
    ids=str,
)
def test_pages_give_the_bits_of_keys_that_lie_one_after_another(
    size: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config_of(**{"varlen": True, **how})
    paged = config_of(**{"varlen": True, "page_size": size, **how})
    cu_q, cu_k = ends((1, 65, 30)), ends((70, 33, 0))
    q, k, v = packed(plain, 96, 103)
    lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    wanted = run_sequences(plain, (q, k, v), monkeypatch, **lengths)
    columns = -(-70 // size)
    table = np.random.default_rng(3).permutation(3 * columns).reshape(3, columns).astype(np.int32)
    k_pages, v_pages = (in_pages(x, cu_k, table, size) for x in (k, v))
    unused = np.arange(columns) >= -(-np.diff(cu_k)[:, None] // size)
    given = {"cu_seqlens_q": cu_q, "seqused_k": np.diff(cu_k).astype(np.int32)}
    given["block_table"] = np.where(unused, 10**6, table).astype(np.int32)
    found = run_sequences(paged, (q, k_pages, v_pages), monkeypatch, **given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_copy_moves_the_rows_of_a_tile_that_are_in_one_page() -> None:
    def rows(page_size: int, tile: int) -> int:
        config = config_of(varlen=True, page_size=page_size, tile=tile)
        return maps_of(config.kernel())["K"].box[1]

    assert [rows(16, 128), rows(64, 128), rows(256, 128), rows(48, 64)] == [16, 64, 128, 16]
    contract = build(config_of(varlen=True, page_size=32).kernel()).contract
    of = next(p for p in contract["parameters"] if p["name"] == "K_map")["tensor_map"]
    assert (of["dims"], of["box"]) == ([16, 32, "kv_heads", "pages"], [64, 16, 1, 1])


# ------------------------------------------------------------------------------------------
# functions


def gaps(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + 90 >= key) & ((query + 90 - key < 8) | (key <= 16))  # 16 begins a tile


def boxes_loaded(result: Result) -> int:
    """Boxes that tensor copies have loaded."""
    name = "cp.async.bulk.tensor.4d.shared::cluster.global"
    return sum(int(n) for opcode, n in result.counters.by_opcode.items() if opcode.startswith(name))


@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("how", [{"pack_gqa": True}, {}, {"block_q": 128, "causal": True}], ids=str)
def test_what_tiles_in_a_gap_hold_does_not_matter(how: dict[str, Any]) -> None:
    config = config_of(mask_mod=gaps, **how)
    q, k, v = Problem(9, 130, 16, 16, heads=4, kv_heads=2).arrays(dtype=np.float16)
    seen: dict[str, Any] = {"mask_mod": gaps, "causal": config.causal}
    wanted, sums = attention_reference(q, k, v, **seen)
    k[:, :, 20:80] = v[:, :, 20:80] = np.nan
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=2e-3)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=2e-3)


@pytest.mark.slow
def test_tiles_between_others_are_not_loaded() -> None:
    arrays = Problem(64, 512, 16, 16).arrays(dtype=np.float16)

    def read(mask_mod: Any) -> int:
        _, _, result = run_forward(config_of(mask_mod=mask_mod, tile=32), arrays)
        return boxes_loaded(result)

    assert read(lambda b, h, q, k: k * k >= 0) == 1 + 2 * 16  # Q, and tiles of K and V
    assert read(lambda b, h, q, k: (q + 400 >= k) & ((q + 400 - k < 40) | (k < 4))) == 1 + 2 * 5
    assert read(lambda b, h, q, k: (k < 5) | (abs(k - 200) < 8) | (k > 500)) == 1 + 2 * 3
    assert read(lambda b, h, q, k: k < 0) == 0


@pytest.mark.slow
def test_a_last_tile_that_a_mask_hides_is_loaded_and_counts_nothing() -> None:
    def mask_mod(batch: Any, head: Any, query: Any, key: Any, blocks: Any) -> Any:
        return blocks[head, query // 64, key // 64]

    config = config_of(mask_mod=mask_mod, aux={"blocks": ("bool", 3)}, tile=32)
    q, k, v = Problem(64, 256, 16, 16).arrays(dtype=np.float16)
    blocks = np.array([[[True, False, True, False]]])
    how: dict[str, Any] = {"operands": {"aux_blocks": blocks}, "sanitize": True}
    out, lse, result = run_forward(config, (q, k, v), **how)
    assert_attention_is_accurate(
        out,
        lse,
        q,
        k,
        v,
        softmax_scale=config.scale,
        mask_mod=mask_mod,
        aux={"blocks": blocks},
        arithmetic=arithmetic_of_config(config),
    )
    assert boxes_loaded(result) == 1 + 2 * (1 + 4)
    none = np.zeros((1, 1, 4), bool)
    out, lse, _ = run_forward(config, (q, k, v), operands={"aux_blocks": none}, sanitize=True)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("together", [False, True])
def test_functions_of_scores_go_with_packed_sequences_and_heads(together: bool) -> None:
    def score_mod(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score * 0.5 - head * 0.25 * abs(query - key)

    rng = np.random.default_rng(2)
    q = rng.standard_normal((60, 4, 16)).astype(np.float16)
    k, v = (rng.standard_normal((60, 2, 16)).astype(np.float16) for _ in range(2))
    cu = ends((25, 35))
    config = config_of(varlen=True, pack_gqa=together, score_mod=score_mod, mask_mod=below)
    lengths: Any = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    out, lse = AttentionKernel(config).launch(q, k, v, backend="interpreter", **lengths)
    wanted, sums = AttentionKernel(config).launch(q, k, v, backend="cpu", **lengths)
    np.testing.assert_allclose(out.astype(float), wanted.astype(float), rtol=0, atol=4e-3)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=4e-3)


# ------------------------------------------------------------------------------------------
# proofs, and what the assembler makes of it


def below(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


ROWS: dict[str, dict[str, Any]] = {
    "varlen": {"varlen": True, "causal": True, "window": (99, None)},
    "used": {"varlen": True, "seqused_q": True, "seqused_k": True, "sink": True},
    "packed": {"pack_gqa": True, "causal": True, "alibi": True, "bias": "f32"},
    "both": {"pack_gqa": True, "varlen": True, "causal": "top_left", "dropout": 0.1},
    "pages": {"varlen": True, "page_size": 16, "causal": True, "window": (99, None)},
    "gaps": {"mask_mod": gaps},
    "function": {"mask_mod": below, "varlen": True, "pack_gqa": True},
}


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("name", ROWS)
def test_every_access_and_barrier_is_proved(name: str) -> None:
    for block_q in (64, 128):
        proofs = build(config_of(64, block_q=block_q, **ROWS[name]).kernel()).proofs
        assert proofs.shared.complete, proofs.shared.report()
        assert proofs.global_memory is not None
        assert proofs.global_memory.complete, proofs.global_memory.report()


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [64, nightly(128), nightly(256)])
@pytest.mark.parametrize("name", ROWS)
def test_no_default_kernel_spills(name: str, head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", return_lse=True, **ROWS[name])
    assert isinstance(config.kernel().tiling, WgmmaTiling)
    assert_no_spill(config, assembler)

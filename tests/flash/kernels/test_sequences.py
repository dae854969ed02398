"""Packed sequences of lengths of their own, whose keys are one after another or in pages: kernels of each
kind on the interpreter with its sanitizers, the cpu backend and the reference, sequence by sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, Array, assert_same_bits
from kernel_runs import Kernels, nightly
from sequence_runs import Batch, Lengths, check, config_of, lengths_of, offsets

import flash
from flash.calls.step import launch_step
from flash.contract.catalogue import build
from flash.cpu import job, paged_rows
from flash.kernel import AttentionKernel
from flash.problem.tensor_maps import maps_of
from flash.reference import attention_reference, attention_varlen_reference
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.interpreter import PCT

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("kernels")]

PLAIN = ("simt", "mma f16", "mma bf16", "mma f32_grade")
OF_BLOCKS = (
    "mxfp8 e4m3 on sm_100a",
    "mxfp8 e5m2 on sm_103a",
    "nvfp4 e4m3 on sm_100a",
    "nvfp4 e5m2 on sm_103a",
)
ONE_OF_EACH = pytest.mark.parametrize("kind", ["simt", "mma f16"])
ONE_OF_EACH_PRECISION = pytest.mark.parametrize("kind", ["simt", "mma f16", "mma f32_grade"])
EVERY_BACKEND = pytest.mark.parametrize("backend", ["cpu", "interpreter"])
PAGED = pytest.mark.parametrize("page_size", [None, 4])


def heads_of(kind: str) -> tuple[int, int]:
    return (2, 1) if KINDS[kind].family.mapped else (4, 2)


# ------------------------------------------------------------------------------------------
# accuracy, sequence by sequence


@pytest.mark.slow
@pytest.mark.sample(3, gate=12)
@pytest.mark.parametrize(
    ("kind", "page_size"),
    [
        *(
            (kind, size)
            for kind in ("simt", "mma f16", "wgmma f16", "latent")
            for size in (None, 1, 3, 16, 24, 64)
        ),
        *((kind, size) for kind in ("mma bf16", "mma f32_grade") for size in (None, 3, 16)),
        *((kind, size) for kind in ("split", "fp8 e4m3") for size in (None, 16, 48, 256)),
        *((kind, size) for kind in OF_BLOCKS for size in (None, 32, 96, 256)),
    ],
)
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
def test_each_sequence_is_attention_by_itself(
    kind: str, page_size: int | None, causal: Any, kernels: Kernels
) -> None:
    check(config_of(kind, page_size, causal=causal), lengths_of(kind), heads_of(kind), gap=3)
    assert kernels.names[0].startswith(f"attention_forward_{KINDS[kind].family.entry}")
    assert (f"_page{page_size}" in kernels.names[0]) == bool(page_size)


EVERYTHING = {
    "causal": True,
    "window": (25, None),
    "alibi": True,
    "sink": True,
    "softcap": 2.0,
    "dropout": 0.25,
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    kind: [
        *(EVERYTHING, {"window": (9, 3)}, {"causal": True, "window": (20, None)}),
        *({"causal": True, "head_dim_v": 300}, {"causal": True, "head_dim": 5, "head_dim_v": 7}),
    ]
    for kind in ("simt", "mma f16")
} | {
    "mma bf16": [{"causal": True, "stages": 2}],
    "simt sm_75": [{"causal": True, "head_dim_v": 16}],
    "wgmma f16": [
        *({"causal": True, "pack_gqa": True}, {"causal": "top_left", "block_q": 128}),
        *({"window": (20, 9), "stages": 3}, {"pack_gqa": True, "block_q": 128}, EVERYTHING),
        *(
            {"head_dim": 72, "head_dim_v": 40, "block_q": 128},
            {"head_dim": 128, "head_dim_v": 96, "causal": True},
        ),
        *({"tile": 48, "pack_gqa": True}, {"tile": 32, "window": (30, 4)}),
    ],
    "latent": [{"causal": True, "pack_gqa": packed} for packed in (True, False)],
    "fp8 e4m3": [
        *({"causal": True, "pack_gqa": packed, "window": (30, None)} for packed in (True, False)),
        {"causal": "bottom_right", "dtype": "e5m2", "tile": 128},
        {"causal": "top_left", "block_q": 128, "out_dtype": "f16"},
        {"window": (30, 9), "block_q": 192, "softcap": 2.0, "alibi": True, "sink": True},
        {"head_dim": 48, "head_dim_v": 144, "tile": 128, "causal": True, "stages": 3},
        {"head_dim": 256, "head_dim_v": 256, "causal": True, "block_q": "auto", "tile": "auto"},
    ],
    "mxfp8 e4m3 on sm_100a": [
        {"causal": True, "pack_gqa": True},
        {"window": (30, 9), "alibi": True, "sink": True},
    ],
    "nvfp4 e4m3 on sm_100a": [
        {"causal": True, "pack_gqa": True, "head_dim": 128, "head_dim_v": 80, "block_q": 128}
    ],
}


@pytest.mark.slow
@pytest.mark.sample(3, gate=12)
@pytest.mark.parametrize(
    ("kind", "settings"), [(kind, one) for kind, settings in SETTINGS.items() for one in settings], ids=str
)
@pytest.mark.parametrize("page_size", [32, None])
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_settings_go_by_the_lengths_of_a_sequence(
    kind: str, settings: dict[str, Any], page_size: int | None, backend: str
) -> None:
    check(config_of(kind, page_size, **settings), lengths_of(kind), heads_of(kind), backend)


@pytest.mark.slow
@pytest.mark.sample(1, gate=4)
@pytest.mark.parametrize("kind", ["simt", "mma f16", "fp8 e4m3"])
@pytest.mark.parametrize("heads", [(2, 2), (3, 1), (1, 1), (16, 2)], ids=str)
@pytest.mark.parametrize("pack_gqa", [True, False])
def test_any_number_of_heads_shares_a_head_of_keys(kind: str, heads: tuple[int, int], pack_gqa: bool) -> None:
    check(config_of(kind, 16, causal=True, pack_gqa=pack_gqa), lengths_of(kind), heads)


@pytest.mark.slow
@ONE_OF_EACH
@EVERY_BACKEND
@PAGED
def test_only_the_rows_that_are_used_count_and_no_others_are_written(
    kind: str, backend: str, page_size: int | None
) -> None:
    lengths = ((0, 5), (1, 0), (15, 17), (16, 16), (17, 33), (40, 15), (0, 3), (33, 40))
    used: dict[str, Any] = {"seqused_q": np.array([0, 0, 9, 16, 16, 39, 0, 1], np.int32)}
    if page_size is None:
        used["seqused_k"] = np.array([5, 0, 16, 0, 17, 15, 1, 39], np.int32)
    config = config_of(kind, page_size, causal=True, **dict.fromkeys(used, True))
    check(config, lengths, backend=backend, gap=3, **used)


@EVERY_BACKEND
@PAGED
@pytest.mark.parametrize("lengths", [((0, 0),), ((0, 5), (0, 0)), ((2, 0),)], ids=str)
def test_batches_may_have_no_query_and_no_key(backend: str, page_size: int | None, lengths: Lengths) -> None:
    check(config_of("simt", page_size), lengths, backend=backend)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_a_batch_may_have_no_sequence(backend: str) -> None:
    q, k, v = (np.zeros((0, n, 16), np.float32) for n in (4, 2, 2))
    out = flash.attention_varlen(q, k, v, offsets(()), offsets(()), backend=backend)
    assert out.shape == (0, 4, 16)


# ------------------------------------------------------------------------------------------
# what is of no sequence


@pytest.mark.slow
@pytest.mark.sample(2, gate=6)
@pytest.mark.parametrize("kind", ["simt", "mma f16", "wgmma f16", "fp8 e4m3", "latent"])
@pytest.mark.parametrize("settings", [{"causal": True}, {}, {"pack_gqa": True}], ids=str)
def test_what_the_next_sequence_holds_does_not_matter(kind: str, settings: dict[str, Any]) -> None:
    batch = Batch.of(config_of(kind, **settings), ((70, 70), (20, 20)), heads_of(kind))
    calm, calm_lse = batch.launched()
    for name in ("q", "k", "v"):
        if name in batch.arguments:
            batch.arguments[name][70:] = np.nan if name != "k" or kind == "fp8 e4m3" else np.inf
    wild, wild_lse = batch.launched()
    assert_same_bits((wild[:70], wild_lse[:, :70]), (calm[:70], calm_lse[:, :70]))
    assert np.isnan(wild[70:].astype(np.float32)).all()


@pytest.mark.slow
@pytest.mark.sample(2, gate=5)
@pytest.mark.parametrize("kind", ["simt", "mma f16", "wgmma f16", "fp8 e5m2"])
@EVERY_BACKEND
def test_what_is_no_key_of_a_sequence_cannot_reach_it(kind: str, backend: str) -> None:
    batch = Batch.of(
        config_of(kind, 16, causal=True, window=(30, None)), lengths_of(kind)[:5], heads_of(kind)
    )
    wild = batch.launched(backend)
    for name in ("k", "v"):
        array = batch.arguments[name]
        array[np.isnan(array)] = 0
    table = batch.arguments["block_table"]
    table[table == table.max()] = -(2**31)
    assert_same_bits(wild, batch.launched(backend))
    assert np.isfinite(wild[0].astype(np.float32)).all()


GARBAGE = {
    "negative": [-5, -1, -(2**31), -7],
    "huge": [2**31 - 1, 2**30, 2**31 - 7, 2**31 - 1],
    "decreasing": [40, 30, 10, 0],
    "beyond": [0, 39, 41, 10**6],
    "mixed": [-(2**31), 2**31 - 1, 3, 2**31 - 1],
}


def run_anyway(config: Any, starts: Array, used: Array, most: int = 70) -> interpreter.Result:
    """Run the kernel on 70 rows without the checks of a launch; queries begin at `starts`, and keys at
    the same numbers backwards, or in these pages.
    """
    batch, built = Batch.of(config, ((70, 64),), (2, 1)), build(config.kernel())
    arrays = {name.upper(): batch.arguments[name] for name in "qkv"}
    arrays |= {
        "O": np.zeros((70, 2, config.value_dim), arrays["Q"].dtype),
        "LSE": np.zeros((2, 70), np.float32),
    }
    rows_first = {"Q", "O"} if config.page_size else {"Q", "K", "V", "O"}
    views = {n: view(x.swapaxes(0, 1) if n in rows_first else x, n) for n, x in arrays.items()}
    lengths = {
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts[::-1].copy(),
        "seqused_q": used,
        "seqused_k": used,
    }
    lengths["block_table"] = np.resize(starts, (3, 4))
    views |= {name: view(array, name) for name, array in lengths.items()}
    sizes = {
        "total_q": 70,
        "total_k": 64,
        "seq_k": 64,
        "table_columns": 4,
        "pages": len(arrays["K"]),
        "batch": 3,
    }
    sizes |= {"heads": 2, "kv_heads": 1, "group": 2, "max_seqlen_q": most}
    values = {**sizes, **config.numbers, "softmax_scale": 1.0, "section": 2}
    rows, heads = (2 * most, 1) if config.kernel().packed else (most, 2)
    ctas = -(-rows // config.kernel().tiling.block_q) * heads * (len(starts) - 1)
    return launch_step(built, views, values, ctas).interpret()


@pytest.mark.slow
@pytest.mark.sample(5, gate=14)
@pytest.mark.parametrize("kind", ["simt", "mma f16", "mma f32_grade", "wgmma f16"])
@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("pack_gqa", [False, True])
@pytest.mark.parametrize("name", GARBAGE)
def test_nothing_outside_the_arrays_is_accessed_whatever_they_hold(
    kind: str, page_size: int | None, pack_gqa: bool, name: str
) -> None:
    used = {"seqused_q": True, "seqused_k": True}
    config = config_of(kind, page_size, causal=True, window=(9, None), pack_gqa=pack_gqa, **used)
    bad = np.array(GARBAGE[name], np.int32)
    run_anyway(config, bad, bad[1:].copy())


@ONE_OF_EACH
def test_ctas_after_the_end_of_their_sequence_end_before_the_first_barrier(kind: str) -> None:
    starts, config = offsets((32, 1, 0)), config_of(kind)
    few, many = (run_anyway(config, starts, starts, longest).counters.by_opcode for longest in (32, 160))
    assert few["bar.sync"] == many["bar.sync"]
    assert few["mov.u32"] < many["mov.u32"]


# ------------------------------------------------------------------------------------------
# the bits of a result


@pytest.mark.slow
@pytest.mark.sample(1, gate=5)
@pytest.mark.parametrize(
    ("kind", "size", "settings"),
    [
        *((kind, 4, {"causal": True, "window": (12, None), "dropout": 0.2}) for kind in PLAIN),
        *((kind, 4, {}) for kind in PLAIN),
        ("wgmma f16", 16, {"causal": True}),
        ("wgmma f16", 32, {"tile": 16, "window": (30, 4)}),
        ("wgmma f16", 16, {"tile": 48, "pack_gqa": True}),
        ("wgmma f16", 48, {"tile": 32, "causal": True, "block_q": 128}),
        ("wgmma f16", 16, {"tile": "auto", "block_q": "auto", "head_dim": 64, "head_dim_v": 64}),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_pages_give_the_bits_of_keys_that_lie_one_after_another(
    kind: str, size: int, settings: dict[str, Any], backend: str
) -> None:
    config = config_of(kind, size, **settings)
    batch = Batch.of(config, ((1, 70), (65, 33), (30, 0), (17, 40)), heads_of(kind))
    pack_gqa = (
        False if kind in PLAIN else config.pack_gqa
    )  # rows of wgmma are summed where they are in a block
    plain = Batch(replace(config, page_size=None, seqused_k=False, pack_gqa=pack_gqa), batch.rows, {})
    plain.arguments = {**batch.arguments, **plain.one_after_another()}
    del plain.arguments["block_table"], plain.arguments["seqused_k"]
    wanted = plain.launched(backend)
    for packs in (False, True) if kind in PLAIN else (pack_gqa,):
        batch.config = replace(config, pack_gqa=packs)
        assert_same_bits(batch.launched(backend), wanted)


@pytest.mark.nightly
@ONE_OF_EACH_PRECISION
def test_equal_lengths_give_the_bits_of_the_kernel_for_them(kind: str) -> None:
    settings: dict[str, Any] = {"causal": True, "window": (12, None), "dropout": 0.2}
    batch = Batch.of(config_of(kind, **settings), [(33, 20)] * 3)
    out, lse = batch.launched()
    alike = AttentionKernel(replace(batch.config, varlen=False, pack_gqa=False))
    rows = (batch.arguments[name].reshape(3, -1, *batch.arguments[name].shape[1:]) for name in "qkv")
    seed = batch.arguments["dropout_seed"]
    other, sums = alike.launch(*rows, layout="bshd", backend="interpreter", dropout_seed=seed)
    assert out.tobytes() == other.tobytes()
    assert lse.tobytes() == np.ascontiguousarray(sums.swapaxes(0, 1)).tobytes()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("settings", [{}, {"pack_gqa": True, "block_q": 128}], ids=str)
def test_every_order_of_the_warps_gives_the_same_bits(
    settings: dict[str, Any], seed: int, kernels: Kernels
) -> None:
    batch = Batch.of(config_of("wgmma f16", causal=True, **settings), ((65, 50), (20, 33)), (2, 1))
    wanted = batch.launched()
    kernels.options["schedule"] = PCT(seed)
    assert_same_bits(batch.launched(), wanted)


def test_only_keys_and_values_of_packed_heads_have_tensor_maps() -> None:
    packed = KINDS["wgmma f16"].config(pack_gqa=True).kernel()
    assert list(maps_of(packed)) == ["K", "V"]
    of = maps_of(config_of("wgmma f16").kernel())
    assert {name: len(boxes.box) for name, boxes in of.items()} == dict.fromkeys("QKVO", 3)
    constraints = build(packed).contract["constraints"]
    assert any(line.startswith("the strides of K and V are positive") for line in constraints)


def test_a_copy_moves_the_rows_of_a_tile_that_are_in_one_page() -> None:
    def rows(page_size: int, tile: int) -> int:
        return maps_of(config_of("wgmma f16", page_size, tile=tile).kernel())["K"].box[1]

    assert [rows(16, 128), rows(64, 128), rows(256, 128), rows(48, 64)] == [16, 64, 128, 16]
    contract = build(config_of("wgmma f16", 32).kernel()).contract
    of = next(p for p in contract["parameters"] if p["name"] == "K_map")["tensor_map"]
    assert (of["dims"], of["box"]) == ([16, 32, "kv_heads", "pages"], [64, 16, 1, 1])


# ------------------------------------------------------------------------------------------
# arrays of any strides, functions


def test_views_of_a_larger_buffer_are_read_in_place() -> None:
    buffer = (
        np.random.default_rng(0).standard_normal((40, 12, 16)).astype(np.float16)
    )  # of a fused projection
    q, k, v = buffer[:, :4], buffer[:, 4:8], buffer[::-1, 8:]
    wide = np.zeros((5, 2), np.int32)
    wide[:, 0] = offsets((17, 0, 3, 20))
    out = flash.attention_varlen(q, k, v, wide[:, 0], wide[:, 0], causal=True, backend="interpreter")
    wanted, _ = attention_varlen_reference(q, k, v, wide[:, 0], wide[:, 0], causal=True)
    np.testing.assert_allclose(out.astype(float), wanted, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mma f16", nightly("fp8 e4m3")])
@EVERY_BACKEND
def test_pages_may_have_any_strides_and_keys_and_values_one_array(kind: str, backend: str) -> None:
    config = config_of(kind, 16, causal=True, head_dim_v=KINDS[kind].dims[0], tile="auto", block_q="auto")
    arguments = Batch.of(config, ((1, 90), (20, 33)), (2, 1)).arguments
    q, k, v, starts = (arguments.pop(name) for name in ("q", "k", "v", "cu_seqlens_q"))
    inputs = {**arguments, "causal": True, "backend": backend}

    def attend(k: Array, v: Array, **changes: Any) -> Any:
        return flash.attention_varlen(q, k, v, starts, **{**inputs, **changes})

    wanted = attend(k, v, kv_layout="HND")
    together = np.stack([k, v], axis=1)  # [pages, 2, kv_heads, page_size, dim]
    rows_first = together.swapaxes(2, 3).copy()  # as vLLM has them
    back = (x[::-1].copy()[::-1] for x in (k[::-1].copy(), v[::-1].copy()))
    reversed_table = (len(k) - 1 - inputs["block_table"]).astype(np.int32)
    for result in (
        attend(together[:, 0], together[:, 1], kv_layout="HND"),
        attend(rows_first[:, 0], rows_first[:, 1]),
        attend(*back, kv_layout="HND", block_table=reversed_table),
    ):
        assert result.tobytes() == wanted.tobytes()


@EVERY_BACKEND
def test_sequences_may_share_pages_and_a_table_may_be_broadcast(backend: str) -> None:
    batch = Batch.of(config_of("simt", 4, causal=True), [(5, 12)] * 3)
    table, used = batch.arguments["block_table"], batch.arguments["seqused_k"]
    wanted = batch.launched(backend, block_table=np.tile(table[:1], (3, 1)))
    assert_same_bits(batch.launched(backend, block_table=table[0], seqused_k=used[:1]), wanted)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
def test_functions_of_scores_get_the_positions_of_queries(backend: str) -> None:
    def near(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < 20)

    arguments = Batch.of(config_of("simt", 4)).arguments | {"kv_layout": "HND", "backend": backend}
    result = flash.attention_varlen(**arguments, mask_mod=near)
    wanted = flash.attention_varlen(**arguments, causal=True, window=(19, None))
    np.testing.assert_allclose(result, wanted, atol=2e-6)


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("packed", [False, True])
def test_functions_of_scores_go_with_packed_sequences_and_heads(packed: bool) -> None:
    def score_mod(score: Any, _batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score * 0.5 - head * 0.25 * abs(query - key)

    def mask_mod(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return query >= key

    config = config_of("wgmma f16", pack_gqa=packed, score_mod=score_mod, mask_mod=mask_mod)
    batch = Batch.of(config, ((25, 25), (35, 35)))
    for one, other in zip(batch.launched(), batch.launched("cpu"), strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=0, atol=4e-3)


def test_the_cpu_copies_a_block_of_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BLOCK_K", 8)
    monkeypatch.setattr(job, "KEY_ELEMENTS", 1)
    copied, read = [], paged_rows.PagedRows.read

    def counted(rows: Any, heads: slice, keys: slice, out: Array) -> None:
        copied.append(keys.stop - keys.start)
        read(rows, heads, keys, out)

    monkeypatch.setattr(paged_rows.PagedRows, "read", counted)
    check(config_of("simt", 4, causal=True), backend="cpu")
    assert max(copied) == 8


# ------------------------------------------------------------------------------------------
# the reference


def test_a_batch_of_the_reference_is_its_sequences_in_pages_or_one_after_another() -> None:
    batch = Batch.of(config_of("simt", 4), ((3, 5), (0, 2), (4, 0)), gap=2)
    arguments = batch.arguments
    q, starts, sink = arguments["q"], arguments["cu_seqlens_q"], np.ones((3, 4), np.float32)
    how: Any = {"causal": True, "dropout": 0.5, "dropout_seed": 4}
    of = batch.one_after_another()
    out, lse = attention_varlen_reference(q, of["k"], of["v"], starts, of["cu_seqlens_k"], sink=sink, **how)
    pages = (arguments[name].swapaxes(1, 2) for name in "kv")
    tables = {name: arguments[name] for name in ("block_table", "seqused_k")}
    assert_same_bits(attention_varlen_reference(q, *pages, starts, sink=sink, **tables, **how), (out, lse))
    for b, (k, v) in enumerate(batch.rows):
        rows = slice(starts[b], starts[b + 1])
        own = q[rows].swapaxes(0, 1)[None], k[None], v[None]
        part, sums = attention_reference(*own, sink=sink[b : b + 1], first_batch=b, **how)
        assert_same_bits((out[rows].swapaxes(0, 1), lse[:, rows]), (part[0], sums[0]))
    for rows in (slice(2), slice(9, None)):  # of no sequence
        assert (out[rows] == 0).all()
        assert (lse[:, rows] == -np.inf).all()


@pytest.mark.parametrize("seed", [nightly(seed) for seed in range(40)])
def test_calls_of_fp8_over_pages_drawn_at_random(seed: int, kernels: Kernels) -> None:
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    dims = one_of((64, 64), (16, 32), (96, 64), (64, 144), (128, 128))
    settings: dict[str, Any] = {
        **dict(zip(("head_dim", "head_dim_v"), dims, strict=True)),
        "out_dtype": one_of("bf16", "f16"),
        "causal": one_of(False, True, "top_left"),
        "block_q": one_of(64, 128, "auto"),
        "tile": one_of(64, 128),
        "stages": one_of(2, 3),
        "pack_gqa": one_of("auto", True, False),
        "window": one_of(None, (int(rng.integers(90)), None), (40, int(rng.integers(20)))),
        "softcap": one_of(None, None, 3.0),
        "alibi": one_of(False, True),
        "sink": one_of(False, True),
        "softmax_scale": one_of(None, None, -0.1),
    }
    lengths = [(int(rng.integers(0, 90)), int(rng.integers(0, 290))) for _ in range(int(rng.integers(1, 4)))]
    kernels.options["schedule"] = PCT(seed)
    config = config_of(one_of("fp8 e4m3", "fp8 e5m2"), int(rng.integers(1, 9)) * 16, **settings)
    check(config, [(1, 70), *lengths], one_of((1, 1), (2, 1), (2, 2), (6, 2)), gap=3)

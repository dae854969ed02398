from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from flash.contract.catalogue import build
from flash.contract.forward import CAUSAL, launches_of
from flash.contract.resources import KernelResources, Memory
from flash.families.simt import Tiling
from flash.operands.dtypes import BF16, DTYPES, F16, DType
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.reference import visible_keys
from flash.scores.features import scored
from flash.scores.window import key_limits, position_offset
from ptxgen.target import target
from ptxgen.types import scalar_type

PLAIN = AttentionConfig(8, return_lse=True).kernel()


def parameters(config: KernelConfig) -> dict[str, str]:
    return launches_of(config).meanings


def contract_of(config: AttentionConfig) -> dict[str, Any]:
    return build(config.kernel()).contract


@pytest.mark.parametrize("return_lse", [False, True])
def test_the_parameters_are_those_of_the_kernel(return_lse: bool) -> None:
    built = build(AttentionConfig(8, return_lse=return_lse).kernel())
    listed = built.contract["parameters"]
    assert [(p["name"], p["type"]) for p in listed] == [(p.name, p.type) for p in built.kernel.params]
    end = 0
    for parameter in listed:
        size = scalar_type(parameter["type"]).nbytes
        assert parameter["size"] == size
        assert parameter["offset"] == -(-end // size) * size
        assert parameter["meaning"] == parameters(PLAIN)[parameter["name"]]
        end = parameter["offset"] + size


def test_every_meaning_belongs_to_a_parameter() -> None:
    params = build(AttentionConfig(8, return_lse=True).kernel()).kernel.params
    assert parameters(PLAIN).keys() == {p.name for p in params}


def test_hosts_are_told_what_an_array_holds_before_a_launch() -> None:
    contract = contract_of(AttentionConfig(8, return_max_logit=True, return_lse=True))
    initial = {array["name"]: array.get("initial") for array in contract["arrays"]}
    assert initial == {**dict.fromkeys(("Q", "K", "V", "O", "LSE")), "MAX_LOGIT": "-inf"}
    assert "each element of MAX_LOGIT is -inf (0xff800000) before a launch" in contract["constraints"]
    meanings = {p["name"]: p["meaning"] for p in contract["parameters"]}
    assert meanings["MAX_LOGIT"] == (
        "device address of the largest score of each head, before the sink and dropout, read and written, "
        "-inf before a launch: f32 [batch, heads], dense; -inf for a head whose rows see no key, NaN if a "
        "score that a row sees is NaN"
    )


def test_causal_kernels_are_told_how_many_heads_take_turns() -> None:
    built = build(AttentionConfig(8, causal=True, return_lse=True).kernel())
    meanings = {p["name"]: p["meaning"] for p in built.contract["parameters"]}
    assert meanings == parameters(built.config)
    assert meanings.keys() == {*parameters(PLAIN), "section"}
    assert meanings["section"] == (
        "how many heads of all batches take turns: the last block of query rows of each of them, "
        "then the blocks before, then the next so many heads; at least 1, and better no more than "
        "have their K and V in the cache together. The results do not depend on it"
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_the_meanings_name_the_type_and_its_size(dtype: DType) -> None:
    meanings = parameters(AttentionConfig(8, dtype=dtype.name, return_lse=True).kernel())
    assert list(meanings) == list(parameters(PLAIN))
    assert meanings["K"] == (
        f"device address of the keys, read: {dtype.name} [batch, kv_heads, seq_k, head_dim], strides as below"
    )
    assert meanings["O_row_stride"] == (
        f"elements (of {dtype.nbytes} bytes) from one sequence position to the next in O; any sign, 0 repeats"
    )
    assert meanings["LSE"] == parameters(PLAIN)["LSE"]
    assert "f32 [batch, heads, seq_q]" in meanings["LSE"]


def test_the_parameters_of_every_feature_are_said() -> None:
    built = build(
        AttentionConfig(
            8,
            dtype="f16",
            window=(5, 6),
            softcap=30.0,
            alibi=True,
            bias="f16",
            mask=True,
            sink=True,
            return_lse=True,
        ).kernel()
    )
    meanings = {p["name"]: p["meaning"] for p in built.contract["parameters"]}
    said = parameters(built.config)
    assert list(meanings.values()) == [said.pop(p.name) for p in built.kernel.params]
    assert not said
    names = list(meanings)
    assert names[5:9] == ["alibi_slopes", "bias", "mask", "sink"]
    assert names[names.index("softmax_scale") + 1 :] == [
        "window_left",
        "window_right",
        "softcap",
        "alibi_slopes_batch_stride",
        "alibi_slopes_head_stride",
        *(f"bias_{dim}_stride" for dim in ("batch", "head", "query", "key")),
        *(f"mask_{dim}_stride" for dim in ("batch", "head", "query", "key")),
        "sink_batch_stride",
        "sink_head_stride",
    ]
    assert meanings["mask"] == (
        "device address of mask, read: bool [batch, heads, seq_q, seq_k], strides as below; 0 "
        "hides the key, any other byte lets it be seen"
    )
    assert meanings["bias_key_stride"] == (
        "elements (of 2 bytes) from one to the next of seq_k in bias; any sign, 0 repeats"
    )
    assert meanings["window_right"] == (
        "query i sees no key above i + offset + window_right; offset is seq_k - seq_q, or 0 with "
        "top_left causality"
    )
    assert meanings["seq_q"] == f"queries of each head, 1 to {2**30 - 256}"
    assert f"seq_q and seq_k are at most {2**30 - 256}" in built.contract["constraints"]


def test_the_contract_of_packed_sequences_says_where_they_lie() -> None:
    config = AttentionConfig(8, causal=True, varlen=True, seqused_k=True, return_lse=True)
    result = contract_of(config)
    meanings = {p["name"]: p["meaning"] for p in result["parameters"]}
    assert meanings == parameters(config.kernel())
    assert list(meanings) == [
        "Q",
        "K",
        "V",
        "O",
        "LSE",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "seqused_k",
        *(f"{name}_{step}_stride" for name in "QKVO" for step in ("head", "row")),
        "total_q",
        "total_k",
        "heads",
        "group",
        "softmax_scale",
        "section",
        "max_seqlen_q",
        "cu_seqlens_q_batch_stride",
        "cu_seqlens_k_batch_stride",
        "seqused_k_batch_stride",
    ]
    assert meanings["Q"] == (
        "device address of the queries, read: f32 [total_q, heads, head_dim], strides as below"
    )
    assert meanings["cu_seqlens_k"] == (
        "device address of cu_seqlens_k, read: i32 [batch + 1], strides as below; the keys of "
        "sequence b are rows cu_seqlens_k[b] to cu_seqlens_k[b + 1] - 1 of total_k; never "
        "decreasing"
    )
    assert meanings["LSE"] == (
        "device address of the log-sum-exp (natural logarithm) of each row's scaled scores, "
        "written: f32 [heads, total_q], dense; -inf for a row that sees no key"
    )
    assert result["grid"]["formula"] == "(ceil(max_seqlen_q / 128) * heads * batch, 1, 1)"
    assert result["grid"]["x"] == {"times": [{"ceil_div": ["max_seqlen_q", 128]}, "heads", "batch"]}
    assert result["layout"] == (
        "the sequences of a batch lie one after another in Q, K, V and O, whose last dimension is "
        "dense; the strides of the others are parameters. Sequences may be empty. Rows that are "
        "in no sequence, or beyond what is used of one, are neither read nor written. Elsewhere "
        "seq_q and seq_k are a sequence's own numbers of queries and keys"
    )
    for said in (
        f"total_q and total_k are at most {2**30 - 256}",
        "what the kernel is told of the sequences is not written while it runs; whatever it says, "
        "nothing outside the arrays is accessed",
    ):
        assert said in result["constraints"]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
def test_a_contract_of_16_bit_types_says_so(dtype: DType) -> None:
    built = build(AttentionConfig(8, 4, dtype.name, return_lse=True).kernel())
    result = built.contract
    assert (result["dtype"], result["precision"]) == (dtype.name, None)
    assert {p["name"]: p["meaning"] for p in result["parameters"]} == parameters(built.config)
    assert result["block"] == [built.config.tiling.threads, 1, 1]
    assert result["dynamic_shared_bytes"] == built.config.tiling.shared_bytes
    assert result["alignment"] == 8
    assert result["constraints"][0] == (
        "Q, K, V and O, and their strides in bytes, are multiples of 8 bytes; those of LSE of an element's "
        "size"
    )


def test_the_offsets_a_foreign_host_needs() -> None:
    listed = contract_of(AttentionConfig(8, return_lse=True))["parameters"]
    offsets = {p["name"]: p["offset"] for p in listed}
    assert offsets["Q"] == 0
    assert offsets["LSE"] == 32
    assert offsets["O_row_stride"] == 128
    assert {n: offsets[n] for n in ("seq_q", "seq_k", "heads", "group", "softmax_scale")} == {
        "seq_q": 136,
        "seq_k": 140,
        "heads": 144,
        "group": 148,
        "softmax_scale": 152,
    }


def test_the_contract_is_json_and_names_its_text() -> None:
    config = AttentionConfig(64, 32, causal="top_left", target="sm_90", return_lse=True)
    built = build(config.kernel())
    result = json.loads(json.dumps(built.contract))
    assert result["sha256"] == hashlib.sha256(built.text.encode()).hexdigest()
    assert f".visible .entry {result['entry']}(" in built.text
    assert f".target {result['target']}\n" in built.text
    assert f".version {result['ptx_version']}\n" in built.text
    assert f".maxntid {result['block'][0]}, 1, 1" in built.text
    assert result["causal"] == {"mode": "top_left", "meaning": CAUSAL["top_left"]}
    assert result["lse"] == parameters(PLAIN)["LSE"]
    assert (result["head_dim"], result["head_dim_v"], result["dtype"]) == (64, 32, "f32")
    assert result["precision"] == "ieee"


def test_the_grid_and_the_shared_memory_are_those_of_the_tiles() -> None:
    config = AttentionConfig(64, tile=32, block_q=64)
    built = build(config.kernel())
    result = built.contract
    assert result["grid"] == {
        "formula": "(ceil(seq_q / 64) * heads * batch, 1, 1)",
        "x": {"times": [{"ceil_div": ["seq_q", 64]}, "heads", "batch"]},
        "y": 1,
        "z": 1,
    }
    assert result["dynamic_shared_bytes"] == built.config.tiling.shared_bytes
    assert result["static_shared_bytes"] == 0
    assert result["lse"] == "not written: the kernel was made with return_lse=False"


def test_the_constraints_say_what_this_kernel_needs() -> None:
    wide = contract_of(AttentionConfig(64, target="sm_90a"))["constraints"]
    narrow = contract_of(AttentionConfig(3, tile=16, block_q=16))["constraints"]
    assert wide[0] == ("Q, K, V and O, and their strides in bytes, are multiples of 16 bytes")
    assert narrow[0].endswith("multiples of 4 bytes")
    assert "the device runs sm_90a and nothing else (architecture-specific target)" in wide
    assert "the device runs sm_80 or later" in narrow
    opt_in = [c for c in wide if c.startswith("before the first launch")]
    shared = contract_of(AttentionConfig(64, target="sm_90a"))["dynamic_shared_bytes"]
    assert opt_in == [
        "before the first launch set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the "
        f"function to {shared}"
    ]
    assert not [c for c in narrow if c.startswith("before")]


def resources_of(config: AttentionConfig) -> KernelResources:
    return build(config.kernel()).resources


def seen_by(causal: str, query: int, seq_q: int, seq_k: int) -> int:
    last = {"": seq_k, "bottom_right": query + seq_k - seq_q, "top_left": query}[causal]
    return min(max(last + 1, 0), seq_k)


@pytest.mark.parametrize("block_q", [16, 64])
@pytest.mark.parametrize("causal", ["", "bottom_right", "top_left"])
@pytest.mark.parametrize(
    ("seq_q", "seq_k"), [(1, 1), (5, 100), (100, 5), (40, 0), (0, 40), (33, 33), (64, 48), (48, 64)]
)
def test_arithmetic_is_counted_as_a_loop_would(causal: str, seq_q: int, seq_k: int, block_q: int) -> None:
    result = resources_of(AttentionConfig(8, 4, causal=causal or False, tile=16, block_q=block_q))
    pairs = sum(seen_by(causal, i, seq_q, seq_k) for i in range(seq_q))
    assert result.useful_flops(2, 3, seq_q, seq_k) == 2 * 6 * pairs * (8 + 4)
    tiles = 0
    for first in range(0, seq_q, block_q):
        last_row = min(first + block_q, seq_q) - 1
        tiles += -(-seen_by(causal, last_row, seq_q, seq_k) // 16)
    assert result.visited_tiles(seq_q, seq_k) == tiles
    t = result.config.tiling
    assert isinstance(t, Tiling)
    columns = 4 * (t.dim_chunks * t.splits + t.chunks * t.lanes)
    assert result.flops(2, 3, seq_q, seq_k) == 2 * 6 * tiles * block_q * 16 * columns
    assert result.flops(2, 3, seq_q, seq_k) >= result.useful_flops(2, 3, seq_q, seq_k)


@pytest.mark.parametrize("block_q", [16, 64])
@pytest.mark.parametrize("causal", ["", "bottom_right", "top_left"])
@pytest.mark.parametrize("window", [(0, 0), (3, None), (None, 20), (18, 5), (200, 200)])
def test_arithmetic_of_a_window_is_counted_as_a_loop_would(window: Any, causal: str, block_q: int) -> None:
    result = resources_of(
        AttentionConfig(8, 4, causal=causal or False, window=window, tile=16, block_q=block_q)
    )
    for seq_q, seq_k in ((1, 1), (5, 100), (100, 5), (40, 0), (0, 40), (64, 48), (150, 150)):
        shape = (1, 1, seq_q, seq_k)
        of = scored(shape, causal or False, np.float64, 0, {"window": window})
        seen = visible_keys(of)[0, 0]
        flops = result.useful_flops(2, 3, seq_q, seq_k, window)
        assert flops == 2 * 6 * int(seen.sum()) * (8 + 4)
        # A tile that holds a key counts whole, with keys beyond the last.
        longer = -(-seq_k // 16) * 16
        position = np.arange(seq_q)[:, None] + position_offset(causal or False, seq_q, seq_k)
        distance = position - np.arange(longer)
        before, behind = key_limits(bool(causal), window)
        in_reach = (distance <= (longer + seq_q if before is None else before)) & (
            -distance <= (longer + seq_q if behind is None else behind)
        )
        tiles = sum(
            int(in_reach[first : first + block_q].any(axis=0).reshape(-1, 16).any(axis=1).sum())
            for first in range(0, seq_q, block_q)
        )
        assert result.visited_tiles(seq_q, seq_k, window) == tiles


def test_padding_of_both_head_dims_is_counted() -> None:
    t = AttentionConfig(3, 5, tile=16, block_q=16).kernel().tiling
    assert isinstance(t, Tiling)
    assert t.score_columns == 4 * t.dim_chunks * t.splits > 3
    assert t.output_columns == 4 * t.chunks * t.lanes > 5


def test_whole_tiles_without_a_mask_cost_what_is_useful() -> None:
    result = resources_of(AttentionConfig(64))
    assert result.flops(1, 1, 1024, 1024) == result.useful_flops(1, 1, 1024, 1024) == 4 * 64 * 1024**2


def test_long_sequences_are_counted_exactly() -> None:
    result = resources_of(AttentionConfig(64, causal=True))
    n = 1 << 20
    assert result.useful_flops(1, 1, n, n) == 4 * 64 * n * (n + 1) // 2


def test_memory_is_compared_with_the_matrix_of_scores() -> None:
    result = resources_of(AttentionConfig(64, 32, return_lse=True))
    rows = 4 * 10 + 2 * 20
    tiles = result.shared_bytes
    assert result.memory(1, 4, 10, 20, kv_heads=2) == Memory(
        4 * (rows * 96 + 40), 4 * (rows * 96 + 40 + 4 * 10 * 20), tiles, 8 * 10, 4 * 10 * 20
    )
    big = resources_of(AttentionConfig(64)).memory(1, 1, 4096, 4096)
    assert big == Memory(4 << 20, 68 << 20, 68096, 32 << 10, 64 << 20)
    assert str(big) == (
        "4.0 MiB instead of 68.0 MiB, 17.0 times less; beyond inputs and outputs 98.5 KiB instead of "
        "64.0 MiB, 665.3 times less for a head"
    )
    assert Memory(0, 0, 0, 0, 0).factor == Memory(0, 0, 0, 0, 0).beyond_factor == 1.0


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
def test_memory_of_16_bit_types_has_an_lse_and_scores_of_32(dtype: DType) -> None:
    config = AttentionConfig(64, 32, dtype.name, return_lse=True).kernel()
    result = KernelResources(config, 128, True, config.tiling.shared_bytes)
    elements = (4 * 10 + 2 * 20) * 96
    flash_bytes = 2 * elements + 4 * 40
    assert result.memory(1, 4, 10, 20, kv_heads=2) == Memory(
        flash_bytes, flash_bytes + 4 * 4 * 10 * 20, result.shared_bytes, 8 * 10, 4 * 10 * 20
    )


@pytest.mark.parametrize(("dims", "columns"), [((64, 32), 64 + 32), ((40, 1), 48 + 16), ((3, 100), 16 + 112)])
def test_arithmetic_of_16_bit_types_is_padded_as_the_tiling_says(dims: tuple[int, int], columns: int) -> None:
    config = AttentionConfig(*dims, "f16", tile=32, block_q=64).kernel()
    result = KernelResources(config, 128, True, config.tiling.shared_bytes)
    assert result.flops(2, 3, 65, 33) == 2 * 2 * 3 * (2 * 2) * (64 * 32) * columns
    assert result.useful_flops(2, 3, 65, 33) == 2 * 2 * 3 * 65 * 33 * sum(dims)


def test_what_a_cta_holds_and_how_many_fit() -> None:
    tiling = AttentionConfig(64).kernel().tiling
    result = KernelResources(AttentionConfig(64).kernel(), 128, True, tiling.shared_bytes)
    expected = target("sm_80").blocks_per_sm_for(tiling.threads, 128, tiling.shared_bytes)
    assert result.ctas_per_sm == expected
    assert result.occupancy == expected * tiling.threads / 2048
    assert str(result) == (
        f"{result.config.name} on sm_80: {tiling.threads} threads, 128 registers (assembled), "
        f"{tiling.shared_bytes / 1024:.1f} KiB shared, {expected} CTAs per SM "
        f"(occupancy {result.occupancy:.0%})"
    )


def test_a_released_kernel_launches_without_its_instructions_and_emits_them_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = build(AttentionConfig(16, tile=16, block_q=16).kernel())
    module, text = built.module, built.text
    built.release()
    with monkeypatch.context() as patch:
        patch.setattr(type(built), "_emitted", lambda _: pytest.fail("a launch emitted the kernel"))
        assert built.text == text
        assert [slot.name for slot in built.slots] == [p.name for p in module.kernels[0].params]
        assert (built.header.name, built.threads) == (module.kernels[0].name, module.kernels[0].threads)
        assert built.header.dynamic_shared_bytes == module.kernels[0].dynamic_shared_bytes > 0
        assert built.header.body == ()
    assert built.module == module
    assert built.module is built.module is not module

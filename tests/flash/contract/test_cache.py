"""What other hosts are told of the kernels of a KV cache; `tests/tools/test_emit_cache.py` runs
them by that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contract_proof import assert_says_what_the_proof_assumes

from flash import cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import build
from flash.operands.blocks import SCALED_NAMES
from flash.operands.dtypes import F16
from flash.problem.config import AttentionConfig
from ptxgen.errors import ConfigError

BF16 = AttentionConfig(64, 32, "bf16", causal=True)
PLAIN = CacheConfig()
EVERYTHING = CacheConfig(16, "e4m3", leftpad_k=True, cache_batch_idx=True)
OF_TOKENS = CacheConfig(16, "e4m3", scale_per="token")
DENSE = "the last dimension of all arrays is dense, the strides of the others are parameters. "


def decoding(cache: CacheConfig = PLAIN, **how: Any) -> dict[str, Any]:
    return cache_kernels.decode(BF16, cache, **how).contract


def meanings(contract: dict[str, Any]) -> dict[str, str]:
    return {p["name"]: p["meaning"] for p in contract["parameters"]}


BUILDS: dict[str, Callable[[], BuiltKernel]] = {
    "f32": lambda: build(AttentionConfig(8, causal=True, return_lse=True).kernel()),
    "f16-paged-varlen": lambda: build(
        AttentionConfig(8, dtype="f16", varlen=True, page_size=4, pack_gqa=True).kernel()
    ),
    "f16-varlen": lambda: build(AttentionConfig(8, dtype="f16", varlen=True).kernel()),
    "decode-splits": lambda: cache_kernels.decode(BF16, EVERYTHING, splits=True),
    "decode-splits-append": lambda: cache_kernels.decode(
        BF16, EVERYTHING, splits=True, append=True, rotary_dim=32, group=8
    ),
    "decode-append": lambda: cache_kernels.decode(BF16, PLAIN, append=True),
    "append": lambda: cache_kernels.append(64, cache=EVERYTHING, dtype="f16", rotary_dim=32, counts=True),
    "decode-tokens-append": lambda: cache_kernels.decode(BF16, OF_TOKENS, append=True),
    "append-tokens": lambda: cache_kernels.append(64, cache=OF_TOKENS, dtype="f16"),
    "merge": lambda: cache_kernels.merge(64, return_lse=True),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_contract_says_what_the_proof_assumes(name: str) -> None:
    built = BUILDS[name]()
    contract = assert_says_what_the_proof_assumes(built)
    promised = built.promised
    written = [array["name"] for array in contract["arrays"] if array["written"]]
    of_tokens = "tokens" in name
    assert written == [
        name
        for name in ("K", "V", "O", "Q_OUT", "LSE", *(("k_scale", "v_scale") if of_tokens else ()))
        if any(name == a.pointer for a in promised.arrays)
        and (name not in "KV" or {"K_NEW", "k_new"} & {a.pointer for a in promised.arrays})
    ]


@pytest.mark.parametrize(
    ("cache", "splits", "layout"),
    [
        (
            PLAIN,
            False,
            "K and V are a cache: row r of sequence s is row r of K[s], V likewise; item b of the "
            "batch has sequence b; its keys are the first seqused_k[b] rows of that. Rows that are "
            "no keys may hold anything. Elsewhere seq_k is an item's own number of keys",
        ),
        (
            EVERYTHING,
            True,
            "K and V are a cache: row r of sequence s is row r % 16 of page block_table[s, r / 16 "
            "rounded down], V likewise; item b of the batch has sequence cache_batch_idx[b]; its "
            "keys are the first seqused_k[b] rows of that, but for the first leftpad_k[b] of "
            "these. Rows that are no keys may hold anything. Elsewhere seq_k is an item's own "
            "number of keys. O and LSE are those of each split: parts that the merge kernel takes "
            "as PARTS and LSES",
        ),
    ],
)
def test_a_kernel_that_attends_is_told_where_rows_are(cache: CacheConfig, splits: bool, layout: str) -> None:
    assert decoding(cache, splits=splits)["layout"] == DENSE + layout


def test_what_is_aligned_differently_is_said_apart() -> None:
    assert decoding()["constraints"][0] == (
        "Q, K, V and O, and their strides in bytes, are multiples of 16 bytes; those of seqused_k of an "
        "element's size"
    )
    assert decoding(EVERYTHING, splits=True)["constraints"][0] == (
        "Q and O, and their strides in bytes, are multiples of 16 bytes; those of K and V of 8 bytes; those "
        "of LSE, seqused_k, k_scale, v_scale, leftpad_k, cache_batch_idx and block_table of an element's size"
    )


def test_scales_of_tokens_lie_as_their_rows_do() -> None:
    attends, appends = decoding(OF_TOKENS), cache_kernels.append(64, cache=OF_TOKENS, dtype="f16").contract
    assert meanings(attends)["v_scale"] == (
        "device address of v_scale, read: f32 [pages, kv_heads, 16], strides as below; what the numbers of "
        "each row of V are multiplied with, finite and at least 0; of rows that are no keys it may be "
        "anything"
    )
    assert meanings(appends)["k_scale"] == (
        "device address of k_scale, written for new rows: f32 [pages, kv_heads, 16], strides as below; "
        "what each new row of K is divided by: its largest finite magnitude / 448, at least 2**-126"
    )
    written = [a["name"] for a in appends["arrays"] if a["written"]]
    assert written == ["K", "V", "k_scale", "v_scale"]
    in_place = decoding(OF_TOKENS, append=True)
    assert [a["name"] for a in in_place["arrays"] if a["written"]] == ["K", "V", "O", "k_scale", "v_scale"]
    with pytest.raises(ConfigError) as caught:
        CacheConfig(16, scale_per="token")
    assert str(caught.value) == (
        f"CacheConfig: scale_per='token' is for a cache of {SCALED_NAMES}, whose numbers have scales; leave "
        "it out"
    )


def test_a_cache_has_room_for_rows() -> None:
    longest = 2**30 - 256
    assert meanings(decoding())["seq_k"] == (
        f"rows that a sequence of the cache has room for, 1 to {longest}"
    )
    paged = cache_kernels.append(64, cache=CacheConfig(16)).contract
    assert meanings(paged)["seq_k"] == (
        "rows that a sequence of the cache has room for, 16 for each column of block_table, 1 to 1073741824"
    )
    assert decoding()["sizes"]["seq_k"] == {"least": 1, "most": longest}
    assert paged["sizes"]["seq_k"] == {"least": 1, "most": 2**30, "equal": {"times": [16, "table_columns"]}}


def test_the_kernel_that_appends_says_what_lengths_count() -> None:
    result = cache_kernels.append(64, cache=EVERYTHING, dtype="f16", rotary_dim=32).contract
    assert meanings(result)["seqused_k"] == (
        "device address of seqused_k, read: i32 [batch], strides as below; how many rows each "
        "sequence has with the new ones: new row i of n becomes row seqused_k - n + i, or none if "
        "that is negative"
    )
    assert meanings(result)["k_scale"] == (
        "device address of k_scale, read: f32 [kv_heads], strides as below; what new rows of K are "
        "divided by, above 0"
    )
    assert result["grid"]["formula"] == "(ceil((new_rows + q_rows) / 4), 1, 1)"
    assert result["layout"] == DENSE + (
        "K and V are a cache: row r of sequence s is row r % 16 of page block_table[s, r / 16 "
        "rounded down], V likewise; item b of the batch has sequence cache_batch_idx[b]"
    )
    assert result["constraints"] == [
        "columns i and i + rotary_dim / 2 of a row are rotated together",
        "K_NEW, V_NEW, K, V, Q, Q_OUT, COS, SIN, seqused_k, k_scale, v_scale, leftpad_k, cache_batch_idx and "
        "block_table, and their strides in bytes, are multiples of an element's size",
        "the last dimension of K_NEW, V_NEW, K, V, Q, Q_OUT, COS and SIN is dense (stride 1)",
        "K, V and Q_OUT share no memory with any other array, and no two indices of K or of V or of Q_OUT "
        "name one element",
        "no two new rows have one place: cache_batch_idx names a sequence once, and a page that is "
        "written to is of one sequence",
        "block and grid are exactly as given",
        "what the kernel is told of the sequences is not written while it runs; whatever it says, "
        "nothing outside the arrays is accessed",
        "the grid has 1 to 2147483647 CTAs: with no query there is nothing to launch",
        "the device runs sm_89 or later",
    ]


def test_lengths_are_said_to_count_what_each_item_has() -> None:
    result = cache_kernels.append(64, cache=PLAIN, counts=True).contract
    assert meanings(result)["seqused_k"] == (
        "device address of seqused_k, read: i32 [batch], strides as below; how many rows each "
        "sequence has with the new ones: new row i of counts becomes row seqused_k - counts + i, "
        "or none if that is negative"
    )
    assert meanings(result)["counts"] == (
        "device address of counts, read: i32 [batch], strides as below; how many of its n new rows "
        "each item has: the first ones"
    )


def test_without_rotary_embedding_there_is_nothing_of_it() -> None:
    result = cache_kernels.append(64, cache=PLAIN).contract
    assert result["grid"]["formula"] == "(ceil(new_rows / 4), 1, 1)"
    assert list(meanings(result))[:5] == ["K_NEW", "V_NEW", "K", "V", "seqused_k"]
    assert "columns" not in result["constraints"][0]
    rotation = cache_kernels.append(64, cache=PLAIN, rotary_dim=8, rotary_interleaved=True)
    assert rotation.contract["constraints"][0] == ("columns 2 i and 2 i + 1 of a row are rotated together")


def test_the_kernel_that_attends_says_what_it_appends() -> None:
    how: dict[str, Any] = {"splits": True, "append": True, "rotary_dim": 32, "group": 8}
    result = decoding(EVERYTHING, **how)
    said = meanings(result)
    pages = "e4m3 [pages, kv_heads, 16, head_dim], strides as below"
    assert said["K"] == f"device address of the keys, read, and new rows written: {pages}"
    assert said["k_new"] == (
        "device address of k_new, read: bf16 [batch, kv_heads, n, head_dim], strides as below; the "
        "new keys: row i becomes row seqused_k - n + i of its sequence, or none if that is negative"
    )
    assert said["v_new"].startswith("device address of v_new, read: bf16 [batch, kv_heads, n, head_dim_v]")
    assert said["rotary_cos"].startswith(
        "device address of rotary_cos, read: f32 [positions, rotary_dim / 2], strides as below; "
    )
    assert said["seqused_k"].endswith(
        "; how many keys each sequence has, the new ones among them: the first of its rows"
    )
    assert said["k_scale"].endswith(
        "; what the numbers of K are multiplied with, and new rows divided by, above 0"
    )
    rows = {a["name"]: a["row"] for a in result["arrays"]}
    assert (rows["k_new"], rows["v_new"], rows["rotary_cos"], rows["rotary_sin"]) == (64, 32, 16, 16)
    assert (result["rotary_dim"], result["rotary_interleaved"]) == (32, False)
    assert [result["sizes"][name] for name in ("n", "positions", "seq_q", "group", "rows")] == [
        {"least": 1, "most": 16},
        {"least": 1, "most": 2**30},
        {"least": 1, "most": 32},
        {"least": 1, "most": 32},
        {"least": 1, "most": 32, "equal": {"times": ["seq_q", "group"]}},
    ]
    assert said["seq_q"] == "queries of each head, 1 to 32"
    assert result["constraints"] == [
        "Q and O, and their strides in bytes, are multiples of 16 bytes; those of K and V of 8 bytes; those "
        "of LSE, seqused_k, k_scale, v_scale, leftpad_k, cache_batch_idx, block_table, k_new, v_new, "
        "rotary_cos and rotary_sin of an element's size",
        "the last dimension of Q, K, V, O, k_new, v_new, rotary_cos and rotary_sin is dense (stride 1)",
        "K, V, O and LSE share no memory with any other array, and no two indices of K or of V or of O name "
        "one element",
        f"seq_q and seq_k are at most {2**30 - 256}",
        "seq_q * group is at most 32",
        "heads is a multiple of kv_heads",
        "block and grid are exactly as given: the batch is known from the number of CTAs",
        "of the CTAs that read a row of K one writes it, because all queries of its head of K are "
        "in one block: seq_q * group is at most 32",
        "no two new rows have one place: cache_batch_idx names a sequence once, and a page that is "
        "written to is of one sequence",
        "columns i and i + rotary_dim / 2 of a row are rotated together",
        "what the kernel is told of the sequences is not written while it runs; whatever it says, "
        "nothing outside the arrays is accessed",
        "the grid has 1 to 2147483647 CTAs: with no query there is nothing to launch",
        "the device runs sm_89 or later",
    ]


def test_heads_that_are_not_packed_are_as_many_as_those_of_k_where_one_appends() -> None:
    result = decoding(append=True)
    assert "rotary_dim / 2" not in " ".join(result["constraints"])
    assert result["sizes"]["group"] == {"least": 1, "most": 1}
    block = result["block_q"]
    assert result["constraints"][6] == (
        "of the CTAs that read a row of K one writes it, because all queries of its head of K are "
        f"in one block: group is 1, and seq_q is at most {block}"
    )
    assert result["constraints"][0].endswith("; those of seqused_k, k_new and v_new of an element's size")
    assert result["sizes"]["seq_q"] == {"least": 1, "most": block}


@pytest.mark.parametrize(("lse", "words"), [(False, "not written: "), (True, "device address of")])
def test_the_kernel_that_merges_says_what_it_takes(lse: bool, words: str) -> None:
    result = cache_kernels.merge(64, dtype="bf16", return_lse=lse).contract
    assert result["grid"]["formula"] == "(ceil(rows / 4), 1, 1)"
    assert result["constraints"][0] == (
        "PARTS, and its strides in bytes, are multiples of 16 bytes; those of "
        f"{'LSES and LSE' if lse else 'LSES'} of an element's size; those of O of 8 bytes"
    )
    assert result["lse"].startswith(words)
    assert ("LSE" in meanings(result)) == lse


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (AttentionConfig(8, varlen=True), "varlen"),
        (AttentionConfig(8, bias="f32", dropout=0.5), "bias, dropout"),
        (AttentionConfig(8, causal="top_left"), "causal='top_left'"),
    ],
)
def test_what_does_not_go_with_a_cache_is_refused(config: AttentionConfig, names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cache_kernels.decode(config, PLAIN)
    assert str(caught.value) == (
        f"DecodeKernel: config must be one that goes with a cache, got {names}; use "
        "AttentionKernel, or leave that out"
    )


def shifted(score: Any, batch: Any, head: Any, query: Any, key: Any, table: Any) -> Any:  # noqa: ARG001
    return score + table[key]


@pytest.mark.parametrize("half", ["float16", "fp16", "torch.float16", np.float16, np.dtype("float16")])
def test_element_types_are_known_by_their_usual_names(half: Any) -> None:
    narrow = CacheConfig(16, ml_dtypes.float8_e4m3fn)
    assert narrow == CacheConfig(16, "torch.float8_e4m3fn") == CacheConfig(16, "e4m3")
    result = cache_kernels.append(16, cache=narrow, dtype=half)
    assert result is cache_kernels.append(16, cache=CacheConfig(16, "e4m3"), dtype="f16")
    merged = cache_kernels.merge(16, dtype=half, parts=half)
    assert merged is cache_kernels.merge(16, dtype="f16", parts="f16")

    config = AttentionConfig(16, dtype=half, bias=half, aux={"table": (half, 1)}, score_mod=shifted)
    assert (config.dtype, config.bias) == ("f16", "f16")
    assert config.features.operands[-1].dtype is F16

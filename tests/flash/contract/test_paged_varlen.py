"""The contract of the kernel for packed batches over pages, and a host that has nothing else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from contract_host import Host

from flash.contract.catalogue import build
from flash.contract.forward import launches_of
from flash.problem.config import AttentionConfig
from flash.reference import attention_varlen_reference

CONFIG = AttentionConfig(
    16, 8, causal=True, tile=16, block_q=16, varlen=True, page_size=4, pack_gqa=True, return_lse=True
)


def test_the_contract_says_where_queries_and_keys_lie() -> None:
    built = build(CONFIG.kernel())
    contract: dict[str, Any] = built.contract
    meanings = {p["name"]: p["meaning"] for p in contract["parameters"]}
    assert set(meanings) ^ set(launches_of(CONFIG.kernel()).meanings) == {
        "block_table_column_stride",  # in the contract the stride has the name of the dimension
        "block_table_table_columns_stride",
    }
    assert "cu_seqlens_k" not in meanings
    assert meanings["K"] == (
        "device address of the keys, read: f32 [pages, kv_heads, 4, head_dim], strides as below"
    )
    assert meanings["Q"] == (
        "device address of the queries, read: f32 [total_q, heads, head_dim], strides as below"
    )
    assert meanings["seq_k"] == (
        "rows that a sequence of the cache has room for, 4 for each column of block_table, 1 to "
        f"{2**30 - 256}"
    )
    assert meanings["block_table"] == (
        "device address of block_table, read: i32 [batch, table_columns], strides as below; in which page "
        "each 4 keys of a sequence of K and V are"
    )
    assert contract["kind"] == "forward"
    assert contract["grid"]["formula"] == "(ceil(rows / 16) * kv_heads * batch, 1, 1)"
    assert contract["layout"] == (
        "the last dimension of all arrays is dense, the strides of the others are parameters. K and V are a "
        "cache: row r of sequence s is row r % 4 of page block_table[s, r / 4 rounded down], V likewise; "
        "item b of the batch has sequence b; its keys are the first seqused_k[b] rows of that. Rows that "
        "are no keys may hold anything. Elsewhere seq_k is an item's own number of keys. The queries of a "
        "batch of sequences lie one after another in Q and O. Sequences may be empty. Rows of Q and O that "
        "are in no sequence, or beyond what is used of one, are neither read nor written"
    )
    constraints = contract["constraints"]
    assert f"total_q and seq_k are at most {2**30 - 256}" in constraints
    assert f"max_seqlen_q * group is at most {2**30 - 256}" in constraints


def test_a_host_that_has_only_the_contract_runs_a_batch() -> None:
    built = build(CONFIG.kernel())
    host = Host(built.text, json.dumps(built.contract))
    rng = np.random.default_rng(0)
    queries, keys = (1, 9, 0, 3), (13, 9, 5, 20)
    table = np.full((4, 5), 99, np.int32)
    pages = iter(rng.permutation(14).tolist())
    for row, n in zip(table, keys, strict=True):
        count = -(-n // 4)
        row[:count] = [next(pages) for _ in range(count)]
    ends = np.cumsum([0, *queries]).astype(np.int32)
    sizes = {"total_q": int(ends[-1]), "heads": 4, "kv_heads": 2, "pages": 14}
    arrays = {name: host.empty(name, **sizes) for name in ("Q", "K", "V", "O", "LSE")}
    for name in "QKV":
        arrays[name][...] = rng.standard_normal(arrays[name].shape)
    used = np.array(keys, np.int32)
    lengths = {"cu_seqlens_q": ends, "seqused_k": used, "block_table": table}
    host.launch({**arrays, **lengths}, group=2, softmax_scale=np.float32(0.25), max_seqlen_q=9, section=3)
    out, lse = attention_varlen_reference(
        arrays["Q"].swapaxes(0, 1),
        *(arrays[name].swapaxes(1, 2) for name in "KV"),
        ends,
        block_table=table,
        seqused_k=used,
        causal=True,
        softmax_scale=0.25,
    )
    np.testing.assert_allclose(arrays["O"].swapaxes(0, 1), out, atol=2e-6)
    np.testing.assert_allclose(arrays["LSE"], lse, atol=2e-6)

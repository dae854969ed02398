"""What other hosts are told of the kernels of gradients; `tests/tools/test_emit_backward.py` runs them
by that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from contract_proof import assert_says_what_the_proof_assumes

from flash import gradient_kernels
from flash.contract.built_kernel import BuiltKernel
from flash.problem.config import AttentionConfig
from ptxgen.contract import schema
from ptxgen.contract.expressions import Expression, names_in
from ptxgen.contract.stub import stub

F16 = AttentionConfig(16, 8, "f16", causal=True, alibi=True, sink=True)
BIASED = AttentionConfig(16, dtype="bf16", bias="f32")
BY_KEYS = AttentionConfig(16, dtype="f16", key_bias="f32")
PACKED = AttentionConfig(16, dtype="f16", varlen=True, seqused_k=True, alibi=True)
WIDE = AttentionConfig(256, dtype="f16")
HOPPER = AttentionConfig(64, 56, "f16", causal=True, sink=True, target="sm_90a")
F16_ON_HOPPER = AttentionConfig(64, dtype="f16", target="sm_90a")
PACKED_ON_HOPPER = AttentionConfig(192, dtype="bf16", varlen=True, seqused_k=True, target="sm_90a")
WIDE_F32 = AttentionConfig(256, dtype="f32", precision="tf32")

BUILDS: dict[str, Callable[[], BuiltKernel]] = {
    "queries": lambda: gradient_kernels.backward(F16, "queries", dlse=True, wanted=("alibi_slopes", "sink")),
    "keys": lambda: gradient_kernels.backward(BY_KEYS, "keys", wanted="key_bias"),
    "keys-across": lambda: gradient_kernels.backward(WIDE, "keys"),
    "keys-slices": lambda: gradient_kernels.backward(WIDE_F32, "keys"),
    "scores": lambda: gradient_kernels.backward(BIASED, "scores", wanted=("bias",)),
    "packed-queries": lambda: gradient_kernels.backward(PACKED, "queries", wanted=("alibi_slopes",)),
    "packed-keys": lambda: gradient_kernels.backward(PACKED, "keys", wanted=("alibi_slopes",)),
    "sum": lambda: gradient_kernels.sum_terms("bf16"),
    "deltas": lambda: gradient_kernels.backward(F16, "deltas", dlse=True, wanted="sink", deterministic=False),
    "adding-keys": lambda: gradient_kernels.backward(F16, "keys", wanted="alibi_slopes", deterministic=False),
    "packed-adding-keys": lambda: gradient_kernels.backward(PACKED, "keys", deterministic=False),
    "wgmma-queries": lambda: gradient_kernels.backward(HOPPER, "queries", dlse=True, wanted="sink"),
    "wgmma-keys": lambda: gradient_kernels.backward(HOPPER, "keys"),
    "wgmma-packed-keys": lambda: gradient_kernels.backward(PACKED_ON_HOPPER, "keys"),
    "wgmma-adding-keys": lambda: gradient_kernels.backward(F16_ON_HOPPER, "keys", deterministic=False),
    "wgmma-sums": lambda: gradient_kernels.backward(F16_ON_HOPPER, "sums", deterministic=False),
    "rounded-sums": lambda: gradient_kernels.backward(F16, "sums", deterministic=False),
    "packed-rounded-sums": lambda: gradient_kernels.backward(PACKED, "sums", deterministic=False),
}
WRITTEN = {
    "queries": ["dQ", "D", "row_alibi_slopes", "row_sink"],
    "keys": ["dK", "dV", "key_key_bias"],
    "keys-across": ["dK", "dV"],
    "keys-slices": ["dK", "dV"],
    "scores": ["dbias"],
    "packed-queries": ["dQ", "D", "row_alibi_slopes"],
    "packed-keys": ["dK", "dV"],
    "sum": ["Y"],
    "deltas": ["D", "row_sink"],
    "adding-keys": ["dK", "dV", "dQ_sums", "key_alibi_slopes"],
    "packed-adding-keys": ["dK", "dV", "dQ_sums"],
    "wgmma-queries": ["dQ", "D", "row_sink"],
    "wgmma-keys": ["dK", "dV"],
    "wgmma-packed-keys": ["dK", "dV"],
    "wgmma-adding-keys": ["dK", "dV", "dQ_sums"],
    "wgmma-sums": ["dQ"],
    "rounded-sums": ["dQ"],
    "packed-rounded-sums": ["dQ"],
}
GRIDS = {
    "queries": "(ceil(seq_q / 128) * heads * batch, 1, 1)",
    "keys": "(ceil(seq_k / 64) * kv_heads * batch, 1, 1)",
    "keys-across": "(ceil(seq_k / 64) * kv_heads * batch, 1, 1)",
    "keys-slices": "(ceil(seq_k / 32) * kv_heads * batch * 2, 1, 1)",
    "scores": "(ceil(seq_k / 32) * ceil(seq_q / 128) * bias_heads * bias_batch, 1, 1)",
    "packed-queries": "(ceil(max_seqlen_q / 128) * heads * batch, 1, 1)",
    "packed-keys": "(ceil(max_seqlen_k / 64) * kv_heads * batch, 1, 1)",
    "sum": "(ceil(sums / 4), 1, 1)",
    "deltas": "(ceil(seq_q / 64) * heads * batch, 1, 1)",
    "adding-keys": "(ceil(seq_k / 64) * kv_heads * batch, 1, 1)",
    "packed-adding-keys": "(ceil(max_seqlen_k / 64) * kv_heads * batch, 1, 1)",
    "wgmma-queries": "(ceil(seq_q / 128) * heads * batch, 1, 1)",
    "wgmma-keys": "(ceil(seq_k / 128) * kv_heads * batch, 1, 1)",
    "wgmma-packed-keys": "(ceil(max_seqlen_k / 64) * kv_heads * batch, 1, 1)",
    "wgmma-adding-keys": "(ceil(seq_k / 128) * kv_heads * batch, 1, 1)",
    "wgmma-sums": "(ceil(seq_q / 64) * heads * batch, 1, 1)",
    "rounded-sums": "(ceil(seq_q / 64) * heads * batch, 1, 1)",
    "packed-rounded-sums": "(ceil(max_seqlen_q / 64) * heads * batch, 1, 1)",
}
# What hosts check beside what the proof takes.
ONLY_OF_HOSTS: dict[str, dict[str, Expression]] = {
    "scores": {
        "batch": {"times": ["bias_batch", "over_batch"]},
        "over_heads": {"div": ["heads", "bias_heads"]},
    },
    **{name: {"sum_blocks": {"ceil_div": ["seq_q", 64]}} for name in ("wgmma-adding-keys", "wgmma-sums")},
}


def contract_of(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(BUILDS[name]().contract))
    return result


def meanings(name: str) -> dict[str, str]:
    return {p["name"]: p["meaning"] for p in contract_of(name)["parameters"]}


@pytest.mark.parametrize("name", BUILDS)
def test_a_contract_is_as_the_schema_says(name: str) -> None:
    contract = contract_of(name)
    jsonschema.Draft202012Validator(schema()).validate(contract)
    sizes = set(contract["sizes"])
    for array in contract["arrays"]:
        for dim in array["dims"]:
            assert set(names_in(dim["extent"])) <= sizes
    assert set(names_in(contract["grid"]["x"])) <= sizes
    assert {p["name"] for p in contract["parameters"] if p["kind"] == "size"} <= sizes
    assert [p["name"] for p in contract["parameters"] if p["kind"] == "pointer"] == [
        array["name"] for array in contract["arrays"]
    ]


def test_the_schema_wants_the_head_dims_of_all_but_sums() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    contract = contract_of("keys")
    del contract["head_dim_v"]
    assert not validator.is_valid(contract)
    contract["kind"] = "sum"
    assert validator.is_valid(contract)


@pytest.mark.parametrize("name", BUILDS)
def test_a_contract_says_what_the_proof_assumes(name: str) -> None:
    contract = assert_says_what_the_proof_assumes(BUILDS[name](), ONLY_OF_HOSTS.get(name, {}))
    assert (contract["grid"]["y"], contract["grid"]["z"]) == (1, 1)


@pytest.mark.parametrize("name", BUILDS)
def test_what_is_written_and_how_many_ctas_there_are(name: str) -> None:
    contract = contract_of(name)
    assert [array["name"] for array in contract["arrays"] if array["written"]] == WRITTEN[name]
    assert contract["grid"]["formula"] == GRIDS[name]


def test_every_parameter_has_a_meaning_of_its_own() -> None:
    """No meaning is given to two parameters, but to strides of equal arrays."""
    for name in BUILDS:
        said = meanings(name)
        assert len(set(said.values())) == len(said)


def test_terms_say_what_the_sum_kernel_takes() -> None:
    assert meanings("queries")["row_sink"] == (
        "device address of what each row adds to the gradient of sink, written: f32 [batch, heads, seq_q], "
        "dense; the sum kernel takes it as X of [batch, heads, 1, seq_q]"
    )
    assert meanings("keys")["key_key_bias"] == (
        "device address of what each key adds to the gradient of key_bias, written: f32 [batch, heads, "
        "seq_k], dense; the sum kernel takes it as X of [batch, heads, 1, seq_k]"
    )
    assert meanings("scores")["dbias"] == (
        "device address of the gradient of the bias, summed over what shares it, written: f32 [bias_batch, "
        "bias_heads, seq_q, seq_k], dense; the sum kernel takes it as X of [bias_batch, bias_heads, seq_q, "
        "seq_k]"
    )
    assert meanings("sum")["r2"] == "elements of X for each of Y along axis 2: n2 / m2"


def test_a_side_may_be_empty_where_gradients_are_then_zero() -> None:
    longest = contract_of("queries")["sizes"]["seq_k"]["most"]
    assert meanings("queries")["seq_k"] == f"keys of each head, 0 to {longest}; without keys dQ is 0"
    assert meanings("keys")["seq_q"] == (
        f"queries of each head, 0 to {longest}; without queries dK and dV are 0"
    )
    for name, least in (("queries", (1, 0)), ("keys", (0, 1)), ("scores", (1, 1))):
        sizes = contract_of(name)["sizes"]
        assert (sizes["seq_q"]["least"], sizes["seq_k"]["least"]) == least
        said = meanings(name)
        assert said["seq_q"].startswith(f"queries of each head, {least[0]} to ")
        assert said["seq_k"].startswith(f"keys of each head, {least[1]} to ")


def test_constraints_say_the_order_of_launches_and_what_may_not_overlap() -> None:
    assert contract_of("queries")["constraints"] == [
        "Q, K, V, dO, O and dQ, and their strides in bytes, are multiples of 16 bytes; those of LSE, D, "
        "dLSE, row_alibi_slopes, row_sink, alibi_slopes and sink of an element's size",
        "the last dimension of Q, K, V, dO, O and dQ is dense (stride 1)",
        "dQ, D, row_alibi_slopes and row_sink share no memory with any other array, and no two indices of dQ "
        "name one element",
        "heads is a multiple of kv_heads",
        "block and grid are exactly as given: the batch is known from the number of CTAs",
        "O and LSE are what a forward launch with the same arrays and numbers wrote, by a kernel of the "
        "same options with return_lse",
        "this launch is the first of the gradients of a call: it writes D, which those with owner keys and "
        "owner scores read",
        "launches of the sum kernel, one for each of row_alibi_slopes and row_sink, come behind this one",
        "the grid has 1 to 2147483647 CTAs: with no query there is nothing to launch",
        "the device runs sm_80 or later",
    ]
    behind = (
        "D was written by a launch with owner queries, of the same options, arrays and numbers, that has "
        "ended: launch this one behind it on the same stream"
    )
    assert behind in contract_of("keys")["constraints"]
    scores = contract_of("scores")["constraints"]
    assert behind.replace("queries,", "queries, or deltas in one sweep,") in scores
    assert "bias_batch is 1 or batch, and bias_heads is 1 or heads" in scores
    assert "dbias shares no memory with any other array" in scores
    assert (
        "row_alibi_slopes holds 0 before the launch, which writes nothing for rows that a sequence does not "
        "have"
    ) in contract_of("packed-queries")["constraints"]
    assert (
        "Y shares no memory with any other array, and no two indices of Y name one element"
    ) in contract_of("sum")["constraints"]


def test_constraints_of_one_sweep_say_what_is_zero_before_and_the_order_of_launches() -> None:
    behind = (
        "of the same options, arrays and numbers, that has ended: launch this one behind it on the same "
        "stream"
    )
    assert contract_of("rounded-sums")["constraints"] == [
        "dQ and dQ_sums, and their strides in bytes, are multiples of 16 bytes",
        "the last dimension of dQ is dense (stride 1)",
        "dQ shares no memory with any other array, and no two indices of dQ name one element",
        "heads is a multiple of kv_heads",
        "block and grid are exactly as given: the batch is known from the number of CTAs",
        f"dQ_sums was added to by a launch with owner keys in one sweep, {behind}",
        "the grid has 1 to 2147483647 CTAs: with no query there is nothing to launch",
        "the device runs sm_80 or later",
    ]
    keys = contract_of("adding-keys")["constraints"]
    assert f"D was written by a launch with owner deltas, {behind}" in keys
    assert (
        "dQ_sums holds 0 before the launch, whose CTAs add to it by atomics in any order: its last bits may "
        "differ from launch to launch. A launch with owner sums comes behind this one and writes dQ"
    ) in keys
    assert meanings("adding-keys")["dQ_sums"] == (
        "device address of the sums of the gradient of the queries before their scale, added to: f32 [batch, "
        "heads, seq_q, head_dim], dense"
    )


def test_kernels_with_wgmma_say_which_boxes_of_which_arrays_they_copy() -> None:
    maps = {
        name: {
            p["name"]: p["tensor_map"] for p in contract_of(name)["parameters"] if p["kind"] == "tensor_map"
        }
        for name in ("wgmma-queries", "wgmma-keys", "wgmma-packed-keys")
    }
    assert [*maps["wgmma-queries"]] == ["Q_map", "K_map", "V_map", "dO_map", "dQ_map"]
    assert [*maps["wgmma-keys"]] == ["Q_map", "K_map", "V_map", "dO_map", "dK_map", "dV_map"]
    assert [*maps["wgmma-packed-keys"]] == [*maps["wgmma-keys"]]
    every = [(name, array, of) for name, arrays in maps.items() for array, of in arrays.items()]
    for name, array, of in every:
        is_written = array in ("dQ_map", "dK_map", "dV_map")
        assert of["access"] == ["store" if is_written else "load"], name
        assert of["oob_fill"] == "zeros"
        assert of["address"] == array.removesuffix("_map")
    assert {array: of["box"] for array, of in maps["wgmma-keys"].items()} == {
        f"{array}_map": [64, 64 if array in ("Q", "dO") else 128, 1, 1]
        for array in ("Q", "K", "V", "dO", "dK", "dV")
    }
    assert {of["swizzle"] for name, _, of in every if "packed" not in name} == {"128B"}
    # Warpgroups that split 192 columns have 96 each, which are slabs of 32.
    assert {(of["swizzle"], *of["box"][::2]) for of in maps["wgmma-packed-keys"].values()} == {("64B", 32, 1)}
    assert maps["wgmma-packed-keys"]["Q_map"]["dims"] == [192, "total_q", "heads"]


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("language", ["c", "rust"])
def test_hosts_in_other_languages_are_made_of_it(name: str, language: str) -> None:
    built = BUILDS[name]()
    text = stub(built.contract, built.text, language)
    for parameter in built.contract["parameters"]:
        assert parameter["name"] in text

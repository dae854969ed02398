"""Contracts of all kinds of kernels against their JSON Schema."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

import ptxgen
from flash import AttentionConfig, cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.catalogue import build
from ptxgen import Pointer
from ptxgen.contract import SCHEMA, schema
from ptxgen.contract.expressions import evaluated, expression, formula, names_in, product
from ptxgen.types import f32, u32

Contract = dict[str, Any]

PAGES = CacheConfig(16, "e4m3", leftpad_k=True, cache_batch_idx=True)
BF16 = AttentionConfig(64, 32, "bf16", causal=True)


def relative(score: Any, batch: Any, head: Any, query: Any, key: Any, table: Any) -> Any:  # noqa: ARG001
    return score + table[head, query - key]


def forward(**options: Any) -> Contract:
    return build(AttentionConfig(**options).kernel()).contract


def own() -> Contract:
    @ptxgen.kernel(threads=64)
    def scaled(k: Any, X: Pointer[f32], n: u32, factor: f32) -> None:
        row = k.block_id() * k.threads + k.thread_id()
        with k.when(row < n):
            X[row] = X[row] * factor

    return scaled.contract()


CONTRACTS: dict[str, Callable[[], Contract]] = {
    "plain": lambda: forward(head_dim=8),
    "every score": lambda: forward(
        head_dim=64,
        dtype="f16",
        causal="top_left",
        return_lse=True,
        bias="f32",
        mask=True,
        alibi=True,
        sink=True,
        window=(4, 4),
        softcap=30.0,
        dropout=0.5,
    ),
    "functions of scores": lambda: forward(head_dim=8, score_mod=relative, aux={"table": ("f16", 2)}),
    "packed sequences": lambda: forward(head_dim=8, varlen=True, seqused_q=True, seqused_k=True),
    "scales of blocks of elements": lambda: forward(head_dim=64, dtype="e4m3", scale_block="mx"),
    "elements of four bits": lambda: forward(head_dim=64, dtype="e4m3", scale_block="nv"),
    "wide values": lambda: forward(head_dim=8, head_dim_v=512),
    "decode": lambda: cache_kernels.decode(BF16, PAGES, splits=True).contract,
    "decode and append": lambda: (
        cache_kernels.decode(BF16, PAGES, splits=True, append=True, rotary_dim=32, group=8).contract
    ),
    "append": lambda: cache_kernels.append(64, cache=PAGES, dtype="f16", rotary_dim=32, counts=True).contract,
    "merge": lambda: cache_kernels.merge(64, return_lse=True).contract,
    "own": own,
}


def refused(contract: Contract) -> str:
    """Where the schema finds a contract wrong, "" if it does not."""
    errors = jsonschema.Draft202012Validator(schema()).iter_errors(contract)
    return ", ".join(sorted({error.json_path for error in errors}))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["properties"]["schema"]["const"] == SCHEMA
    assert schema()["$id"].endswith(f":{SCHEMA}")


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_contract_is_as_the_schema_says(name: str) -> None:
    contract = json.loads(json.dumps(CONTRACTS[name]()))
    assert refused(contract) == ""
    if contract["kind"] == "kernel":
        return
    sizes = set(contract["sizes"])
    strides = {p["name"]: (p["array"], p["dim"]) for p in contract["parameters"] if p["kind"] == "stride"}
    for array in contract["arrays"]:
        for dim in array["dims"]:
            assert set(names_in(dim["extent"])) <= sizes
            own_stride = strides.get(str(dim["stride"]))
            assert (
                own_stride == (array["name"], dim["name"])
                if own_stride
                else set(names_in(dim["stride"])) <= sizes
            )
    assert {name: f"{array}_{dim}_stride" for name, (array, dim) in strides.items()} == {
        n: n for n in strides
    }
    assert set(names_in(contract["grid"]["x"])) <= sizes
    assert {p["name"] for p in contract["parameters"] if p["kind"] == "size"} <= sizes
    assert [p["name"] for p in contract["parameters"] if p["kind"] == "pointer"] == [
        array["name"] for array in contract["arrays"]
    ]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: c.update(schema=1), "$.schema"),
        (lambda c: c.update(surprise=1), "$"),
        (lambda c: c.pop("grid"), "$"),
        (lambda c: c["grid"].update(x="4 * heads"), "$.grid.x"),
        (lambda c: c["grid"].update(x={"minus": [1, 2]}), "$.grid.x"),
        (lambda c: c["grid"].update(x={"div": [1, 2, 3]}), "$.grid.x"),
        (
            lambda c: c["arrays"][0]["dims"][0].update(stride="4 * Q_batch_stride"),
            "$.arrays[0].dims[0].stride",
        ),
        (lambda c: c["arrays"][0].update(type="f12"), "$.arrays[0].type"),
        (lambda c: c["parameters"][5].pop("dim"), "$.parameters[5]"),
        (lambda c: c["sizes"]["heads"].pop("most"), "$.sizes.heads"),
    ],
)
def test_what_is_no_contract_is_refused(change: Callable[[Contract], object], where: str) -> None:
    contract = copy.deepcopy(forward(head_dim=8))
    change(contract)
    assert refused(contract) == where


def test_an_expression_is_the_value_of_its_text() -> None:
    names = {"a": 3, "b": 5, "c": 7}
    for text, value, data in [
        ("a * 1 * b", 15, {"times": ["a", "b"]}),
        ("a * (b + 2) * c", 147, {"times": ["a", {"plus": ["b", 2]}, "c"]}),
        ("a + b + 0", 8, {"plus": ["a", "b"]}),
        ("1 * 1", 1, 1),
        ("12", 12, 12),
    ]:
        assert expression(text) == data
        assert evaluated(data, names) == value
        assert formula(data) == text.replace(" * 1", "").replace(" + 0", "")
    quotient = product({"ceil_div": [{"plus": ["a", "b"]}, 3]}, {"div": ["b", 5]})
    assert evaluated(quotient, names) == 3
    assert formula(quotient) == "ceil((a + b) / 3) * (b / 5)"
    assert list(names_in(quotient)) == ["a", "b", "b"]


def test_what_is_no_expression_is_refused() -> None:
    for text, message in [
        ("a - b", "'a - b' must be made of integers and names by * and +"),
        ("f(a)", "'f(a)' must be made of integers and names by * and +"),
        ("a *", "'a *' is no expression of sizes: invalid syntax"),
    ]:
        with pytest.raises(ValueError, match=r"expression|made of") as caught:
            expression(text)
        assert str(caught.value) == message
    with pytest.raises(ValueError, match="whole number") as caught:
        evaluated({"div": ["a", 2]}, {"a": 3})
    assert str(caught.value) == "a / 2 must be a whole number, got 3 / 2"

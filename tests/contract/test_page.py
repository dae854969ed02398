"""The page of contracts against their schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash import AttentionConfig
from flash.contract.catalogue import build
from ptxgen.contract import schema

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
KEYS = [*schema()["properties"], "tensor_map", "element", "align", "array", "dim", "dims", "row"]


@pytest.mark.parametrize("key", KEYS)
def test_the_page_says_what_each_key_is(key: str) -> None:
    assert f"`{key}`" in PAGE or f'`"{key}"`' in PAGE


def test_the_numbers_of_the_program_on_the_page_are_those_of_its_contract() -> None:
    contract = build(AttentionConfig(64, causal=True, return_lse=True).kernel()).contract
    last = contract["parameters"][-1]
    assert f"(here at {last['offset'] + last['size']} bytes)" in PAGE
    assert f'ENTRY = "{contract["entry"]}"' in PAGE
    numbers = (
        f"HEAD_DIM = {contract['head_dim']}, BLOCK_Q = {contract['block_q']}, "
        f"THREADS = {contract['block'][0]}, SHARED_BYTES = {contract['dynamic_shared_bytes']}"
    )
    assert numbers in PAGE

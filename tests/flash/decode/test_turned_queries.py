"""Queries that are rotated where no row is appended: the cache has the keys already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from refusals import refusal

import flash
from flash import cache_kernels
from flash.problem.rotary import rotated

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, CAPACITY = 2, 4, 2, 32, 40
USED, PADDING = np.array([37, 9], np.int32), np.array([0, 4], np.int32)
ROTARY_DIM = 16


def arrays(dtype: str, queries: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    kind = flash.AttentionConfig(DIM, dtype=dtype).element.numpy
    shapes = {
        "q": (BATCH, HEADS, queries, DIM),
        "k_cache": (BATCH, KV_HEADS, CAPACITY, DIM),
        "v_cache": (BATCH, KV_HEADS, CAPACITY, DIM),
    }
    arguments = {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
    return {**arguments, "seqused_k": USED, "leftpad_k": PADDING}


def kernel(dtype: str) -> flash.DecodeKernel:
    return flash.DecodeKernel(flash.AttentionConfig(DIM, dtype=dtype, causal=True))


@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize(("backend", "dtype", "splits"), [("cpu", "f32", 1), ("interpreter", "f16", 3)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_they_give_what_rotated_queries_give(
    backend: Any, dtype: str, splits: int, interleaved: bool
) -> None:
    arguments = arrays(dtype)
    cos, sin = flash.rotary_tables(CAPACITY, ROTARY_DIM)
    out = kernel(dtype).launch(
        **arguments,
        rotary_cos=cos,
        rotary_sin=sin,
        rotary_interleaved=interleaved,
        splits=splits,
        backend=backend,
    )
    positions = (USED - PADDING)[:, None] + np.arange(-2, 0)
    q = rotated(arguments["q"], cos, sin, positions, interleaved=interleaved).astype(arguments["q"].dtype)
    assert (q != arguments["q"]).any()
    wanted = kernel(dtype).launch(**{**arguments, "q": q}, splits=splits, backend=backend)
    assert out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f32", marks=pytest.mark.slow)])
def test_a_kernel_that_only_turns_is_proved_and_writes_no_row(dtype: Any) -> None:
    config = flash.AttentionConfig(DIM, dtype=dtype, causal=True)
    built = cache_kernels.decode(
        config, cache_kernels.CacheConfig(page_size=16), splits=True, group=4, rotary_dim=ROTARY_DIM
    )
    assert built.proofs.complete
    assert "_page16_rotary16_" in built.kernel.name
    assert built.contract["rotary_dim"] == ROTARY_DIM
    written = {array["name"] for array in built.contract["arrays"] if array["written"]}
    assert written == {"O", "LSE"}
    names = {parameter["name"] for parameter in built.contract["parameters"]}
    assert {"rotary_cos", "rotary_sin", "positions"} <= names
    assert not {"k_new", "v_new", "n"} & names


@pytest.mark.slow
@pytest.mark.usefixtures("unproved")
def test_many_queries_are_rotated_by_the_kernel_without_wgmma() -> None:
    """The kernel with `wgmma`, which takes blocks of many queries over a cache, rotates none."""
    arguments = arrays("f16", queries=70)
    arguments["seqused_k"] = np.full(BATCH, CAPACITY, np.int32)
    cos, sin = flash.rotary_tables(CAPACITY + 70, ROTARY_DIM)
    result = [
        flash.DecodeKernel(flash.AttentionConfig(DIM, dtype="f16", target=target)).launch(
            **arguments, rotary_cos=cos, rotary_sin=sin, backend="interpreter"
        )
        for target in ("sm_90", "sm_90a")
    ]
    assert result[0].tobytes() == result[1].tobytes()


def test_tables_have_a_row_for_each_position() -> None:
    arguments = arrays("f16")
    cos, sin = flash.rotary_tables(36, ROTARY_DIM)
    assert refusal(
        kernel("f16").launch, **arguments, rotary_cos=cos, rotary_sin=sin, backend="interpreter"
    ) == ("DecodeKernel.launch: rotary_cos and rotary_sin must have a row for each of 37 positions, got 36")

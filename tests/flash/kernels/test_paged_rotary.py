"""Queries that the kernel of packed sequences over pages rotates by their positions: the bits of queries that
were rotated before, the float64 reference, and what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import assert_same_bits
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from refusals import refusal
from sequence_runs import UNTOUCHED, Batch

import flash
from flash.contract.catalogue import proved_build
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.problem.rotary import rotary_tables, rotated
from ptxgen.errors import ConfigError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("kernels")]

# (queries, keys): a token, a prompt, a part of one, more queries than keys, no query, and no key.
LENGTHS = ((1, 18), (6, 6), (3, 11), (5, 2), (0, 19), (2, 0))
POSITIONS = 18  # of the longest sequence that has a query

KERNELS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32", "tile": 16, "block_q": 16},
    "f16": {"dtype": "f16", "tile": 16, "block_q": 32},
    "bf16": {"dtype": "bf16", "tile": 16, "block_q": 32, "pack_gqa": False},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade", "tile": 16, "block_q": 32},
    "wgmma": {"dtype": "f16", "target": "sm_90a", "tile": 16, "block_q": 64, "page_size": 16},
    "gathered": {"dtype": "bf16", "target": "sm_90a", "tile": 16, "block_q": 64, "page_size": 3},
    "tcgen05": {"dtype": "f16", "target": "sm_100a", "tile": 16, "block_q": 256, "page_size": 16},
    "tcgen05_gathered": {
        "dtype": "bf16",
        "target": "sm_103a",
        "tile": 16,
        "block_q": 128,
        "page_size": 3,
        "pack_gqa": True,
    },
    "wgmma_f32": {"dtype": "f32", "precision": "f32_grade", "target": "sm_90a", "page_size": 16},
}
BACKENDS = pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])


def config_of(kind: str, rotary_dim: int = 12, **how: Any) -> AttentionConfig:
    arguments = {"varlen": True, "page_size": 4, "causal": True, "return_lse": True, **KERNELS[kind], **how}
    return AttentionConfig(16, rotary_dim=rotary_dim, **arguments)


def batch_of(config: AttentionConfig) -> Batch:
    """Packed queries, keys in pages in random order, and the angles of their positions."""
    batch = Batch.of(config, LENGTHS, (2, 1))
    cos, sin = rotary_tables(POSITIONS, config.rotary_dim, base=100.0)
    batch.arguments |= {"rotary_cos": cos, "rotary_sin": sin}
    return batch


def before(batch: Batch) -> Batch:
    """The batch with queries that are rotated by their positions, sequence by sequence, and rounded once."""
    config, arguments = batch.config, dict(batch.arguments)
    tables, starts = (arguments.pop("rotary_cos"), arguments.pop("rotary_sin")), arguments["cu_seqlens_q"]
    q = arguments["q"] = arguments["q"].copy()
    counts = arguments.get("seqused_q", np.diff(starts))
    for first, count, (_, keys) in zip(starts, counts, LENGTHS, strict=False):
        positions = np.maximum(keys - count + np.arange(count), 0)[None]
        rows = q[first : first + count].swapaxes(0, 1)[None]
        result = rotated(rows, *tables, positions, interleaved=config.rotary_interleaved)
        q[first : first + count] = result[0].swapaxes(0, 1)
    return Batch(replace(config, rotary_dim=0), batch.rows, arguments)


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_kernel_gives_the_bits_of_queries_that_were_rotated_before(kind: str, interleaved: bool) -> None:
    batch = batch_of(config_of(kind, rotary_interleaved=interleaved))
    assert_same_bits(batch.launched(), before(batch).launched())


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_the_cpu_gives_the_bits_of_queries_that_were_rotated_before(kind: str) -> None:
    batch = batch_of(config_of(kind, rotary_interleaved=kind == "f16", window=(9, None)))
    assert_same_bits(batch.launched("cpu"), before(batch).launched("cpu"))


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("kind", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
def test_each_sequence_is_attention_of_its_rotated_queries(kind: str, backend: str) -> None:
    batch = batch_of(config_of(kind))
    before(batch).judge(*batch.launched(backend))


@BACKENDS
def test_the_last_query_that_is_used_is_at_the_last_key(backend: str) -> None:
    batch, used = batch_of(config_of("f32", seqused_q=True)), np.array([1, 4, 0, 5, 0, 1], np.int32)
    batch.arguments["seqused_q"] = used
    plain, result = before(batch), batch.launched(backend)
    assert_same_bits(result[:1], plain.launched(backend)[:1])
    plain.judge(*result)


@BACKENDS
def test_a_call_reads_tables_of_any_row_strides_and_leaves_the_queries_as_they_are(backend: str) -> None:
    batch = batch_of(config_of("f16"))
    how: Any = {"kv_layout": "HND", "causal": True, "backend": backend}
    wanted = flash.attention_varlen(**before(batch).arguments, **how)
    tables = [batch.arguments.pop(name) for name in ("rotary_cos", "rotary_sin")]
    both = np.concatenate([*tables, np.full((POSITIONS, 1), np.nan, np.float32)], axis=1)
    angles = {"rotary_cos": both[:, :6], "rotary_sin": both[:, 6:12]}
    q = batch.arguments["q"].copy()
    result = flash.attention_varlen(**batch.arguments, **how, **angles)
    assert result.tobytes() == wanted.tobytes()
    assert batch.arguments["q"].tobytes() == q.tobytes()
    none = {name: table[:, :0] for name, table in angles.items()}
    plain = flash.attention_varlen(**batch.arguments, **how)
    assert flash.attention_varlen(**batch.arguments, **how, **none).tobytes() == plain.tobytes()


@pytest.mark.slow
def test_tables_may_have_more_rows_than_there_are_positions() -> None:
    batch = batch_of(config_of("f32"))
    tables = {name: batch.arguments[name][3:4] for name in ("rotary_cos", "rotary_sin")}
    wanted = batch.launched(**{name: np.repeat(table, POSITIONS, axis=0) for name, table in tables.items()})
    long = {name: np.broadcast_to(table, (2**32 + 1, 6)) for name, table in tables.items()}
    assert_same_bits(batch.launched(**long), wanted)


@pytest.mark.slow
def test_a_gpu_reads_no_angle_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = interpreting(FakeDriver(FakeDevice()))
    without_assembler(monkeypatch)
    batch = batch_of(config_of("f32"))
    arguments = batch.arguments
    kernel = AttentionKernel(batch.config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    staged = kernel.launch(**arguments, out=np.full_like(arguments["q"], UNTOUCHED), backend="cuda")
    assert_same_bits(staged, batch.launched())
    assert driver.launches[-1].values["positions"] == POSITIONS
    short = {name: arguments[name][:10].copy() for name in ("rotary_cos", "rotary_sin")}
    there = {name: on_device(driver, array) for name, array in {**arguments, **short}.items()}
    built: Any = kernel.launch(**there, max_seqlen_q=6)[0]
    out = driver.fetch(built.pointer, np.empty(built.shape, built.dtype))
    as_if = {name: np.concatenate([table] + [table[-1:]] * 8) for name, table in short.items()}
    wanted, _ = batch.launched(**as_if)
    rows = slice(0, int(arguments["cu_seqlens_q"][-1]))
    assert out[rows].tobytes() == wanted[rows].tobytes()


@pytest.mark.parametrize("kind", ["f16", pytest.param("wgmma", marks=pytest.mark.slow)])
def test_accesses_are_proved_and_the_contract_names_the_rotation(kind: str) -> None:
    built = proved_build(config_of(kind, rotary_interleaved=True).kernel())
    assert built.global_proof.complete
    assert (built.contract["rotary_dim"], built.contract["rotary_interleaved"]) == (12, True)
    assert "columns 2 i and 2 i + 1 of a row are rotated together" in built.contract["constraints"]
    assert "rotary12_interleaved" in built.config.name


# ------------------------------------------------------------------------------------- what is refused

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "odd": ({"rotary_dim": 7}, "rotary_dim must be an even integer from 0 to head_dim=16, got 7"),
    "wide": ({"rotary_dim": 18}, "rotary_dim must be an even integer from 0 to head_dim=16, got 18"),
    "no number": ({"rotary_dim": None}, "rotary_dim must be an even integer from 0 to head_dim=16, got None"),
    "no flag": ({"rotary_interleaved": 1}, "rotary_interleaved must be True or False, got 1"),
    "rows": (
        {"page_size": None},
        "rotary_dim=8 is for queries of keys in pages, which hold rotated keys; use page_size=16 and "
        "varlen=True with it, DecodeKernel, whose launches take rotary_cos and rotary_sin, or rotate q and k "
        "before the launch",
    ),
    "top left": (
        {"causal": "top_left"},
        "rotary_dim=8 is for queries of which the last is at the last key, got causal='top_left'; use "
        "causal='bottom_right', or rotate q before the launch",
    ),
    "fp8": (
        {"dtype": "e4m3", "page_size": 16},
        "rotary_dim=8 is for queries of f32, f16 and bf16, got fp8; rotate q before it is rounded to fp8",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_config_that_cannot_rotate_is_refused(name: str) -> None:
    how, message = SETTINGS[name]
    assert (
        refusal(
            AttentionConfig,
            error=ConfigError,
            **{"head_dim": 16, "varlen": True, "page_size": 4, "rotary_dim": 8, **how},
        )
        == f"AttentionConfig: {message}"
    )


def test_a_config_that_rotates_nothing_does_not_depend_on_the_pairs() -> None:
    assert AttentionConfig(16, rotary_interleaved=True) == AttentionConfig(16)


COS, SIN = rotary_tables(40, 8)
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "cosines alone": ({"rotary_sin": None}, "rotary_cos is given without rotary_sin; give both, or neither"),
    "sines alone": ({"rotary_cos": None}, "rotary_sin is given without rotary_cos; give both, or neither"),
    "keys without pages": (
        {"block_table": None, "cu_seqlens_k": np.array([0, 1], np.int32)},
        "rotary_cos and rotary_sin are given without a block_table, but only queries of keys in pages are "
        "rotated, which hold rotated keys; rotate q and k before the call",
    ),
    "another shape": (
        {"rotary_cos": COS[:39]},
        "rotary_cos and rotary_sin must be [positions, rotary_dim / 2] of one shape, with at least one "
        "position and rotary_dim up to head_dim=16, got [39, 4] and [40, 4]",
    ),
    "no position": (
        {"rotary_cos": COS[:0], "rotary_sin": SIN[:0]},
        "rotary_cos and rotary_sin must be [positions, rotary_dim / 2] of one shape, with at least one "
        "position and rotary_dim up to head_dim=16, got [0, 4] and [0, 4]",
    ),
    "wide": (
        dict(zip(("rotary_cos", "rotary_sin"), rotary_tables(40, 18), strict=True)),
        "rotary_cos and rotary_sin must be [positions, rotary_dim / 2] of one shape, with at least one "
        "position and rotary_dim up to head_dim=16, got [40, 9] and [40, 9]",
    ),
    "few positions": (
        {"rotary_cos": COS[:17], "rotary_sin": SIN[:17]},
        "rotary_cos and rotary_sin must have a row for each of 18 positions, got 17",
    ),
    "a type": (
        {"rotary_cos": COS.astype(np.float16)},
        "rotary_cos must be float32, got float16; convert with rotary_cos.astype('float32')",
    ),
    "columns": (
        {"rotary_sin": np.repeat(SIN, 2, axis=1)[:, ::2]},
        "rotary_sin must be dense in its last dimension (stride 1), got strides [8, 2] for shape [40, 4]; "
        "copy it with rotary_sin.copy()",
    ),
    "no flag": ({"rotary_interleaved": 1}, "rotary_interleaved must be True or False, got 1"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_rotate_is_refused(name: str) -> None:
    how, message = CALLS[name]
    arguments = {
        **batch_of(config_of("f32")).arguments,
        "rotary_cos": COS,
        "rotary_sin": SIN,
        "kv_layout": "HND",
        **how,
    }
    assert refusal(flash.attention_varlen, **arguments) == f"attention_varlen: {message}"


def test_a_launch_takes_tables_if_and_only_if_its_config_rotates() -> None:
    config = config_of("f32")
    arguments = batch_of(config).arguments
    plain = {name: array for name, array in arguments.items() if not name.startswith("rotary")}
    assert refusal(AttentionKernel(config).launch, **plain) == (
        "launch: rotary_cos must be given, because the config says rotary_dim=64; rotary_sin must be given, "
        "because the config says rotary_dim=64"
    )
    assert refusal(AttentionKernel(replace(config, rotary_dim=0)).launch, **arguments) == (
        "launch: rotary_cos is given, but the config does not say so; use AttentionConfig(rotary_dim=64, "
        "...); rotary_sin is given, but the config does not say so; use AttentionConfig(rotary_dim=64, ...)"
    )
    assert refusal(AttentionKernel(config_of("f32", rotary_dim=8)).launch, **arguments) == (
        "launch: 2 problems\n"
        "  rotary_cos must be [positions, rotary_dim / 2] = [positions, 4], got [18, 6]\n"
        "  rotary_sin must be [positions, rotary_dim / 2] = [positions, 4], got [18, 6]"
    )

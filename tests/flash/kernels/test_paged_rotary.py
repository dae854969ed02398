"""Queries that the kernel of packed sequences over pages rotates by their positions: the bits of queries that
were rotated before, the float64 reference, and what is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate

import flash
from flash.contract.catalogue import proved_build
from flash.error_bound import arithmetic_of_config
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.problem.rotary import rotary_tables, rotated
from ptxgen import interpreter
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]

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
    "wgmma_f32": {"dtype": "f32", "precision": "f32_grade", "target": "sm_90a", "page_size": 16},
}
BACKENDS = pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])


def config_of(kind: str, rotary_dim: int = 12, **how: Any) -> AttentionConfig:
    given = {"varlen": True, "page_size": 4, "causal": True, "return_lse": True, **KERNELS[kind], **how}
    return AttentionConfig(16, rotary_dim=rotary_dim, **given)


@dataclass
class Batch:
    """Packed queries, keys in pages in random order, and the angles of their positions."""

    q: Array
    k: Array
    v: Array
    lengths: dict[str, Array]
    angles: dict[str, Array]

    @classmethod
    def of(cls, config: AttentionConfig) -> Batch:
        rng, size = np.random.default_rng(0), config.page_size or 0
        columns = -(-max(keys for _, keys in LENGTHS) // size)
        pages = len(LENGTHS) * columns
        ends = np.cumsum([0, *[n for n, _ in LENGTHS]]).astype(np.int32)
        shapes = (int(ends[-1]), 2, 16), (pages, 1, size, 16), (pages, 1, size, 16)
        q, k, v = (rng.standard_normal(shape).astype(config.element.numpy) for shape in shapes)
        table = rng.permutation(pages).reshape(len(LENGTHS), columns).astype(np.int32)
        used = np.array([n for _, n in LENGTHS], np.int32)
        lengths = {"cu_seqlens_q": ends, "block_table": table, "seqused_k": used}
        cos, sin = rotary_tables(POSITIONS, max(config.rotary_dim, 2), base=100.0)
        return cls(q, k, v, lengths, {"rotary_cos": cos, "rotary_sin": sin})

    def rotated(self, config: AttentionConfig, used_q: Array | None = None) -> Array:
        """The queries, rotated by their positions one sequence after another, and rounded once."""
        found = self.q.copy()
        for b, (queries, keys) in enumerate(LENGTHS):
            first = self.lengths["cu_seqlens_q"][b]
            count = queries if used_q is None else int(used_q[b])
            at = np.array([max(keys - count + i, 0) for i in range(count)], np.int64)
            rows = self.q[first : first + count].swapaxes(0, 1)[None]
            made = rotated(rows, *self.angles.values(), at[None], interleaved=config.rotary_interleaved)
            found[first : first + count] = made[0].swapaxes(0, 1)
        return found

    def gathered(self, b: int) -> tuple[Array, Array]:
        """K and V of sequence b, [1, kv_heads, keys, dim]."""
        nth, size = np.arange(self.lengths["seqused_k"][b]), self.k.shape[2]
        at = self.lengths["block_table"][b, nth // size], slice(None), nth % size
        return self.k[at].swapaxes(0, 1)[None], self.v[at].swapaxes(0, 1)[None]


@pytest.fixture(autouse=True)
def _sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches on the interpreter run with all sanitizers."""
    run = interpreter.run
    monkeypatch.setattr(interpreter, "run", lambda *a, **how: run(*a, **{"sanitize": True, **how}))


def bits(results: tuple[Array, ...]) -> list[bytes]:
    return [x.tobytes() for x in results]


def launched(config: AttentionConfig, of: Batch, backend: str, **more: Any) -> tuple[Array, ...]:
    """out, 0 in rows of no sequence, and lse, of queries that the kernel rotates, or that `more` has."""
    given: dict[str, Any] = {"q": of.q, "out": np.zeros_like(of.q), **more}
    angles = of.angles if config.rotary_dim else {}
    made = AttentionKernel(config).launch(k=of.k, v=of.v, backend=backend, **of.lengths, **angles, **given)
    return tuple(made)


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_kernel_gives_the_bits_of_queries_that_were_rotated_before(kind: str, interleaved: bool) -> None:
    config = config_of(kind, rotary_interleaved=interleaved)
    of = Batch.of(config)
    plain = replace(config, rotary_dim=0)
    found = launched(config, of, "interpreter")
    assert bits(found) == bits(launched(plain, of, "interpreter", q=of.rotated(config)))


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_the_cpu_gives_the_bits_of_queries_that_were_rotated_before(kind: str) -> None:
    config = config_of(kind, rotary_interleaved=kind == "f16", window=(9, None))
    of = Batch.of(config)
    plain = replace(config, rotary_dim=0)
    assert bits(launched(config, of, "cpu")) == bits(launched(plain, of, "cpu", q=of.rotated(config)))


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("kind", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
def test_each_sequence_is_attention_of_its_rotated_queries(kind: str, backend: str) -> None:
    config = config_of(kind)
    of = Batch.of(config)
    out, lse = launched(config, of, backend)
    q, ends = of.rotated(config), of.lengths["cu_seqlens_q"]
    for b in range(len(LENGTHS)):
        rows = slice(ends[b], ends[b + 1])
        assert_attention_is_accurate(
            out[rows].swapaxes(0, 1)[None],
            lse[None, :, rows],
            q[rows].swapaxes(0, 1)[None],
            *of.gathered(b),
            softmax_scale=config.scale,
            causal=config.causal,
            arithmetic=arithmetic_of_config(config),
        )


@BACKENDS
def test_the_last_query_that_is_used_is_at_the_last_key(backend: str) -> None:
    config = config_of("f32", seqused_q=True)
    of, used = Batch.of(config), np.array([1, 4, 0, 5, 0, 1], np.int32)
    of.lengths["seqused_q"] = used
    lse = np.zeros((2, len(of.q)), bool)
    for b, count in enumerate(used):
        first = of.lengths["cu_seqlens_q"][b]
        lse[:, first : first + count] = True
    found = launched(config, of, backend)
    wanted = launched(replace(config, rotary_dim=0), of, backend, q=of.rotated(config, used))
    assert found[0].tobytes() == wanted[0].tobytes()
    assert found[1][lse].tobytes() == wanted[1][lse].tobytes()


@BACKENDS
def test_a_call_reads_tables_of_any_row_strides_and_leaves_the_queries_as_they_are(backend: str) -> None:
    config = config_of("f16")
    of = Batch.of(config)
    how: Any = {**of.lengths, "kv_layout": "HND", "causal": True, "backend": backend}
    wanted = flash.attention_varlen(of.rotated(config), of.k, of.v, **how)
    both = np.concatenate([*of.angles.values(), np.full((POSITIONS, 1), np.nan, np.float32)], axis=1)
    angles = {"rotary_cos": both[:, :6], "rotary_sin": both[:, 6:12]}
    before = of.q.copy()
    found = flash.attention_varlen(of.q, of.k, of.v, **how, **angles)
    assert found.tobytes() == wanted.tobytes()
    assert of.q.tobytes() == before.tobytes()
    none = {name: table[:, :0] for name, table in angles.items()}
    plain = flash.attention_varlen(of.q, of.k, of.v, **how)
    assert flash.attention_varlen(of.q, of.k, of.v, **how, **none).tobytes() == plain.tobytes()


def test_tables_may_have_more_rows_than_there_are_positions() -> None:
    config = config_of("f32")
    of = Batch.of(config)
    of.angles = {name: np.repeat(table[3:4], POSITIONS, axis=0) for name, table in of.angles.items()}
    wanted = launched(config, of, "interpreter")
    of.angles = {n: np.broadcast_to(table[:1], (2**32 + 1, 6)) for n, table in of.angles.items()}
    assert bits(launched(config, of, "interpreter")) == bits(wanted)


@pytest.mark.slow
def test_a_gpu_reads_no_angle_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = interpreting(FakeDriver(FakeDevice()))
    without_assembler(monkeypatch)
    config = config_of("f32")
    of = Batch.of(config)
    kernel = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    wanted = launched(config, of, "interpreter")
    staged = kernel.launch(of.q, of.k, of.v, backend="cuda", **of.lengths, **of.angles)
    assert bits(staged) == bits(wanted)
    assert driver.launches[-1].values["positions"] == POSITIONS
    short = {name: table[:10] for name, table in of.angles.items()}
    of.angles = {name: np.concatenate([table] + [table[-1:]] * 8) for name, table in short.items()}
    there = {n: on_device(driver, a) for n, a in {"q": of.q, "k": of.k, "v": of.v, **of.lengths}.items()}
    angles = {name: on_device(driver, table.copy()) for name, table in short.items()}
    made: Any = kernel.launch(**there, **angles, max_seqlen_q=6)[0]
    out = driver.fetch(made.pointer, np.empty(made.shape, made.dtype))
    assert out.tobytes() == launched(config, of, "interpreter")[0].tobytes()


@pytest.mark.parametrize("kind", ["f16", pytest.param("wgmma", marks=pytest.mark.slow)])
def test_accesses_are_proved_and_the_contract_names_the_rotation(kind: str) -> None:
    made = proved_build(config_of(kind, rotary_interleaved=True).kernel())
    assert made.global_proof.complete
    assert (made.contract["rotary_dim"], made.contract["rotary_interleaved"]) == (12, True)
    assert "columns 2 i and 2 i + 1 of a row are turned together" in made.contract["constraints"]
    assert "rotary12_interleaved" in made.config.name


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
    "latents": (
        {"head_dim": 576, "head_dim_v": 512, "shared_kv": True, "dtype": "bf16", "page_size": 64},
        "head_dim=576 with shared_kv is for kernels with wgmma alone, and the kernel rotates queries; use "
        "other sizes",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_config_that_cannot_rotate_is_refused(name: str) -> None:
    how, message = SETTINGS[name]
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**{"head_dim": 16, "varlen": True, "page_size": 4, "rotary_dim": 8, **how})
    assert str(caught.value) == f"AttentionConfig: {message}"


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
    of = Batch.of(config_of("f32"))
    given = {**of.lengths, "rotary_cos": COS, "rotary_sin": SIN, "kv_layout": "HND", **how}
    with pytest.raises(LaunchError) as caught:
        flash.attention_varlen(of.q, of.k, of.v, **given)
    assert str(caught.value) == f"attention_varlen: {message}"


def test_a_launch_takes_tables_if_and_only_if_its_config_rotates() -> None:
    config = config_of("f32")
    of = Batch.of(config)
    with pytest.raises(LaunchError) as caught:
        AttentionKernel(config).launch(of.q, of.k, of.v, **of.lengths)
    assert str(caught.value) == (
        "launch: rotary_cos must be given, because the config says rotary_dim=64; rotary_sin must be given, "
        "because the config says rotary_dim=64"
    )
    with pytest.raises(LaunchError) as caught:
        AttentionKernel(replace(config, rotary_dim=0)).launch(of.q, of.k, of.v, **of.lengths, **of.angles)
    assert str(caught.value) == (
        "launch: rotary_cos is given, but the config does not say so; use AttentionConfig(rotary_dim=64, "
        "...); rotary_sin is given, but the config does not say so; use AttentionConfig(rotary_dim=64, ...)"
    )
    with pytest.raises(LaunchError) as caught:
        AttentionKernel(config_of("f32", rotary_dim=8)).launch(of.q, of.k, of.v, **of.lengths, **of.angles)
    assert str(caught.value) == (
        "launch: 2 problems\n"
        "  rotary_cos must be [positions, rotary_dim / 2] = [positions, 4], got [18, 6]\n"
        "  rotary_sin must be [positions, rotary_dim / 2] = [positions, 4], got [18, 6]"
    )

"""The forward kernel for Hopper with Q of fp8 and pages of keys and values of fp8: its own PTX, run on the
interpreter with the sanitizers on, and the cpu backend, each sequence against float64. What is no key is NaN,
and entries of the table that no key needs name pages that do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from conformance import SCALES, Array, bound_of
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver
from fp8_runs import Kernels, config_of, scales_of, watched
from judge import assert_within
from kernel_runs import assert_no_spill, nightly

import flash
from flash import AttentionKernel
from flash.contract.catalogue import build
from flash.families.choice import tiles_that_fit
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.config import AttentionConfig
from ptxgen.errors import ConfigError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

# Queries and keys: single tokens, a prompt, a part of one, more queries than keys, none of either.
LENGTHS = ((1, 200), (1, 1), (70, 130), (9, 5), (0, 20), (3, 0), (2, 64))
SENTINEL = 7.0
NO_PAGE = 10**6


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return watched(monkeypatch)


@dataclass
class Batch:
    """Sequences whose keys are in pages in random order, [pages, kv_heads, page_size, dim]; `rows` are K
    and V of each, [kv_heads, keys, dim].
    """

    q: Array
    k: Array
    v: Array
    ends: Array
    table: Array
    used: Array
    scales: dict[str, Array]
    rows: list[tuple[Array, Array]]

    @classmethod
    def of(cls, config: AttentionConfig, lengths: Sequence[tuple[int, int]], heads: tuple[int, int]) -> Batch:
        rng, size = np.random.default_rng(len(lengths)), config.page_size or 0
        counts = [-(-keys // size) for _, keys in lengths]
        order = rng.permutation(sum(counts) + 2)
        table = np.full((len(lengths), max(counts) + 1), NO_PAGE, np.int32)
        kind, dims = config.element.numpy, (config.head_dim, config.value_dim)
        pages = [np.full((len(order), heads[1], size, dim), np.nan, kind) for dim in dims]
        rows: list[tuple[Array, Array]] = []
        for b, (_, keys) in enumerate(lengths):
            count = counts[b]
            table[b, :count] = order[sum(counts[:b]) :][:count]
            of_b = [rng.standard_normal((heads[1], keys, dim)).astype(kind) for dim in dims]
            for array, own in zip(pages, of_b, strict=True):
                places = np.arange(keys)
                array[table[b, places // size], :, places % size] = own.swapaxes(0, 1)
            rows.append((of_b[0], of_b[1]))
        ends = np.cumsum([0, *[n for n, _ in lengths]]).astype(np.int32)
        q = rng.standard_normal((int(ends[-1]), heads[0], config.head_dim)).astype(kind)
        used = np.array([keys for _, keys in lengths], np.int32)
        return cls(q, *pages, ends, table, used, scales_of(len(lengths), heads[1]), rows)

    @property
    def given(self) -> dict[str, Array]:
        """The arguments of a launch beside Q, K and V."""
        return {"cu_seqlens_q": self.ends, "block_table": self.table, "seqused_k": self.used, **self.scales}


def judge(config: AttentionConfig, of: Batch, out: Array, lse: Array, operands: dict[str, Array]) -> None:
    for b, (k, v) in enumerate(of.rows):
        rows = slice(of.ends[b], of.ends[b + 1])
        if rows.start == rows.stop:
            continue
        found = out[rows].swapaxes(0, 1)[None], lse[None, :, rows]
        if not k.shape[1]:
            assert not found[0].any()
            sinks = operands["sink"][b, :, None] if "sink" in operands else -np.inf
            np.testing.assert_allclose(found[1][0], np.broadcast_to(sinks, found[1][0].shape), rtol=1e-6)
            continue
        arrays = of.q[rows].swapaxes(0, 1)[None], k[None], v[None]
        own = {name: x[b : b + 1] for name, x in operands.items()}
        scales = {name: x[b : b + 1] for name, x in of.scales.items()}
        assert_within(*found, bound_of(config, arrays, {**scales, **own}, first_batch=b))


def check(
    kernels: Kernels,
    config: AttentionConfig,
    lengths: Sequence[tuple[int, int]] = LENGTHS,
    heads: tuple[int, int] = (4, 2),
    backend: Any = "interpreter",
) -> None:
    of, rng = Batch.of(config, lengths, heads), np.random.default_rng(1)
    operands = {
        operand.name: rng.uniform(0.1, 0.5, (len(lengths), heads[0])).astype("f4")
        for operand in config.features.operands
        if operand.name in ("alibi_slopes", "sink")
    }
    spare = np.full((3, *of.q.shape[1:]), np.nan, of.q.dtype)  # rows of no sequence
    q = np.concatenate([of.q, spare])
    out = np.full((*q.shape[:2], config.value_dim), SENTINEL, config.output.numpy)
    made, lse = AttentionKernel(config).launch(
        q, of.k, of.v, out=out, backend=backend, **of.given, **operands
    )
    assert made is out
    assert (out[len(of.q) :] == SENTINEL).all()
    if backend == "interpreter":
        assert f"wgmma_{config.dtype}_" in kernels.names[0]
        assert f"_page{config.page_size}" in kernels.names[0]
    judge(config, of, out, lse, operands)


def paged(page_size: int = 16, **how: Any) -> AttentionConfig:
    return config_of(**how, varlen=True, page_size=page_size)


@pytest.mark.slow
@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("page_size", [16, 48, 64, 256])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": "bottom_right", "dtype": "e5m2", "tile": 128},
        {"causal": "top_left", "block_q": 128, "out_dtype": "f16"},
        {"causal": True, "pack_gqa": False, "window": (30, None)},
        {"window": (30, 9), "block_q": 192, "softcap": 2.0},
        {"head_dim": 48, "head_dim_v": 144, "tile": 128, "causal": True, "stages": 3},
        {"head_dim": 256, "causal": True, "block_q": "auto", "tile": "auto"},
    ],
    ids=str,
)
def test_each_sequence_is_attention_to_its_own_pages(
    how: dict[str, Any], page_size: int, kernels: Kernels
) -> None:
    check(kernels, paged(page_size, **how))


@pytest.mark.nightly
@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 1), (16, 2)], ids=str)
def test_any_number_of_heads_shares_a_head_of_keys(heads: tuple[int, int], kernels: Kernels) -> None:
    check(kernels, paged(causal=True, alibi=True, sink=True), heads=heads)


def test_the_cpu_computes_the_same_function(kernels: Kernels) -> None:
    check(kernels, paged(causal=True, window=(60, None), sink=True), backend="cpu")
    assert not kernels.names


@pytest.mark.parametrize("seed", [nightly(seed) for seed in range(40)])
def test_calls_drawn_at_random(seed: int, kernels: Kernels) -> None:
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    dims = one_of((64, 64), (16, 32), (96, 64), (64, 144), (128, 128))
    how: dict[str, Any] = {
        "head_dim": dims[0],
        "head_dim_v": dims[1],
        "dtype": one_of(*FP8_DTYPES),
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
    kernels.how |= {"schedule": PCT(seed)}
    config = paged(int(rng.integers(1, 9)) * 16, **how)
    check(kernels, config, [(1, 70), *lengths], one_of((1, 1), (2, 1), (2, 2), (6, 2)))


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["interpreter", nightly("cpu")])
def test_the_function_takes_pages_with_rows_before_heads(backend: Any, kernels: Kernels) -> None:
    config = paged(causal=True, block_q="auto", tile="auto", return_lse=True)
    of = Batch.of(config, ((1, 90), (20, 33)), (2, 1))
    together = np.stack([of.k, of.v], axis=1).swapaxes(2, 3).copy()  # as vLLM keeps them
    rows_first = together[:, 0], together[:, 1]
    one = {name: np.array([scale], "f4") for name, scale in zip(SCALES, (0.5, 1.5, 2.0), strict=True)}
    given = {**of.given, **one}
    ends = given.pop("cu_seqlens_q")
    out, lse = flash.attention_varlen(
        of.q, *rows_first, ends, causal=True, return_lse=True, backend=backend, **given
    )
    of.scales = {name: np.broadcast_to(x, (2, 1)) for name, x in one.items()}
    judge(config, of, out, lse, {})
    assert len(kernels.names) == (backend == "interpreter")


@pytest.mark.nightly
def test_whatever_is_no_key_reaches_no_row(kernels: Kernels) -> None:
    config = paged(causal=True, dtype="e5m2")
    of = Batch.of(config, ((40, 90), (3, 20)), (1, 1))
    wild = AttentionKernel(config).launch(of.q, of.k, of.v, backend="interpreter", **of.given)
    for array in (of.k, of.v):
        array[np.isnan(array)] = 0
    of.table[of.table == NO_PAGE] = -(2**31)
    calm = AttentionKernel(config).launch(of.q, of.k, of.v, backend="interpreter", **of.given)
    assert [x.tobytes() for x in wild] == [x.tobytes() for x in calm]
    assert np.isfinite(wild[0].astype("f4")).all()
    page, row = of.table[0, 85 // 16], 85 % 16  # only the last five queries see key 85
    of.v[page, 0, row, 3] = np.inf
    seen = AttentionKernel(config).launch(of.q, of.k, of.v, backend="interpreter", **of.given)[0]
    odd = ~np.isfinite(seen.astype("f4"))
    assert odd[35:40, :, 3].all()
    assert odd.sum() == odd[35:40, :, 3].size
    assert len(kernels.names) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "pack_gqa": True},
        nightly({"window": (40, 0), "page_size": 48}),
        nightly({"head_dim": 256, "page_size": 256, "causal": True}),
    ],
    ids=str,
)
def test_all_accesses_and_barriers_are_proved(how: dict[str, Any]) -> None:
    how = {"head_dim": 128, "page_size": 16, **how}
    made = build(AttentionConfig(**how, dtype="e4m3", varlen=True, return_lse=True).kernel())
    assert made.proof.complete, made.proof
    assert made.global_proof.complete, made.global_proof


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [256, *(nightly(d) for d in (64, 96, 128, 192))])
@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "pack_gqa": True, "return_lse": True},
        nightly({"dtype": "e5m2", "causal": True, "window": (512, 0), "softcap": 30.0}),
        nightly({"page_size": 128, "causal": True, "softcap": 30.0, "alibi": True, "pack_gqa": True}),
    ],
    ids=str,
)
def test_no_tile_offered_spills(how: dict[str, Any], head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, **{"dtype": "e4m3", "varlen": True, "page_size": 16, **how})
    for tile, block_q in tiles_that_fit(config.tile_request, config.kernel().target):
        assert_no_spill(replace(config, tile=tile, block_q=block_q), assembler)


# ------------------------------------------------------------------------------------------
# launches


@pytest.mark.slow
def test_a_gpu_gives_the_bits_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver(FakeDevice()))
    config = paged(causal=True)
    of = Batch.of(config, ((1, 90), (20, 33)), (2, 1))
    on_gpu = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    found = on_gpu.launch(of.q, of.k, of.v, backend="cuda", **of.given)
    wanted = AttentionKernel(config).launch(of.q, of.k, of.v, backend="interpreter", **of.given)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]
    said = on_gpu.explain(of.q, of.k, of.v, backend="cuda", **of.given)
    assert "tiles:    64 queries of 2 packed heads by 64 keys, 256 threads\n" in said
    assert "products: wgmma of fp8, with tiles copied by TMA and V transposed\n" in said
    assert "scales:   one of Q, K and V for each head of K and V\n" in said


def test_pages_that_boxes_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        AttentionConfig(64, dtype="e4m3", varlen=True, page_size=24)
    assert str(raised.value) == (
        "AttentionConfig: dtype='e4m3' has one kernel, which does not do this: page_size=24, which is no "
        "multiple of 16; or convert Q, K and V to 'bf16'"
    )

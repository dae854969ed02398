"""Packed batches of prompts and single tokens over pages of keys: the kernels on the interpreter with
its sanitizers, the cpu backend and the reference; and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate
from kernel_runs import assert_no_spill, nightly

import flash
from flash.contract.catalogue import build
from flash.cpu import job, paged_rows
from flash.error_bound import arithmetic_of_config
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_varlen_reference
from ptxgen import interpreter
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]

# Tiles are 16 keys, blocks 16 or 32 rows. One token of a long and of a short sequence, a prompt, a
# part of a prompt, more queries than keys, no queries, no keys, and nothing at all.
LENGTHS = ((1, 70), (1, 1), (33, 33), (17, 40), (9, 5), (0, 20), (3, 0), (0, 0), (2, 16))
SENTINEL = 7.0

KERNELS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32", "block_q": 16},
    "f16": {"dtype": "f16", "block_q": 32},
    "bf16": {"dtype": "bf16", "block_q": 32},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade", "block_q": 32},
    "wgmma": {"dtype": "f16", "target": "sm_90a", "block_q": 64, "page_size": 16},
}
EVERY_KERNEL = pytest.mark.parametrize("kind", KERNELS)
ONE_OF_EACH_PRECISION = pytest.mark.parametrize("kind", ["f32", "f16", "f32_grade"])
ONE_OF_EACH = pytest.mark.parametrize("kind", ["f32", "f16"])
EVERY_BACKEND = pytest.mark.parametrize("backend", ["cpu", "interpreter"])


def config_of(kind: str, head_dim: int = 16, head_dim_v: int = 8, **how: Any) -> AttentionConfig:
    given = {"tile": 16, "varlen": True, "page_size": 4, "return_lse": True, **KERNELS[kind], **how}
    return AttentionConfig(head_dim, head_dim_v, **given)


@dataclass
class Batch:
    """A batch whose keys are in pages in random order, NaN where no key is; entries of the table that
    no key needs name pages that do not exist.
    """

    q: Array
    k: Array
    v: Array
    ends: Array
    table: Array
    used: Array

    @classmethod
    def of(
        cls,
        config: AttentionConfig,
        lengths: Sequence[tuple[int, int]] = LENGTHS,
        heads: tuple[int, int] = (4, 2),
        spare: int = 2,
    ) -> Batch:
        rng, size = np.random.default_rng(0), config.page_size or 0
        counts = [-(-keys // size) for _, keys in lengths]
        pages = sum(counts) + spare
        order = rng.permutation(pages)
        table = np.full((len(lengths), max([1, *counts]) + 1), 10**6, np.int32)
        for row, first, count in zip(table, np.cumsum([0, *counts]), counts, strict=False):
            row[:count] = order[first : first + count]
        ends = np.cumsum([0, *[n for n, _ in lengths]]).astype(np.int32)
        used = np.array([n for _, n in lengths], np.int32)
        shapes = (
            (int(ends[-1]), heads[0], config.head_dim),
            (pages, heads[1], size, config.head_dim),
            (pages, heads[1], size, config.value_dim),
        )
        q, k, v = (rng.standard_normal(s).astype(config.element.numpy) for s in shapes)
        found = cls(q, k, v, ends, table, used)
        holds = np.zeros((pages, size), bool)
        for b in range(len(lengths)):
            holds[found.places(b)] = True
        for array in (k, v):
            array.swapaxes(1, 2)[~holds] = np.nan
        return found

    @property
    def lengths(self) -> dict[str, Array]:
        return {"cu_seqlens_q": self.ends, "block_table": self.table, "seqused_k": self.used}

    def places(self, b: int) -> tuple[Array, Array]:
        """The page of each key of sequence b, and the row in it."""
        nth, size = np.arange(self.used[b]), self.k.shape[2]
        return self.table[b, nth // size], nth % size

    def gathered(self, b: int) -> tuple[Array, Array]:
        """K and V of sequence b, [kv_heads, keys, dim]."""
        page, row = self.places(b)
        return self.k[page, :, row].swapaxes(0, 1), self.v[page, :, row].swapaxes(0, 1)

    def rows(self) -> tuple[Array, Array, Array]:
        """K and V of all sequences one after another, and `cu_seqlens_k`."""
        of = [self.gathered(b) for b in range(len(self.used))]
        k, v = (np.concatenate([one[n] for one in of], axis=1).swapaxes(0, 1) for n in (0, 1))
        return k.copy(), v.copy(), np.cumsum([0, *self.used]).astype(np.int32)


def operands_of(config: AttentionConfig, batch: int, heads: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    found = {}
    if config.alibi:
        found["alibi_slopes"] = (0.2 * rng.random(heads)).astype(np.float32)
    if config.sink:
        found["sink"] = rng.standard_normal((batch, heads)).astype(np.float32)
    return found


def run_and_judge(
    config: AttentionConfig,
    lengths: Sequence[tuple[int, int]] = LENGTHS,
    heads: tuple[int, int] = (4, 2),
    *,
    backend: str = "interpreter",
    used_q: Array | None = None,
) -> None:
    of = Batch.of(config, lengths, heads)
    operands = operands_of(config, len(lengths), heads[0])
    out = np.full((len(of.q), heads[0], config.value_dim), SENTINEL, config.element.numpy)
    seed = {"dropout_seed": 11} if config.dropout else {}
    counted = {} if used_q is None else {"seqused_q": used_q}
    made, lse = AttentionKernel(config).launch(
        of.q, of.k, of.v, out=out, backend=backend, **of.lengths, **counted, **operands, **seed
    )
    assert made is out
    untouched = np.ones(len(of.q), bool)
    for b in range(len(lengths)):
        count = int(np.diff(of.ends)[b]) if used_q is None else int(used_q[b])
        rows = slice(of.ends[b], of.ends[b] + count)
        untouched[rows] = False
        assert_attention_is_accurate(
            out[rows].swapaxes(0, 1)[None],
            lse[None, :, rows],
            of.q[rows].swapaxes(0, 1)[None],
            *(array[None] for array in of.gathered(b)),
            softmax_scale=config.scale,
            causal=config.causal,
            window=config.window,
            softcap=config.softcap,
            dropout=config.dropout,
            dropout_seed=11 if seed else 0,
            first_batch=b,
            arithmetic=arithmetic_of_config(config),
            **{n: np.broadcast_to(x, (len(lengths), heads[0]))[b : b + 1] for n, x in operands.items()},
        )
    assert (out[untouched] == SENTINEL).all()


@pytest.fixture(autouse=True)
def _sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches on the interpreter run with all sanitizers."""
    run = interpreter.run
    monkeypatch.setattr(interpreter, "run", lambda *a, **how: run(*a, **{"sanitize": True, **how}))


# ------------------------------------------------------------------------------------------
# accuracy, sequence by sequence


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@EVERY_KERNEL
@pytest.mark.parametrize("page_size", [1, 3, 16, 24, 64])
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
def test_each_sequence_is_attention_to_its_own_pages(kind: str, page_size: int, causal: Any) -> None:
    run_and_judge(config_of(kind, page_size=page_size, causal=causal))


@pytest.mark.sample(0, gate=2)
@ONE_OF_EACH
@pytest.mark.parametrize("heads", [(2, 2), (3, 1), (5, 1), (16, 2)], ids=str)
@pytest.mark.parametrize("pack_gqa", [True, False])
def test_any_number_of_heads_shares_a_head_of_keys(kind: str, heads: tuple[int, int], pack_gqa: bool) -> None:
    run_and_judge(config_of(kind, causal=True, pack_gqa=pack_gqa), heads=heads)


FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window": (9, 3)},
    "causal_window": {"causal": True, "window": (20, None)},
    "wide_values": {"causal": True, "head_dim_v": 300},
    "narrow_rows": {"causal": True, "head_dim": 5, "head_dim_v": 7},
    "stages": {"causal": True, "dtype": "bf16", "block_q": 32, "stages": 2},
    "everything": {
        "causal": True,
        "window": (25, None),
        "alibi": True,
        "sink": True,
        "softcap": 2.0,
        "dropout": 0.25,
    },
}


@pytest.mark.sample(1, gate=2)
@ONE_OF_EACH
@EVERY_BACKEND
@pytest.mark.parametrize("name", FEATURES)
def test_features_go_by_a_sequences_own_lengths(kind: str, backend: str, name: str) -> None:
    run_and_judge(config_of(kind, **FEATURES[name]), backend=backend)


@pytest.mark.slow
def test_gpus_without_asynchronous_copies_read_pages_through_registers() -> None:
    run_and_judge(config_of("f32", target="sm_75", causal=True, head_dim_v=16))


@ONE_OF_EACH
@EVERY_BACKEND
def test_only_the_queries_that_are_used_count(kind: str, backend: str) -> None:
    used = np.array([1, 0, 30, 17, 8, 0, 3, 0, 1], np.int32)
    run_and_judge(config_of(kind, causal=True, seqused_q=True), backend=backend, used_q=used)


@EVERY_BACKEND
@pytest.mark.parametrize("lengths", [((0, 0),), ((0, 5), (0, 0)), ((2, 0),)], ids=str)
def test_batches_may_have_no_query_and_no_key(backend: str, lengths: tuple[tuple[int, int], ...]) -> None:
    run_and_judge(config_of("f32"), lengths, backend=backend)


# ------------------------------------------------------------------------------------------
# the bits of a result


@pytest.mark.slow
@pytest.mark.sample(1, gate=2)
@ONE_OF_EACH_PRECISION
@pytest.mark.parametrize("how", [{"causal": True, "window": (12, None), "dropout": 0.2}, {}], ids=str)
def test_pages_give_the_bits_of_keys_that_lie_one_after_another(kind: str, how: dict[str, Any]) -> None:
    config = config_of(kind, **how)
    of, seed = Batch.of(config), {"dropout_seed": 3} if config.dropout else {}
    k, v, ends = of.rows()
    plain = replace(config, page_size=None, seqused_k=False, pack_gqa=False)
    wanted = AttentionKernel(plain).launch(
        of.q, k, v, cu_seqlens_q=of.ends, cu_seqlens_k=ends, backend="interpreter", **seed
    )
    for packs in (False, True):
        kernel = AttentionKernel(replace(config, pack_gqa=packs))
        found = kernel.launch(of.q, of.k, of.v, backend="interpreter", **of.lengths, **seed)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]


def test_the_cpu_gives_the_bits_of_keys_that_lie_one_after_another() -> None:
    config = config_of("f16", causal=True)
    of = Batch.of(config)
    k, v, ends = of.rows()
    plain = AttentionKernel(replace(config, page_size=None, seqused_k=False))
    wanted = plain.launch(of.q, k, v, cu_seqlens_q=of.ends, cu_seqlens_k=ends, backend="cpu")
    found = AttentionKernel(config).launch(of.q, of.k, of.v, backend="cpu", **of.lengths)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]


@pytest.mark.slow
@ONE_OF_EACH
@EVERY_BACKEND
def test_what_is_no_key_of_a_sequence_cannot_reach_it(kind: str, backend: str) -> None:
    config = config_of(kind, causal=True, window=(30, None))
    of, kernel = Batch.of(config), AttentionKernel(config)
    wild = kernel.launch(of.q, of.k, of.v, backend=backend, **of.lengths)
    for array in (of.k, of.v):
        array[np.isnan(array)] = 0
    of.table[of.table == 10**6] = -(2**31)
    calm = kernel.launch(of.q, of.k, of.v, backend=backend, **of.lengths)
    assert [x.tobytes() for x in wild] == [x.tobytes() for x in calm]
    assert all(np.isfinite(x[..., :1]).all() for x in wild[:1])


@pytest.mark.slow
@EVERY_BACKEND
def test_pages_may_have_any_strides_and_keys_and_values_one_array(backend: str) -> None:
    config = config_of("f16", head_dim_v=16, causal=True)
    of = Batch.of(config)
    how: Any = {"backend": backend, "causal": True, **of.lengths}
    ends = how.pop("cu_seqlens_q")
    together = np.stack([of.k, of.v], axis=1)  # [pages, 2, kv_heads, page_size, dim]
    wanted = flash.attention_varlen(of.q, of.k, of.v, ends, kv_layout="HND", **how)
    found = flash.attention_varlen(of.q, together[:, 0], together[:, 1], ends, kv_layout="HND", **how)
    assert found.tobytes() == wanted.tobytes()
    rows_first = np.stack([of.k, of.v], axis=1).swapaxes(2, 3).copy()  # as vLLM keeps them
    found = flash.attention_varlen(of.q, rows_first[:, 0], rows_first[:, 1], ends, **how)
    assert found.tobytes() == wanted.tobytes()
    how["block_table"] = len(of.k) - 1 - of.table
    back = (x[::-1].copy()[::-1] for x in (of.k[::-1].copy(), of.v[::-1].copy()))
    found = flash.attention_varlen(of.q, *back, ends, kv_layout="HND", **how)
    assert found.tobytes() == wanted.tobytes()


@EVERY_BACKEND
def test_sequences_may_share_pages_and_a_table_may_be_broadcast(backend: str) -> None:
    config = config_of("f32", causal=True)
    of = Batch.of(config, ((5, 12), (5, 12), (5, 12)))
    how: Any = {"backend": backend, "cu_seqlens_q": of.ends}
    whole = AttentionKernel(config)
    table = np.tile(of.table[:1], (3, 1))
    wanted = whole.launch(of.q, of.k, of.v, block_table=table, seqused_k=of.used, **how)
    found = whole.launch(of.q, of.k, of.v, block_table=of.table[0], seqused_k=of.used[:1], **how)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
def test_functions_of_scores_get_the_positions_of_queries(backend: str) -> None:
    config = config_of("f32")
    of = Batch.of(config)

    def near(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < 20)

    how: Any = {"kv_layout": "HND", "seqused_k": of.used, "block_table": of.table, "backend": backend}
    found = flash.attention_varlen(of.q, of.k, of.v, of.ends, mask_mod=near, **how)
    wanted = flash.attention_varlen(of.q, of.k, of.v, of.ends, causal=True, window=(19, None), **how)
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_the_reference_reads_pages() -> None:
    config = config_of("f32", causal=True)
    of = Batch.of(config)
    k, v, ends = of.rows()
    sink = np.ones((len(of.used), 4), np.float32)
    how: Any = {"causal": True, "sink": sink, "dropout": 0.5, "dropout_seed": 4}
    wanted = attention_varlen_reference(of.q, k, v, of.ends, ends, **how)
    pages = (x.swapaxes(1, 2) for x in (of.k, of.v))
    found = attention_varlen_reference(of.q, *pages, of.ends, block_table=of.table, seqused_k=of.used, **how)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_cpu_copies_a_block_of_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BLOCK_K", 8)
    monkeypatch.setattr(job, "KEY_ELEMENTS", 1)
    copied = []
    read = paged_rows.PagedRows.read

    def counted(rows: Any, heads: slice, keys: slice, out: Array) -> None:
        copied.append(keys.stop - keys.start)
        read(rows, heads, keys, out)

    monkeypatch.setattr(paged_rows.PagedRows, "read", counted)
    run_and_judge(config_of("f32", causal=True), backend="cpu")
    assert max(copied) == 8


# ------------------------------------------------------------------------------------------
# whatever the arrays hold, and what is proved


GARBAGE = {
    "negative": [-5, -1, -(2**31), -7],
    "huge": [2**31 - 1, 2**30, 2**31 - 7, 2**31 - 1],
    "decreasing": [40, 30, 10, 0],
    "mixed": [-(2**31), 2**31 - 1, 3, 2**31 - 1],
}


def run_anyway(config: AttentionConfig, max_seqlen_q: int, **lengths: Array) -> None:
    """Run the kernel without the checks of a launch."""
    kernel = config.kernel()
    made, rows, heads, kv_heads, pages = build(kernel), 40, 4, 2, 5
    size, batch = config.page_size or 0, len(lengths["cu_seqlens_q"]) - 1
    columns = lengths["block_table"].shape[1]
    rng = np.random.default_rng(0)
    four = {
        "Q": (rows, heads, config.head_dim),
        "K": (pages, size, kv_heads, config.head_dim),
        "V": (pages, size, kv_heads, config.value_dim),
        "O": (rows, heads, config.value_dim),
    }
    arrays = {name: rng.standard_normal(shape).astype(config.element.numpy) for name, shape in four.items()}
    steps = {
        f"{name}_{step}_stride": array.strides[-2 if step == "head" else at] // array.itemsize
        for name, array in arrays.items()
        for at, step in ((0, "page" if array.ndim == 4 else "row"), (1, "row"), (0, "head"))
        if not (array.ndim == 3 and at == 1)
    }
    values = {
        **arrays,
        **lengths,
        **config.numbers,
        **steps,
        "LSE": np.zeros((heads, rows), np.float32),
        "total_q": rows,
        "seq_k": columns * size,
        "pages": pages,
        "heads": heads,
        "group": heads // kv_heads,
        "softmax_scale": np.float32(1),
        "max_seqlen_q": max_seqlen_q,
        "section": 2,
        **{f"{name}_batch_stride": array.strides[0] // 4 for name, array in lengths.items()},
        "block_table_table_columns_stride": 1,
    }
    of, per = (max_seqlen_q * 2, kv_heads) if kernel.packed else (max_seqlen_q, heads)
    interpreter.run(
        made.module,
        grid=(-(-of // kernel.tiling.block_q) * per * batch, 1, 1),
        block=(kernel.tiling.threads, 1, 1),
        args=[values[slot.name] for slot in made.slots],
        dynamic_smem=made.kernel.dynamic_shared_bytes,
        sanitize=True,
    )


@pytest.mark.sample(1, gate=2)
@ONE_OF_EACH_PRECISION
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("name", GARBAGE)
def test_nothing_outside_the_arrays_is_accessed_whatever_they_hold(kind: str, packs: bool, name: str) -> None:
    config = config_of(kind, causal=True, window=(9, None), seqused_q=True, pack_gqa=packs)
    bad = np.array(GARBAGE[name], np.int32)
    run_anyway(
        config,
        40,
        cu_seqlens_q=bad,
        seqused_q=bad[1:].copy(),
        seqused_k=bad[:3].copy(),
        block_table=np.resize(bad, (3, 11)),
    )


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True, "seqused_q": True},
        {"window": (5, 9), "dropout": 0.1},
        {"causal": True, "window": (5, None), "alibi": True, "sink": True, "softcap": 2.0},
    ],
)
@pytest.mark.parametrize("pack_gqa", [False, True])
@ONE_OF_EACH_PRECISION
def test_every_access_and_barrier_is_proved_for_any_lengths_and_tables(
    kind: str, pack_gqa: bool, how: dict[str, Any]
) -> None:
    auto: Any = {"tile": "auto", "block_q": "auto", "page_size": 16}
    made = build(config_of(kind, 64, 64, pack_gqa=pack_gqa, **auto, **how).kernel())
    assert made.proof.complete, made.proof.unknown
    assert made.global_proof.complete, made.global_proof.unknown


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "target", ["sm_80", "sm_90", nightly("sm_86"), nightly("sm_89"), nightly("sm_100"), nightly("sm_120")]
)
@pytest.mark.parametrize("kind", ["f32", "bf16", "f32_grade"])
def test_no_default_kernel_spills(kind: str, target: str, assembler: Assembler) -> None:
    for head_dim in (64, 128):
        for how in ({"causal": True}, {"window": (99, 9), "seqused_q": True}):
            auto: Any = {"tile": "auto", "block_q": "auto", "page_size": 16, "target": target}
            config = config_of(kind, head_dim, head_dim, pack_gqa=True, **{**auto, **how})
            assert_no_spill(config, assembler)


# ------------------------------------------------------------------------------------------
# configs and launches


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"varlen": True, "page_size": 0},
            "page_size must be an integer from 1 to 256, or None for keys without pages, got 0",
        ),
        (
            {"varlen": True, "page_size": 257},
            "page_size must be an integer from 1 to 256, or None for keys without pages, got 257",
        ),
        (
            {"varlen": True, "page_size": "16"},
            "page_size must be an integer from 1 to 256, or None for keys without pages, got '16'",
        ),
        (
            {"page_size": 16},
            "page_size is for sequences of their own lengths; use varlen=True with it, or DecodeKernel, "
            "whose launches take a block_table",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(8, **how)
    assert str(caught.value) == f"AttentionConfig: {message}"


def test_a_page_size_implies_the_numbers_of_keys_and_is_in_the_name() -> None:
    config = config_of("f32", page_size=24)
    assert config.seqused_k
    assert config.kernel().name == "attention_forward_f32_d16v8_m16_n16_varlen_usedk_page24_lse"


SMALL = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True, page_size=4)
ENDS = np.array([0, 3, 7], np.int32)
TABLE = np.array([[0, 1], [2, -1]], np.int32)
USED = np.array([8, 3], np.int32)
ROWS = np.zeros((7, 4, 8), np.float32)
PAGES = np.zeros((3, 2, 4, 8), np.float32)


def i32(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


LAUNCHES: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"block_table": None}, "block_table must be given, because the config says page_size=16"),
    "no lengths": ({"seqused_k": None}, "seqused_k must be given, because the config says seqused_k=True"),
    "ends of keys": (
        {"cu_seqlens_k": ENDS},
        "cu_seqlens_k is given, but the keys are in pages, where seqused_k says how many each sequence "
        "has; leave out cu_seqlens_k",
    ),
    "rows": (
        {"k": ROWS},
        "k must be [pages, kv_heads, page_size, head_dim] = [pages, kv_heads, 4, 8], got [7, 4, 8]",
    ),
    "the other layout": (
        {"layout": "bshd"},
        "2 problems\n"
        "  k must be [pages, page_size, kv_heads, head_dim] = [pages, 4, kv_heads, 8], got [3, 2, 4, 8]\n"
        "  v must be [pages, page_size, kv_heads, head_dim_v] = [pages, 4, kv_heads, 8], got [3, 2, 4, 8]",
    ),
    "another page size": (
        {"k": PAGES[:, :, :3]},
        "k must be [pages, kv_heads, page_size, head_dim] = [pages, kv_heads, 4, 8], got [3, 2, 3, 8]",
    ),
    "fewer pages of v": (
        {"v": PAGES[:2]},
        "v must be [pages, kv_heads, page_size, head_dim_v] = [3, 2, 4, 8], got [2, 2, 4, 8]",
    ),
    "heads": (
        {"q": ROWS[:, :3]},
        "the heads of q must be a multiple of those of k and v, got 3 and 2 (layout 'thd', shapes "
        "[7, 3, 8] and [3, 2, 4, 8])",
    ),
    "no page": ({"k": PAGES[:0], "v": PAGES[:0]}, "k must have room for a key, got shape [0, 2, 4, 8]"),
    "no column": (
        {"block_table": TABLE[:, :0]},
        "block_table must be [batch, n] with room for a page, got [2, 0]",
    ),
    "a table of numbers": (
        {"block_table": TABLE.astype(np.int64)},
        "block_table must be int32, got int64; convert with block_table.astype('int32')",
    ),
    "rows of a table": (
        {"block_table": np.tile(TABLE, (2, 1))},
        "block_table must be [batch, table_columns] = [2, 2], or of a shape that broadcasts to it, got "
        "[4, 2]",
    ),
    "a type": (
        {"k": PAGES.astype(np.float16)},
        "k must be float32, as the config says, got float16; convert with k.astype('float32')",
    ),
    "too many keys": (
        {"seqused_k": i32(8, 9)},
        "2 problems\n"
        "  seqused_k[1] must be from 0 to 8, the rows that block_table has room for, got 9\n"
        "  block_table[1, 1] must be from 0 to 2, a page of k, got -1",
    ),
    "a negative number": (
        {"seqused_k": i32(-1, 3)},
        "seqused_k[0] must be from 0 to 8, the rows that block_table has room for, got -1",
    ),
    "a page that is not": (
        {"block_table": np.array([[0, 3], [2, 9]], np.int32)},
        "block_table[0, 1] must be from 0 to 2, a page of k, got 3",
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_that_cannot_be_is_refused(name: str) -> None:
    how, message = LAUNCHES[name]
    given: dict[str, Any] = {
        "q": ROWS,
        "k": PAGES,
        "v": PAGES,
        "cu_seqlens_q": ENDS,
        "block_table": TABLE,
        "seqused_k": USED,
        "backend": "cpu",
        **how,
    }
    with pytest.raises(LaunchError) as caught:
        AttentionKernel(SMALL).launch(**given)
    assert str(caught.value) == f"launch: {message}"


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"block_table": None, "seqused_k": None}, "cu_seqlens_k must be given"),
    "no lengths": ({"seqused_k": None}, "seqused_k must be given"),
    "ends of keys": (
        {"cu_seqlens_k": ENDS},
        "cu_seqlens_k is given, but the keys are in pages, where seqused_k says how many each sequence "
        "has; leave out cu_seqlens_k",
    ),
    "a layout": ({"kv_layout": "HND "}, "kv_layout must be one of NHD, HND, got 'HND '; did you mean 'HND'?"),
    "rows": (
        {"k": ROWS},
        "k must be [pages, kv_heads, page_size, head_dim], because block_table is given, got [7, 4, 8]",
    ),
    "rows of the other layout": (
        {"k": ROWS, "kv_layout": "NHD"},
        "k must be [pages, page_size, kv_heads, head_dim], because block_table is given, got [7, 4, 8]",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be_is_refused(name: str) -> None:
    how, message = CALLS[name]
    given: dict[str, Any] = {
        "q": ROWS,
        "k": PAGES,
        "v": PAGES,
        "cu_seqlens_q": ENDS,
        "block_table": TABLE,
        "seqused_k": USED,
        "kv_layout": "HND",
        "backend": "cpu",
        **how,
    }
    with pytest.raises(LaunchError) as caught:
        flash.attention_varlen(**given)
    assert str(caught.value) == f"attention_varlen: {message}"


def test_pages_that_are_too_large_are_refused() -> None:
    pages = np.zeros((1, 2, 300, 8), np.float32)
    with pytest.raises(ConfigError) as caught:
        flash.attention_varlen(
            ROWS, pages, pages, ENDS, block_table=TABLE[:, :1], seqused_k=USED, kv_layout="HND"
        )
    assert str(caught.value) == (
        "attention_varlen: page_size must be an integer from 1 to 256, or None for keys without pages, "
        "got 300"
    )


def test_a_table_without_pages_in_the_config_is_refused() -> None:
    kernel = AttentionKernel(AttentionConfig(8, varlen=True))
    with pytest.raises(LaunchError) as caught:
        kernel.launch(
            ROWS, ROWS, ROWS, cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, block_table=TABLE, backend="cpu"
        )
    assert str(caught.value) == (
        "launch: block_table is given, but the config does not say so; use AttentionConfig(page_size=16, ...)"
    )


@pytest.mark.slow
def test_a_batch_of_single_tokens_has_blocks_for_its_heads_and_a_prompt_larger_ones() -> None:
    config = AttentionConfig(16, dtype="f16", varlen=True, page_size=16, causal=True)
    kernel = AttentionKernel(config)

    def explained(lengths: Sequence[tuple[int, int]], heads: tuple[int, int]) -> dict[str, str]:
        of = Batch.of(config, lengths, heads)
        said = kernel.explain(of.q, of.k, of.v, backend="interpreter", **of.lengths)
        return {name: text.strip() for name, text in (line.split(":", 1) for line in said.splitlines())}

    tokens = explained([(1, 40)] * 3, (8, 2))
    assert tokens["kernel"] == (
        "attention_forward_f16_d16_m32_n64_bottom_right_varlen_usedk_page16_packed for sm_80, verified"
    )
    assert tokens["grid"] == "6 CTAs"
    assert tokens["problem"] == (
        "batch 3, heads 8, kv_heads 2, total_q 3, 11 pages, block_table of 64 rows, max_seqlen_q 1, "
        "head_dim 16, head_dim_v 16, f16"
    )
    mixed = explained([(1, 40), (100, 100)], (8, 2))
    assert "_m128_n64_bottom_right_varlen_usedk_page16_packed" in mixed["kernel"]
    assert mixed["grid"] == "16 CTAs"
    assert "packed" not in explained([(1, 40)], (2, 2))["kernel"]


def test_a_call_on_a_gpu_needs_the_longest_and_takes_any_table(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = interpreting(FakeDriver(FakeDevice()))
    without_assembler(monkeypatch)
    config = config_of("f32", causal=True)
    kernel = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    of = Batch.of(config)
    there = [on_device(driver, a) for a in (of.q, of.k, of.v)]
    lengths: Any = {name: on_device(driver, a) for name, a in of.lengths.items()}
    with pytest.raises(LaunchError) as caught:
        kernel.launch(*there, **lengths)
    assert str(caught.value) == (
        "launch: max_seqlen_q must be given, because cu_seqlens_q is on cuda:0, which a launch "
        "does not wait for; pass the most queries of a sequence"
    )
    made: Any = kernel.launch(*there, **lengths, max_seqlen_q=33)[0]
    values = driver.launches[-1].values
    assert [values[n] for n in ("total_q", "seq_k", "pages", "max_seqlen_q")] == [
        len(of.q),
        of.table.shape[1] * 4,
        len(of.k),
        33,
    ]
    out = driver.fetch(made.pointer, np.empty(made.shape, made.dtype))
    pages = (x.swapaxes(1, 2) for x in (of.k, of.v))
    wanted, _ = attention_varlen_reference(
        of.q, *pages, of.ends, block_table=of.table, seqused_k=of.used, causal=True
    )
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    staged, _ = kernel.launch(of.q, of.k, of.v, backend="cuda", **of.lengths)
    assert np.array_equal(staged, out)
    rows_first = [x.swapaxes(1, 2).copy() for x in (of.k, of.v)]
    staged, _ = kernel.launch(of.q, *rows_first, backend="cuda", layout="bshd", **of.lengths)
    assert np.array_equal(staged, out)

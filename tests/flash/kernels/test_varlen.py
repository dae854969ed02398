"""Packed sequences of lengths of their own: the kernels on the interpreter with its sanitizers, the
cpu backend and the reference, sequence by sequence, and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate
from kernel_runs import assert_no_spill, nightly

import flash
from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of_config
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, attention_varlen_reference
from ptxgen import interpreter
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]

# Tiles are 16 keys, blocks 16 or 32 rows: none, one, a tile less one, a tile, one more, several.
LENGTHS_Q = (0, 1, 15, 16, 17, 40, 0, 33)
LENGTHS_K = (5, 0, 17, 16, 33, 15, 3, 40)
HEADS, KV_HEADS = 4, 2
SENTINEL = 7.0

KERNELS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32", "block_q": 16},
    "f16": {"dtype": "f16", "block_q": 32},
    "bf16": {"dtype": "bf16", "block_q": 32},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade", "block_q": 32},
    "wgmma": {"dtype": "f16", "target": "sm_90a", "block_q": 64},
}
EVERY_KERNEL = pytest.mark.parametrize("kind", KERNELS)
ONE_OF_EACH_PRECISION = pytest.mark.parametrize("kind", ["f32", "f16", "f32_grade"])
ONE_OF_EACH = pytest.mark.parametrize("kind", ["f32", "f16"])
EVERY_BACKEND = pytest.mark.parametrize("backend", ["cpu", "interpreter"])


def config_of(kind: str, head_dim: int = 16, head_dim_v: int = 8, **how: Any) -> AttentionConfig:
    given = {"tile": 16, "varlen": True, "return_lse": True, **KERNELS[kind], **how}
    return AttentionConfig(head_dim, head_dim_v, **given)


def ends(lengths: Sequence[int], gap: int = 0) -> Array:
    """`cu_seqlens` of these lengths, the first of which begins behind `gap` rows."""
    return np.cumsum([gap, *lengths]).astype(np.int32)


def packed(config: AttentionConfig, total_q: int, total_k: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (
        (total_q, HEADS, config.head_dim),
        (total_k, KV_HEADS, config.head_dim),
        (total_k, KV_HEADS, config.value_dim),
    )
    q, k, v = (rng.standard_normal(s).astype(config.element.numpy) for s in shapes)
    return q, k, v


def operands_of(config: AttentionConfig, batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    found = {}
    if config.alibi:
        found["alibi_slopes"] = (0.2 * rng.random(HEADS)).astype(np.float32)
    if config.sink:
        found["sink"] = rng.standard_normal((batch, HEADS)).astype(np.float32)
    return found


def judge_each(
    config: AttentionConfig,
    arrays: tuple[Array, Array, Array],
    lengths: dict[str, Array],
    out: Array,
    lse: Array,
    operands: dict[str, Array],
    seed: int = 0,
) -> None:
    """Each sequence is as accurate as attention by itself, and the other rows are as they were."""
    q, k, v = arrays
    cu_q, cu_k = lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]
    used_q = lengths.get("seqused_q", np.diff(cu_q))
    used_k = lengths.get("seqused_k", np.diff(cu_k))
    untouched = np.ones(len(q), bool)
    for b in range(len(cu_q) - 1):
        queries, keys = slice(cu_q[b], cu_q[b] + used_q[b]), slice(cu_k[b], cu_k[b] + used_k[b])
        own = (x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        untouched[queries] = False
        assert_attention_is_accurate(
            out[queries].swapaxes(0, 1)[None],
            lse[None, :, queries],
            *own,
            softmax_scale=config.scale,
            causal=config.causal,
            window=config.window,
            softcap=config.softcap,
            dropout=config.dropout,
            dropout_seed=seed,
            first_batch=b,
            arithmetic=arithmetic_of_config(config),
            **{
                name: np.broadcast_to(x, (b + 1, HEADS))[-1:] if x.ndim == 1 else x[b : b + 1]
                for name, x in operands.items()
            },
        )
    assert (out[untouched] == SENTINEL).all()


def run_and_judge(
    config: AttentionConfig,
    lengths_q: Sequence[int] = LENGTHS_Q,
    lengths_k: Sequence[int] = LENGTHS_K,
    *,
    backend: str = "interpreter",
    gap: int = 0,
    **used: Array,
) -> None:
    lengths = {"cu_seqlens_q": ends(lengths_q, gap), "cu_seqlens_k": ends(lengths_k, gap), **used}
    arrays = packed(config, int(lengths["cu_seqlens_q"][-1]), int(lengths["cu_seqlens_k"][-1]))
    operands = operands_of(config, len(lengths_q))
    out = np.full((len(arrays[0]), HEADS, config.value_dim), SENTINEL, config.element.numpy)
    seed = {"dropout_seed": 11} if config.dropout else {}
    made, lse = AttentionKernel(config).launch(
        *arrays, out=out, backend=backend, **lengths, **operands, **seed
    )
    assert made is out
    judge_each(config, arrays, lengths, out, lse, operands, 11 if seed else 0)


@pytest.fixture(autouse=True)
def _sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches on the interpreter run with all sanitizers."""
    run = interpreter.run
    monkeypatch.setattr(interpreter, "run", lambda *a, **how: run(*a, **{"sanitize": True, **how}))


# ------------------------------------------------------------------------------------------
# accuracy, sequence by sequence


@pytest.mark.sample(2)
@EVERY_KERNEL
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
def test_each_sequence_is_attention_by_itself(kind: str, causal: Any) -> None:
    run_and_judge(config_of(kind, causal=causal))


FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window": (9, 3)},
    "causal_window": {"causal": True, "window": (20, None)},
    "wide_values": {"causal": True, "head_dim_v": 300},
    "everything": {
        "causal": True,
        "window": (25, None),
        "alibi": True,
        "sink": True,
        "softcap": 2.0,
        "dropout": 0.25,
    },
}


@ONE_OF_EACH
@EVERY_BACKEND
@pytest.mark.parametrize("name", FEATURES)
def test_features_go_by_a_sequences_own_lengths(kind: str, backend: str, name: str) -> None:
    run_and_judge(config_of(kind, **FEATURES[name]), backend=backend)


@ONE_OF_EACH
@EVERY_BACKEND
def test_only_the_rows_that_are_used_count_and_no_others_are_written(kind: str, backend: str) -> None:
    config = config_of(kind, causal=True, seqused_q=True, seqused_k=True)
    used_q = np.array([0, 0, 9, 16, 16, 39, 0, 1], np.int32)
    used_k = np.array([5, 0, 16, 0, 17, 15, 1, 39], np.int32)
    run_and_judge(config, backend=backend, gap=3, seqused_q=used_q, seqused_k=used_k)


@pytest.mark.parametrize("lengths", [(), (0, 0), (1,)])
@EVERY_BACKEND
def test_batches_may_have_no_rows(backend: str, lengths: tuple[int, ...]) -> None:
    run_and_judge(config_of("f32"), lengths, (0,) * len(lengths), backend=backend)


@ONE_OF_EACH
def test_nan_and_infinity_of_another_sequence_do_not_reach_a_row(kind: str) -> None:
    config = config_of(kind, causal=True, seqused_k=True)
    cu_q, cu_k = ends((20, 20)), ends((20, 20))
    q, k, v = packed(config, 40, 40)
    used = np.array([18, 20], np.int32)
    how: Any = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "seqused_k": used}
    kernel = AttentionKernel(config)
    calm, _ = kernel.launch(q, k, v, backend="interpreter", **how)
    k[18:], v[18:] = np.nan, np.inf
    wild, _ = kernel.launch(q, k, v, backend="interpreter", **how)
    np.testing.assert_array_equal(wild[:20], calm[:20])
    assert np.isnan(wild[20:]).all()


@pytest.mark.nightly
@ONE_OF_EACH_PRECISION
def test_equal_lengths_give_the_bits_of_the_kernel_for_them(kind: str) -> None:
    batch, seq_q, seq_k = 3, 33, 20
    config = config_of(kind, causal=True, window=(12, None), dropout=0.2)
    q, k, v = packed(config, batch * seq_q, batch * seq_k)
    seed: Any = {"backend": "interpreter", "dropout_seed": 3}
    out, lse = AttentionKernel(config).launch(
        q, k, v, cu_seqlens_q=ends([seq_q] * batch), cu_seqlens_k=ends([seq_k] * batch), **seed
    )
    alike = AttentionKernel(
        config_of(kind, varlen=False, causal=True, window=(12, None), dropout=0.2, pack_gqa=False)
    )
    rows = (x.reshape(batch, -1, *x.shape[1:]) for x in (q, k, v))
    other, sums = alike.launch(*rows, layout="bshd", **seed)
    assert out.tobytes() == other.tobytes()
    assert lse.tobytes() == np.ascontiguousarray(sums.swapaxes(0, 1)).tobytes()


def test_views_of_a_larger_buffer_are_read_in_place() -> None:
    config = config_of("f16", head_dim_v=16)
    buffer = packed(config, 40, 40)[0].repeat(3, axis=1)  # as a fused projection writes it
    q, k, v = buffer[:, :4], buffer[:, 4:8], buffer[::-1, 8:]
    wide = np.zeros((5, 2), np.int32)
    wide[:, 0] = ends((17, 0, 3, 20))
    cu = wide[:, 0]
    out = flash.attention_varlen(q, k, v, cu, cu, causal=True, backend="interpreter")
    wanted, _ = attention_varlen_reference(q, k, v, cu, cu, causal=True)
    np.testing.assert_allclose(out.astype(float), wanted, atol=2e-3)


def test_a_batch_of_the_reference_is_its_sequences() -> None:
    config = config_of("f32")
    cu_q, cu_k = ends((3, 0, 4)), ends((5, 2, 0))
    q, k, v = packed(config, 9, 7)
    sink = np.ones((3, HEADS), np.float32)
    how: Any = {"causal": True, "dropout": 0.5, "dropout_seed": 4}
    out, lse = attention_varlen_reference(q, k, v, cu_q, cu_k, sink=sink, **how)
    for b, (rows, keys) in enumerate(
        ((slice(3), slice(5)), (slice(3, 3), slice(5, 7)), (slice(3, 7), slice(7, 7)))
    ):
        own = (x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        part, sums = attention_reference(*own, sink=sink[b : b + 1], first_batch=b, **how)
        np.testing.assert_array_equal(out[rows], part[0].swapaxes(0, 1))
        np.testing.assert_array_equal(lse[:, rows], sums[0])
    assert (out[7:] == 0).all()
    assert (lse[:, 7:] == -np.inf).all()


# ------------------------------------------------------------------------------------------
# whatever the arrays hold


GARBAGE = {
    "negative": [-5, -1, -(2**31), -7],
    "huge": [2**31 - 1, 2**30, 2**31 - 7, 2**31 - 1],
    "decreasing": [40, 30, 10, 0],
    "beyond": [0, 39, 41, 10**6],
    "mixed": [-(2**31), 2**31 - 1, 3, 2**31 - 1],
}


def run_anyway(config: AttentionConfig, rows: int, max_seqlen_q: int, **lengths: Array) -> interpreter.Result:
    """Run the kernel without the checks of a launch."""
    made, tiling = build(config.kernel()), config.kernel().tiling
    q, k, v = packed(config, rows, rows)
    four = {"Q": q, "K": k, "V": v, "O": np.zeros((rows, HEADS, config.value_dim), q.dtype)}
    values = {
        **four,
        **lengths,
        **config.numbers,
        "LSE": np.zeros((HEADS, rows), np.float32),
        "total_q": rows,
        "total_k": rows,
        "heads": HEADS,
        "group": HEADS // KV_HEADS,
        "softmax_scale": np.float32(1),
        "max_seqlen_q": max_seqlen_q,
        "section": 2,
        **{f"{name}_batch_stride": 1 for name in lengths},
        **{f"{name}_head_stride": array.shape[2] for name, array in four.items()},
        **{f"{name}_row_stride": array[0].size for name, array in four.items()},
    }
    batch = len(lengths["cu_seqlens_q"]) - 1
    return interpreter.run(
        made.module,
        grid=(-(-max_seqlen_q // tiling.block_q) * HEADS * batch, 1, 1),
        block=(tiling.threads, 1, 1),
        args=[values[slot.name] for slot in made.slots],
        dynamic_smem=made.kernel.dynamic_shared_bytes,
        sanitize=True,
    )


@ONE_OF_EACH_PRECISION
@pytest.mark.parametrize("name", GARBAGE)
def test_nothing_outside_the_arrays_is_accessed_whatever_the_lengths_hold(kind: str, name: str) -> None:
    config = config_of(kind, causal=True, window=(9, None), seqused_q=True, seqused_k=True)
    bad = np.array(GARBAGE[name], np.int32)
    run_anyway(
        config,
        40,
        40,
        cu_seqlens_q=bad,
        cu_seqlens_k=bad[::-1].copy(),
        seqused_q=bad[1:].copy(),
        seqused_k=bad[:3].copy(),
    )


@ONE_OF_EACH
def test_ctas_behind_the_end_of_their_sequence_end_before_the_first_barrier(kind: str) -> None:
    config, cu = config_of(kind), ends((32, 1, 0))
    few, many = (
        run_anyway(config, 33, longest, cu_seqlens_q=cu, cu_seqlens_k=cu).counters.by_opcode
        for longest in (32, 160)
    )
    assert few["bar.sync"] == many["bar.sync"]
    assert few["mov.u32"] < many["mov.u32"]


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True, "seqused_q": True, "seqused_k": True},
        {"window": (5, 9), "seqused_k": True, "dropout": 0.1},
        {
            "causal": "top_left",
            "window": (5, None),
            "seqused_q": True,
            "seqused_k": True,
            "alibi": True,
            "sink": True,
            "softcap": 2.0,
        },
    ],
)
@ONE_OF_EACH_PRECISION
def test_every_access_and_barrier_is_proved_for_any_lengths(kind: str, how: dict[str, Any]) -> None:
    made = build(config_of(kind, 64, 64, tile="auto", block_q="auto", **how).kernel())
    assert made.proof.complete, made.proof.unknown
    assert made.global_proof.complete, made.global_proof.unknown


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["sm_80", nightly("sm_86"), nightly("sm_90")])
@pytest.mark.parametrize("kind", ["f32", "bf16", "f32_grade"])
def test_no_default_kernel_spills(kind: str, target: str, assembler: Assembler) -> None:
    for head_dim in (64, 128):
        for how in ({"causal": True}, {"window": (99, 9), "seqused_q": True, "seqused_k": True}):
            config = config_of(kind, head_dim, head_dim, target=target, block_q="auto", tile="auto", **how)
            assert_no_spill(config, assembler)


# ------------------------------------------------------------------------------------------
# configs and launches


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"varlen": 1}, "varlen must be True or False, got 1"),
        (
            {"seqused_k": True},
            "seqused_k is for sequences of their own lengths; use varlen=True with it, or leave "
            "seqused_k=False",
        ),
        *(
            (
                {"varlen": True, **how},
                f"varlen cannot be combined with {name}, which has a number for each score of "
                "[batch, heads, seq_q, seq_k], and sequences of their own lengths have no such "
                "array; use window, causal or alibi, or a batch for each length",
            )
            for name, how in (("bias", {"bias": "f32"}), ("mask", {"mask": True}))
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(8, **how)
    assert str(caught.value) == f"AttentionConfig: {message}"


def test_the_name_of_a_kernel_says_that_its_sequences_are_packed() -> None:
    name = config_of("f32", seqused_q=True, seqused_k=True).kernel().name
    assert name == "attention_forward_f32_d16v8_m16_n16_varlen_usedq_usedk_lse"


PLAIN = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True)
USED = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True, seqused_q=True, seqused_k=True)
CU = ends((3, 4))


def i32(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


ROWS = np.zeros((7, HEADS, 8), np.float32)
LAUNCHES: dict[str, tuple[AttentionConfig, dict[str, Any], str]] = {
    "nothing given": (
        PLAIN,
        {"cu_seqlens_k": None},
        "cu_seqlens_k must be given, because the config says varlen=True",
    ),
    "one too many": (
        PLAIN,
        {"seqused_q": CU[1:]},
        "seqused_q is given, but the config does not say so; use AttentionConfig(seqused_q=True, ...)",
    ),
    "a type": (
        PLAIN,
        {"cu_seqlens_q": CU.astype(np.int64)},
        "cu_seqlens_q must be int32, got int64; convert with cu_seqlens_q.astype('int32')",
    ),
    "a shape": (PLAIN, {"cu_seqlens_k": CU[:2]}, "cu_seqlens_k must be [batch + 1] = [3], got [2]"),
    "no batch": (
        PLAIN,
        {"cu_seqlens_q": CU[:0]},
        "cu_seqlens_q must be [batch + 1], one more than there are sequences, got [0]",
    ),
    "a used shape": (
        USED,
        {"seqused_q": CU[:0], "seqused_k": CU[:2]},
        "seqused_q must be [batch] = [2], or of a shape that broadcasts to it, got [0]",
    ),
    "four dimensions": (
        PLAIN,
        {"q": ROWS[None]},
        "q must be [total, heads, dim], as the config says varlen, got shape [1, 7, 4, 8]",
    ),
    "a layout": (
        PLAIN,
        {"layout": "bshd"},
        "layout is for batches of one length, got 'bshd', but with varlen q, k and v are [total, "
        "heads, dim]; leave out the layout",
    ),
    "a first end": (
        PLAIN,
        {"cu_seqlens_q": i32(-1, 2, 6)},
        "cu_seqlens_q[0] must be from 0 to 7, the rows of q, got -1",
    ),
    "decreasing": (
        PLAIN,
        {"cu_seqlens_k": CU[::-1]},
        "cu_seqlens_k[1] must be from 7, which is cu_seqlens_k[0], to 7, the rows of k, got 3",
    ),
    "beyond": (
        PLAIN,
        {"cu_seqlens_q": i32(0, 3, 8), "cu_seqlens_k": i32(0, 12, 16)},
        "2 problems\n"
        "  cu_seqlens_q[2] must be from 3, which is cu_seqlens_q[1], to 7, the rows of q, got 8\n"
        "  cu_seqlens_k[1] must be from 0, which is cu_seqlens_k[0], to 7, the rows of k, got 12",
    ),
    "too many used": (
        USED,
        {"seqused_q": i32(1, 5), "seqused_k": i32(-3, 7)},
        "2 problems\n"
        "  seqused_q[1] must be from 0 to 4, the rows of that sequence, got 5\n"
        "  seqused_k[0] must be from 0 to 3, the rows of that sequence, got -3",
    ),
    "a longest": (
        PLAIN,
        {"max_seqlen_q": 3},
        "max_seqlen_q must be at least 4, the queries of sequence 1, got 3; leave it out to have it found",
    ),
    "no longest": (
        PLAIN,
        {"max_seqlen_q": -1},
        f"max_seqlen_q must be an integer from 0 to {2**30 - 256}, got -1",
    ),
    "a longest without varlen": (
        AttentionConfig(8),
        {"max_seqlen_q": 4, "cu_seqlens_q": None, "cu_seqlens_k": None},
        "max_seqlen_q is given, but the config does not say varlen; use AttentionConfig(varlen=True, ...)",
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_that_cannot_be_is_refused(name: str) -> None:
    config, how, message = LAUNCHES[name]
    given = {"q": ROWS, "cu_seqlens_q": CU, "cu_seqlens_k": CU, "backend": "cpu"} | how
    with pytest.raises(LaunchError) as caught:
        AttentionKernel(config).launch(given.pop("q"), ROWS, ROWS, **given)
    assert str(caught.value) == f"launch: {message}"


def test_what_is_used_may_be_one_number_for_all() -> None:
    how: Any = {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "backend": "cpu"}
    q, k, v = packed(USED, 7, 7)
    outs = [
        AttentionKernel(USED).launch(q, k, v, out=np.zeros_like(q), seqused_q=used, seqused_k=used, **how)
        for used in (i32(2), i32(2, 2))
    ]
    np.testing.assert_array_equal(*outs)
    assert (outs[0][2] == 0).all()


def test_a_call_on_a_gpu_needs_the_longest_and_takes_any_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = interpreting(FakeDriver(FakeDevice()))
    without_assembler(monkeypatch)
    kernel = AttentionKernel(PLAIN, cuda=CudaBackend(driver), cache=ModuleCache(None))
    q, k, v = packed(PLAIN, 40, 30)
    cu_q, cu_k = ends((17, 3, 20)), ends((10, 20, 0))
    there = [on_device(driver, a) for a in (q, k, v)]
    lengths: Any = {"cu_seqlens_q": on_device(driver, cu_q), "cu_seqlens_k": on_device(driver, cu_k)}
    with pytest.raises(LaunchError) as caught:
        kernel.launch(*there, **lengths)
    assert str(caught.value) == (
        "launch: max_seqlen_q must be given, because cu_seqlens_q is on cuda:0, which a launch "
        "does not wait for; pass the most queries of a sequence"
    )
    made: Any = kernel.launch(*there, **lengths, max_seqlen_q=33)
    launched = driver.launches[-1]
    assert launched.grid == (3 * HEADS * 3, 1, 1)
    names = ("total_q", "total_k", "max_seqlen_q", "cu_seqlens_q")
    assert [launched.values[n] for n in names] == [40, 30, 33, lengths["cu_seqlens_q"].pointer]
    out = driver.fetch(made.pointer, np.empty(made.shape, made.dtype))
    wanted, _ = attention_varlen_reference(q, k, v, cu_q, cu_k)
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    staged = kernel.launch(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, backend="cuda")
    assert np.array_equal(staged, out)
    said = kernel.explain(*there, **lengths, max_seqlen_q=33)
    assert "work:     as much as the lengths say, which are on a GPU and not read" in said


def test_explain_counts_the_work_of_each_sequence() -> None:
    q, k, v = packed(PLAIN, 7, 7)
    kernel = AttentionKernel(PLAIN)
    said = kernel.explain(q, k, v, cu_seqlens_q=CU, cu_seqlens_k=CU, backend="interpreter")
    lines = dict(line.split(":", 1) for line in said.splitlines())
    assert lines["problem"].strip() == (
        "batch 2, heads 4, kv_heads 2, total_q 7, total_k 7, max_seqlen_q 4, head_dim 8, head_dim_v 8, f32"
    )
    assert lines["grid"].strip() == "8 CTAs"
    larger = kernel.explain(
        q, k, v, cu_seqlens_q=CU, cu_seqlens_k=CU, max_seqlen_q=2**29, backend="interpreter"
    )
    assert larger == said  # the lengths are known
    assert "scores" not in lines
    scores = HEADS * (3 * 3 + 4 * 4)
    done = sum(kernel.resources.flops(1, HEADS, n, n) for n in (3, 4))
    assert lines["work"].strip() == (
        f"{2 * scores * 16 / 1e9:.3g} GFLOP needed, {done / 1e9:.3g} by the kernel's whole tiles; "
        "memory 2.6 KiB instead of 3.0 KiB, 1.1 times less; beyond inputs and outputs 2.6 KiB instead of 100 "
        "bytes, 26.2 times more for a head"
    )

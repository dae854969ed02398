"""Attention with a user's own functions of scores, on every kernel and backend, against PyTorch's
flex_attention, the reference and the built-in features.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from gradient_judge import assert_gradients_are_accurate
from judge import assert_attention_is_accurate, assert_close
from kernel_runs import Problem, assert_no_spill, nightly, run_forward

import flash
from flash.commands import emit
from flash.contract.catalogue import build, proved_build
from flash.cpu.gradients import attention_gradients_cpu
from flash.error_bound import arithmetic_of
from flash.mods import exp, tanh, where
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, attention_reference_gradients, attention_varlen_reference
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.assembler import Assembler

Array = np.ndarray[Any, Any]

SEQ_Q, SEQ_K, HEADS = 37, 53, 4
_RANDOM = np.random.default_rng(7)
SLOPES = np.linspace(0.125, 0.5, HEADS).astype(np.float32)
TABLE = _RANDOM.standard_normal((HEADS, SEQ_Q + SEQ_K)).astype(np.float16)
DOCUMENTS = np.sort(_RANDOM.integers(0, 4, (2, 64)), axis=1).astype(np.int32)
PREFIX = np.array([5, 20], np.int32)
KINDS = _RANDOM.integers(0, 3, SEQ_K).astype(np.uint8)
SHOWN = _RANDOM.random((2, SEQ_K)) < 0.7


def alibi(score: Any, batch: Any, head: Any, query: Any, key: Any, slopes: Any) -> Any:
    return score - slopes[head] * abs(query + (SEQ_K - SEQ_Q) - key)


def capped(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return tanh(score / 2) * 2


def relative(score: Any, batch: Any, head: Any, query: Any, key: Any, table: Any) -> Any:
    return score + table[head, query - key + SEQ_K]


def odd(score: Any, batch: Any, head: Any, query: Any, key: Any, kinds: Any) -> Any:
    farther = where((key // 3) % 2 == 0, score * 0.5, exp(-score * score) / (1 + batch))
    return where(kinds[key] == 1, farther, score - key * 0.03125)


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query >= key) & (query - key < 9)


def sinks(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query >= key) & ((query - key < 9) | (key < 4))


def documents(batch: Any, head: Any, query: Any, key: Any, documents: Any) -> Any:
    return documents[batch, query] == documents[batch, key]


def prefix(batch: Any, head: Any, query: Any, key: Any, prefix: Any) -> Any:
    return (query >= key) | (key < prefix[batch])


def padded(batch: Any, head: Any, query: Any, key: Any, shown: Any) -> Any:
    return shown[batch, key] & (head != 3)


AUX: dict[str, Array] = {
    "slopes": SLOPES,
    "table": TABLE,
    "documents": DOCUMENTS,
    "prefix": PREFIX,
    "kinds": KINDS,
    "shown": SHOWN,
}
CASES: dict[str, dict[str, Any]] = {
    "alibi": {"score_mod": alibi, "names": ["slopes"]},
    "softcap": {"score_mod": capped, "names": []},
    "relative": {"score_mod": relative, "names": ["table"]},
    "odd": {"score_mod": odd, "names": ["kinds"]},
    "causal": {"mask_mod": causal, "names": []},
    "window": {"mask_mod": near, "names": []},
    "sinks": {"mask_mod": sinks, "names": []},
    "documents": {"mask_mod": documents, "names": ["documents"]},
    "prefix": {"mask_mod": prefix, "names": ["prefix"]},
    "padded": {"mask_mod": padded, "names": ["shown"]},
    "both": {"score_mod": relative, "mask_mod": near, "names": ["table"]},
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)
EVERY_KERNEL = pytest.mark.parametrize("kind", ["ieee", "tf32", "f32_grade", "f16", "bf16"])


def call_of(case: str) -> dict[str, Any]:
    """The arguments of a call."""
    result = {name: value for name, value in CASES[case].items() if name != "names"}
    aux = {name: AUX[name] for name in CASES[case]["names"]}
    return result | ({"aux": aux} if aux else {})


def specs_of(case: str) -> dict[str, Any]:
    """The arguments of a config."""
    kinds = {"float32": "f32", "float16": "f16", "int32": "i32", "uint8": "u8", "bool": "bool"}
    call = call_of(case)
    return {**call, "aux": {name: (kinds[a.dtype.name], a.ndim) for name, a in call.get("aux", {}).items()}}


def problem(kind: str = "ieee", **sizes: Any) -> tuple[Any, ...]:
    of = {"seq_q": SEQ_Q, "seq_k": SEQ_K, "head_dim": 16, "head_dim_v": 16, "batch": 2, "heads": HEADS}
    import ml_dtypes

    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}.get(kind, np.float32)
    return Problem(**{**of, "kv_heads": 2, **sizes}).arrays(dtype=dtype)


# --------------------------------------------------------------------------------------- PyTorch


@pytest.fixture(scope="session")
def flex(torch: Any) -> Callable[..., Array]:
    """`flex_attention` on the CPU, in float64, of numpy arrays."""
    module = importlib.import_module("torch.nn.attention.flex_attention")

    def of_torch(function: Callable[..., Any], aux: dict[str, Array]) -> Callable[..., Any]:
        indexed = {name: torch.from_numpy(array) for name, array in aux.items()}
        wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
        arguments = {name: array for name, array in indexed.items() if name in wanted}
        names = {"tanh": torch.tanh, "exp": torch.exp, "where": torch.where}
        in_torch = FunctionType(function.__code__, {**function.__globals__, **names})
        if wanted[0] == "score":  # flex_attention counts the parameters
            return lambda score, batch, head, query, key: in_torch(
                score, batch, head, query, key, **arguments
            )
        return lambda batch, head, query, key: in_torch(batch, head, query, key, **arguments)

    def attend(q: Array, k: Array, v: Array, call: dict[str, Any]) -> Array:
        aux, how = call.get("aux", {}), {}
        if "score_mod" in call:
            how["score_mod"] = of_torch(call["score_mod"], aux)
        if "mask_mod" in call:
            shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
            seen = of_torch(call["mask_mod"], aux)
            how["block_mask"] = module.create_block_mask(seen, *shape, device="cpu")
        arguments = (torch.from_numpy(x.astype(np.float64)) for x in (q, k, v))
        return np.asarray(module.flex_attention(*arguments, enable_gqa=True, **how).numpy())

    return attend


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # flex_attention warns that it is not compiled
@pytest.mark.sample(3, gate=20)
@EVERY_CASE
@pytest.mark.judged
def test_the_reference_agrees_with_flex_attention(case: str, flex: Callable[..., Array]) -> None:
    q, k, v = problem()
    call = call_of(case)
    result, _ = attention_reference(q, k, v, **call)
    np.testing.assert_allclose(result, flex(q, k, v, call), rtol=1e-12, atol=1e-13)


# ------------------------------------------------------------------------------ kernels, and numpy


@pytest.mark.slow
@pytest.mark.sample(2, gate=4)
@EVERY_CASE
@EVERY_KERNEL
@pytest.mark.judged
def test_kernels_are_as_accurate_as_their_arithmetic(kind: str, case: str) -> None:
    q, k, v = problem(kind)
    call = call_of(case)
    precision = kind if kind in ("tf32", "f32_grade") else None
    out, lse = flash.attention(q, k, v, precision=precision, backend="interpreter", return_lse=True, **call)
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic_of(kind), **call)


@EVERY_CASE
@pytest.mark.judged
def test_numpy_is_as_accurate_as_its_arithmetic(case: str) -> None:
    q, k, v = problem(seq_q=SEQ_Q)
    call = call_of(case)
    out, lse = flash.attention(q, k, v, backend="cpu", return_lse=True, **call)
    assert_attention_is_accurate(out, lse, q, k, v, **call)


@pytest.mark.slow
@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("case", ["alibi", "both", "padded"])
@pytest.mark.parametrize("kind", ["ieee", "f16"])
@pytest.mark.judged
def test_packed_heads_have_their_own_indices(kind: str, case: str) -> None:
    q, k, v = problem(kind, seq_q=5)
    call = call_of(case)
    operands = {f"aux_{name}": array for name, array in call.get("aux", {}).items()}
    dtype, results = "f16" if kind == "f16" else "f32", []
    for packed in (False, True):
        config = AttentionConfig(16, dtype=dtype, pack_gqa=packed, return_lse=True, **specs_of(case))
        results.append(run_forward(config, (q, k, v), operands=operands, sanitize=True)[:2])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["ieee", "f16"])
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.judged
def test_packed_sequences_count_from_their_own_first_row(kind: str, backend: str) -> None:
    rng, dtype = np.random.default_rng(3), np.float16 if kind == "f16" else np.float32
    q, k, v = (rng.standard_normal((n, h, 16)).astype(dtype) for n, h in ((50, 4), (90, 2), (90, 2)))
    cu_q, cu_k = np.array([0, 17, 17, 50], np.int32), np.array([0, 30, 31, 90], np.int32)
    call: dict[str, Any] = {
        "score_mod": lambda s, b, h, i, j, slopes: s - slopes[h] * abs(i - j) + b,
        "mask_mod": lambda b, h, i, j, prefix: (i >= j) & (i - j < 20) | (j < prefix[b]),
        "aux": {"slopes": SLOPES, "prefix": np.array([3, 9, 40], np.int32)},
    }
    out, lse = flash.attention_varlen(q, k, v, cu_q, cu_k, backend=backend, return_lse=True, **call)
    exact, sums = attention_varlen_reference(q, k, v, cu_q, cu_k, **call)
    np.testing.assert_allclose(out, exact, rtol=0, atol=3e-3 if kind == "f16" else 3e-6)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=3e-3 if kind == "f16" else 3e-6)


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.judged
def test_over_a_cache_a_query_counts_by_its_position(
    backend: str, kind: str, splits: int, page_size: int | None
) -> None:
    rng = np.random.default_rng(4)
    call: dict[str, Any] = {
        "score_mod": lambda s, b, h, i, j, slopes: s - slopes[h] * abs(i - j) + b,
        "mask_mod": lambda b, h, i, j, prefix: (i >= j) & ((i - j < 20) | (j < prefix[b])),
        "aux": {"slopes": SLOPES, "prefix": PREFIX},
    }
    cache = flash.KVCache(1, 2, 2, 16, capacity=80, dtype=kind, backend=backend, page_size=page_size)
    keys, values = (np.zeros((2, 2, 0, 16), kind) for _ in range(2))
    for rows, queries in ((37, 3), (1, 1)):
        q, k, v = (
            rng.standard_normal((2, h, n, 16)).astype(kind) for h, n in ((4, queries), (2, rows), (2, rows))
        )
        keys, values = np.concatenate([keys, k], 2), np.concatenate([values, v], 2)
        out, lse = flash.attention_with_kvcache(
            q, cache, k, v, layer=0, causal=False, splits=splits, return_lse=True, **call
        )
        first = keys.shape[2] - queries
        exact, sums = attention_reference(q, keys, values, first_query=first, **call)
        np.testing.assert_allclose(out, exact, rtol=0, atol=2e-3 if kind == "float16" else 3e-6)
        np.testing.assert_allclose(lse, sums, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_decode_kernel_and_a_step_take_functions() -> None:
    rng = np.random.default_rng(5)
    q = rng.standard_normal((2, 4, 1, 16)).astype(np.float32)
    k, v = (rng.standard_normal((2, 2, 40, 16)).astype(np.float32) for _ in range(2))
    call: dict[str, Any] = {"score_mod": alibi, "aux": {"slopes": SLOPES}}
    kernel = flash.DecodeKernel(AttentionConfig(16, score_mod=alibi, aux={"slopes": ("f32", 1)}))
    used = np.array([40, 23], np.int32)
    for backend in ("cpu", "interpreter"):
        result = kernel.launch(q, k, v, seqused_k=used, aux=call["aux"], backend=backend)
        for b, n in enumerate(used):
            own = (x[b : b + 1, :, :n] for x in (k, v))
            exact, _ = attention_reference(q[b : b + 1], *own, first_batch=b, first_query=n - 1, **call)
            np.testing.assert_allclose(result[b : b + 1], exact, rtol=0, atol=3e-6)
    with pytest.raises(LaunchError) as error:
        kernel.launch(q, k, v, seqused_k=used, backend="cpu")
    assert str(error.value) == ("DecodeKernel.launch: aux_slopes must be given, because the config says so")
    cache = flash.KVCache(1, 2, 2, 16, capacity=80, backend="interpreter")
    step = flash.DecodeStep(q, cache, k[:, :, :1], v[:, :, :1], layer=0, **call)
    for rows in (1, 2):
        out = step()
        same = (np.repeat(x[:, :, :1], rows, axis=2) for x in (k, v))
        exact, _ = attention_reference(q, *same, first_query=rows - 1, **call)
        np.testing.assert_allclose(out, exact, rtol=0, atol=3e-6)


# -------------------------------------------------------------------------------- built-in features


@pytest.mark.parametrize("backend", ["cpu", nightly("interpreter")])
@pytest.mark.judged
def test_built_in_features_agree_with_the_same_as_functions(backend: str) -> None:
    q, k, v = problem()
    for built_in, call in (
        ({"alibi_slopes": SLOPES}, call_of("alibi")),
        ({"softcap": 2.0}, call_of("softcap")),
        ({"causal": "top_left"}, call_of("causal")),
        ({"causal": "top_left", "window": (8, None)}, call_of("window")),
        ({"mask": SHOWN[:, None, None] & (np.arange(4) != 3)[:, None, None]}, call_of("padded")),
    ):
        result, lse = flash.attention(q, k, v, backend=backend, return_lse=True, **call)
        wanted, sums = flash.attention(q, k, v, backend=backend, return_lse=True, **built_in)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=3e-6)
        np.testing.assert_allclose(lse, sums, rtol=0, atol=3e-6)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
@pytest.mark.judged
def test_functions_go_with_every_built_in_feature(backend: str) -> None:
    q, k, v = problem("f16")
    rng = np.random.default_rng(9)
    call: dict[str, Any] = {
        **call_of("both"),
        "softcap": 3.0,
        "alibi_slopes": SLOPES,
        "bias": rng.standard_normal((SEQ_Q, SEQ_K)).astype(np.float32),
        "mask": rng.random((SEQ_Q, SEQ_K)) < 0.9,
        "sink": SLOPES,
        "causal": "top_left",
        "window": (30, None),
    }
    out, lse = flash.attention(q, k, v, backend=backend, return_lse=True, **call)
    arithmetic = arithmetic_of("f16") if backend == "interpreter" else arithmetic_of("f32")
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic, **call)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["ieee", "tf32", "f16"])
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_what_hidden_keys_hold_does_not_matter(backend: str, kind: str) -> None:
    q, k, v = problem(kind)
    call = call_of("prefix")
    precision = kind if kind == "tf32" else None
    seen = np.arange(SEQ_K) < SEQ_Q
    assert PREFIX.max() < SEQ_Q
    wanted = flash.attention(q, k, v, backend=backend, precision=precision, return_lse=True, **call)
    for x in (k, v):
        x[:, :, ~seen] = np.nan
    result = flash.attention(q, k, v, backend=backend, precision=precision, return_lse=True, **call)
    for one, other in zip(result, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    v[0, :, 8] = np.inf
    result = flash.attention(q, k, v, backend=backend, precision=precision, **call)
    assert np.isfinite(result[0, :, :8].astype(np.float32)).all()
    assert np.isposinf(result[0, :, 8:].astype(np.float32)).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_without_a_key_are_zero(dtype: Any, backend: str) -> None:
    q, k, v = (x.astype(dtype) for x in problem())
    out, lse = flash.attention(
        q, k, v, mask_mod=lambda b, h, i, j: i > j + 3, backend=backend, return_lse=True
    )
    np.testing.assert_array_equal(out[:, :, :4], 0)
    assert np.isneginf(lse[:, :, :4]).all()
    assert np.isfinite(lse[:, :, 4:]).all()
    for shown in (False, True):
        result = flash.attention(q, k, v, mask_mod=lambda b, h, i, j, shown=shown: shown, backend=backend)
        wanted = flash.attention(q, k, v, backend=backend) if shown else np.zeros_like(result)
        np.testing.assert_array_equal(result, wanted)


# ------------------------------------------------------------------------------------ skipped tiles


def _keys_read(config: AttentionConfig, of: Problem, operands: dict[str, Array]) -> int:
    """Bytes of tiles of K and V that a run reads, by cp.async."""
    arrays = tuple(x.astype(config.element.numpy) for x in of.arrays())
    _, _, result = run_forward(config, arrays, operands=operands)
    return int(result.counters.by_opcode["cp.async.cg.shared.global"])


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f16"])
def test_tiles_that_no_query_sees_are_not_loaded(dtype: str) -> None:
    of = Problem(32, 512, 16, 16)
    how: dict[str, Any] = {"dtype": dtype, "tile": 32, "block_q": 32}

    def read(mask_mod: Any, **more: Any) -> int:
        operands = more.pop("operands", {})
        config = AttentionConfig(16, mask_mod=mask_mod, **how, **more)
        return _keys_read(config, of, operands)

    full = read(lambda b, h, q, k: k * k >= 0)
    of_q = 2 * read(lambda b, h, q, k: k < 32) - read(lambda b, h, q, k: k < 64)
    of_tile = read(lambda b, h, q, k: k < 64) - read(lambda b, h, q, k: k < 32)
    assert full == of_q + 16 * of_tile  # 512 keys
    lengths = {"operands": {"aux_lengths": np.array([70], np.int32)}, "aux": {"lengths": ("i32", 1)}}
    for mask_mod, tiles, more in (
        (lambda b, h, q, k: q >= k, 1, {}),
        (lambda b, h, q, k: (q + 300 >= k) & (q + 300 - k < 64), 4, {}),  # keys 237 to 331
        (lambda b, h, q, k: (q + 288) // 32 == k // 32, 1, {}),
        (lambda b, h, q, k: abs(q + 256 - k) <= 16, 3, {}),  # keys 240 to 303
        (lambda b, h, q, k, lengths: k < lengths[b], 3, lengths),
        (lambda b, h, q, k, lengths: (q >= k) | (k < lengths[b]), 3, lengths),
        (lambda b, h, q, k: k < 0, 0, {}),
        # Tiles between others: keys 0 to 3 and 361 to 431, and three ranges.
        (lambda b, h, q, k: (q + 400 >= k) & ((q + 400 - k < 40) | (k < 4)), 4, {}),
        (lambda b, h, q, k: (k < 5) | (abs(k - 200) < 8) | (k > 500), 3, {}),
    ):
        assert read(mask_mod, **more) == (of_q if tiles else 0) + tiles * of_tile


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_blocks_that_a_given_mask_hides_are_not_loaded(dtype: str) -> None:
    def mask_mod(batch: Any, head: Any, query: Any, key: Any, blocks: Any) -> Any:
        return blocks[head, query // 64, key // 64] & (key < 480)

    of = Problem(128, 512, 16, 16, heads=2)
    how: dict[str, Any] = {"dtype": dtype, "tile": 32, "block_q": 32, "mask_mod": mask_mod}
    config = AttentionConfig(16, aux={"blocks": ("bool", 3)}, **how)
    arrays = tuple(x.astype(config.element.numpy) for x in of.arrays())
    loads = {}
    for name, blocks in (
        ("none", np.zeros((2, 2, 8), bool)),
        ("one", np.eye(2, 8, dtype=bool)[None] & np.array([True, False])[:, None, None]),
        ("some", _RANDOM.random((2, 2, 8)) < 0.4),
    ):
        out, _, result = run_forward(config, arrays, operands={"aux_blocks": blocks})
        loads[name] = result.counters.by_opcode["cp.async.cg.shared.global"], blocks
        wanted, _ = attention_reference(*arrays, mask_mod=mask_mod, aux={"blocks": blocks})
        np.testing.assert_allclose(
            out.astype(np.float64), wanted, rtol=0, atol=2e-3 if dtype == "f16" else 4e-6
        )

    def by_odd_blocks(batch: Any, head: Any, query: Any, key: Any, blocks: Any) -> Any:
        return blocks[head, query // 24, key // 40]

    odd_blocks = _RANDOM.random((2, 6, 13)) < 0.2
    config = AttentionConfig(16, aux={"blocks": ("bool", 3)}, **{**how, "mask_mod": by_odd_blocks})
    out, _, _ = run_forward(config, arrays, operands={"aux_blocks": odd_blocks})
    wanted, _ = attention_reference(*arrays, mask_mod=by_odd_blocks, aux={"blocks": odd_blocks})
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=3e-3 if dtype == "f16" else 4e-6)
    nothing, one = loads["none"][0], loads["one"][0]
    of_block = (one - nothing) // 2  # two blocks of 64 keys, each for two CTAs
    count, blocks = loads["some"]
    tiles = 2 * blocks[..., :7].sum() + blocks[..., 7].sum()  # of the last block 32 keys are seen
    assert 2 * (count - nothing) == of_block * tiles


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "how",
    [{}, {"dtype": "f16"}, {"dtype": "f16", "stages": 3}, {"precision": "tf32"}, {"pack_gqa": True}],
    ids=str,
)
def test_what_tiles_in_a_gap_hold_does_not_matter(how: dict[str, Any]) -> None:
    def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (query + 90 >= key) & ((query + 90 - key < 8) | (key <= 16))  # 16 begins a tile

    config = AttentionConfig(16, mask_mod=mask_mod, tile=16, block_q=32, return_lse=True, **how)
    of = Problem(9, 130, 16, 16, heads=4, kv_heads=2)
    q, k, v = (x.astype(config.element.numpy) for x in of.arrays())
    wanted, sums = attention_reference(q, k, v, mask_mod=mask_mod)
    k[:, :, 20:80] = v[:, :, 20:80] = np.nan
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    close = 4e-6 if config.precision == "ieee" else 2e-3
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=close)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=close)
    result = build(config.kernel())
    assert result.proof.complete
    assert result.global_proof.complete


# ----------------------------------------------------------------------------------- one kernel each


def test_functions_that_compute_the_same_share_a_kernel() -> None:
    one = AttentionConfig(64, score_mod=lambda s, b, h, q, k: s * 2 - abs(q - k))
    other = AttentionConfig(64, score_mod=lambda x, batch, head, row, column: x * 2 - abs(row - column))
    assert one == other
    assert hash(one) == hash(other)
    assert proved_build(one.kernel()) is proved_build(other.kernel())
    different = AttentionConfig(64, score_mod=lambda s, b, h, q, k: s * 3 - abs(q - k))
    assert one != different
    assert one.kernel().name != different.kernel().name
    assert one.score_mod.digest in one.kernel().name


def test_a_config_with_functions_can_be_shown_and_sent() -> None:
    import pickle

    config = AttentionConfig(64, mask_mod=near)
    assert "mask_mod=<mask_mod " in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_explain_names_the_functions_and_the_arrays() -> None:
    q, k, v = problem()
    kernel = flash.AttentionKernel(AttentionConfig(16, score_mod=alibi, aux={"slopes": ("f32", 1)}))
    said = kernel.explain(q, k, v, aux={"slopes": SLOPES}, backend="interpreter")
    digest = kernel.config.score_mod.digest
    assert f"scores:   score_mod {digest} of 12 steps, aux_slopes (f32)\n" in said


def test_the_command_line_emits_functions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mods.py"
    file.write_text("def near(batch, head, query, key, n):\n    return abs(query - key) < n[head]\n")
    aux = ["--aux", "n:i32:1"]
    assert emit.main(["--head-dim", "64", "--mask-mod", f"{file}:near", *aux, "--json"]) == 0
    names = [parameter["name"] for parameter in json.loads(capsys.readouterr().out)["parameters"]]
    assert {"aux_n", "aux_n_size_0", "aux_n_axis_0_stride"} <= set(names)
    assert emit.main(["--head-dim", "64", "--mask-mod", f"{file}:near", *aux, "--prove"]) == 0
    capsys.readouterr()
    for wrong, message in (
        (
            ["--mask-mod", f"{file}:far"],
            f"argument --mask-mod: must be MODULE:FUNCTION or FILE.py:FUNCTION, got '{file}:far': 'far'",
        ),
        (["--score-mod", "math:pi"], "argument --score-mod: must name a function, got 'math:pi'"),
        (["--aux", "n"], "argument --aux: must be NAME:TYPE:AXES such as slopes:f32:1, got 'n'"),
    ):
        with pytest.raises(SystemExit):
            emit.main(["--head-dim", "64", *wrong])
        assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_the_contract_lists_the_arrays() -> None:
    config = AttentionConfig(64, score_mod=relative, aux={"table": ("f16", 2)}).kernel()
    result = build(config).contract
    [array] = [one for one in result["arrays"] if one["name"] == "aux_table"]
    assert array == {
        "name": "aux_table",
        "type": "f16",
        "written": False,
        "dims": [
            {"name": "axis_0", "extent": "aux_table_size_0", "stride": "aux_table_axis_0_stride"},
            {"name": "axis_1", "extent": "aux_table_size_1", "stride": "aux_table_axis_1_stride"},
        ],
        "row": 1,
        "alignment": 2,
    }
    assert result["sizes"]["aux_table_size_1"] == {"least": 1, "most": 2**31 - 1}
    meanings = {one["name"]: one["meaning"] for one in result["parameters"]}
    assert meanings["aux_table"] == (
        "device address of aux_table, read: f16 [aux_table_size_0, aux_table_size_1], strides as below; "
        "indexed by score_mod or mask_mod; an index outside is that of the nearest element"
    )
    assert meanings["aux_table_size_0"] == "elements of aux_table along axis 0"
    json.dumps(result)


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("how", [{}, {"dtype": "f16"}, {"precision": "tf32"}, {"varlen": True}], ids=str)
@pytest.mark.parametrize("case", ["odd", "relative", "documents", "prefix", "window"])
def test_kernels_are_proved(case: str, how: dict[str, Any]) -> None:
    for packed in (False, *([] if "varlen" in how else [True])):
        config = AttentionConfig(64, **specs_of(case), pack_gqa=packed, **how)
        result = build(config.kernel())
        assert result.proof.complete
        assert result.global_proof.complete


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.sample(3, gate=5)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", [name for name in CASES if name != "odd"])
def test_default_kernels_do_not_spill(case: str, target: str, head_dim: int, assembler: Assembler) -> None:
    for dtype in ("f32", "f16"):
        assert_no_spill(AttentionConfig(head_dim, dtype=dtype, target=target, **specs_of(case)), assembler)


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("case", ["alibi", "softcap", "odd", "both"])
@pytest.mark.judged
def test_gradients_of_numpy_follow_from_the_trace(case: str) -> None:
    q, k, v = problem()
    call = call_of(case)
    out, lse = flash.attention(q, k, v, backend="cpu", return_lse=True, **call)
    rng = np.random.default_rng(2)
    dout = rng.standard_normal(out.shape).astype(np.float32)
    dlse = rng.standard_normal(lse.shape).astype(np.float32)
    result = {"q": np.empty_like(q), "k": np.empty_like(k), "v": np.empty_like(v)}
    attention_gradients_cpu(
        dout, q, k, v, out, lse, *result.values(), {}, dlse=dlse, softmax_scale=None, causal=False, **call
    )
    assert_gradients_are_accurate(result, out, dout, dlse, q, k, v, {}, **call)


@pytest.mark.parametrize("case", ["softcap", "odd", "both"])
@pytest.mark.judged
def test_gradients_of_the_reference_agree_with_finite_differences(case: str) -> None:
    q, k, v = (x.astype(np.float64) for x in problem(seq_q=5, seq_k=7))
    call = call_of(case)
    rng = np.random.default_rng(6)
    dout = rng.standard_normal((2, HEADS, 5, 16))
    result = attention_reference_gradients(dout, q, k, v, **call)
    for x, gradient in ((q, result.dq), (k, result.dk), (v, result.dv)):
        way, step = rng.standard_normal(x.shape), 1e-6
        ahead, behind = (
            sum(
                (
                    dout
                    * attention_reference(*[y + s * step * way if y is x else y for y in (q, k, v)], **call)[
                        0
                    ]
                ).ravel()
            )
            for s in (1, -1)
        )
        assert (gradient * way).sum() == pytest.approx((ahead - behind) / (2 * step), rel=1e-6, abs=1e-7)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"aux": {"slopes": ("f32", 1)}},
            "AttentionConfig: aux has 'slopes', which neither score_mod nor mask_mod indexes; leave it out",
        ),
        *(
            (
                {"score_mod": alibi, "aux": {"slopes": spec}},
                "AttentionConfig: aux['slopes'] must be (type, axes), with a type of f32, f16, bf16, i32, "
                f"i64, u8, bool and 1 to 4 axes, got {spec!r}",
            )
            for spec in ("f32", ("f64", 1), ("f32", 5))
        ),
        (
            {"score_mod": alibi, "aux": ["slopes"]},
            "AttentionConfig: aux must be a mapping of names to (type, axes), such as "
            '{"slopes": ("f32", 1)}, got [\'slopes\']',
        ),
        (
            {"score_mod": alibi, "aux": {"my slopes": ("f32", 1)}},
            "AttentionConfig: a name in aux must be that of a parameter, got 'my slopes'",
        ),
        (
            {"aux": {"größe": ("f32", 1)}},
            "AttentionConfig: a name in aux must be that of a parameter, got 'größe'",
        ),
        (
            {"mask_mod": True},
            "AttentionConfig: mask_mod must be a function (batch, head, query, key), or None, got True",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        AttentionConfig(64, **how)
    assert str(error.value) == message


def test_arrays_that_do_not_fit_are_refused() -> None:
    q, k, v = problem()
    kernel = flash.AttentionKernel(AttentionConfig(16, score_mod=alibi, aux={"slopes": ("f32", 1)}))
    for aux, message in (
        (None, "launch: aux_slopes must be given, because the config says aux={'slopes': (type, axes)}"),
        (
            {"slopes": SLOPES, "table": TABLE},
            "launch: aux_table is given, but the config does not say so; use "
            "AttentionConfig(aux={'table': (type, axes)}, ...)",
        ),
        (
            {"slopes": SLOPES.astype(np.float64)},
            "launch: aux_slopes must be float32, got float64; convert with aux_slopes.astype('float32')",
        ),
        ({"slopes": SLOPES[None]}, "launch: aux_slopes must be [aux_slopes_size_0], got [1, 4]"),
        ({"slopes": SLOPES[:0]}, "launch: aux_slopes must have an element, got shape [0]"),
    ):
        with pytest.raises(LaunchError) as error:
            kernel.launch(q, k, v, aux=aux, backend="cpu")
        assert str(error.value) == message
    with pytest.raises(LaunchError) as error:
        flash.attention(q, k, v, score_mod=alibi, aux=SLOPES)
    assert str(error.value).startswith("attention: aux must be a mapping of names to arrays, such as")
    for array in (SLOPES.astype(np.float64), SLOPES[(None,) * 4]):
        with pytest.raises(LaunchError) as wrong:
            flash.attention(q, k, v, score_mod=alibi, aux={"slopes": array})
        assert str(wrong.value) == (
            "attention: aux['slopes'] must be one of float32, float16, bfloat16, int32, int64, uint8, bool, "
            f"with 1 to 4 axes, got {array.dtype} of shape {list(array.shape)}; convert it"
        )
    with pytest.raises(ConfigError) as unused:
        flash.attention(q, k, v, score_mod=alibi, aux={"slopes": SLOPES, "table": TABLE})
    assert str(unused.value) == (
        "attention: aux has 'table', which neither score_mod nor mask_mod indexes; leave it out"
    )


def test_gradients_of_aux_go_by_the_names_of_operands() -> None:
    q, k, v = problem()
    out, lse = flash.attention(q, k, v, backend="cpu", return_lse=True, **call_of("alibi"))
    with pytest.raises(ConfigError) as error:
        attention_gradients_cpu(
            *(out, q, k, v, out, lse, q, k, v, {"slopes": SLOPES}),
            softmax_scale=None,
            causal=False,
            **call_of("alibi"),
        )
    assert str(error.value) == (
        "attention_gradients_cpu: arrays must be those of alibi_slopes, bias, key_bias, sink and "
        "numbers of aux that are given, got slopes; other arguments have no gradient"
    )


def test_strides_of_arrays_may_be_any() -> None:
    q, k, v = problem()
    wide = np.repeat(SLOPES, 3)[::-1]
    for backend in ("cpu", "interpreter"):
        result = flash.attention(
            q, k, v, score_mod=alibi, aux={"slopes": wide[::-3][:HEADS]}, backend=backend
        )
        wanted = flash.attention(q, k, v, score_mod=alibi, aux={"slopes": SLOPES}, backend=backend)
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.slow
def test_indices_outside_of_an_array_read_its_nearest_element() -> None:
    q, k, v = problem()
    short = TABLE[:, 40:50]
    call: dict[str, Any] = {
        "score_mod": lambda s, b, h, i, j, table: s + table[h - 1, i - j],
        "aux": {"table": short},
    }
    wanted, sums = attention_reference(q, k, v, **call)
    for backend in ("cpu", "interpreter"):
        out, lse = flash.attention(q, k, v, backend=backend, return_lse=True, **call)
        assert_close("out", out, wanted, np.full_like(wanted, 4e-6))
        assert_close("lse", lse, sums, np.full_like(sums, 4e-6))

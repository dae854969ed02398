"""The forward kernel for Hopper over a cache: many queries, as in a prefill by parts. Its own PTX, run with
the sanitizers on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import in_pages, nightly

from flash import AttentionConfig, DecodeKernel, cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.catalogue import Build, build
from flash.decode.plan import CacheCall, kernel_of
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.families.wgmma import WgmmaTiling
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
BATCH, HEADS, KV_HEADS, ROOM, DIM = 3, 2, 1, 96, 16
USED = np.array([90, 33, 96], np.int32)
INDEX = np.array([4, 0, 2], np.int32)
PADDING = np.array([5, 0, 17], np.int32)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that launches on the interpreter run, with all sanitizers."""
    run, names = interpreter.run, []

    def watched(module: Any, *given: Any, **how: Any) -> Any:
        names.append(module.kernels[0].name)
        return run(module, *given, **{"sanitize": True, **how})

    monkeypatch.setattr(interpreter, "run", watched)
    return names


def config_of(**how: Any) -> AttentionConfig:
    given = {"dtype": "f16", "target": "sm_90a", "tile": 16, "block_q": 64, "return_lse": True, **how}
    return AttentionConfig(DIM, **given)


def arrays_of(seq_q: int, sequences: int = BATCH) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (BATCH, HEADS, seq_q, DIM), *[(sequences, KV_HEADS, ROOM, DIM)] * 2
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    return q, k, v


def judge(
    config: AttentionConfig,
    q: Array,
    keys: list[tuple[Array, Array]],
    out: Array,
    lse: Array,
    parts: float = 0.0,
) -> None:
    """Each item of a batch is as accurate as attention to its own keys, [kv_heads, keys, dim]."""
    for b, (k, v) in enumerate(keys):
        assert_attention_is_accurate(
            out[b : b + 1],
            lse[b : b + 1],
            q[b : b + 1],
            k[None],
            v[None],
            softmax_scale=config.scale,
            causal=config.causal,
            window=config.window,
            arithmetic=arithmetic_of_config(config, parts),
        )


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    "how", [{"causal": True}, {}, {"causal": True, "window": (30, None), "pack_gqa": True}], ids=str
)
def test_an_item_sees_the_keys_of_its_sequence(how: dict[str, Any], splits: int, kernels: list[str]) -> None:
    config = config_of(**how)
    q, k, v = arrays_of(70, sequences=5)
    keys = [(k[s, :, p:n].copy(), v[s, :, p:n].copy()) for s, p, n in zip(INDEX, PADDING, USED, strict=True)]
    for s, padding, used in zip(INDEX, PADDING, USED, strict=True):
        k[s, :, used:], v[s, :, used:], k[s, :, :padding], v[s, :, :padding] = np.nan, np.nan, np.inf, np.nan
    lengths: Any = {"seqused_k": USED, "cache_batch_idx": INDEX, "leftpad_k": PADDING}
    out, lse = DecodeKernel(config).launch(q, k, v, backend="interpreter", splits=splits, **lengths)
    assert "wgmma" in kernels[0]
    assert len(kernels) == 1 + (splits > 1)
    judge(config, q, keys, out, lse, PARTS_OF_F32 if splits > 1 else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_parts_of_odd_columns_with_nan_and_infinity_are_merged(causal: bool, kernels: list[str]) -> None:
    config = AttentionConfig(
        24, 40, dtype="f16", target="sm_90a", tile=16, block_q=64, return_lse=True, causal=causal
    )
    rng = np.random.default_rng(2)
    shapes = (1, HEADS, 40, 24), (1, KV_HEADS, 90, 24), (1, KV_HEADS, 90, 40)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    how: dict[str, Any] = {"backend": "interpreter", "splits": 3, "seqused_k": np.array([90], np.int32)}
    clean, clean_lse = DecodeKernel(config).launch(q, k, v, **how)
    assert "_splits_" in kernels[0]
    judge(config, q, [(k[0], v[0])], clean, clean_lse, PARTS_OF_F32)
    v[..., 70, 3], v[..., 85, 39], v[..., 30, 8] = np.nan, np.inf, -np.inf
    out, lse = DecodeKernel(config).launch(q, k, v, **how)
    np.testing.assert_array_equal(lse, clean_lse)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=config.causal)
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])
    np.testing.assert_array_equal(out[~odd], clean[~odd])


@pytest.mark.slow
@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("size", [32, 16, 48])
@pytest.mark.parametrize("causal", [True, False])
def test_an_item_sees_the_keys_in_its_pages(size: int, causal: bool, kernels: list[str]) -> None:
    config = config_of(causal=causal, tile=32)
    q, k, v = arrays_of(70)
    keys = [(k[b, :, :n].copy(), v[b, :, :n].copy()) for b, n in enumerate(USED)]
    for b, used in enumerate(USED):
        k[b, :, used:], v[b, :, used:] = np.nan, np.nan
    columns = ROOM // size
    table = np.random.default_rng(1).permutation(BATCH * columns).reshape(BATCH, columns).astype(np.int32)
    pages = [in_pages(x, size, table, spare=1) for x in (k, v)]
    table = np.where(np.arange(columns) * size < USED[:, None], table, -(10**6)).astype(np.int32)
    lengths: Any = {"seqused_k": USED, "block_table": table}
    out, lse = DecodeKernel(config).launch(q, *pages, backend="interpreter", **lengths)
    assert f"_page{size}_" in kernels[0]
    assert "wgmma" in kernels[0]
    judge(config, q, keys, out, lse)


@pytest.mark.slow
def test_many_new_rows_are_there_before_they_are_attended_to(kernels: list[str]) -> None:
    config = config_of(causal=True)
    q, k, v = arrays_of(40)
    new_k, new_v = np.random.default_rng(5).standard_normal((2, BATCH, KV_HEADS, 40, DIM)).astype(np.float16)
    used = np.array([60, 40, 96], np.int32)  # the new rows among them
    out, lse = DecodeKernel(config).launch(q, k, v, new_k, new_v, seqused_k=used, backend="interpreter")
    assert [kernels[0].startswith("append"), "wgmma" in kernels[1]] == [True, True]
    for b, n in enumerate(used):
        np.testing.assert_array_equal(k[b, :, n - 40 : n], new_k[b])
    judge(config, q, [(k[b, :, :n], v[b, :, :n]) for b, n in enumerate(used)], out, lse)


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [0, 32, 3])
@pytest.mark.parametrize(
    "rotary",
    [{}, {"rotary_dim": 8}, {"rotary_dim": 16, "rotary_interleaved": True, "queries_only": True}],
    ids=str,
)
@pytest.mark.parametrize("how", [{"pack_gqa": True}, {"pack_gqa": False, "window": (40, None)}], ids=str)
def test_few_new_rows_are_written_by_those_who_attend(
    how: dict[str, Any], rotary: dict[str, Any], page_size: int, splits: int, kernels: list[str]
) -> None:
    rotary, rng = dict(rotary), np.random.default_rng(3)
    heads, n = HEADS if how["pack_gqa"] else KV_HEADS, 9
    q, k, v = arrays_of(25)
    new = list(rng.standard_normal((2, BATCH, KV_HEADS, n, DIM)).astype(np.float16))
    given: dict[str, Any] = {"seqused_k": np.array([60, 9, 96], np.int32), "backend": "interpreter"}
    for b, used in enumerate(given["seqused_k"]):
        k[b, :, used - n * bool(new) :], v[b, :, used - n * bool(new) :] = np.nan, np.nan
    if rotary.pop("queries_only", False):
        new = []
        k, v = (rng.standard_normal(k.shape).astype(np.float16) for _ in "kv")
    if page_size:
        columns = ROOM // page_size
        table = rng.permutation(BATCH * columns).reshape(BATCH, columns).astype(np.int32)
        k, v = (in_pages(x, page_size, table) for x in (k, v))
        given["block_table"] = table
    if rotary:
        angles = rng.uniform(0, 6, (ROOM, rotary.pop("rotary_dim") // 2))
        given |= {"rotary_cos": np.cos(angles).astype(np.float32), **rotary}
        given["rotary_sin"] = np.sin(angles).astype(np.float32)
    results = []
    for target_name in ("sm_90a", "sm_90"):
        config = config_of(causal=True, target=target_name, **how)
        cache = k.copy(), v.copy()
        number = splits if target_name == "sm_90a" else 1
        found = DecodeKernel(config).launch(q[:, :heads], *cache, *new, splits=number, **given)
        results.append((*cache, *found))
    assert "wgmma" in kernels[0]
    assert ("_append_" in kernels[0]) == bool(new)
    assert len(kernels) == 2 + (splits > 1)
    for one, other in zip(results[0][:2], results[1][:2], strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(results[0][2:], results[1][2:], strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=0, atol=4e-3)


# ------------------------------------------------------------------------------------------
# the choice, proofs, and what the assembler makes of it


def call_of(
    config: AttentionConfig, names: tuple[str, ...], seq_q: int = 256, page_size: int = 0
) -> CacheCall:
    """A call of a batch of two with these operands."""
    q = np.zeros((2, 4, seq_q, config.head_dim), config.element.numpy)
    rows = page_size or 512
    k, v = (np.zeros((2, 2, rows, dim), q.dtype) for dim in (config.head_dim, config.value_dim))
    operands = {name: np.zeros(2, np.int32) for name in names}
    if page_size:
        operands["block_table"] = np.zeros((2, 4), np.int32)
    views = {name: view(array, name) for name, array in operands.items()}
    arrays = (view(x, "array") for x in (q, k, v, np.zeros((2, 4, seq_q, config.value_dim), q.dtype)))
    return CacheCall(config, *arrays, {}, views, page_size, 512, 1.0)


ALL = ("seqused_k", "leftpad_k", "cache_batch_idx")
CALLS: dict[str, tuple[dict[str, Any], tuple[str, ...], int, int]] = {
    "contiguous": ({"causal": True}, ALL, 0, 1),
    "window": ({"causal": True, "window": (99, None), "pack_gqa": True}, ALL, 0, 1),
    "pages": ({"causal": True}, ("seqused_k",), 16, 1),
    "splits": ({"causal": True, "window": (99, None), "pack_gqa": True}, ALL, 0, 2),
    "pages, splits": ({"pack_gqa": False}, ("seqused_k",), 16, 2),
}


def made_of(name: str, head_dim: int = 64) -> Build:
    how, names, page_size, splits = CALLS[name]
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", **how)
    made = build(kernel_of(call_of(config, names, page_size=page_size), target("sm_90a"), splits))
    assert isinstance(made.config.tiling, WgmmaTiling)
    return made


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("name", CALLS)
def test_every_access_and_barrier_is_proved(name: str) -> None:
    proofs = made_of(name).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [64, nightly(128), nightly(256)])
@pytest.mark.parametrize("name", CALLS)
def test_no_default_kernel_spills(name: str, head_dim: int, assembler: Assembler) -> None:
    made = made_of(name, head_dim)
    assembly = assembler.assemble(made.text, "sm_90a")
    usage = assembly.kernel(made.kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0
    assert assembly.advisories == ()


NEW_ROWS: dict[str, dict[str, Any]] = {
    "append": {"append": True},
    "append, splits": {"append": True, "splits": True, "rotary_dim": 32},
    "queries": {"rotary_dim": 32, "rotary_interleaved": True},
}


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [64, nightly(128), nightly(256)])
@pytest.mark.parametrize("page_size", [None, 64])
@pytest.mark.parametrize("name", NEW_ROWS)
def test_kernels_that_write_new_rows_are_proved_and_do_not_spill(
    name: str, page_size: int | None, head_dim: int, assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", causal=True)
    made = cache_kernels.decode(config, CacheConfig(page_size), seq_q=8, group=8, **NEW_ROWS[name])
    assert isinstance(made.config.tiling, WgmmaTiling)
    assert made.proof.complete, made.proof.report()
    assert made.global_proof.complete, made.global_proof.report()
    assembly = assembler.assemble(made.text, "sm_90a")
    usage = assembly.kernel(made.kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0
    assert assembly.advisories == ()


def test_the_table_of_the_choice() -> None:
    config = AttentionConfig(64, dtype="f16", target="sm_90a", pack_gqa=False)

    def uses_wgmma(call: CacheCall, splits: int = 1) -> bool:
        return isinstance(kernel_of(call, target("sm_90a"), splits).tiling, WgmmaTiling)

    many = call_of(config, ALL)
    assert uses_wgmma(many)
    assert uses_wgmma(many, splits=2)
    backwards = many.out._replace(strides=(0, 0, -64, 1))
    assert not uses_wgmma(many._replace(out=backwards))
    assert uses_wgmma(many._replace(out=backwards), splits=2)
    assert not uses_wgmma(call_of(config, ALL, seq_q=8))
    assert uses_wgmma(call_of(config, ("seqused_k",), page_size=32))
    assert uses_wgmma(call_of(config, ("seqused_k",), page_size=24))
    assert uses_wgmma(call_of(config, ALL, page_size=32))
    assert not uses_wgmma(many._replace(k=many.k._replace(strides=(0, 0, -64, 1))))
    rows = np.zeros((2, 2, 16, 64), np.float16)
    new = {"k_new": view(rows, "k"), "v_new": view(rows, "v")}
    assert uses_wgmma(many._replace(operands={**many.operands, **new}))

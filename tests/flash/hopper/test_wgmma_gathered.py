"""The forward kernel for Hopper over pages that no tensor copy takes: of any number of rows, or behind
padding. Its own PTX, run with the sanitizers on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import assert_no_spill, in_pages

from flash import AttentionConfig, AttentionKernel, DecodeKernel, cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.catalogue import build
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.families.choice import tiles_that_fit
from flash.families.wgmma import WGMMA
from flash.families.wgmma_split import SPLIT
from ptxgen import interpreter
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
BATCH, HEADS, KV_HEADS, ROOM = 2, 2, 1, 120  # rows of a sequence, at most
USED = np.array([115, 38], np.int32)
PADDING = np.array([21, 0], np.int32)
NO_PAGE = -(10**6)  # of entries of the table behind the last key
DIMS = [(16, 16), (72, 128), (96, 40)]  # with swizzles of 128, 64 and 128, 64 and 128 bytes; with padding
SANITIZED = ("all", "mbarrier_init")


class Runs:
    """Runs kernels of launches on the interpreter with all sanitizers, as `edit` changes their text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.schedule: Any = "lockstep"
        self.edit: Any = None
        self._run = interpreter.run
        monkeypatch.setattr(interpreter, "run", self)

    def __call__(self, module: Any, *given: Any, **how: Any) -> Any:
        self.names.append(module.kernels[0].name)
        program = module
        if self.edit is not None and "wgmma" in self.names[-1]:
            program = self.edit(render(module))
        return self._run(program, *given, **{"sanitize": SANITIZED, "schedule": self.schedule, **how})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def config_of(dims: tuple[int, int] = DIMS[0], **how: Any) -> AttentionConfig:
    return AttentionConfig(
        *dims, **{"dtype": "f16", "target": "sm_90a", "tile": 32, "block_q": 64, "return_lse": True, **how}
    )


def attend(
    config: AttentionConfig, page_size: int, *, padded: bool = False, splits: int = 1, seq_q: int = 70
) -> tuple[Array, Array, tuple[Array, Array, Array]]:
    """O and LSE of a call over pages in any order, and Q, K and V. What is no key is NaN."""
    rng = np.random.default_rng(0)
    dims = config.head_dim, config.value_dim
    shapes = (BATCH, HEADS, seq_q, dims[0]), *((BATCH, KV_HEADS, ROOM, dim) for dim in dims)
    q, k, v = (rng.standard_normal(shape).astype(config.element.numpy) for shape in shapes)
    caches = k.copy(), v.copy()
    for b, used in enumerate(USED):
        for cache in caches:
            cache[b, :, used:] = np.nan
            cache[b, :, : PADDING[b] * padded] = np.nan
    columns = -(-ROOM // page_size)
    table = rng.permutation(BATCH * columns).reshape(BATCH, columns).astype(np.int32)
    pages = [in_pages(cache, page_size, table, spare=1) for cache in caches]
    table = np.where(np.arange(columns) * page_size < USED[:, None], table, NO_PAGE).astype(np.int32)
    given: dict[str, Any] = {"seqused_k": USED, "block_table": table}
    given |= {"leftpad_k": PADDING} if padded else {}
    out, lse = DecodeKernel(config).launch(q, *pages, backend="interpreter", splits=splits, **given)
    return out, lse, (q, k, v)


def judge(config: AttentionConfig, found: Any, *, padded: bool = False, splits: int = 1) -> None:
    """Each sequence is as accurate as attention to its own keys in float64."""
    out, lse, (q, k, v) = found
    for b, used in enumerate(USED):
        mine, keys = slice(b, b + 1), slice(PADDING[b] * padded, used)
        assert_attention_is_accurate(
            out[mine],
            lse[mine],
            q[mine],
            k[mine, :, keys],
            v[mine, :, keys],
            softmax_scale=config.scale,
            causal=config.causal,
            window=config.window,
            softcap=config.softcap,
            arithmetic=arithmetic_of_config(config, PARTS_OF_F32 if splits > 1 else 0.0),
        )


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("page_size", [1, 8, 3, 24, 100])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True, "pack_gqa": True, "dtype": "bf16"},
        {"causal": True, "window": (30, None), "pack_gqa": False},
        {"softcap": 5.0, "tile": 48, "block_q": 128, "stages": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize(("splits", "padded"), [(1, False), (3, True)])
def test_an_item_sees_the_keys_in_its_pages(
    page_size: int, dims: tuple[int, int], how: dict[str, Any], splits: int, padded: bool, runs: Runs
) -> None:
    config = config_of(dims, **how)
    judge(config, attend(config, page_size, padded=padded, splits=splits), padded=padded, splits=splits)
    assert "wgmma" in runs.names[0]


@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize("packed", [False, True], ids=["cache", "packed sequences"])
@pytest.mark.parametrize("strides", ["0 between heads", "0 between pages", "below 0 between rows"])
def test_rows_that_are_gathered_may_be_any_strides_apart(strides: str, packed: bool, runs: Runs) -> None:
    rng, size, keys, queries = np.random.default_rng(0), 3, 21, 70
    q = rng.standard_normal((2, queries, 16)).astype(np.float16)  # [heads, queries, columns]
    pages = rng.standard_normal((2, 8, 2, size, 16)).astype(np.float16)  # of K and V
    if strides == "0 between heads":
        pages = np.broadcast_to(pages[:, :, :1], pages.shape)
    elif strides == "0 between pages":
        pages = np.broadcast_to(pages[:, :1], pages.shape)
    elif strides == "below 0 between rows":
        pages = pages[:, :, :, ::-1]
    k_pages, v_pages = pages
    table = rng.permutation(8).astype(np.int32)[None]
    k, v = (x[table[0]].swapaxes(0, 1).reshape(1, 2, 8 * size, 16)[:, :, :keys] for x in pages)
    config, used = config_of(), np.array([keys], np.int32)
    if packed:
        config = replace(config, varlen=True, page_size=size)
        offsets = np.array([0, queries], np.int32)
        given = {"cu_seqlens_q": offsets, "seqused_k": used, "block_table": table}
        out, lse = AttentionKernel(config).launch(
            q.swapaxes(0, 1), k_pages, v_pages, backend="interpreter", **given
        )
        out, lse = out.swapaxes(0, 1)[None], lse[None]
    else:
        out, lse = DecodeKernel(config).launch(
            q[None], k_pages, v_pages, seqused_k=used, block_table=table, backend="interpreter"
        )
    assert_attention_is_accurate(out, lse, q[None], k, v, arithmetic=arithmetic_of_config(config, 0.0))
    assert "wgmma" in runs.names[0]


@pytest.mark.nightly
def test_pages_with_padding_have_rows_of_tensor_copies_no_more(runs: Runs) -> None:
    config = config_of(causal=True)
    judge(config, attend(config, 16, padded=True), padded=True)
    assert "_leftpad_page16" in runs.names[0]
    assert "wgmma" in runs.names[0]


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("how", [{"causal": True}, {"pack_gqa": False}], ids=str)
def test_pages_of_a_row_give_the_bits_of_pages_that_tensor_copies_take(
    dims: tuple[int, int], how: dict[str, Any], runs: Runs
) -> None:
    config = config_of(dims, **how)
    one, other = (attend(config, page_size)[:2] for page_size in (1, 16))
    assert ["_page1_" in name for name in runs.names] == [True, False]
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_no_interleaving_of_warps_changes_the_result(seed: int, runs: Runs) -> None:
    runs.schedule, page_size = PCT(seed), 24 if seed % 3 else 1
    config = config_of((96, 40), causal=True, pack_gqa=True, stages=2 + seed % 2)
    judge(config, attend(config, page_size, padded=True), padded=True)


# ------------------------------------------------------------------------------------------
# mistakes that must be noticed


def first(was: str, by: str) -> Any:
    """Changes the first place."""
    return lambda text: replaced(text, was, by, 1)


def every(was: str, by: str) -> Any:
    """Changes all places."""
    return lambda text: replaced(text, was, by, 0)


def replaced(text: str, was: str, by: str, count: int) -> str:
    changed, found = re.subn(was, by, text, count=count)
    assert found
    return changed


COPY = r"cp\.async\.cg\.shared\.global"
WAIT = r"(mbarrier\.try_wait[^;]*;\s*@!%p\d+ bra [^;]*;\s*)fence\.proxy\.async\.shared::cta;"
MISTAKES: dict[str, Any] = {
    "products do not see the rows of K": first(WAIT, r"\1"),
    "one thread too few for a phase": first(r"(mbarrier\.init[^;]*), 128;", r"\1, 127;"),
    "no arrival": first(r"cp\.async\.mbarrier\.arrive\.noinc[^;]*;", ""),
    "an arrival before the copies": every(r"cp\.async\.(mbarrier\.arrive)\.noinc(\S+) ", r"\1\2 %rd0, "),
    "rows behind the end are read": every(r"selp\.u32 (%r\d+), 16, 0, %p\d+;", r"mov.u32 \1, 16;"),
    "a row where another is": first(rf"({COPY} \[%r\d+)\+(\d+)\]", r"\1+16+\2]"),
    "no swizzle": every(r"xor\.b32 (%r\d+), (%r\d+), %r\d+;", r"mov.b32 \1, \2;"),
    "the page of another row": first(r"(shfl\.sync\.idx\.b32 %r\d+, %r\d+), 1,", r"\1, 2,"),
}


@pytest.mark.interpreter
@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("mistake", [*MISTAKES, "none"])
def test_mistakes_are_noticed(mistake: str, runs: Runs) -> None:
    runs.edit = MISTAKES.get(mistake)
    config = config_of(pack_gqa=False)
    noticed = False
    try:
        judge(config, attend(config, 1))
    except (TrapError, AssertionError):
        noticed = True
    assert noticed == (mistake in MISTAKES)


# ------------------------------------------------------------------------------------------
# proofs, what the assembler makes of it, and what is said


def packed_sequences(head_dim: Any, page_size: int, **how: Any) -> AttentionConfig:
    dims = head_dim if isinstance(head_dim, tuple) else (head_dim,)
    how = {"causal": True, **how}
    return AttentionConfig(*dims, dtype="bf16", target="sm_90a", varlen=True, page_size=page_size, **how)


OF_SEQUENCES = [
    ((64, 1), {}),
    ((96, 8), {"pack_gqa": True, "softcap": 20.0}),
    ((128, 1), {"pack_gqa": True, "return_lse": True}),
    ((128, 100), {"window": (99, None), "alibi": True, "sink": True}),
    (((192, 128), 24), {"causal": False}),
    ((256, 8), {"softcap": 20.0}),
]


@pytest.mark.sample(0, gate=2)
@pytest.mark.ptxas
@pytest.mark.parametrize(("problem", "how"), OF_SEQUENCES, ids=str)
def test_kernels_of_packed_sequences_are_proved_and_do_not_spill(
    problem: Any, how: dict[str, Any], assembler: Assembler
) -> None:
    config = packed_sequences(*problem, **how)
    made = build(config.kernel())
    assert made.config.gathers
    assert made.proof.complete, made.proof.report()
    assert made.global_proof.complete, made.global_proof.report()
    assert_no_spill(config, assembler)


OF_CACHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "padding, index, splits": ({"leftpad_k": True, "cache_batch_idx": True}, {"splits": True}),
    "new rows": ({}, {"append": True, "rotary_dim": 32}),
}


@pytest.mark.sample(0, gate=1)
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("page_size", [1, 8])
@pytest.mark.parametrize("name", OF_CACHES)
def test_kernels_over_a_cache_are_proved_and_do_not_spill(
    name: str, page_size: int, head_dim: int, assembler: Assembler
) -> None:
    cache, how = OF_CACHES[name]
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", causal=True)
    made = cache_kernels.decode(config, CacheConfig(page_size, **cache), seq_q=8, group=8, **how)
    assert made.config.gathers
    assert made.proof.complete, made.proof.report()
    assert made.global_proof.complete, made.global_proof.report()
    assembly = assembler.assemble(made.text, "sm_90a")
    usage = assembly.kernel(made.kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0
    assert assembly.advisories == ()


def sizes_offered() -> list[Any]:
    """Every tile and block of queries of kernels with `wgmma`, for pages of many rows, and of one."""
    found, dims = [], ((64, 64), (96, 96), (128, 128), (192, 192), (256, 256), (64, 256), (192, 128))
    for head_dim, page_size in (*((one, 100) for one in dims), ((128, 128), 1)):
        request = packed_sequences(head_dim, page_size).tile_request
        for tile, block_q in tiles_that_fit(request, target("sm_90a")):
            if not WGMMA.why_not(replace(request, tile=tile, block_q=block_q), target("sm_90a")):
                found.append((head_dim, page_size, tile, block_q))
    return found


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(("dims", "page_size", "tile", "block_q"), sizes_offered(), ids=str)
def test_no_tile_that_is_offered_spills(
    dims: tuple[int, int], page_size: int, tile: int, block_q: int, assembler: Assembler
) -> None:
    config = packed_sequences(dims, page_size, tile=tile, block_q=block_q)
    assert_no_spill(config, assembler)


def test_what_no_kernel_gathers_is_said() -> None:
    def said(head_dim: int, page_size: int = 24, **how: Any) -> str:
        config = AttentionConfig(head_dim, target="sm_90a", varlen=True, page_size=page_size, dtype="f16")
        return WGMMA.why_not(replace(config.tile_request, **how), target("sm_90a"))

    assert said(128) == said(256, 1) == ""
    assert said(96, tile=64, block_q=192) == ""
    many = "tile=16, block_q=192 with stages=2 does not fit registers"
    assert said(128, tile=16, block_q=192) == many
    assert said(128, 16, tile=16, block_q=192) == ""
    config = AttentionConfig(64, precision="f32_grade", target="sm_90a", varlen=True, page_size=24)
    boxes = "pages have 24 rows, and boxes of tensor copies multiples of 16"
    assert SPLIT.why_not(config.tile_request, target("sm_90a")) == boxes


def test_launches_say_how_rows_are_copied() -> None:
    config = config_of(varlen=True, page_size=8)
    q, pages = np.zeros((5, 2, 16), np.float16), np.zeros((4, 2, 8, 16), np.float16)
    given = {"cu_seqlens_q": np.array([0, 5], np.int32), "block_table": np.zeros((1, 2), np.int32)}
    text = AttentionKernel(config).explain(
        q, pages, pages, seqused_k=np.array([9], np.int32), backend="interpreter", **given
    )
    assert "products: wgmma, with rows of K and V copied from their pages by cp.async\n" in text

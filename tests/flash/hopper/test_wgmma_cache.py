"""The forward kernels for Hopper over a cache: many queries, as in a prefill by parts, or packed heads. Rows
of K and V are one after another, in pages that tensor copies take, or gathered from others. Their own PTX,
run with the sanitizers on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, Array, assert_same_bits, judge_items
from kernel_runs import Kernels, in_pages, nightly

from flash import AttentionConfig, AttentionKernel, DecodeKernel
from flash.decode.plan import CacheCall, kernel_of
from flash.error_bound import PARTS_OF_F32
from flash.families.wgmma import WGMMA, WgmmaTiling
from flash.families.wgmma_split import SPLIT
from ptxgen import ir
from ptxgen.arrays.views import view
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT
from ptxgen.target import target
from ptxgen.text import render

pytestmark = [pytest.mark.grid, pytest.mark.judged]

ROOM = 120  # rows of a sequence, at most
USED = np.array([115, 38], np.int32)
PADDING = np.array([21, 0], np.int32)
INDEX = np.array([3, 0], np.int32)
NO_PAGE = -(10**6)  # of entries of the table after the last key
MLA = (576, 512)


@dataclass
class Call:
    """A call over a cache, in which what is no key is NaN. `keys` are K and V of each item; `arguments` are
    those of the launch, and `cache` the arrays of K and V, or of K alone where V is its columns.
    """

    config: AttentionConfig
    q: Array
    cache: list[Array]
    keys: list[tuple[Array, Array]]
    arguments: dict[str, Any]

    @classmethod
    def of(
        cls,
        config: AttentionConfig,
        page_size: int = 0,
        *,
        padded: bool = False,
        indexed: bool = False,
        splits: int = 1,
        seq_q: int = 70,
        heads: tuple[int, int] = (2, 1),
    ) -> Call:
        rng, kind = np.random.default_rng(0), config.element.numpy
        dims = (config.head_dim,) if config.shared_kv else (config.head_dim, config.value_dim)
        sequences = 5 if indexed else 2
        q = rng.standard_normal((2, heads[0], seq_q, config.head_dim)).astype(kind)
        cache = [rng.standard_normal((sequences, heads[1], ROOM, dim)).astype(kind) for dim in dims]
        arguments: dict[str, Any] = {"seqused_k": USED, "splits": splits, "backend": "interpreter"}
        arguments |= {"leftpad_k": PADDING} if padded else {}
        arguments |= {"cache_batch_idx": INDEX} if indexed else {}
        keys = []
        for b, (used, begin) in enumerate(zip(USED, PADDING * padded, strict=True)):
            rows = [array[INDEX[b] if indexed else b] for array in cache]
            k, v = rows[0][:, begin:used].copy(), rows[-1][:, begin:used, : config.value_dim].copy()
            keys.append((k, v))
            for array in rows:
                array[:, used:] = array[:, :begin] = np.nan
        if page_size:
            columns = -(-ROOM // page_size)
            table = rng.permutation(sequences * columns).reshape(sequences, columns).astype(np.int32)
            cache = [in_pages(array, page_size, table, spare=1) for array in cache]
            needed = np.full((sequences, 1), ROOM)
            needed[INDEX if indexed else [0, 1], 0] = USED
            unused = np.arange(columns) * page_size >= needed
            arguments["block_table"] = np.where(unused, NO_PAGE, table).astype(np.int32)
        return cls(config, q, cache, keys, arguments)

    def launched(self) -> tuple[Array, Array]:
        return DecodeKernel(self.config).launch(self.q, *self.cache, **self.arguments)

    def check(self, kernels: Kernels) -> None:
        """Each item is as accurate as attention to its own keys in float64."""
        out, lse = self.launched()
        assert self.config.kernel().family.entry in kernels.names[0]
        splits = self.arguments["splits"]
        assert ("_splits_" in kernels.names[0]) == (splits > 1)
        assert len(kernels.names) == 1 + (splits > 1)
        judge_items(self.config, self.q, self.keys, out, lse, PARTS_OF_F32 if splits > 1 else 0.0)


def config_of(kind: str = "wgmma f16", dims: tuple[int, ...] = (), **how: Any) -> AttentionConfig:
    return KINDS[kind].config(*dims, **how)


CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("wgmma f16", {"dims": dims, **how})
        for dims in (
            (96, 40),
            (16, 16),
            (72, 128),
        )  # with swizzles of 128, 64 and 128, 64 and 128 bytes; with padding
        for how in (
            {"causal": True, "pack_gqa": True, "dtype": "bf16"},
            {"causal": True, "window": (30, None), "pack_gqa": False},
            *({"softcap": 5.0, "tile": 48, "block_q": 128, "stages": 3}, {}),
        )
    ),
    *(
        ("tcgen05 f16", {"dims": dims, "causal": True, **how})
        for dims, how in (
            ((96, 40), {"pack_gqa": True, "dtype": "bf16"}),
            ((72, 128), {"window": (30, None), "pack_gqa": False, "block_q": 128}),
            ((16, 16), {"softcap": 5.0, "stages": 3}),
        )
    ),
    *(
        ("split", {"dims": (24, 36), "causal": True, **how})
        for how in ({"pack_gqa": True}, {"window": (30, None)})
    ),
]


@pytest.mark.slow
@pytest.mark.sample(3, gate=10)
@pytest.mark.parametrize(("kind", "how"), CASES, ids=str)
@pytest.mark.parametrize("page_size", [0, 1, 16, 3, 24, 48, 100])
@pytest.mark.parametrize(
    "layout", [{}, {"padded": True, "splits": 3}, {"padded": True, "indexed": True}, {"splits": 4}], ids=str
)
def test_an_item_sees_the_keys_of_its_sequence(
    kind: str, how: dict[str, Any], page_size: int, layout: dict[str, Any], kernels: Kernels
) -> None:
    if kind == "split" and (page_size % 16 or "padded" in layout):
        pytest.skip("rows of f32 are copied by tensor copies alone")
    Call.of(config_of(kind, **how), page_size, **layout).check(kernels)


@pytest.mark.slow
@pytest.mark.sample(1, gate=5)
@pytest.mark.parametrize(
    ("kind", "dims", "page_size", "padded"),
    [
        ("latent", (376, 296), 5, True),  # the second half of V lacks columns
        *(
            (kind, *how)
            for kind in ("latent", "latent on sm_100a")
            for how in (
                ((264, 128), 1, False),
                (MLA, 64, True),  # rows of boxes, but for the padding
                *((MLA, size, False) for size in (64, 0, 16, 1, 3, 100)),
            )
        ),
    ],
)
@pytest.mark.parametrize("seq_q", [2, 1])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("heads", [5, nightly(128)])
def test_heads_of_a_latent_cache_are_packed(
    heads: int,
    splits: int,
    seq_q: int,
    kind: str,
    dims: tuple[int, int],
    page_size: int,
    padded: bool,
    kernels: Kernels,
) -> None:
    config = config_of(kind, dims, tile="auto", dtype="bf16", causal=True)
    how: dict[str, Any] = {"padded": padded, "splits": splits, "seq_q": seq_q, "heads": (heads, 1)}
    Call.of(config, page_size, **how).check(kernels)
    assert KINDS[kind].family.entry in kernels.names[0]
    assert "_packed_" in kernels.names[0]


@pytest.mark.slow
@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize("packed", [False, True], ids=["cache", "packed sequences"])
@pytest.mark.parametrize("strides", ["0 between heads", "0 between pages", "below 0 between rows"])
def test_rows_that_are_gathered_may_be_any_strides_apart(
    strides: str, packed: bool, kernels: Kernels
) -> None:
    rng, size, keys, queries = np.random.default_rng(0), 3, 21, 70
    q = rng.standard_normal((2, queries, 16)).astype(np.float16)  # [heads, queries, columns]
    pages = rng.standard_normal((2, 8, 2, size, 16)).astype(np.float16)  # of K and V
    if strides == "0 between heads":
        pages = np.broadcast_to(pages[:, :, :1], pages.shape)
    elif strides == "0 between pages":
        pages = np.broadcast_to(pages[:, :1], pages.shape)
    else:
        pages = pages[:, :, :, ::-1]
    table = rng.permutation(8).astype(np.int32)[None]
    k, v = (x[table[0]].swapaxes(0, 1).reshape(2, 8 * size, 16)[:, :keys] for x in pages)
    config = config_of()
    arguments: dict[str, Any] = {"seqused_k": np.array([keys], np.int32), "block_table": table}
    arguments["backend"] = "interpreter"
    if packed:
        kernel = AttentionKernel(replace(config, varlen=True, page_size=size))
        arguments["cu_seqlens_q"] = np.array([0, queries], np.int32)
        out, lse = kernel.launch(q.swapaxes(0, 1), *pages, **arguments)
        out, lse = out.swapaxes(0, 1)[None], lse[None]
    else:
        out, lse = DecodeKernel(config).launch(q[None], *pages, **arguments)
    judge_items(config, q[None], [(k, v)], out, lse)
    assert "wgmma" in kernels.names[0]


@pytest.mark.nightly
@pytest.mark.parametrize("dims", [(16, 16), (72, 128), (96, 40)], ids=str)
@pytest.mark.parametrize("how", [{"causal": True}, {"pack_gqa": False}], ids=str)
def test_pages_of_a_row_give_the_bits_of_pages_that_tensor_copies_take(
    dims: tuple[int, int], how: dict[str, Any], kernels: Kernels
) -> None:
    one, other = (Call.of(config_of(dims=dims, tile=32, **how), size).launched() for size in (1, 16))
    assert ["_page1_" in name for name in kernels.names] == [True, False]
    assert_same_bits(one, other)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_no_interleaving_of_warps_changes_the_result(seed: int, kernels: Kernels) -> None:
    kernels.options["schedule"] = PCT(seed)
    config = config_of(dims=(96, 40), tile=32, causal=True, pack_gqa=True, stages=2 + seed % 2)
    Call.of(config, 24 if seed % 3 else 1, padded=True).check(kernels)


# ------------------------------------------------------------------------------------------
# new rows


@pytest.mark.slow
def test_many_new_rows_are_there_before_they_are_attended_to(kernels: Kernels) -> None:
    call = Call.of(config_of(causal=True), seq_q=40)
    k, v = call.cache
    k[np.isnan(k)] = v[np.isnan(v)] = 0
    new_k, new_v = np.random.default_rng(5).standard_normal((2, 2, 1, 40, 16)).astype(np.float16)
    used = np.array([60, 40], np.int32)  # the new rows among them
    arguments = {**call.arguments, "seqused_k": used}
    out, lse = DecodeKernel(call.config).launch(call.q, k, v, new_k, new_v, **arguments)
    assert [kernels.names[0].startswith("append"), "wgmma" in kernels.names[1]] == [True, True]
    for b, n in enumerate(used):
        np.testing.assert_array_equal(k[b, :, n - 40 : n], new_k[b])
    judge_items(call.config, call.q, [(k[b, :, :n], v[b, :, :n]) for b, n in enumerate(used)], out, lse)


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [0, 32, 3])
@pytest.mark.parametrize(
    "rotary",
    [{"rotary_dim": 8}, {}, {"rotary_dim": 16, "rotary_interleaved": True, "queries_only": True}],
    ids=str,
)
@pytest.mark.parametrize("how", [{"pack_gqa": True}, {"pack_gqa": False, "window": (40, None)}], ids=str)
@pytest.mark.parametrize("kind", ["wgmma f16", "tcgen05 f16"])
def test_few_new_rows_are_written_by_the_kernel_that_attends(
    kind: str, how: dict[str, Any], rotary: dict[str, Any], page_size: int, splits: int, kernels: Kernels
) -> None:
    rng, heads = np.random.default_rng(3), (2 if how["pack_gqa"] else 1, 1)
    call = Call.of(config_of(kind, causal=True, **how), page_size, splits=splits, seq_q=25, heads=heads)
    arguments, new = dict(call.arguments), []
    if not rotary.get("queries_only"):
        new = list(rng.standard_normal((2, 2, 1, 9, 16)).astype(np.float16))
        arguments["seqused_k"] = USED + (0 if page_size else 5)  # slots of which some hold NaN
    if rotary:
        angles = rng.uniform(0, 6, (ROOM, rotary["rotary_dim"] // 2))
        arguments |= {"rotary_cos": np.cos(angles).astype("f4"), "rotary_sin": np.sin(angles).astype("f4")}
        arguments["rotary_interleaved"] = rotary.get("rotary_interleaved", False)
    results = []
    for name in (call.config.target, "sm_90"):
        cache = [array.copy() for array in call.cache]
        arguments["splits"] = splits if name != "sm_90" else 1
        block_q = call.config.block_q if name != "sm_90" else 64
        config = replace(call.config, target=name, block_q=block_q)
        results.append((cache, DecodeKernel(config).launch(call.q, *cache, *new, **arguments)))
    assert call.config.kernel().family.entry in kernels.names[0]
    assert ("_append_" in kernels.names[0]) == bool(new)
    assert len(kernels.names) == 2 + (splits > 1)
    (caches, result), (other_caches, wanted) = results
    assert_same_bits(tuple(caches), tuple(other_caches))
    for one, other in zip(result, wanted, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=0, atol=4e-3)


# ------------------------------------------------------------------------------------------
# mistakes that must be noticed


def change(was: str, by: str, count: int) -> Any:
    """An edit of a kernel with `wgmma`: of the first `count` matches, or of all if it is 0."""

    def changed(module: ir.Module) -> Any:
        if "wgmma" not in module.kernels[0].name:
            return module
        text, matches = re.subn(was, by, render(module), count=count)
        assert matches
        return text

    return changed


COPY = r"cp\.async\.cg\.shared\.global"
WAIT = r"(mbarrier\.try_wait[^;]*;\s*@!%p\d+ bra [^;]*;\s*)fence\.proxy\.async\.shared::cta;"
MISTAKES: dict[str, Any] = {
    "products do not see the rows of K": change(WAIT, r"\1", 1),
    "one thread too few for a phase": change(r"(mbarrier\.init[^;]*), 128;", r"\1, 127;", 1),
    "no arrival": change(r"cp\.async\.mbarrier\.arrive\.noinc[^;]*;", "", 1),
    "an arrival before the copies": change(r"cp\.async\.(mbarrier\.arrive)\.noinc(\S+) ", r"\1\2 %rd0, ", 0),
    "rows after the end are read": change(r"selp\.u32 (%r\d+), 16, 0, %p\d+;", r"mov.u32 \1, 16;", 0),
    "a row where another is": change(rf"({COPY} \[%r\d+)\+(\d+)\]", r"\1+16+\2]", 1),
    "no swizzle": change(r"xor\.b32 (%r\d+), (%r\d+), %r\d+;", r"mov.b32 \1, \2;", 0),
    "the page of another row": change(r"(shfl\.sync\.idx\.b32 %r\d+, %r\d+), 1,", r"\1, 2,", 1),
}


@pytest.mark.interpreter
@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("mistake", [*MISTAKES, "none"])
def test_mistakes_are_noticed(mistake: str, kernels: Kernels) -> None:
    kernels.edit = MISTAKES.get(mistake)
    noticed = False
    try:
        Call.of(config_of(pack_gqa=False, tile=32), 1).check(kernels)
    except (TrapError, AssertionError):
        noticed = True
    assert noticed == (mistake in MISTAKES)


# ------------------------------------------------------------------------------------------
# the choice, and what is said of it


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


def test_the_table_of_the_choice() -> None:
    config, every = (
        AttentionConfig(64, dtype="f16", target="sm_90a", pack_gqa=False),
        ("seqused_k", "leftpad_k", "cache_batch_idx"),
    )

    def uses_wgmma(call: CacheCall, splits: int = 1) -> bool:
        return isinstance(kernel_of(call, target("sm_90a"), splits).tiling, WgmmaTiling)

    many = call_of(config, every)
    assert uses_wgmma(many)
    assert uses_wgmma(many, splits=2)
    backwards = many.out._replace(strides=(0, 0, -64, 1))
    assert not uses_wgmma(many._replace(out=backwards))
    assert uses_wgmma(many._replace(out=backwards), splits=2)
    assert not uses_wgmma(call_of(config, every, seq_q=8))
    for names, page_size in ((every[:1], 32), (every[:1], 24), (every, 32)):
        assert uses_wgmma(call_of(config, names, page_size=page_size))
    assert not uses_wgmma(many._replace(k=many.k._replace(strides=(0, 0, -64, 1))))
    rows = view(np.zeros((2, 2, 16, 64), np.float16), "rows")
    assert uses_wgmma(many._replace(operands={**many.operands, "k_new": rows, "v_new": rows}))


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
    arguments = {"cu_seqlens_q": np.array([0, 5], np.int32), "block_table": np.zeros((1, 2), np.int32)}
    text = AttentionKernel(config).explain(
        q, pages, pages, seqused_k=np.array([9], np.int32), backend="interpreter", **arguments
    )
    assert "products: wgmma, with rows of K and V copied from their pages by cp.async\n" in text

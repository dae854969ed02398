"""Kernels that append the new rows of their keys, and turn queries, themselves: bit for bit what an
append kernel and one that only attends do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import rounded_normal
from kernel_runs import mostly_nightly, nightly, with_place

from flash import AttentionConfig, DecodeKernel
from flash.arrays import host_array, view
from flash.build import build
from flash.config import KernelConfig
from flash.decode import CacheCall, Joining, Parts, Workspace, kernel_of, steps_of
from flash.features import MAX_NEW_ROWS
from flash.rotary import rotary_tables
from flash.step import Step
from ptxgen import interpreter
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

Array = np.ndarray[Any, Any]

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
KINDS: dict[str, dict[str, Any]] = {
    "f32": {},
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
    "f32_grade": {"precision": "f32_grade"},
    "tf32": {"precision": "tf32"},
}


@dataclass(frozen=True)
class Case:
    """Queries, new rows and a cache, whose unused slots hold NaN. `lengths` count the new rows."""

    kind: str = "f16"
    dims: tuple[int, int] = (40, 37)
    heads: tuple[int, int] = (4, 2)
    seq_q: int = 1
    n: int = 1
    lengths: tuple[int, ...] = (33, 0, 17)
    page_size: int = 0
    rotary_dim: int = 0
    interleaved: bool = False
    padding: tuple[int, ...] | None = None
    index: tuple[int, ...] | None = None
    mask: Array | None = None
    scale: float | None = None
    splits: int = 1
    narrow: bool = False  # a cache of e4m3
    target: str = "sm_80"
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> AttentionConfig:
        small = {"tile": 16} if self.kind in ("f32", "f16") and "tile" not in self.how else {}
        how = {"causal": True, "return_lse": True, **KINDS[self.kind], **small, **self.how}
        return AttentionConfig(*self.dims, **how)

    def call(self) -> CacheCall:
        """As `DecodeKernel.launch` makes it; each time with arrays of its own, full of the same."""
        config, rng, batch = self.config, np.random.default_rng(7), len(self.lengths)
        heads, kv_heads = self.heads
        kind = config.element.numpy
        stored = E4M3 if self.narrow else kind
        sequences = self.index or range(batch)
        count, room = max(sequences) + 1, max(*self.lengths, 1) + 3
        padding = self.padding or (0,) * batch
        operands = {"seqused_k": np.array(self.lengths, np.int32)}
        caches = [np.full((count, kv_heads, room, d), np.nan, stored) for d in self.dims]
        for cache, (b, end) in itertools.product(caches, enumerate(self.lengths)):
            old = np.s_[sequences[b], :, padding[b] : max(end - self.n, padding[b])]
            cache[old] = rounded_normal(rng, cache[old].shape, stored)
        if self.page_size:
            columns = -(-room // self.page_size)
            pages = rng.permutation(count * columns + 2)  # two are of nobody
            table = pages[: count * columns].astype(np.int32).reshape(count, columns)
            operands["block_table"] = table
            caches = [in_pages(cache, self.page_size, table) for cache in caches]
        given: dict[str, tuple[tuple[int, ...], Any]] = {
            "leftpad_k": (self.padding or (), np.int32),
            "cache_batch_idx": (self.index or (), np.int32),
            "k_scale": ((0.5, 0.25)[:kv_heads] if self.narrow else (), np.float32),
            "v_scale": ((2.0, 0.7)[:kv_heads] if self.narrow else (), np.float32),
        }
        operands |= {name: np.array(of, kind) for name, (of, kind) in given.items() if of}
        if config.alibi:
            operands["alibi_slopes"] = rng.random((batch, heads), np.float32)
        if config.sink:
            operands["sink"] = rng.standard_normal(heads, np.float32)
        if self.mask is not None:
            operands["mask"] = self.mask
        q = rounded_normal(rng, (batch, heads, self.seq_q, self.dims[0]), kind)
        out = np.full((*q.shape[:3], self.dims[1]), np.nan, kind)
        lse = np.full(q.shape[:3], np.nan, np.float32)
        # Rows whose heads are side by side, as a projection gives them.
        new = [
            rounded_normal(rng, (batch, self.n, kv_heads, d), kind).swapaxes(1, 2)
            for d in self.dims
        ]
        tables = rotary_tables(room, self.rotary_dim) if self.rotary_dim else ()
        joining = Joining(
            *(view(array, "new") for array in (*new, *tables)),
            **({"interleaved": self.interleaved} if tables else {}),
        )  # fmt: skip
        views = {name: view(array, name) for name, array in operands.items()}
        scale = config.scale if self.scale is None else self.scale
        return CacheCall(
            config, view(q, "q"), *(view(cache, "cache") for cache in caches), view(out, "out"),
            view(lse, "lse"), views, self.page_size, room, scale, joining,
        )  # fmt: skip

    def kernel(self, call: CacheCall) -> KernelConfig:
        return kernel_of(call, target(self.target), self.splits)

    def steps(self, call: CacheCall, kernel: KernelConfig) -> list[Step]:
        """The launches of a call, with room for parts and queries that is full of NaN."""
        shape = (*call.q.shape[:3], self.splits)
        parts = None
        if self.splits > 1:
            outs = np.full((*shape, self.dims[1]), np.nan, np.float32)
            parts = Parts(view(outs, "outs"), view(np.full(shape, np.nan, np.float32), "lses"))
        queries = None
        if kernel.features.appended is None and self.rotary_dim:
            queries = view(np.full_like(host_array(call.q), np.nan), "queries")
        return steps_of(call, kernel, self.splits, Workspace(parts, queries))


def in_pages(array: Array, page_size: int, table: Array) -> Array:
    """[sequences, kv_heads, rows, dim] in pages as `table` says, and two more."""
    shape = (table.size + 2, array.shape[1], page_size, array.shape[3])
    pages = np.full(shape, np.nan, array.dtype)
    for b, n in np.ndindex(*table.shape):
        rows = array[b, :, n * page_size : (n + 1) * page_size]
        pages[table[b, n], :, : rows.shape[1]] = rows
    return pages


def run(step: Step, **how: Any) -> interpreter.Result:
    """The kernel, on the arrays, without the checks of a launch."""
    memory = [host_array(array) for array in step.arrays]
    return interpreter.run(
        step.made.module, grid=step.plan.grid, block=step.plan.block,
        args=[*memory, *step.plan.values[len(memory) :]],
        dynamic_smem=step.plan.dynamic_shared, **how,
    )  # fmt: skip


def written(call: CacheCall) -> list[Array]:
    """All that a call writes: K, V, out and lse."""
    assert call.lse is not None
    return [host_array(array) for array in (call.k, call.v, call.out, call.lse)]


def by_one_launch(case: Case, **how: Any) -> list[Array]:
    """What the kernel that appends writes, under all sanitizers."""
    call = case.call()
    kernel = case.kernel(call)
    assert kernel.features.appended is not None
    steps = case.steps(call, kernel)
    assert len(steps) == (1 if case.splits == 1 else 2)
    for step in steps:
        run(step, sanitize=True, **how)
    return written(call)


def by_two_launches(case: Case) -> list[Array]:
    """What an append kernel and one that attends write."""
    call = case.call()
    kernel = case.kernel(call)
    kernel = replace(kernel, features=replace(kernel.features, appended=None))
    steps = case.steps(call, kernel)
    assert len(steps) == (2 if case.splits == 1 else 3)
    for step in steps:
        run(step)
    return written(call)


def assert_same_bits(got: list[Array], wanted: list[Array]) -> None:
    for n, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert one.tobytes() == other.tobytes(), ("K", "V", "out", "lse")[n]


# ------------------------------------------------------------------------------------------
# what is written

TREE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
# Of the third item the first query and the first new row are padding, of the second all is.
PADDED: dict[str, Any] = {"lengths": (40, 5, 20), "padding": (3, 5, 18)}
GATE: dict[str, Case] = {
    "plain": Case(),
    "turned_in_pages_and_parts": Case(
        "bf16", (64, 80), seq_q=3, n=3, page_size=4, rotary_dim=24, interleaved=True, splits=2,
        lengths=(70, 2, 9), index=(3, 0, 1),
    ),
    "f32_with_padding_and_more_parts_than_tiles": Case(
        "f32", n=3, seq_q=3, page_size=1, rotary_dim=40, splits=5, **PADDED
    ),
    "f32_with_a_window_narrower_than_the_new_rows": Case(
        "f32", (24, 16), n=5, seq_q=2, splits=2, lengths=(38, 3, 17), how={"window": (2, None)},
        rotary_dim=2,
    ),
    "f32_grade": Case("f32_grade", (24, 16), n=2, seq_q=4, page_size=16, rotary_dim=24),
    "e4m3": Case(
        "bf16", (64, 40), n=2, page_size=4, rotary_dim=60, splits=2, narrow=True, target="sm_89"
    ),
    "negative_scale": Case(dims=(16, 16), seq_q=2, n=2, rotary_dim=16, scale=-0.3),
    "mask": Case(
        dims=(32, 24), seq_q=4, n=4, page_size=4, mask=TREE, splits=2, lengths=(34, 4, 18),
        how={"mask": True, "alibi": True, "sink": True, "softcap": 3.0},
    ),
}  # fmt: skip
LAYOUTS = (0, 1, 4, 16)
REST: list[Case] = [
    *(
        Case(
            kind, dims, n=n, seq_q=seq_q, page_size=page_size, splits=splits,
            rotary_dim=rotary_dim, interleaved=interleaved, lengths=(45, 2, 16, 0),
        )
        for kind, dims in (
            *itertools.product(KINDS, [(40, 37), (80, 64)]), ("f16", (96, 96)),
            ("bf16", (256, 256)), ("f32", (128, 96)), ("f16", (37, 3)),
        )
        for n, seq_q, page_size, splits, rotary_dim, interleaved in (
            (1, 1, 0, 1, 24, False), (1, 1, 4, 2, 2, True), (16, 5, 1, 5, dims[0] // 2 * 2, False),
            (2, 16, 16, 99, dims[0] // 2 * 2, True), (3, 3, 4, 3, 0, False),
        )
    ),
    *(
        Case(kind, (32, 40), n=3, seq_q=seq_q, splits=splits, rotary_dim=20, how=how, **items)
        for kind in ("f32", "f16", "f32_grade")
        for seq_q, splits in ((1, 1), (5, 2))
        for how in (
            {"causal": False, "window": (None, 2)}, {"window": (1, 0)},
            {"causal": False, "window": (2, 30)}, {"softcap": 2.0, "alibi": True, "sink": True},
        )
        for items in (PADDED, {"lengths": (1, 60, 2), "index": (4, 0, 2), "page_size": 4})
    ),
    *(
        Case(kind, (40, 16), n=2, seq_q=3, rotary_dim=16, splits=splits, scale=scale)
        for kind in KINDS
        for splits in (1, 2)
        for scale in (-0.3, 0.0)
    ),
    *(
        Case("bf16", (64, 128), n=3, seq_q=4, rotary_dim=64, page_size=page_size, splits=splits,
             narrow=True, target="sm_89", **PADDED)
        for page_size in LAYOUTS
        for splits in (1, 5)
    ),
    *(
        Case(kind, (32, 24), n=3, seq_q=2, rotary_dim=32, splits=splits, lengths=(150, 40, 9),
             how={"stages": stages, "tile": 32})
        for kind in ("f16", "f32_grade")
        for stages in (2, 3, 4)
        for splits in (1, 2)
    ),
    *(
        Case("f32", dims, n=3, seq_q=2, rotary_dim=14, splits=splits, target="sm_75")
        for dims in ((40, 37), (32, 32))
        for splits in (1, 3)
    ),
    *(Case(kind, heads=(2, 2), n=2, rotary_dim=8, target="sm_90") for kind in KINDS),
    *(
        Case(
            kind, n=4, seq_q=4, mask=TREE, splits=splits, rotary_dim=8, how={"mask": True}, **PADDED
        )
        for kind in KINDS
        for splits in (1, 2)
    ),
]  # fmt: skip
NAMED = {**GATE, **{f"nightly_{n}": case for n, case in enumerate(REST)}}


@pytest.mark.parametrize("name", mostly_nightly(NAMED, GATE))
def test_one_launch_writes_what_an_append_kernel_and_attention_write(name: str) -> None:
    case = NAMED[name]
    got = by_one_launch(case)
    assert not np.isnan(got[2].astype(np.float32)).any()  # whatever is in slots without a key
    assert_same_bits(got, by_two_launches(case))


@pytest.mark.parametrize("name", mostly_nightly(NAMED, GATE))
def test_every_access_and_barrier_is_proved(name: str) -> None:
    case = NAMED[name]
    call = case.call()
    for step in case.steps(call, case.kernel(call)):
        assert step.made.proof.complete, step.made.proof.report()
        assert step.made.global_proof.complete, step.made.global_proof.report()


SCHEDULED = ("turned_in_pages_and_parts", "f32_grade", "f32_with_padding_and_more_parts_than_tiles")


@pytest.mark.parametrize(
    ("name", "seeds"), [*((name, 3) for name in SCHEDULED), *(nightly(name, 5) for name in NAMED)]
)
def test_any_schedule_writes_the_same(name: str, seeds: int) -> None:
    case = NAMED[name]
    wanted = by_one_launch(case)
    for seed in range(seeds):
        assert_same_bits(by_one_launch(case, schedule=PCT(seed)), wanted)


@pytest.mark.parametrize(
    "case",
    [
        # Rows in both of two parts, of an item with padding, before the keys that are seen.
        Case("f32", (8, 8), (1, 1), n=5, splits=2, lengths=(18,)),
        Case("f32", (8, 8), (1, 1), n=16, splits=2, lengths=(50,), padding=(30,), page_size=4),
        Case("f32", (8, 8), (1, 1), n=16, splits=3, lengths=(49,), how={"window": (1, None)}),
        Case("bf16", (16, 16), (1, 1), n=2, splits=4, lengths=(65, 2)),
    ],
    ids=["two", "padding", "window", "more_parts_than_tiles"],
)
def test_each_new_row_is_written_by_one_cta(case: Case) -> None:
    """Several that wrote the same would do no harm that shows, but for the time it takes."""
    call = case.call()
    step = case.steps(call, case.kernel(call))[0]
    ctas = step.plan.grid[0]
    writes = []
    before = [np.isnan(host_array(array).astype(np.float32)).all(-1) for array in (call.k, call.v)]
    for number in range(ctas):
        call = case.call()
        step = case.steps(call, case.kernel(call))[0]
        memory = [host_array(array) for array in step.arrays]
        interpreter.run(
            with_place(step.made.module, number, ctas), grid=1, block=step.plan.block,
            args=[*memory, *step.plan.values[len(memory) :]],
            dynamic_smem=step.plan.dynamic_shared,
        )  # fmt: skip
        empty = [np.isnan(array.astype(np.float32)).all(-1) for array in written(call)[:2]]
        writes.append([was & ~is_now for was, is_now in zip(before, empty, strict=True)])
    whole = [np.isnan(array.astype(np.float32)).all(-1) for array in by_two_launches(case)[:2]]
    for was, is_now, *times in zip(before, whole, *writes, strict=True):
        assert (np.sum(times, axis=0) == (was & ~is_now)).all()


# ------------------------------------------------------------------------------------------
# kernels that leave it to a launch before


LEFT: dict[str, Case] = {
    "many_rows": Case(n=MAX_NEW_ROWS + 1, seq_q=2, rotary_dim=24),
    "several_blocks": Case("f32", (24, 16), n=3, seq_q=17, how={"block_q": 32}, rotary_dim=8),
    "slices_of_v": Case("bf16", (64, 264), n=2, rotary_dim=64, page_size=4),
    "a_cta_for_each_head": Case(
        n=2, how={"pack_gqa": False}, rotary_dim=24, interleaved=True, splits=2
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_rows_that_no_cta_has_to_itself_are_appended_before(name: str) -> None:
    case = LEFT[name]
    call = case.call()
    kernel = case.kernel(call)
    assert kernel.features.appended is None
    steps = case.steps(call, kernel)
    assert len(steps) == (2 if case.splits == 1 else 3)
    for step in steps:
        run(step, sanitize=True)
    got, wanted = written(call), case.call()
    DecodeKernel(case.config).prepared(wanted, backend="cpu", splits=1, room=no_room)(0)
    assert_same_bits(got[:2], written(wanted)[:2])
    for one, other in zip(got[2:], written(wanted)[2:], strict=True):
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=2e-2, atol=2e-2
        )


def no_room(count: int) -> Any:
    raise AssertionError(count)


def test_as_many_rows_as_a_kernel_takes_are_its_own() -> None:
    case = Case(n=MAX_NEW_ROWS)
    appended = case.kernel(case.call()).features.appended
    assert appended is not None
    assert (appended.head_dim, appended.head_dim_v, appended.rotary_dim) == (*case.dims, 0)


def test_rows_of_another_type_than_queries_are_appended_before() -> None:
    case = Case("bf16", (64, 64), narrow=True, target="sm_89", splits=2)
    call = case.call()
    assert call.new is not None
    wide = [host_array(array).astype(np.float32) for array in (call.new.k, call.new.v)]
    call = call._replace(new=Joining(*(view(array, "new") for array in wide)))
    kernel = case.kernel(call)
    assert kernel.features.appended is None
    for step in case.steps(call, kernel):
        run(step, sanitize=True)
    assert_same_bits(written(call), by_one_launch(case))


# ------------------------------------------------------------------------------------------
# registers

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ASSEMBLED = [
    (name, kind, head_dim) for name in TARGETS for kind in KINDS for head_dim in (64, 128, 256)
]


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("name", "kind", "head_dim"),
    mostly_nightly(ASSEMBLED, [("sm_80", "f32", 128), ("sm_90", "bf16", 128)]),
)
def test_default_kernels_do_not_spill(
    name: str, kind: str, head_dim: int, assembler: Assembler
) -> None:
    how = {"tile": "auto", "return_lse": False}
    for splits, page_size, seq_q, rotary_dim in (
        (1, 0, 1, 0),
        (4, 16, 1, head_dim),
        (1, 16, 4, 64),
    ):
        case = Case(
            kind, (head_dim, head_dim), (8, 2), seq_q=seq_q, n=seq_q, page_size=page_size,
            rotary_dim=rotary_dim, padding=(1, 0, 0), splits=splits, target=name, how=how,
        )  # fmt: skip
        kernel = case.kernel(case.call())
        assert kernel.features.appended is not None
        usage = assembler.assemble(build(kernel).text, name).kernel(kernel.name)
        spilled = usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes
        assert spilled == 0, (kernel.name, usage)

"""Kernels that append the new rows of their keys, and turn queries, themselves: bit for bit what an
append kernel and one that only attends do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray, on_device
from fake_driver import FakeDriver
from judge import rounded_normal
from kernel_runs import in_pages, mostly_nightly, nightly, with_place
from nan_memory import NanMemory
from refusals import refusal

import flash
from flash import AttentionConfig, DecodeKernel
from flash.cache.attention import DecodeStep
from flash.calls.step import Step
from flash.contract.catalogue import build
from flash.decode.operation import attend_on_cpu
from flash.decode.plan import CacheCall, kernel_of, steps_of
from flash.launch.calls import on_cpu_of
from flash.problem.features import MAX_NEW_ROWS
from flash.problem.kernel_config import KernelConfig
from flash.problem.rotary import rotary_tables
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import ConfigError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

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
            caches = [in_pages(cache, self.page_size, table, 2) for cache in caches]
        arguments: dict[str, tuple[tuple[int, ...], Any]] = {
            "leftpad_k": (self.padding or (), np.int32),
            "cache_batch_idx": (self.index or (), np.int32),
            "k_scale": ((0.5, 0.25)[:kv_heads] if self.narrow else (), np.float32),
            "v_scale": ((2.0, 0.7)[:kv_heads] if self.narrow else (), np.float32),
        }
        operands |= {name: np.array(of, kind) for name, (of, kind) in arguments.items() if of}
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
        new = [rounded_normal(rng, (batch, self.n, kv_heads, d), kind).swapaxes(1, 2) for d in self.dims]
        tables = rotary_tables(room, self.rotary_dim) if self.rotary_dim else ()
        names = "k_new", "v_new", "rotary_cos", "rotary_sin"
        operands |= dict(zip(names, (*new, *tables), strict=False))
        views = {name: view(array, name) for name, array in operands.items()}
        scale = config.scale if self.scale is None else self.scale
        return CacheCall(
            config,
            view(q, "q"),
            *(view(cache, "cache") for cache in caches),
            view(out, "out"),
            {"lse": view(lse, "lse")},
            views,
            self.page_size,
            room,
            scale,
            interleaved=self.interleaved and bool(tables),
        )

    def kernel(self, call: CacheCall) -> KernelConfig:
        return kernel_of(call, target(self.target), self.splits)

    def steps(self, call: CacheCall, kernel: KernelConfig) -> list[Step]:
        """The launches of a call, with memory that is full of NaN. They are proved in a test of their
        own, which takes longer than to run them.
        """
        with pytest.MonkeyPatch.context() as unproved:
            unproved.setattr("flash.decode.plan.proved_build", build)
            return steps_of(call, kernel, self.splits, NanMemory())


def written(call: CacheCall) -> list[Array]:
    """All that a call writes: K, V, out and lse."""
    return [host_array(array) for array in (call.k, call.v, call.out, call.outputs["lse"])]


def by_one_launch(case: Case, **how: Any) -> list[Array]:
    """What the kernel that appends writes, under all sanitizers."""
    call = case.call()
    kernel = case.kernel(call)
    assert kernel.features.appended is not None
    steps = case.steps(call, kernel)
    assert len(steps) == (1 if case.splits == 1 else 2)
    for step in steps:
        step.interpret(sanitize=True, **how)
    return written(call)


def by_two_launches(case: Case) -> list[Array]:
    """What an append kernel and one that attends write."""
    call = case.call()
    kernel = case.kernel(call)
    kernel = replace(kernel, features=replace(kernel.features, appended=None))
    steps = case.steps(call, kernel)
    assert len(steps) == (2 if case.splits == 1 else 3)
    for step in steps:
        step.interpret()
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
        "bf16",
        (64, 80),
        seq_q=3,
        n=3,
        page_size=4,
        rotary_dim=24,
        interleaved=True,
        splits=2,
        lengths=(70, 2, 9),
        index=(3, 0, 1),
    ),
    "f32_with_padding_and_more_parts_than_tiles": Case(
        "f32", n=3, seq_q=3, page_size=1, rotary_dim=40, splits=5, **PADDED
    ),
    "f32_with_a_window_narrower_than_the_new_rows": Case(
        "f32", (24, 16), n=5, seq_q=2, splits=2, lengths=(38, 3, 17), how={"window": (2, None)}, rotary_dim=2
    ),
    "f32_grade": Case("f32_grade", (80, 16), n=2, seq_q=4, page_size=16, rotary_dim=80),
    "e4m3": Case("bf16", (64, 40), n=2, page_size=4, rotary_dim=60, splits=2, narrow=True, target="sm_89"),
    "negative_scale": Case(dims=(16, 16), seq_q=2, n=2, rotary_dim=16, scale=-0.3),
    "mask": Case(
        dims=(32, 24),
        seq_q=4,
        n=4,
        page_size=4,
        mask=TREE,
        splits=2,
        lengths=(34, 4, 18),
        how={"mask": True, "alibi": True, "sink": True, "softcap": 3.0},
    ),
}


def grid(*choices: list[dict[str, Any]], **common: Any) -> list[Case]:
    """A case of each combination of choices, one of each list."""
    return [
        Case(**{key: value for one in (common, *chosen) for key, value in one.items()})
        for chosen in itertools.product(*choices)
    ]


def each(**values: Sequence[Any]) -> list[dict[str, Any]]:
    """Choices of one value each, of arguments that are given several; several arguments go together."""
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def rotated(case: Case) -> Case:
    """The case with its widest rotation where it has -1."""
    return replace(case, rotary_dim=case.dims[0] // 2 * 2) if case.rotary_dim < 0 else case


EVERY_KIND = each(kind=list(KINDS))
OTHERS = each(kind=["f16", "bf16", "f32", "f16"], dims=[(96, 96), (256, 256), (128, 96), (37, 3)])
ONE_OR_MORE = each(splits=(1, 2))
SCORES: list[dict[str, Any]] = [
    *({"causal": False, "window": (None, 2)}, {"window": (1, 0)}, {"causal": False, "window": (2, 30)}),
    {"softcap": 2.0, "alibi": True, "sink": True},
]
REST: list[Case] = [
    *map(
        rotated,
        grid(
            [*({**a, **b} for a in EVERY_KIND for b in each(dims=[(40, 37), (80, 64)])), *OTHERS],
            each(
                n=(1, 1, 16, 2, 3),
                seq_q=(1, 1, 5, 16, 3),
                page_size=(0, 4, 1, 16, 4),
                splits=(1, 2, 5, 99, 3),
                rotary_dim=(24, 2, -1, -1, 0),
                interleaved=(False, True, False, True, False),
            ),
            lengths=(45, 2, 16, 0),
        ),
    ),
    *grid(
        each(kind=("f32", "f16", "f32_grade")),
        each(seq_q=(1, 5), splits=(1, 2)),
        each(how=SCORES),
        [PADDED, {"lengths": (1, 60, 2), "index": (4, 0, 2), "page_size": 4}],
        dims=(32, 40),
        n=3,
        rotary_dim=20,
    ),
    *grid(EVERY_KIND, ONE_OR_MORE, each(scale=(-0.3, 0.0)), dims=(40, 16), n=2, seq_q=3, rotary_dim=16),
    *grid(
        each(page_size=(0, 1, 4, 16)),
        each(splits=(1, 5)),
        kind="bf16",
        dims=(64, 128),
        n=3,
        seq_q=4,
        rotary_dim=64,
        **{"narrow": True, "target": "sm_89", **PADDED},
    ),
    *grid(
        each(kind=("f16", "f32_grade")),
        each(how=[{"stages": stages, "tile": 32} for stages in (2, 3, 4)]),
        ONE_OR_MORE,
        dims=(32, 24),
        n=3,
        seq_q=2,
        rotary_dim=32,
        lengths=(150, 40, 9),
    ),
    *grid(
        each(dims=((40, 37), (32, 32))),
        each(splits=(1, 3)),
        kind="f32",
        n=3,
        seq_q=2,
        rotary_dim=14,
        target="sm_75",
    ),
    *grid(EVERY_KIND, heads=(2, 2), n=2, rotary_dim=8, target="sm_90"),
    *grid(
        EVERY_KIND,
        ONE_OR_MORE,
        **{
            "dims": (24, 16),
            "n": 4,
            "seq_q": 4,
            "mask": TREE,
            "rotary_dim": 8,
            "how": {"mask": True},
            **PADDED,
        },
    ),
]
WORKLOADS = {**GATE, **{f"nightly_{n}": case for n, case in enumerate(REST)}}


@pytest.mark.slow
@pytest.mark.sample(2, gate=8)
@pytest.mark.parametrize("name", mostly_nightly(WORKLOADS, GATE))
def test_one_launch_writes_what_an_append_kernel_and_attention_write(name: str) -> None:
    case = WORKLOADS[name]
    got = by_one_launch(case)
    assert not np.isnan(got[2].astype(np.float32)).any()  # whatever is in slots without a key
    assert_same_bits(got, by_two_launches(case))


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", mostly_nightly(WORKLOADS, GATE))
def test_every_access_and_barrier_is_proved(name: str) -> None:
    case = WORKLOADS[name]
    built = build(case.kernel(case.call()))
    assert built.proof.complete, built.proof.report()
    assert built.global_proof.complete, built.global_proof.report()


SCHEDULED = ("turned_in_pages_and_parts", "f32_grade", "f32_with_padding_and_more_parts_than_tiles")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "seeds"), [*((name, 3) for name in SCHEDULED), *(nightly(name, 5) for name in WORKLOADS)]
)
def test_any_schedule_writes_the_same(name: str, seeds: int) -> None:
    case = WORKLOADS[name]
    wanted = by_one_launch(case)
    for seed in range(seeds):
        assert_same_bits(by_one_launch(case, schedule=PCT(seed)), wanted)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case",
    [
        # Rows in both of two parts, of an item with padding, before the keys that are seen.
        Case("f32", (8, 8), (1, 1), n=5, splits=2, lengths=(18,)),
        Case("f32", (8, 8), (1, 1), n=16, splits=2, lengths=(50,), padding=(30,), page_size=4),
        Case("f32", (8, 8), (1, 1), n=16, splits=3, lengths=(58,), how={"window": (1, None)}),
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
        step.interpret(with_place(step.build.module, number, ctas), grid=1)
        empty = [np.isnan(array.astype(np.float32)).all(-1) for array in written(call)[:2]]
        writes.append([was & ~is_now for was, is_now in zip(before, empty, strict=True)])
    whole = [np.isnan(array.astype(np.float32)).all(-1) for array in by_two_launches(case)[:2]]
    for was, is_now, *times in zip(before, whole, *writes, strict=True):
        assert (np.sum(times, axis=0) == (was & ~is_now)).all()


NONSENSE = np.array([-(2**31), 2**31 - 1, 10**6], np.int32)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["f32", "bf16", nightly("f32_grade")])
@pytest.mark.parametrize("page_size", [0, 4])
def test_whatever_the_numbers_are_nothing_outside_is_accessed(page_size: int, kind: str) -> None:
    """That two items write one row is theirs to avoid: races are not looked for."""
    case = Case(
        kind,
        (24, 16),
        n=16,
        seq_q=2,
        page_size=page_size,
        rotary_dim=24,
        splits=2,
        padding=(1, 0, 2),
        index=(2, 0, 1),
    )
    cos, sin = (view(table, "table") for table in rotary_tables(5, 24))  # of fewer positions
    for turn in range(3):
        call = case.call()
        call = call._replace(operands={**call.operands, "rotary_cos": cos, "rotary_sin": sin})
        for n, name in enumerate(("seqused_k", "leftpad_k", "cache_batch_idx", "block_table")):
            if name in call.operands and (turn or name != "leftpad_k"):
                array = host_array(call.operands[name])
                array[...] = np.resize(np.roll(NONSENSE, turn + n % 3), array.shape)
        for step in case.steps(call, case.kernel(call)):
            step.interpret(sanitize="bounds,sync")


# ------------------------------------------------------------------------------------------
# kernels that leave it to a launch before


LEFT: dict[str, Case] = {
    "many_rows": Case(n=MAX_NEW_ROWS + 1, seq_q=2, rotary_dim=24),
    "several_blocks": Case("f32", (24, 16), n=3, seq_q=17, how={"block_q": 32}, rotary_dim=8),
    "slices_of_v": Case("bf16", (64, 264), n=2, rotary_dim=64, page_size=4),
    "a_cta_for_each_head": Case(n=2, how={"pack_gqa": False}, rotary_dim=24, interleaved=True, splits=2),
}


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", LEFT)
def test_rows_that_no_cta_has_to_itself_are_appended_before(name: str) -> None:
    case = LEFT[name]
    call = case.call()
    kernel = case.kernel(call)
    assert kernel.features.appended is None
    steps = case.steps(call, kernel)
    assert len(steps) == (2 if case.splits == 1 else 3)
    for step in steps:
        step.interpret(sanitize=True)
    got, wanted = written(call), case.call()
    attend_on_cpu(wanted, on_cpu_of(case.config, "cpu"))
    assert_same_bits(got[:2], written(wanted)[:2])
    for one, other in zip(got[2:], written(wanted)[2:], strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=2e-2, atol=2e-2)


def test_as_many_rows_as_a_kernel_takes_are_its_own() -> None:
    case = Case(n=MAX_NEW_ROWS)
    appended = case.kernel(case.call()).features.appended
    assert appended is not None
    assert (appended.head_dim, appended.head_dim_v, appended.rotary_dim) == (*case.dims, 0)


@pytest.mark.slow
def test_rows_of_another_type_than_queries_are_appended_before() -> None:
    case = Case("bf16", (64, 64), narrow=True, target="sm_89", splits=2)
    call = case.call()
    wide = {n: host_array(call.operands[n]).astype(np.float32) for n in ("k_new", "v_new")}
    views = {name: view(array, name) for name, array in wide.items()}
    call = call._replace(operands={**call.operands, **views})
    kernel = case.kernel(call)
    assert kernel.features.appended is None
    for step in case.steps(call, kernel):
        step.interpret(sanitize=True)
    assert_same_bits(written(call), by_one_launch(case))


# ------------------------------------------------------------------------------------------
# registers

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ASSEMBLED = [
    case
    for case in itertools.product(TARGETS, KINDS, (64, 128, 256))
    if case[1:] != ("f32_grade", 256)  # two slices of values, of which none has the rows to itself
]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("name", "kind", "head_dim"), mostly_nightly(ASSEMBLED, [("sm_120", "f32", 128), ("sm_90", "bf16", 128)])
)
def test_default_kernels_do_not_spill(name: str, kind: str, head_dim: int, assembler: Assembler) -> None:
    how = {"tile": "auto", "return_lse": False}
    for splits, page_size, seq_q, rotary_dim in ((1, 0, 1, 0), (4, 16, 1, head_dim), (1, 16, 4, 64)):
        case = Case(
            kind,
            (head_dim, head_dim),
            (8, 2),
            seq_q=seq_q,
            n=seq_q,
            page_size=page_size,
            rotary_dim=rotary_dim,
            padding=(1, 0, 0),
            splits=splits,
            target=name,
            how=how,
        )
        kernel = case.kernel(case.call())
        assert kernel.features.appended is not None
        usage = assembler.assemble(build(kernel).text, name).kernel(kernel.name)
        spilled = usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes
        assert spilled == 0, (kernel.name, usage)


# ------------------------------------------------------------------------------------------
# `DecodeKernel.launch`


def arrays_of(case: Case) -> dict[str, Array]:
    """The arguments of a launch, by name."""
    call = case.call()
    result = {"q": call.q, "k_cache": call.k, "v_cache": call.v, **call.operands}
    result |= {name: result.pop(f"{name}_new") for name in ("k", "v")}
    return {name: host_array(array) for name, array in result.items()}


def launch(kernel: DecodeKernel, arrays: dict[str, Any], **how: Any) -> Any:
    arguments = dict(arrays)
    caches = [arguments.pop(name) for name in ("q", "k_cache", "v_cache", "k", "v")]
    return kernel.launch(*caches, **arguments, **how)


def on_gpu(driver: FakeDriver, config: AttentionConfig) -> DecodeKernel:
    return DecodeKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))


LAUNCHED: dict[str, tuple[Case, tuple[int, int]]] = {
    "its_own": (
        Case("f32", (24, 16), n=3, seq_q=2, page_size=4, rotary_dim=16, interleaved=True, **PADDED),
        (1, 2),
    ),
    "before": (Case("f32", (24, 16), n=17, seq_q=2, rotary_dim=24, lengths=(40, 20, 18)), (2, 3)),
    "not_turned": (Case("f16", (16, 16), n=2, lengths=(20, 1, 5), index=(3, 0, 1)), (1, 2)),
}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LAUNCHED)
def test_every_backend_writes_the_same_rows_and_means_the_same(driver: FakeDriver, name: str) -> None:
    case, launches = LAUNCHED[name]
    config = replace(case.config, target="sm_90")
    how: dict[str, Any] = {"rotary_interleaved": case.interleaved}
    kernel = on_gpu(driver, config)
    wanted = arrays_of(case)
    out, lse = launch(kernel, wanted, **how, backend="cpu")
    for splits, count in zip((1, 2), launches, strict=True):
        here = arrays_of(case)
        got = launch(kernel, here, **how, splits=splits, backend="interpreter")
        there = arrays_of(case)
        placed = {key: on_device(driver, array) for key, array in there.items()}
        driver.launches.clear()
        built = launch(kernel, placed, **how, splits=splits)
        assert len(driver.launches) == count
        for one, other in zip(built, got, strict=True):
            assert driver.fetch(one.pointer, other).tobytes() == other.tobytes()
        for cache in ("k_cache", "v_cache"):
            assert here[cache].tobytes() == wanted[cache].tobytes()
            fetched = driver.fetch(placed[cache].pointer, here[cache])
            assert fetched.tobytes() == wanted[cache].tobytes()
        error = 1e-2 if case.kind == "f16" else 1e-5
        for one, other in zip(got, (out, lse), strict=True):
            np.testing.assert_allclose(
                one.astype(np.float64), other.astype(np.float64), rtol=error, atol=error
            )


@pytest.mark.nightly
def test_each_call_may_bring_other_rows(driver: FakeDriver) -> None:
    """Kernels and plans are kept, and only addresses change; so does what turns rows."""
    case = Case("f32", (8, 8), n=2, rotary_dim=8, lengths=(20, 5))
    kernel = on_gpu(driver, replace(case.config, target="sm_90"))
    rng = np.random.default_rng(3)
    for n, rotary_dim, interleaved in ((2, 8, False), (2, 8, True), (1, 4, True), (2, 8, False)):
        arrays = arrays_of(replace(case, n=n, rotary_dim=rotary_dim))
        for name in ("q", "k", "v"):
            arrays[name] = rng.standard_normal(arrays[name].shape, np.float32)
        placed = {key: on_device(driver, array) for key, array in arrays.items()}
        out, _ = launch(kernel, placed, rotary_interleaved=interleaved)
        wanted, _ = launch(kernel, arrays, rotary_interleaved=interleaved, backend="cpu")
        np.testing.assert_allclose(driver.fetch(out.pointer, wanted), wanted, rtol=0, atol=1e-5)
        for name in ("k_cache", "v_cache"):
            fetched = driver.fetch(placed[name].pointer, arrays[name])
            assert fetched.tobytes() == arrays[name].tobytes()


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_without_a_new_row_a_cache_is_only_read(backend: str) -> None:
    arrays = arrays_of(Case("f32", (8, 8), lengths=(20, 5)))
    arrays["seqused_k"] -= 1  # there is no row behind
    for name in ("k_cache", "v_cache"):
        arrays[name].flags.writeable = False
    kernel = DecodeKernel(Case("f32", (8, 8)).config)
    none = {name: arrays[name][:, :, :0] for name in ("k", "v")}
    index = np.array([1, 1], np.int32)
    out, lse = launch(kernel, {**arrays, **none}, cache_batch_idx=index, backend=backend)
    del arrays["k"], arrays["v"]
    q, k, v = (arrays.pop(name) for name in ("q", "k_cache", "v_cache"))
    wanted = kernel.launch(q, k, v, **arrays, cache_batch_idx=index, backend=backend)
    assert (out.tobytes(), lse.tobytes()) == tuple(array.tobytes() for array in wanted)
    empty = {"q": q[:0], "k_cache": k, "v_cache": v, "k": none["k"][:0], "v": none["v"][:0]}
    nobody = np.zeros(0, np.int32)
    out, _ = launch(kernel, empty, seqused_k=nobody, cache_batch_idx=nobody, backend=backend)
    assert out.shape == (0, 4, 1, 8)


# ------------------------------------------------------------------------------------------
# refusals

FIT = Case("f32", (16, 8), n=2, lengths=(9, 5), rotary_dim=8)  # room for 12 rows
FITTING = arrays_of(FIT)
COS, SIN = FITTING["rotary_cos"], FITTING["rotary_sin"]
K, V, K_CACHE, V_CACHE = (FITTING[name] for name in ("k", "v", "k_cache", "v_cache"))


def shifted(array: Array) -> Array:
    """A copy that begins at an odd address."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    result = room[1:].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def read_only(array: Array) -> Array:
    result = array.view()
    result.flags.writeable = False
    return result


OF_ITS_OWN = "where there are new rows; pass an array of its own"
TABLES_SHAPE = (
    "rotary_cos and rotary_sin must be [positions, rotary_dim / 2], with rotary_dim up to head_dim=16, got"
)
MISPLACED, ODD_K = shifted(COS), shifted(K)
REPEATED = np.lib.stride_tricks.as_strided(K_CACHE, K_CACHE.shape, (0, *K_CACHE.strides[1:]), writeable=True)
PAGES = np.array([[0, 1, 2], [3, 1, 4]], np.int32)
PAGED = {"k_cache": np.zeros((5, 2, 4, 16), np.float32), "v_cache": np.zeros((5, 2, 4, 8), np.float32)}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "v_alone": (
        {"k": None, "rotary_cos": None, "rotary_sin": None},
        "v is given without k; give both, or neither",
    ),
    "k_alone": ({"v": None}, "k is given without v; give both, or neither"),
    "cos_alone": ({"rotary_sin": None}, "rotary_cos is given without rotary_sin; give both, or neither"),
    "sin_alone": ({"rotary_cos": None}, "rotary_sin is given without rotary_cos; give both, or neither"),
    "ranks": (
        {"k": K[0], "v": V[0], "rotary_cos": COS[0], "rotary_sin": SIN[0]},
        "4 problems\n"
        "  k must be [batch, kv_heads, n, head_dim] = [2, 2, n, 16], got [2, 2, 16]\n"
        "  v must be [batch, kv_heads, n, head_dim_v] = [2, 2, n, 8], got [2, 2, 8]\n"
        "  rotary_cos must be [positions, rotary_dim / 2], got [4]\n"
        "  rotary_sin must be [positions, rotary_dim / 2], got [4]",
    ),
    "shapes": (
        {"k": K[:1], "v": V[:, :1]},
        "2 problems\n"
        "  k must be [batch, kv_heads, n, head_dim] = [2, 2, n, 16], got [1, 2, 2, 16]\n"
        "  v must be [batch, kv_heads, n, head_dim_v] = [2, 2, n, 8], got [2, 1, 2, 8]",
    ),
    "types": (
        {"k": K.astype(np.float64), "v": V.astype(np.float16)},
        "2 problems\n"
        "  k must be float32, as the config says, got float64; convert with k.astype('float32')\n"
        "  v must be float32, as the config says, got float16; convert with v.astype('float32')",
    ),
    "columns": (
        {"k": np.repeat(K, 2, axis=3)[..., ::2]},
        "k must be dense in its last dimension (stride 1), got strides [128, 64, 32, 2] for shape "
        "[2, 2, 2, 16]; copy it with k.copy()",
    ),
    "addresses": (
        {"k": ODD_K, "rotary_cos": MISPLACED},
        "2 problems\n"
        f"  k must begin at a multiple of 4 bytes, got address {ODD_K.ctypes.data:#x}; "
        "copy it with k.copy()\n"
        f"  rotary_cos must begin at a multiple of 4 bytes, got address {MISPLACED.ctypes.data:#x}; "
        "copy it with rotary_cos.copy()",
    ),
    "read_only": (
        {"k_cache": read_only(K_CACHE), "v_cache": read_only(V_CACHE)},
        "2 problems\n"
        "  k_cache must be writable where there are new rows, got a read-only array; pass a writable one\n"
        "  v_cache must be writable where there are new rows, got a read-only array; pass a writable one",
    ),
    "repeated": (
        {"k_cache": REPEATED},
        "k_cache must have an element of its own for each index where there are new rows, got "
        "strides [0, 192, 16, 1] for shape [2, 2, 12, 16]; copy it with k_cache.copy()",
    ),
    "rows_of_the_cache": (
        {"k": K_CACHE[:, :, 3:5], "v": V_CACHE[:, :, 3:5]},
        f"2 problems\n  k_cache must not share memory with k {OF_ITS_OWN}\n"
        f"  v_cache must not share memory with v {OF_ITS_OWN}",
    ),
    "rows_of_the_other_cache": (
        {"v": K_CACHE[:, :, :2, :8]},
        f"k_cache must not share memory with v {OF_ITS_OWN}",
    ),
    "one_cache": ({"v_cache": K_CACHE[..., :8]}, f"k_cache must not share memory with v_cache {OF_ITS_OWN}"),
    "no_query": (
        {"q": FITTING["q"][:, :, :0]},
        "q must have a query where there are new rows, got shape [2, 4, 0, 16]",
    ),
    "types_of_tables": (
        {"rotary_cos": COS.astype(np.float64), "rotary_sin": np.repeat(SIN, 2, axis=1)[:, ::2]},
        "2 problems\n"
        "  rotary_cos must be float32, got float64; convert with rotary_cos.astype('float32')\n"
        "  rotary_sin must be dense in its last dimension (stride 1), got strides [8, 2] for shape "
        "[12, 4]; copy it with rotary_sin.copy()",
    ),
    "one_table_is_shorter": (
        {"rotary_sin": SIN[:-1]},
        "rotary_sin must be [positions, rotary_dim / 2] = [12, 4], got [11, 4]",
    ),
    "wide_tables": (
        dict.fromkeys(("rotary_cos", "rotary_sin"), np.ones((12, 9), np.float32)),
        f"{TABLES_SHAPE} [12, 9]",
    ),
    "short_tables": (
        {"rotary_cos": COS[:8], "rotary_sin": SIN[:8]},
        "rotary_cos and rotary_sin must have a row for each of 9 positions, got 8",
    ),
    "one_sequence_twice": (
        {"cache_batch_idx": np.array([1, 1], np.int32)},
        "cache_batch_idx must name a sequence once where there are new rows, got [1, 1]",
    ),
    "one_sequence_for_all": (
        {"cache_batch_idx": np.array([1], np.int32)},
        "cache_batch_idx must name a sequence once where there are new rows, got [1, 1]",
    ),
    "a_page_of_two": (
        {**PAGED, "block_table": PAGES},
        "block_table must name a page that new rows are written to once, got page 1 several times",
    ),
    "a_page_twice": (
        {**PAGED, "block_table": np.array([[2, 1, 2], [3, 0, 4]], np.int32)},
        "block_table must name a page that new rows are written to once, got page 2 several times",
    ),
    "lengths": (
        {"seqused_k": np.zeros(0, np.int32), "leftpad_k": np.zeros(3, np.int32)},
        "2 problems\n"
        "  seqused_k must be [batch] = [2], or of a shape that broadcasts to it, got [0]\n"
        "  leftpad_k must be [batch] = [2], or of a shape that broadcasts to it, got [3]",
    ),
    "type_of_lengths": (
        {"seqused_k": np.array([9, np.nan], np.float32)},
        "seqused_k must be int32, got float32; convert with seqused_k.astype('int32')",
    ),
    "index": (
        {**PAGED, "block_table": PAGES, "cache_batch_idx": np.array([0, 2], np.int32)},
        "cache_batch_idx[1] must be from 0 to 1, got 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_join_are_refused(name: str) -> None:
    how, message = REFUSED[name]
    arguments = {key: array for key, array in {**FITTING, **how}.items() if array is not None}
    kernel = DecodeKernel(FIT.config)
    for backend in ("cpu", "interpreter"):
        assert refusal(kernel.launch, **arguments, backend=backend) == f"DecodeKernel.launch: {message}"


def test_pages_of_a_common_beginning_are_read_by_all() -> None:
    table = np.array([[1, 0, 2], [1, 3, 4]], np.int32)  # new rows are in pages 2, and 3
    arguments = {**FITTING, **PAGED, "block_table": table, "seqused_k": np.array([10, 7], np.int32)}
    DecodeKernel(FIT.config).launch(**arguments, backend="cpu")


def test_the_order_of_columns_is_one_of_two() -> None:
    assert refusal(DecodeKernel(FIT.config).launch, error=ConfigError, **FITTING, rotary_interleaved=1) == (
        "DecodeKernel.launch: rotary_interleaved must be True or False, got 1"
    )  # type: ignore[arg-type]


def test_what_shares_memory_on_a_gpu_is_found_in_every_call(driver: FakeDriver) -> None:
    case = Case("f32", (16, 8), lengths=(9, 5))
    kernel = on_gpu(driver, replace(case.config, target="sm_90"))
    arrays = arrays_of(case)
    placed = {key: on_device(driver, array) for key, array in arrays.items()}
    for _ in range(2):
        launch(kernel, placed)
    of_the_cache = CudaArray(placed["v_cache"].pointer, arrays["k"])
    for _ in range(2):
        driver.calls.clear()
        assert refusal(launch, kernel, {**placed, "k": of_the_cache}) == (
            f"DecodeKernel.launch: v_cache must not share memory with k {OF_ITS_OWN}"
        )
        assert not {"cuMemAlloc", "cuLaunchKernel"} & set(driver.names())


def test_caches_may_lie_between_each_other(driver: FakeDriver) -> None:
    case = Case("f32", (8, 8), lengths=(20, 5))
    kernel = on_gpu(driver, replace(case.config, target="sm_90"))
    arrays = arrays_of(case)
    both = np.stack([arrays["k_cache"], arrays["v_cache"]], axis=3)  # a row of K, then one of V
    together = on_device(driver, both)
    placed: dict[str, Any] = {key: on_device(driver, array) for key, array in arrays.items()}
    for n, name in enumerate(("k_cache", "v_cache")):
        one = both[:, :, :, n]
        begin = one.__array_interface__["data"][0] - both.__array_interface__["data"][0]
        placed[name] = CudaArray(together.pointer + begin, one)
    wanted, _ = launch(kernel, arrays, backend="cpu")
    for _ in range(2):
        out, _ = launch(kernel, placed)
        np.testing.assert_allclose(driver.fetch(out.pointer, wanted), wanted, rtol=0, atol=1e-5)
    there = driver.fetch(together.pointer, both)
    for n, name in enumerate(("k_cache", "v_cache")):
        assert there[:, :, :, n].tobytes() == arrays[name].tobytes()


# ------------------------------------------------------------------------------------------
# caches


def strided(array: Array) -> Array:
    return np.repeat(array, 2, axis=3)[..., ::2]


def turned_around(array: Array) -> Array:
    return np.ascontiguousarray(array[:, ::-1, ::-1])[:, ::-1, ::-1]


Change = Any
AS_GIVEN: Change = np.asarray
ROWS: dict[str, tuple[int, Change, Change]] = {  # of new rows, and of tables
    "few": (2, AS_GIVEN, AS_GIVEN),
    "many": (17, AS_GIVEN, AS_GIVEN),
    "tables_of_f64": (1, AS_GIVEN, lambda table: table.astype(ml_dtypes.bfloat16)),
    "tables_of_f16": (2, AS_GIVEN, lambda table: table.astype(np.float16)),
    "strides": (3, strided, lambda table: np.repeat(table, 2, axis=1)[:, ::2]),
    "backwards": (3, turned_around, lambda table: table[::-1]),
    "odd_addresses": (2, shifted, shifted),
    "read_only": (2, read_only, read_only),
}


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["f32", nightly("e4m3")])
def test_kernels_append_to_a_cache_what_the_host_does(dtype: str, name: str) -> None:
    n, of_rows, of_tables = ROWS[name]
    kind = np.float16 if dtype == "e4m3" else np.float32
    rng = np.random.default_rng(1)
    tables = [of_tables(table) for table in rotary_tables(60, 8)]
    caches = [
        flash.KVCache(1, 3, 2, 16, 60, head_dim_v=8, dtype=dtype, page_size=4, backend=backend)
        for backend in ("cpu", "interpreter")
    ]
    for which in ([2, 0], [0, 1], [0, 2]):
        shapes = ((2, 4, 2, 16), (2, 2, n, 16), (2, 2, n, 8))
        q, k, v = (rounded_normal(rng, shape, kind) for shape in shapes)
        results = []
        for cache in caches:
            step = DecodeStep(
                q,
                cache,
                of_rows(k),
                of_rows(v),
                layer=0,
                cache_batch_idx=which,
                leftpad=[1, 0],
                rotary_cos=tables[0],
                rotary_sin=tables[1],
                return_lse=True,
            )
            step()
            step.launch()  # once more, where the rows are already
            results.append((step.out, step.lse))
        error = 1e-2 if dtype == "e4m3" else 1e-5
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(
                one.astype(np.float64), other.astype(np.float64), rtol=error, atol=error
            )
        for b in range(3):
            for rows in ("keys", "values"):
                one, other = (getattr(cache, rows)(0, b) for cache in caches)
                assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_rows_are_turned_where_there_is_no_query(backend: str) -> None:
    tables = rotary_tables(60, 8)
    cache, other = (flash.KVCache(1, 2, 2, 16, 60, backend=name) for name in (backend, "cpu"))
    rng = np.random.default_rng(1)
    k, v = (rounded_normal(rng, (2, 2, 3, 16)) for _ in range(2))
    q = rounded_normal(rng, (2, 4, 3, 16))
    how: dict[str, Any] = {"layer": 0, "rotary_cos": tables[0], "rotary_sin": tables[1]}
    flash.attention_with_kvcache(read_only(q[:, :, :0]), cache, k, v, **how)
    flash.attention_with_kvcache(q, other, k, v, **how)
    assert cache.keys(0, 1).tobytes() == other.keys(0, 1).tobytes()


def test_odd_addresses_on_a_gpu_are_refused(driver: FakeDriver) -> None:
    cache = flash.KVCache(1, 2, 2, 16, 60, backend="cuda", cuda=CudaBackend(driver))
    q, k = (on_device(driver, np.zeros((2, 2, 1, 16), np.float32)) for _ in range(2))
    tables = [on_device(driver, table) for table in rotary_tables(60, 8)]
    odd = CudaArray(k.pointer + 2, np.zeros((2, 2, 1, 8), np.float32))
    table = CudaArray(tables[0].pointer + 1, np.zeros((50, 8), np.float32))
    assert refusal(
        flash.attention_with_kvcache,
        q,
        cache,
        CudaArray(odd.pointer, np.zeros((2, 2, 1, 16), np.float32)),
        k,
        layer=0,
        rotary_cos=table,
        rotary_sin=tables[1],
    ) == (
        "attention_with_kvcache: 2 problems\n"
        f"  k must begin at a multiple of 4 bytes, got address {odd.pointer:#x}; "
        "copy it with k.copy()\n"
        f"  rotary_cos must begin at a multiple of 4 bytes, got address {table.pointer:#x}; "
        "copy it with rotary_cos.copy()"
    )
    assert not cache.lengths.any()

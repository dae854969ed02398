"""Attention to caches by kernels: as numpy has it, within the arrays, with bits of its own only."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, on_device
from fake_driver import FakeDriver
from judge import assert_items_are_accurate, rounded_normal
from kernel_runs import assert_no_spill, in_pages, mostly_nightly, nightly
from nan_memory import NanMemory
from refusals import refusal

import flash
from flash import AttentionConfig, DecodeKernel
from flash.calls.step import Step
from flash.contract.catalogue import build
from flash.decode.plan import CacheCall, choose_splits, kernel_of, steps_of
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.operands.dtypes import DTYPES
from ptxgen import interpreter
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import BackendError, CacheFullError, ConfigError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]

DIM, DIM_V = 16, 8
EVERY_TYPE = pytest.mark.parametrize("dtype", DTYPES)
EITHER_LAYOUT = pytest.mark.parametrize("page_size", [0, 4], ids=["contiguous", "paged"])
KINDS: dict[str, dict[str, Any]] = {
    "f32": {},
    "f16": {"dtype": "f16"},
    "f16 sm_75": {"dtype": "f16", "target": "sm_75"},
    "bf16": {"dtype": "bf16"},
    "f32_grade": {"precision": "f32_grade"},
}


def config_of(kind: str = "f32", dims: tuple[int, int] = (DIM, DIM_V), **how: Any) -> Any:
    small = {} if kind == "bf16" else {"tile": 16}
    return AttentionConfig(*dims, **{"causal": True, **KINDS[kind], **small, **how})


class Problem:
    """Queries and a cache, whose unused slots hold NaN; keys and values of each item as a list."""

    def __init__(
        self,
        config: AttentionConfig,
        lengths: tuple[int, ...],
        *,
        page_size: int = 0,
        heads: int = 4,
        kv_heads: int = 2,
        seq_q: int = 1,
        padding: tuple[int, ...] | None = None,
        index: tuple[int, ...] | None = None,
        capacity: int | None = None,
        mask: Array | None = None,
    ) -> None:
        rng = np.random.default_rng([len(lengths), heads, seq_q])
        kind = config.element.numpy
        self.config, batch = config, len(lengths)
        self.sequences = index or tuple(range(batch))
        count = max(self.sequences) + 1
        room = capacity or max(max(lengths), 1) + 3
        self.q = rounded_normal(rng, (batch, heads, seq_q, config.head_dim), kind)
        self.rows: list[tuple[Array, Array]] = []
        dims = (config.head_dim, config.value_dim)
        begins = padding or (0,) * batch
        whole = [np.full((count, kv_heads, room, d), np.nan, kind) for d in dims]
        for b, (end, begin) in enumerate(zip(lengths, begins, strict=True)):
            own = [rounded_normal(rng, (kv_heads, end, d), kind) for d in dims]
            for side, array in zip(whole, own, strict=True):
                side[self.sequences[b], :, begin:end] = array[:, begin:]
            self.rows.append((own[0][None, :, begin:], own[1][None, :, begin:]))
        self.operands = {"seqused_k": np.array(lengths, np.int32)}
        if padding:
            self.operands["leftpad_k"] = np.array(padding, np.int32)
        if index:
            self.operands["cache_batch_idx"] = np.array(index, np.int32)
        if page_size:
            columns = -(-room // page_size)
            table = rng.permutation(count * columns).astype(np.int32).reshape(count, columns)
            self.operands["block_table"] = table
            whole = [in_pages(side, page_size, table) for side in whole]
        self.k, self.v = whole
        if config.alibi:
            self.operands["alibi_slopes"] = rng.random((batch, heads), np.float32)
        if mask is not None:
            self.operands["mask"] = mask
        if config.sink:
            self.operands["sink"] = rng.standard_normal(heads, np.float32)

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        return self.q, self.k, self.v

    def call(self) -> CacheCall:
        """The call, as `DecodeKernel.launch` makes it, with room for its results."""
        shape = (*self.q.shape[:3], self.config.value_dim)
        out, lse = np.full(shape, np.nan, self.q.dtype), np.full(shape[:3], np.nan, np.float32)
        views = {name: view(array, name) for name, array in self.operands.items()}
        paged = "block_table" in views
        capacity = self.k.shape[2] * (views["block_table"].shape[1] if paged else 1)
        return CacheCall(
            self.config,
            view(self.q, "q"),
            view(self.k, "k"),
            view(self.v, "v"),
            view(out, "out"),
            {"lse": view(lse, "lse")},
            views,
            self.k.shape[2] if paged else 0,
            capacity,
            self.config.scale,
        )

    def check(self, out: Array, lse: Array) -> None:
        config = self.config
        arithmetic = arithmetic_of_config(config, PARTS_OF_F32)
        features: dict[str, Any] = {
            "causal": config.causal,
            "window": config.window,
            "softcap": config.softcap,
        }
        features |= {name: self.operands[name] for name in ("alibi_slopes", "sink") if name in self.operands}
        masks = None
        if "mask" in self.operands:
            masks = [self.shown(b, k.shape[2]) for b, (k, _) in enumerate(self.rows)]
        assert_items_are_accurate(out, lse, self.q, self.rows, masks=masks, arithmetic=arithmetic, **features)

    def shown(self, b: int, keys: int) -> Array:
        """[1, heads, seq_q, keys]: which of so many keys of an item the mask lets be seen."""
        mask = self.operands["mask"]
        wide = np.broadcast_to(mask, (*self.q.shape[:3], mask.shape[-1]))[b : b + 1]
        shown = np.ones((*wide.shape[:3], keys), np.bool_)
        for key in range(max(keys - mask.shape[-1], 0), keys):
            shown[..., key] = wide[..., key - keys + mask.shape[-1]]
        return shown


def steps(call: CacheCall, splits: int, name: str | None = None) -> list[Step]:
    """The launches of a call, with memory that is full of NaN."""
    name = name or call.config.target or "sm_80"
    return steps_of(call, kernel_of(call, target(name), splits), splits, NanMemory())


def sanitized(call: CacheCall, splits: int, **how: Any) -> tuple[Array, Array]:
    """Run the kernels without the checks of a launch, under all sanitizers: out and lse."""
    for step in steps(call, splits):
        step.interpret(sanitize=True, **how)
    return host_array(call.out), host_array(call.outputs["lse"])


# ------------------------------------------------------------------------------------------
# accuracy

FEATURES: dict[str, dict[str, Any]] = {
    "packed": {"window": (30, None), "sink": True},
    "each": {"causal": False, "window": (20, 3), "softcap": 2.0, "alibi": True, "pack_gqa": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@EVERY_TYPE
@pytest.mark.parametrize("features", FEATURES)
def test_parts_are_merged_to_attention_to_all_keys(features: str, dtype: str, backend: str) -> None:
    config = config_of(dtype, return_lse=True, **FEATURES[features])
    problem = Problem(config, (50, 7, 33), seq_q=2)
    kernel = DecodeKernel(config)
    for splits in (1, 2, 5, 99):
        problem.check(*kernel.launch(*problem.arrays, **problem.operands, splits=splits, backend=backend))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dims"), [("f16", (512, 512)), nightly("f32", (320, 256)), nightly("bf16", (576, 512))], ids=str
)
def test_rows_are_longer_than_those_of_tensor_copies(kind: str, dims: tuple[int, int]) -> None:
    config = config_of(kind, dims, return_lse=True)
    problem = Problem(config, (50, 33), page_size=4)
    kernel = DecodeKernel(config)
    for splits in (1, 3):
        problem.check(
            *kernel.launch(*problem.arrays, **problem.operands, splits=splits, backend="interpreter")
        )


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_infinity_and_nan_reach_the_queries_that_see_them_in_any_part(kind: str) -> None:
    kernel = DecodeKernel(config_of(kind, return_lse=True, window=(20, None)))
    for at in (18, 30, 47):  # before the window, across a tile's masked and whole keys, the last
        problem = Problem(kernel.config, (50, 50), seq_q=2)
        problem.v[0, 0, at, 3], problem.v[1, 1, at, 5] = np.inf, np.nan
        wanted, _ = kernel.launch(*problem.arrays, **problem.operands, backend="cpu")
        for splits in (1, 3):
            out, _ = kernel.launch(*problem.arrays, **problem.operands, splits=splits, backend="interpreter")
            np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(out), np.isinf(wanted))


LENGTHS = (0, 1, 11, 99)
# Precision, rows of a page, heads of Q and of K and V, queries.
GRID = [
    ("f32", 1, 4, 4, 1),
    ("bf16", 4, 4, 1, 3),
    ("f32", 16, 5, 1, 1),
    ("bf16", 0, 5, 1, 16),
    ("f32", 4, 2, 2, 16),
    ("bf16", 1, 5, 1, 1),
]
REST = [
    (kind, page, *heads, seq_q)
    for kind in KINDS
    for page in (0, 1, 4, 16)
    for heads in ((2, 2), (4, 1), (5, 1))
    for seq_q in (1, 3, 16)
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", [*GRID, *map(nightly, REST)], ids=str)
def test_a_decoding_grid(case: tuple[str, int, int, int, int]) -> None:
    kind, page_size, heads, kv_heads, seq_q = case
    config = config_of(kind, return_lse=True)
    problem = Problem(config, LENGTHS, page_size=page_size, heads=heads, kv_heads=kv_heads, seq_q=seq_q)
    for splits in (1, 3):
        out, lse = DecodeKernel(config).launch(
            *problem.arrays, **problem.operands, splits=splits, backend="interpreter"
        )
        problem.check(out, lse)


def test_results_may_be_views_of_any_strides() -> None:
    config = config_of("f16")
    problem = Problem(config, (20, 3), seq_q=3, page_size=4)
    kernel = DecodeKernel(config)
    wanted = kernel.launch(*problem.arrays, **problem.operands, splits=2, backend="interpreter")
    out = np.zeros((2, 3, 4, DIM_V + 1), np.float16)[..., :-1].swapaxes(1, 2)
    rotation = np.ascontiguousarray(problem.q.swapaxes(1, 2)).swapaxes(1, 2)
    got = kernel.launch(
        rotation,
        problem.k[:, ::-1][:, ::-1],
        problem.v,
        **problem.operands,
        splits=2,
        backend="interpreter",
        out=out,
    )
    assert got is out
    np.testing.assert_array_equal(out, wanted)


@EITHER_LAYOUT
def test_bits_do_not_depend_on_the_batch_if_splits_are_fixed(page_size: int) -> None:
    config = config_of("bf16")
    problem = Problem(config, (50, 7, 99), page_size=page_size)
    kernel, (q, k, v) = DecodeKernel(config), problem.arrays
    how: dict[str, Any] = {"splits": 3, "backend": "interpreter"}
    together = kernel.launch(q, k, v, **problem.operands, **how)
    for b in range(3):
        alone = dict(problem.operands, seqused_k=problem.operands["seqused_k"][b : b + 1])
        given_k, given_v = k, v
        if page_size:
            alone["block_table"] = alone["block_table"][b : b + 1]
        else:
            end = alone["seqused_k"][0]
            given_k, given_v = (np.ascontiguousarray(x[b : b + 1, :, :end]) for x in (k, v))
        got = kernel.launch(q[b : b + 1], given_k, given_v, **alone, **how, max_seqlen_k=50 + 50 * (b // 2))
        assert got.tobytes() == together[b : b + 1].tobytes()


def test_there_may_be_no_query() -> None:
    config = config_of(return_lse=True)
    problem = Problem(config, (5, 3))
    for q in (problem.q[:, :, :0], problem.q[:, :0]):
        out, lse = DecodeKernel(config).launch(
            q, problem.k, problem.v, **problem.operands, backend="interpreter"
        )
        assert (out.shape, lse.shape) == ((*q.shape[:3], DIM_V), q.shape[:3])


# ------------------------------------------------------------------------------------------
# masks

# Two guesses of what comes next, and for each of these one of what comes then.
TREE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
# What to attend with: a number of queries, of columns of the mask, and the rest of the config.
MASKED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "fewer_keys_than_queries": (5, 3, {}),
    "as_many": (5, 5, {"causal": False}),
    "over_tiles_and_parts": (3, 37, {"window": (25, None)}),
    "more_than_there_are": (16, 90, {"causal": False, "window": (30, 3), "sink": True}),
    "none": (2, 0, {"causal": False}),
    "of_each_head": (2, 20, {"alibi": True, "softcap": 3.0}),
}


def random_mask(*shape: int) -> Array:
    return np.random.default_rng(shape).random(shape) < 0.6


def check_masked(problem: Problem, splits: tuple[int, ...] = (1, 3)) -> None:
    for n in splits:
        problem.check(*sanitized(problem.call(), n))


TREES = [("f32", 4, True), ("bf16", 0, False), ("f32_grade", 4, True)]


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "page_size", "causal"), mostly_nightly(itertools.product(KINDS, (0, 4), (True, False)), TREES)
)
def test_a_tree_of_guesses_sees_the_past_and_its_own_branch(kind: str, page_size: int, causal: bool) -> None:
    config = config_of(kind, causal=causal, return_lse=True, mask=True)
    # The last of the guesses, or none of them, are in a tile, or a part, of their own.
    lengths = (50, 4, 34, 48, 16)
    check_masked(Problem(config, lengths, seq_q=4, page_size=page_size, mask=TREE))


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["f16", nightly("f32")])
def test_a_tree_of_64_tokens_takes_one_launch_and_one_cta_for_each_head_of_k(kind: str) -> None:
    tree = np.eye(64, dtype=bool)
    for token in range(1, 64):
        tree[token] |= tree[(token - 1) // 2]
    problem = Problem(config_of(kind, return_lse=True, mask=True), (75, 101), seq_q=64, mask=tree)
    assert [step.plan.grid[0] for step in steps(problem.call(), 1)] == [2 * 2]
    check_masked(problem, (1,))


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("kind", ["f32", "f16", *map(nightly, ("bf16", "f32_grade"))])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_speaks_of_the_last_keys_of_each_sequence(name: str, kind: str) -> None:
    seq_q, keys, how = MASKED[name]
    config = config_of(kind, return_lse=True, mask=True, **how)
    lengths, padding = (50, 0, 7, 33), (2, 0, 7, 30)
    mask = random_mask(4, 4, seq_q, keys)
    check_masked(Problem(config, lengths, seq_q=seq_q, padding=padding, mask=mask), (1, 2))


@pytest.mark.slow
@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("heads", [(4, 1), (6, 2), (2, 2), (10, 1)], ids=str)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_each_head_of_a_group_has_its_own_mask_and_the_group_is_packed(
    kind: str, heads: tuple[int, int]
) -> None:
    config = config_of(kind, return_lse=True, mask=True, alibi=True)
    mask = random_mask(2, heads[0], 5, 19)
    problem = Problem(config, (40, 12), heads=heads[0], kv_heads=heads[1], seq_q=5, mask=mask)
    assert kernel_of(problem.call(), target("sm_80"), 1).packed == (heads[0] > heads[1])
    check_masked(problem)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_mask_is_read_where_it_is(kind: str) -> None:
    config = config_of(kind, mask=True, return_lse=True)
    wide = random_mask(2, 4, 3, 40)
    problem = Problem(config, (40, 12), seq_q=3, mask=wide[..., ::2])
    check_masked(problem, (1,))
    rotation = np.ascontiguousarray(wide[:, ::-1, :, ::-2].swapaxes(1, 3)).swapaxes(1, 3)
    for same in (rotation[:, ::-1, :, ::-1][..., 1:], wide[..., 2::2]):
        problem.operands["mask"] = same
        check_masked(problem, (1,))
    broadcast = np.broadcast_to(wide[:1, :1, 1:2, :9], (2, 4, 3, 9))
    for narrow in (broadcast, wide[0, 0, 0], wide[0, :, :1], wide[:, :1, :, :1]):
        problem.operands["mask"] = narrow
        check_masked(problem, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_query_whose_keys_are_all_hidden_gives_zero_and_minus_infinity(kind: str) -> None:
    mask = np.ones((4, 3, 20), bool)
    mask[1, 2] = False
    problem = Problem(config_of(kind, mask=True), (20, 7, 21), seq_q=3, mask=mask)
    for splits in (1, 2):
        out, lse = sanitized(problem.call(), splits)
        blind = np.zeros(lse.shape, bool)
        blind[:2, 1, 2] = True  # of the third sequence the first key is seen
        assert ((lse == -np.inf) == blind).all()
        assert (out[blind] == 0).all()


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["f32", "f16", nightly("f32_grade")])
@pytest.mark.parametrize("how", [{"window": (40, None)}, {"causal": False}], ids=str)
def test_infinity_and_nan_reach_the_queries_that_the_mask_lets_see_them(
    how: dict[str, Any], kind: str
) -> None:
    kernel = DecodeKernel(config_of(kind, mask=True, return_lse=True, **how))
    mask = random_mask(2, 4, 5, 19)
    for at in (18, 33):  # before the columns, in a tile with some, and of some
        problem = Problem(kernel.config, (40, 40), seq_q=5, mask=mask)
        problem.v[0, 0, at, 3], problem.v[1, 1, at, 5] = np.inf, np.nan
        problem.k[1, 0, at] = np.nan
        wanted, _ = kernel.launch(*problem.arrays, **problem.operands, backend="cpu")
        for splits in (1, 3):
            out, _ = sanitized(problem.call(), splits)
            np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(out), np.isinf(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_only_tiles_with_columns_read_the_mask(kind: str) -> None:
    of_tiles = []
    for config, mask in ((config_of(kind, mask=True), np.ones((1, 4), bool)), (config_of(kind), None)):
        counts = []
        for length in (128, 640):
            call = Problem(config, (length,), capacity=640, mask=mask).call()
            (step,) = steps(call, 1)
            memory = [host_array(array) for array in step.arrays]
            counters = interpreter.run(
                step.build.module,
                grid=step.plan.grid,
                block=step.plan.block,
                args=step.plan.on_host(memory),
                dynamic_smem=step.plan.dynamic_shared,
                profile=True,
            ).counters
            counts.append((counters.warp_instructions, counters.global_sectors_read))
        of_tiles.append(np.subtract(counts[1], counts[0]).tolist())
    assert of_tiles[0] == of_tiles[1]


def test_the_contract_says_of_which_keys_a_mask_speaks() -> None:
    call = Problem(config_of(mask=True), (5,), mask=TREE[:1]).call()
    built = build(kernel_of(call, target("sm_80"), 1))
    said = {one["name"]: one["meaning"] for one in built.contract["parameters"]}
    assert said["mask"] == (
        "device address of mask, read: bool [batch, heads, seq_q, last_keys], strides as below; 0 "
        "hides the key, any other byte lets it be seen; the last column is of the last key of each "
        "sequence, keys before those with a column are seen, and columns before the first key are "
        "of none"
    )
    assert said["last_keys"] == (
        "of how many keys, the last ones of a sequence, the mask speaks; 0 to 1073741568"
    )
    assert said["mask_key_stride"] == (
        "elements (of 1 bytes) from one to the next of last_keys in mask; any sign, 0 repeats"
    )


# ------------------------------------------------------------------------------------------
# attention_with_kvcache


def cache_of(dtype: str, page_size: int, backend: str, batch: int = 2, **how: Any) -> Any:
    built = flash.KVCache(
        1,
        batch,
        2,
        DIM,
        140,
        head_dim_v=DIM_V,
        dtype=dtype,
        page_size=page_size or None,
        backend=backend,
        **how,
    )
    if backend != "cuda":
        built.memory.k[...] = np.nan
        built.memory.v[...] = np.nan
    return built


def tokens(count: int, dtype: str, batch: int = 2) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(count)
    q, k, v = (
        rounded_normal(rng, (batch, h, count, d), DTYPES[dtype].numpy)
        for h, d in ((4, DIM), (2, DIM), (2, DIM_V))
    )
    return q, k, v


HOWS: dict[str, dict[str, Any]] = {
    "operands": {"sink": np.float32([1, -1, 0, 2]), "window": (4, None), "softcap": 3.0},
    "some": {"cache_batch_idx": [2, 0, 1]},
    "padding": {"leftpad": [1, 0, 3], "rotary": True},
    "tree": {"mask": np.arange(20).reshape(4, 1, 5) % 3 > 0, "leftpad": [9, 0, 3]},
}


@pytest.mark.slow
@pytest.mark.sample(2, gate=2)
@EITHER_LAYOUT
@pytest.mark.parametrize("name", HOWS)
def test_kernels_and_numpy_mean_the_same(name: str, page_size: int) -> None:
    how = dict(HOWS[name])
    if how.pop("rotary", False):
        how["rotary_cos"], how["rotary_sin"] = flash.problem.rotary.rotary_tables(20, DIM)
    caches = [cache_of("f32", page_size, name, batch=3) for name in ("cpu", "interpreter")]
    for count in (9, 2):
        q, k, v = tokens(count, "f32", batch=3)
        wanted, got = (
            flash.attention_with_kvcache(q, c, k, v, layer=0, return_lse=True, **how) for c in caches
        )
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert caches[0].lengths.tolist() == caches[1].lengths.tolist()


def test_a_cache_on_the_host_is_for_either_backend() -> None:
    q, k, v = tokens(3, "f32")
    one, other = (cache_of("f32", 0, name) for name in ("cpu", "interpreter"))
    wanted = flash.attention_with_kvcache(q, one, k, v, layer=0, backend="interpreter")
    got = flash.attention_with_kvcache(q, other, k, v, layer=0)
    assert got.tobytes() == wanted.tobytes()


def test_what_kernels_do_not_take_is_refused_and_the_cache_is_as_it_was() -> None:
    q, k, v = tokens(3, "f32")
    cache = cache_of("f32", 0, "interpreter")
    cases: list[tuple[Any, Any, str]] = [
        (
            cache_of("e4m3", 0, "interpreter"),
            {},
            "q must be float16 or bfloat16 for a cache of 'e4m3' with backend 'interpreter', got "
            "float32; convert it, or use backend='cpu'",
        ),
        (
            cache,
            {"q": np.repeat(q, 2, axis=3)[..., ::2]},
            "q must be dense in its last dimension (stride 1), got strides [384, 96, 32, 2] for "
            "shape [2, 4, 3, 16]; copy it with q.copy()",
        ),
        (cache, {"splits": 32769}, "splits must be 'auto' or an integer from 1 to 32768, got 32769"),
    ]
    for arguments, how, message in cases:
        assert (
            refusal(
                flash.attention_with_kvcache,
                **{"q": q, "k": k, "v": v, "cache": arguments, "layer": 0, **how},
            )
            == f"attention_with_kvcache: {message}"
        )
        assert not arguments.lengths.any()


# ------------------------------------------------------------------------------------------
# what the arrays hold, schedules, proofs

GARBAGE = {
    "negative": [-1, -(2**31), -7],
    "beyond": [10**6, 2**31 - 1, 41],
    "mixed": [2**31 - 1, -(2**31), 3],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "bf16", "f32_grade"])
@pytest.mark.parametrize("name", GARBAGE)
@EITHER_LAYOUT
def test_nothing_outside_the_arrays_is_accessed_whatever_the_numbers_are(
    page_size: int, name: str, kind: str
) -> None:
    problem = Problem(
        config_of(kind, return_lse=True), (40, 3, 20), page_size=page_size, padding=(1, 0, 2), index=(2, 0, 1)
    )
    for array in (problem.k, problem.v):
        array[...] = 1  # any key may be read, none beyond
    bad = np.array(GARBAGE[name], np.int32)
    problem.operands |= {"leftpad_k": np.roll(bad, 1), "cache_batch_idx": np.roll(bad, 2)}
    if page_size:
        table = problem.operands["block_table"]
        problem.operands["block_table"] = np.resize(bad, table.shape)
    for used in (bad, np.array([40, 3, 20], np.int32)):
        problem.operands["seqused_k"] = used
        out, lse = sanitized(problem.call(), 2)
        assert not np.isnan(out).any()
        assert not np.isnan(lse).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_no_column_outside_a_mask_is_read_whatever_the_numbers_are(kind: str) -> None:
    problem = Problem(
        config_of(kind, return_lse=True, mask=True, causal=False),
        (40, 3, 20),
        padding=(1, 0, 2),
        mask=random_mask(3, 4, 1, 19),
    )
    for array in (problem.k, problem.v):
        array[...] = 1
    for bad in GARBAGE.values():
        numbers = np.array(bad, np.int32)
        problem.operands |= {"seqused_k": numbers, "leftpad_k": np.roll(numbers, 1)}
        out, lse = sanitized(problem.call(), 2)
        assert not np.isnan(out).any()
        assert not np.isnan(lse).any()


def with_everything(kind: str, page_size: int, *, masked: bool = False) -> Problem:
    config = config_of(
        kind, return_lse=True, window=(30, None), sink=True, softcap=9.0, mask=masked, alibi=masked
    )
    return Problem(
        config,
        (40, 3, 20),
        page_size=page_size,
        padding=(1, 0, 2),
        index=(2, 0, 1),
        seq_q=2,
        mask=random_mask(3, 4, 2, 19) if masked else None,
    )


def assert_proved(launches: list[Step]) -> None:
    for step in launches:
        assert step.build.proof.complete, step.build.proof.report()
        assert step.build.global_proof.complete, step.build.global_proof.report()


OR_MASKED = pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])


@pytest.mark.nightly
@pytest.mark.parametrize(("page_size", "padding"), [(1, None), (16, (1, 0))])
def test_many_rows_are_each_looked_up_in_turns(page_size: int, padding: tuple[int, ...] | None) -> None:
    config = config_of(dims=(128, 128), tile=32, block_q=16, return_lse=True)
    problem = Problem(config, (70, 33), page_size=page_size, padding=padding)
    assert kernel_of(problem.call(), target("sm_80"), 1).tiling.threads == 32  # 32 rows of a tile
    assert_proved(steps(problem.call(), 1))
    problem.check(*sanitized(problem.call(), 1))


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("kind", ["f32", "bf16", "f32_grade"])
@pytest.mark.parametrize(("splits", "page_size"), [(1, 0), (3, 4)])
@OR_MASKED
def test_the_sanitizers_find_nothing_under_any_schedule(
    masked: bool, splits: int, page_size: int, kind: str
) -> None:
    problem = with_everything(kind, page_size, masked=masked)
    wanted = [array.tobytes() for array in sanitized(problem.call(), splits)]
    for seed in range(5):
        got = sanitized(problem.call(), splits, schedule=PCT(seed))
        assert [array.tobytes() for array in got] == wanted


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("kind", ["f32", "bf16", "f32_grade", nightly("f16")])
@pytest.mark.parametrize("sizes", [(1, 0), (3, 4), *map(nightly, [(1, 3), (3, 1), (3, 16), (3, 256)])])
@OR_MASKED
def test_every_access_and_barrier_is_proved(masked: bool, sizes: tuple[int, int], kind: str) -> None:
    splits, page_size = sizes
    problem = with_everything(kind, page_size, masked=masked)
    assert_proved(steps(problem.call(), splits))


@pytest.mark.parametrize("kind", ["f32", nightly("bf16"), nightly("f32_grade")])
@pytest.mark.parametrize("causal", [True, False])
@OR_MASKED
def test_every_access_is_proved_where_only_lengths_are_read(masked: bool, causal: bool, kind: str) -> None:
    config = config_of(kind, causal=causal, mask=masked)
    problem = Problem(config, (40, 3), mask=TREE[:1] if masked else None)
    assert_proved(steps(problem.call(), 1))


EVERYTHING: dict[str, Any] = {"window": (30, None), "softcap": 9.0, "alibi": True, "sink": True, "mask": True}
WITH: dict[str, dict[str, Any]] = {
    "nothing": {},
    **{name: {name: how} for name, how in EVERYTHING.items()},
    "mask of a window": {"mask": True, "window": (30, None)},
    "everything": EVERYTHING,
}
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@pytest.mark.sample(0, gate=2)
@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("features", "kind", "head_dim", "name"),
    mostly_nightly(
        itertools.chain(
            itertools.product(WITH, KINDS, (64, 128, 256), TARGETS),
            itertools.product(WITH, ["f16"], (64, 128, 256), ["sm_75"]),
        ),
        [
            *(("nothing", "f16", head_dim, "sm_75") for head_dim in (64, 128)),
            *(("nothing", kind, 128, "sm_80") for kind in KINDS),
            *(("mask of a window", "f32", 128, name) for name in ("sm_80", "sm_120")),
            ("mask of a window", "bf16", 128, "sm_80"),
        ],
    ),
)
def test_default_kernels_do_not_spill(
    features: str, kind: str, head_dim: int, name: str, assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, causal=True, **WITH[features], **KINDS[kind])
    mask = TREE[:1] if config.mask else None
    for splits, page_size, seq_q in ((1, 0, 1), (1, 0, 16), (4, 16, 1), (4, 16, 16)):
        how: dict[str, Any] = {"page_size": page_size, "seq_q": seq_q, "mask": mask}
        problem = Problem(config, (40, 3), heads=8, padding=(1, 0), **how)
        assert_no_spill(kernel_of(problem.call(), target(name), splits), assembler)


# ------------------------------------------------------------------------------------------
# splits


@pytest.mark.parametrize(
    ("blocks", "tiles", "slots", "splits"),
    [
        (1, 1000, 132, 109),  # of at most 128
        (8, 1000, 132, 15),  # 120 of 132 slots: 14 would be 112, less than 0.85 of 128
        (8, 5, 132, 5),  # no more parts than tiles
        (132, 1000, 132, 1),
        (133, 1000, 132, 6),  # 798 in seven waves of 132: more than 0.85
        (10**9, 1000, 132, 1),
        (1, 1000, 10**4, 109),
        (1, 0, 132, 1),
    ],
)
def test_splits_give_nearly_all_slots_work(blocks: int, tiles: int, slots: int, splits: int) -> None:
    assert choose_splits(blocks, tiles, slots) == splits


# ------------------------------------------------------------------------------------------
# on a GPU, which the interpreter plays


Make = Callable[[AttentionConfig], DecodeKernel]


@pytest.fixture
def make(driver: FakeDriver) -> Make:
    backend = CudaBackend(driver)
    return lambda config: DecodeKernel(config, cuda=backend, cache=ModuleCache(None))


def placed(driver: FakeDriver, problem: Problem) -> tuple[list[CudaArray], dict[str, Any]]:
    operands = {name: on_device(driver, array) for name, array in problem.operands.items()}
    return [on_device(driver, array) for array in problem.arrays], operands


def sm_90(dtype: str = "f32", **how: Any) -> AttentionConfig:
    """For the fake device, so that the interpreter runs the same kernel."""
    return config_of(dtype, target="sm_90", **how)


@EITHER_LAYOUT
def test_a_gpu_gives_the_bits_of_the_interpreter_and_keeps_its_workspace(
    driver: FakeDriver, make: Make, page_size: int
) -> None:
    problem = Problem(sm_90("bf16", return_lse=True), (50, 7), page_size=page_size)
    kernel = make(problem.config)
    wanted = kernel.launch(*problem.arrays, **problem.operands, splits=3, backend="interpreter")
    arrays, operands = placed(driver, problem)
    built = []
    for _ in range(2):
        driver.calls.clear()
        out, lse = kernel.launch(*arrays, **operands, splits=3)
        built.append(driver.names().count("cuMemAlloc"))
        for got, want in zip((out, lse), wanted, strict=True):
            assert driver.fetch(got.pointer, want).tobytes() == want.tobytes()
    assert built == [3, 2]  # O, LSE, and once the parts
    early = {"PROGRAMMATIC_STREAM_SERIALIZATION": 1}  # of the merge
    assert [launch.attributes for launch in driver.launches] == [{}, early] * 2
    assert not {"cuMemcpyDtoHAsync", "cuStreamSynchronize"} & set(driver.names())


def test_the_workspace_grows_and_each_stream_has_its_own(driver: FakeDriver, make: Make) -> None:
    problem = Problem(sm_90(), (50, 7))
    kernel = make(problem.config)
    arrays, operands = placed(driver, problem)
    built = []
    for splits, stream in ((2, None), (3, None), (2, None), (2, 1), (2, 1)):
        driver.calls.clear()
        kernel.launch(*arrays, **operands, splits=splits, stream=stream)
        built.append(driver.names().count("cuMemAlloc"))
    assert built == [2, 2, 1, 2, 1]
    assert [launch.stream for launch in driver.launches] == [0] * 6 + [1] * 4


def test_splits_are_chosen_for_the_device_and_the_longest_sequence(driver: FakeDriver, make: Make) -> None:
    problem = Problem(sm_90(), (50, 7), capacity=80)
    arrays, operands = placed(driver, problem)
    result = []
    for longest in (None, 40, 3):
        make(problem.config).launch(*arrays, **operands, max_seqlen_k=longest)
        result.append(driver.launches[-1].values.get("splits", 1))
    assert result == [5, 3, 1]  # as many as there are tiles of 16 keys


def test_work_of_another_stream_is_waited_for(driver: FakeDriver, make: Make) -> None:
    problem = Problem(sm_90(), (50, 7))
    (_, k, v), operands = placed(driver, problem)
    q = on_device(driver, problem.q, stream=1)  # its work comes first anyway
    operands["seqused_k"] = on_device(driver, problem.operands["seqused_k"], stream=2)
    driver.calls.clear()
    make(problem.config).launch(q, k, v, **operands, stream=1, splits=1)
    waits = [int(call.arguments[0]) for call in driver.calls if call.name == "cuStreamSynchronize"]
    assert waits == [2]


def test_a_gpu_refuses_what_is_elsewhere(driver: FakeDriver, make: Make) -> None:
    problem = Problem(sm_90(), (50, 7))
    kernel = make(problem.config)
    (q, k, v), operands = placed(driver, problem)
    driver.calls.clear()
    assert refusal(kernel.launch, q, k, v, **problem.operands) == (
        "DecodeKernel.launch: all arrays must be on one device, got q on cuda:0, k_cache on "
        "cuda:0, v_cache on cuda:0, seqused_k on cpu; move them to that of the cache"
    )
    there = on_device(driver, problem.q, ordinal=1)
    assert refusal(kernel.launch, there, k, v, **operands) == (
        "DecodeKernel.launch: all arrays must be on one device, got q on cuda:1, k_cache on "
        "cuda:0, v_cache on cuda:0, seqused_k on cuda:0; move them to that of the cache"
    )
    dead = CudaArray(4096, problem.q)
    assert refusal(kernel.launch, dead, k, v, **operands) == (
        "DecodeKernel.launch: address 0x1000 of a CudaArray is not on a GPU of this process; pass "
        "an array whose memory is alive"
    )
    assert not {"cuMemAlloc", "cuLaunchKernel"} & set(driver.names())


def test_a_grid_that_cannot_be_is_refused_before_memory_is_taken(driver: FakeDriver, make: Make) -> None:
    config = sm_90(dims=(1, 1), alibi=True, pack_gqa=False)
    heads = 1 << 16
    q = on_device(driver, np.zeros((1, heads, 1, 1), np.float32))
    k = on_device(driver, np.zeros((1, 1, 1, 1), np.float32))
    slopes, used = np.zeros(1, np.float32), np.ones(1, np.int32)
    driver.calls.clear()
    assert refusal(
        make(config).launch,
        q,
        k,
        k,
        seqused_k=on_device(driver, used),
        alibi_slopes=on_device(driver, slopes),
        splits=1 << 15,
    ) == (
        "DecodeKernel.launch: a grid has at most 2147483647 CTAs, this call needs 2147483648; "
        "split the batch, or use fewer splits"
    )
    assert driver.names().count("cuMemAlloc") == 1  # O


def test_a_mask_on_a_gpu_is_read_there_and_may_be_another_in_each_call(
    driver: FakeDriver, make: Make
) -> None:
    mask = random_mask(2, 4, 3, 20)
    problem = Problem(sm_90("bf16", mask=True), (50, 7), seq_q=3, mask=mask)
    kernel = make(problem.config)
    arrays, operands = placed(driver, problem)
    for part in (mask, mask[..., 5:9], mask[:, :1, 1:2], mask):
        problem.operands["mask"] = np.ascontiguousarray(part)
        wanted = kernel.launch(*problem.arrays, **problem.operands, splits=2, backend="interpreter")
        operands["mask"] = on_device(driver, problem.operands["mask"])
        driver.calls.clear()
        out = kernel.launch(*arrays, **operands, splits=2)
        assert driver.fetch(out.pointer, wanted).tobytes() == wanted.tobytes()
        assert not {"cuMemcpyDtoHAsync", "cuStreamSynchronize"} & set(driver.names())


def test_a_tree_is_seen_by_a_cache_on_a_gpu(driver: FakeDriver) -> None:
    there = cache_of("f32", 4, "cuda", cuda=CudaBackend(driver))
    here = cache_of("f32", 4, "cpu")
    q, k, v = tokens(4, "f32")
    for _ in range(2):
        wanted = flash.attention_with_kvcache(q, here, k, v, layer=0, mask=TREE)
        arguments = on_device(driver, q), there, on_device(driver, k), on_device(driver, v)
        assert refusal(flash.attention_with_kvcache, *arguments, layer=0, mask=TREE) == (
            "attention_with_kvcache: mask must be on cuda:0, where the cache is, got cpu; copy it there"
        )
        out = flash.attention_with_kvcache(*arguments, layer=0, mask=on_device(driver, TREE))
        np.testing.assert_allclose(driver.fetch(out.pointer, wanted), wanted, rtol=0, atol=1e-6)


def test_no_query_on_a_gpu_is_where_the_cache_is(driver: FakeDriver, make: Make) -> None:
    problem = Problem(sm_90(), (50, 7))
    (_, k, v), operands = placed(driver, problem)
    none = CudaArray(0, problem.q[:, :, :0])
    out = make(problem.config).launch(none, k, v, **operands)
    assert (out.shape, out.__dlpack_device__()[1]) == ((2, 4, 0, DIM_V), 0)
    cache = cache_of("f32", 0, "cuda", cuda=CudaBackend(driver), device=1)
    out = flash.attention_with_kvcache(none, cache, layer=0)
    assert (out.shape, out.__dlpack_device__()[1]) == ((2, 4, 0, DIM_V), 1)


@pytest.mark.slow
@pytest.mark.sample(2, gate=3)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
@pytest.mark.parametrize("turns", [False, True])
@EITHER_LAYOUT
def test_new_rows_on_a_gpu_are_appended_and_turned_by_a_kernel(
    driver: FakeDriver, page_size: int, turns: bool, dtype: str
) -> None:
    cuda = CudaBackend(driver)
    of_rows = "bf16" if dtype == "e4m3" else dtype
    there, here = (
        cache_of(dtype, page_size, name, batch=3, **how)
        for name, how in (("cuda", {"cuda": cuda}), ("cpu", {}))
    )
    tables = flash.problem.rotary.rotary_tables(20, DIM) if turns else ()
    names = ("rotary_cos", "rotary_sin")
    hows: list[dict[str, Any]] = [
        {},
        {"cache_batch_idx": [2, 0]},
        {"leftpad": [0, 3, 1], "rotary_interleaved": turns},
    ]
    for count, how, launches in zip((17, 1, 2), hows, (2, 1, 1), strict=True):
        q, k, v = tokens(count, of_rows, batch=len(how.get("cache_batch_idx", range(3))))
        at_home = dict(zip(names, tables, strict=False))
        wanted = flash.attention_with_kvcache(q, here, k, v, layer=0, **how, **at_home)
        driver.calls.clear()
        driver.launches.clear()
        new = [on_device(driver, array) for array in (q, k, v)]
        placed_tables = {name: on_device(driver, table) for name, table in at_home.items()}
        out = flash.attention_with_kvcache(new[0], there, *new[1:], layer=0, splits=1, **how, **placed_tables)
        assert len(driver.launches) == launches  # of many rows one appends, one attends
        assert not {"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"} & set(driver.names())
        got = driver.fetch(out.pointer, wanted).astype(np.float64)
        error = 2e-2 if of_rows == "bf16" else 1e-5
        np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=0, atol=error)
    assert there.lengths.tolist() == here.lengths.tolist()
    for b in range(3):
        for rows in ("keys", "values"):
            one, other = (getattr(cache, rows)(0, b) for cache in (there, here))
            assert one.tobytes() == other.tobytes()


def test_rows_of_several_types_are_not_appended_by_a_kernel(driver: FakeDriver) -> None:
    cache = cache_of("e4m3", 0, "cuda", cuda=CudaBackend(driver))
    q, k, _ = (on_device(driver, array) for array in tokens(1, "bf16"))
    v = on_device(driver, tokens(1, "f32")[2])
    assert refusal(flash.attention_with_kvcache, q, cache, k, v, layer=0) == (
        "attention_with_kvcache: k and v on a GPU must be of one type, got bfloat16, float32; convert them"
    )


def test_tables_of_a_gpu_are_f32(driver: FakeDriver) -> None:
    cache = cache_of("bf16", 0, "cuda", cuda=CudaBackend(driver))
    new = [on_device(driver, array) for array in tokens(1, "bf16")]
    tables = {name: on_device(driver, np.ones((9, 8), np.float16)) for name in ("rotary_cos", "rotary_sin")}
    arguments = {"cache": cache, "k": new[1], "v": new[2], "layer": 0}
    assert refusal(flash.attention_with_kvcache, new[0], **arguments, **tables) == (
        "attention_with_kvcache: 2 problems\n"
        "  rotary_cos must be float32, as kernels take it, got float16; convert with "
        "rotary_cos.astype('float32')\n"
        "  rotary_sin must be float32, as kernels take it, got float16; convert with "
        "rotary_sin.astype('float32')"
    )
    assert not cache.lengths.any()


@pytest.mark.slow
def test_splits_go_by_the_longest_sequence_of_the_call(driver: FakeDriver) -> None:
    cache = cache_of("f32", 0, "cuda", cuda=CudaBackend(driver))
    launches = []
    for count, which in ((1, [0]), (99, [0]), (1, [0]), (1, [1])):
        q, k, v = tokens(count, "f32", batch=1)
        driver.launches.clear()
        flash.attention_with_kvcache(on_device(driver, q), cache, k, v, layer=0, cache_batch_idx=which)
        launches.append(len(driver.launches))
    # Rows of the host are appended by a launch of their own; of one tile there are no parts.
    assert launches == [2, 3, 3, 2]


def test_a_call_that_cannot_be_leaves_a_cache_on_a_gpu_as_it_was(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flash.calls.step.MAX_CTAS", 1000)
    cache = cache_of("f32", 0, "cuda", cuda=CudaBackend(driver))
    q, k, v = tokens(1, "f32")
    arguments = {"cache": cache, "k": k, "v": v, "layer": 0}
    tables = {name: on_device(driver, np.ones((9, 8), np.float32)) for name in ("rotary_cos", "rotary_sin")}
    assert refusal(flash.attention_with_kvcache, on_device(driver, q), **arguments, **tables) == (
        "attention_with_kvcache: rotary_cos and rotary_sin are given, but new k and v are rotated only if "
        "they are on the GPU of the cache; copy them there, or rotate q and k before the call"
    )
    assert refusal(flash.attention_with_kvcache, q, **arguments) == (
        "attention_with_kvcache: q must be on cuda:0, where the cache is, got cpu; copy it there"
    )
    slopes = on_device(driver, np.zeros(1, np.float32))
    assert refusal(
        flash.attention_with_kvcache, on_device(driver, q), **arguments, alibi_slopes=slopes, splits=1 << 15
    ) == (
        "attention_with_kvcache: a grid has at most 1000 CTAs, this call needs 131072; "
        "split the batch, or use fewer splits"
    )
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(BackendError):
        flash.attention_with_kvcache(on_device(driver, q), **arguments, sink=slopes)
    assert not cache.lengths.any()


# ------------------------------------------------------------------------------------------
# refusals

CONFIG = config_of()
FIT = Problem(CONFIG, (9, 5))
Q, K, V = FIT.arrays
USED = FIT.operands["seqused_k"]
TABLE = np.zeros((2, 1), np.int32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_array": (
        {"q": 1},
        "q must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got "
        "int; convert with numpy.asarray(q, numpy.float32)",
    ),
    "ranks": (
        {"q": Q[0], "block_table": USED, "seqused_k": None},
        "3 problems\n"
        "  q must be [batch, heads, seq_q, head_dim] = [batch, heads, seq_q, 16], got [4, 1, 16]\n"
        "  block_table must be [sequences, table_columns], got [2]\n"
        "  seqused_k must be given: how many rows of the cache each sequence has",
    ),
    "types": (
        {"q": Q.astype(np.float16), "seqused_k": USED.astype(np.int64)},
        "2 problems\n"
        "  q must be float32, as the config says, got float16; convert with q.astype('float32')\n"
        "  seqused_k must be int32, got int64; convert with seqused_k.astype('int32')",
    ),
    "columns": (
        {"q": np.zeros((2, 4, 1, 15), np.float32)},
        "q must be [batch, heads, seq_q, head_dim] = [batch, heads, seq_q, 16], got [2, 4, 1, 15]",
    ),
    "strides": (
        {"k_cache": np.repeat(K, 2, axis=3)[..., ::2]},
        "k_cache must be dense in its last dimension (stride 1), got strides [768, 384, 32, 2] "
        "for shape [2, 2, 12, 16]; copy it with k_cache.copy()",
    ),
    "shapes": (
        {"v_cache": V[:, :, :5]},
        "v_cache must be [sequences, kv_heads, capacity, head_dim_v] = [2, 2, 12, 8], got [2, 2, 5, 8]",
    ),
    "heads": ({"q": Q[:, :3]}, "the heads of q must be a multiple of those of the cache, got 3 and 2"),
    "no_room": (
        {"k_cache": K[:, :, :0], "v_cache": V[:, :, :0], "seqused_k": 0 * USED},
        "k_cache must have room for a key, got shape [2, 2, 0, 16]",
    ),
    "pages": (
        {
            "k_cache": np.zeros((1, 2, 257, 16), np.float32),
            "v_cache": np.zeros((1, 2, 257, 8), np.float32),
            "block_table": TABLE,
        },
        "a page must have at most 256 rows, got 257",
    ),
    "table": (
        {"block_table": TABLE.astype(np.int64)},
        "block_table must be int32, got int64; convert with block_table.astype('int32')",
    ),
    "empty_table": (
        {"block_table": TABLE[:, :0], "seqused_k": 0 * USED},
        "block_table must have room for a page, got shape [2, 0]",
    ),
    "used_pages": (
        {"block_table": TABLE + np.array([[0], [2]], np.int32), "seqused_k": np.array([4, 5], np.int32)},
        "block_table[1, 0] must be from 0 to 1, a page of k_cache, got 2",
    ),
    "used_pages_of_index": (
        {
            "block_table": TABLE - np.array([[0], [1]], np.int32),
            "cache_batch_idx": np.array([1, 0], np.int32),
        },
        "block_table[1, 0] must be from 0 to 1, a page of k_cache, got -1",
    ),
    "sink": ({"sink": np.zeros(4, np.float32)}, "sink is given, but the config does not say so"),
    "mask": ({"mask": np.ones(3, bool)}, "mask is given, but the config does not say so"),
    "used": ({"seqused_k": np.array([13, 1], np.int32)}, "seqused_k[0] must be from 0 to 12, got 13"),
    "padding": ({"leftpad_k": np.array([-1, 1], np.int32)}, "leftpad_k[0] must be from 0 to 12, got -1"),
    "index": (
        {"cache_batch_idx": np.array([2, 1], np.int32)},
        "cache_batch_idx[0] must be from 0 to 1, got 2",
    ),
    "shape_of_index": (
        {"cache_batch_idx": np.array([0, 1, 1], np.int32)},
        "cache_batch_idx must be [batch] = [2], or of a shape that broadcasts to it, got [3]",
    ),
    "sequences": (
        {"q": Q[:1], "seqused_k": USED[:1]},
        "the cache must have a sequence for each of batch=1, got 2; give cache_batch_idx to say "
        "which are meant",
    ),
    "out": (
        {"out": np.zeros((2, 4, 1, 9), np.float32)},
        "out must have shape [2, 4, 1, 8], got [2, 4, 1, 9]; leave out=None to have it made",
    ),
    "shared": (
        {"out": V.reshape(-1)[:64].reshape(2, 4, 1, 8)},
        "out must not share memory with v_cache; leave out=None, or pass an array of its own",
    ),
    "splits": ({"splits": 0}, "splits must be 'auto' or an integer from 1 to 32768, got 0"),
    "longest": ({"max_seqlen_k": -1}, "max_seqlen_k must be an integer from 0 to 1073741568, got -1"),
    "cuda": (
        {"backend": "cuda"},
        "backend 'cuda' attends to a cache on a GPU, but q is on cpu; make the arrays there, or "
        "use backend='cpu'",
    ),
    "stream": ({"stream": 0}, "stream is for a GPU, but the backend is 'cpu'; leave out the stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused(name: str) -> None:
    how, message = REFUSED[name]
    arguments = {"q": Q, "k_cache": K, "v_cache": V, "seqused_k": USED, **how}
    assert refusal(DecodeKernel(CONFIG).launch, **arguments) == f"DecodeKernel.launch: {message}"


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (None, "mask must be given, because the config says so"),
        (np.ones((1, 3), np.uint8), "mask must be bool, got uint8; convert with mask.astype('bool')"),
        (
            np.ones((2, 1, 2, 3), bool),
            "mask must be [batch, heads, seq_q, last_keys] = [2, 4, 1, 3], or of a shape that "
            "broadcasts to it, got [2, 1, 2, 3]",
        ),
        (np.ones((), bool), "mask must have a dimension of keys, the last m of a sequence, got none"),
        (
            np.broadcast_to(True, (1, 2**30)),
            "mask must be of at most 1073741568 keys, got shape [1, 1073741824]",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_masks_that_do_not_fit_are_refused(mask: Any, message: str, backend: str) -> None:
    kernel = DecodeKernel(config_of(mask=True))
    assert (
        refusal(kernel.launch, Q, K, V, seqused_k=USED, mask=mask, backend=backend)
        == f"DecodeKernel.launch: {message}"
    )


def test_arrays_of_a_gpu_are_not_for_the_host() -> None:
    arguments = [CudaArray(4096, array) for array in (Q, K, V, USED)]
    assert refusal(
        DecodeKernel(CONFIG).launch, *arguments[:3], seqused_k=arguments[3], backend="interpreter"
    ) == (
        "DecodeKernel.launch: backend 'interpreter' computes on the host, but q is on cuda:?; "
        "copy the arrays to the host, or use backend='cuda'"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "f32",
            "config must be an AttentionConfig, got 'f32'; make one with "
            "flash.AttentionConfig(head_dim=64, causal=True)",
        ),
        (
            AttentionConfig(8, causal="top_left", bias="f32", dropout=0.1),
            "config must be one that goes with a cache, got bias, dropout, causal='top_left'; use "
            "AttentionKernel, or leave that out",
        ),
    ],
)
def test_configs_that_do_not_go_with_a_cache_are_refused(config: Any, message: str) -> None:
    assert refusal(DecodeKernel, config, error=ConfigError) == f"DecodeKernel: {message}"


def test_a_full_cache_is_refused_before_anything_runs() -> None:
    cache = cache_of("f32", 0, "interpreter")
    q, k, v = tokens(141, "f32")
    assert refusal(flash.attention_with_kvcache, q, cache, k, v, error=CacheFullError, layer=0) == (
        "attention_with_kvcache: sequence 0 has 0 of 140 tokens in layer 0, which leaves no room "
        "for 141 more; truncate or reset it, or make a cache with a larger capacity"
    )
    assert not cache.lengths.any()

"""What the DSL refuses of tensor memory, and what is noticed of a kernel with a mistake."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dsl.kernels import is_noticed
from dsl.test_blackwell import ROWS, builder, of_pair, of_persistent, paired, persistent, roles
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError, UnsupportedTargetError
from ptxgen.text import render
from ptxgen.types import bf16, f16, f32, u8, u32

SUMS = (
    "tensor_memory.ring: expected matrix 'c' as (128, columns) for sums, in multiples of 8 columns up to "
    "256, or as ((128, columns), f16 or bf16 or 'e4m3' or 'e5m2') for an operand, in multiples of 16 "
    "columns, of fp8 of 32; got "
)


class Parts:
    """A kernel with a ring of copies, rings of sums and of operands, and scale factors."""

    def __init__(self) -> None:
        self.k = k = builder()
        self.storing, self.loading, self.multiplying = roles(k)
        self.memory = memory = k.tensor_memory(512)
        tiles = {
            "a": ((ROWS, 64), f16),
            "b": ((64, 64), f16),
            "other": ((64, 64), bf16),
            "narrow": ((64, 32), f16),
            "wide": ((64, 64), f32),
            "left": ((ROWS, 64), f32),
            "flat": ((64, 64), f16, "none"),
            "bytes": ((ROWS, 64), u8),
            "right": ((64, 64), u8),
            "factors": ((1, 128), u32, "none"),
        }
        self.inputs = k.tma.ring(1, self.loading, self.multiplying, released_by=memory, **tiles)
        self.sums = memory.ring(1, self.multiplying, self.storing, c=(ROWS, 64))
        self.weights = memory.ring(1, self.storing, self.multiplying, written=True, p=((ROWS, 64), f16))
        self.out = k.tma.tile("out", (ROWS, 32), f32)
        self.scales = memory.scales(ROWS, 4), memory.scales(64, 4)
        self.others = memory.scales(ROWS, 4, "mxf4")
        self.wide = memory.scales(ROWS, 4, "mxf8"), memory.scales(64, 4, "mxf8")


ALLOCATIONS: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ({}, (100,), {}, ConfigError, "columns must be one of 32, 64, 128, 256, 512, got 100"),
    ({}, (1024,), {}, ConfigError, "columns must be one of 32, 64, 128, 256, 512, got 1024"),
    ({}, (True,), {}, ConfigError, "columns must be one of 32, 64, 128, 256, 512, got True"),
    ({}, (64,), {"cta_group": 3}, ConfigError, "cta_group must be 1, or 2 for pairs of CTAs, got 3"),
    (
        {},
        (64,),
        {"cta_group": 2},
        ConfigError,
        "cta_group=2 is for clusters of 2 CTAs, but the kernel has 1 in a cluster; build it with cluster=2, "
        "or leave out cta_group",
    ),
    *(
        (
            {"target": name},
            (64,),
            {},
            UnsupportedTargetError,
            f"expected a target with tensor memory, such as sm_100a, sm_103a or sm_110a, got {name}",
        )
        for name in ("sm_90a", "sm_100", "sm_120a")
    ),
]


@pytest.mark.parametrize(("how", "args", "options", "error", "message"), ALLOCATIONS)
def test_refused_allocations(how: Any, args: Any, options: Any, error: Any, message: str) -> None:
    k = builder(**how)
    with refused(error, f"kernel 'blackwell': tensor_memory: {message}"):
        k.tensor_memory(*args, **options)


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a", "sm_110a", "sm_100f"])
def test_targets_with_tensor_memory(target: str) -> None:
    k = builder(target=target)
    k.tensor_memory(64)
    assert render(k.build()).count("tcgen05.dealloc") == 1


def test_memory_is_allocated_once_before_the_roles() -> None:
    k = builder()
    storing, _, _ = roles(k)
    k.tensor_memory(64)
    again = (
        "kernel 'blackwell': tensor_memory: the kernel has called k.tensor_memory before, and has given up "
        "the permit to allocate more (tcgen05.relinquish_alloc_permit); ask for all columns in one call, and "
        "divide them by its rings"
    )
    with refused(ConfigError, again):
        k.tensor_memory(64)
    k = builder()
    storing, _, _ = roles(k)
    inside = "tensor memory is inside 'when'; move it before the block, or after it"
    with k.when(k.thread_id() == 0), refused(ConfigError, inside):
        k.tensor_memory(64)
    with storing:
        pass
    late = "tensor memory must be made before the first role begins, so that all threads see it"
    with refused(ConfigError, late):
        k.tensor_memory(64)


def test_refused_rings_of_tensor_memory() -> None:
    k = builder()
    storing, _, multiplying = roles(k)
    memory = k.tensor_memory(256)
    for given, message in (
        ((64, 64), SUMS + "(64, 64)"),
        ((ROWS, 12), SUMS + "(128, 12)"),
        ((ROWS, 264), SUMS + "(128, 264)"),
        (((ROWS, 64), f32), SUMS + "((128, 64), f32)"),
        (((ROWS, 24), f16), SUMS + "((128, 24), f16)"),
        (64, SUMS + "64"),
    ):
        with refused(ConfigError, message):
            memory.ring(1, multiplying, storing, c=given)
    more = (
        "tensor_memory.ring: it needs 384 columns of tensor memory, but 256 of the 256 that k.tensor_memory "
        "has allocated are left; allocate more, up to 512"
    )
    with refused(ConfigError, more):
        memory.ring(3, multiplying, storing, c=(ROWS, 128))
    word = "tensor_memory.ring: a matrix cannot be called 'index', a word of stages; rename it"
    with refused(ConfigError, word):
        memory.ring(1, multiplying, storing, index=(ROWS, 64))
    none = (
        "tensor_memory.ring: it takes a positive number of stages, two roles, and matrices by name, such as "
        "c=(128, 128); got 0, Role('multiplying', warps 5 to 5), Role('storing', warps 0 to 3) and {'c': "
        "(128, 64)}"
    )
    with refused(ConfigError, none):
        memory.ring(0, multiplying, storing, c=(ROWS, 64))
    other = (
        "tensor_memory.ring: the producer, the consumer and then=… must be roles of this kernel, got "
        "Role('storing', warps 0 to 3)"
    )
    with refused(ConfigError, other):
        memory.ring(1, multiplying, roles(builder())[0], c=(ROWS, 64))
    third = (
        "tensor_memory.ring: then=… must be a third role, which takes stages from role 'storing', got "
        "Role('storing', warps 0 to 3); leave it out where that role releases them"
    )
    with refused(ConfigError, third):
        memory.ring(1, multiplying, storing, then=storing, c=(ROWS, 64))


def test_refused_steps_by_warp() -> None:
    pair = builder(cluster=2).tensor_memory(64, cta_group=2)
    message = (
        "tensor_memory.by_warp: in a pair of CTAs one thread of the even one waits, got cta_group=2; use "
        "tensor_memory.one_thread"
    )
    with refused(ConfigError, message), pair.by_warp():
        pass
    message = "tensor_memory.operand: a must be a tile in shared memory, such as stage.a or stage.a.T, got 3"
    with refused(TypeMismatchError, message):
        pair.operand(3)


def test_roles_take_all_stages_of_a_dealt_ring() -> None:
    k = builder(threads=320)
    storing, multiplying = k.warpgroup_role("storing", warpgroups=2), k.warp_role("multiplying")
    memory = k.tensor_memory(128)
    sums = memory.ring(2, multiplying, storing, dealt=True, c=(ROWS, 64))
    message = (
        "ring 'tensor_ring_1': role 'multiplying' has taken 1 of 2 stages by fill, expected all in turn, "
        "since the ring is made with dealt=True"
    )
    with refused(ConfigError, message), multiplying, memory.by_warp(), sums.fill():
        pass


def test_refused_scale_factors() -> None:
    memory = builder().tensor_memory(32)
    with refused(
        ConfigError,
        "tensor_memory.scales: form must be one of nvf4, mxf4, mxf8, got 'nvf8'; did you mean 'nvf4'?",
    ):
        memory.scales(128, 16, "nvf8")
    with refused(
        ConfigError,
        "tensor_memory.scales: expected a positive number of rows, and factors in multiples of 4, got 128 "
        "and 6",
    ):
        memory.scales(128, 6)
    memory.scales(128, 16)
    with refused(
        ConfigError,
        "tensor_memory.scales: it needs 32 columns of tensor memory, but 16 of the 32 that k.tensor_memory "
        "has allocated are left; allocate more, up to 512",
    ):
        memory.scales(256, 16)


def test_refused_rings_that_commits_release() -> None:
    k = builder(cluster=2)
    _, loading, multiplying = roles(k)
    memory = k.tensor_memory(64, cta_group=2)
    a = ((ROWS, 64), f16)
    with refused(
        TypeMismatchError,
        "ring: released_by must be the tensor memory of this kernel, k.tensor_memory(...), got 7",
    ):
        k.tma.ring(1, loading, multiplying, released_by=7, a=a)  # type: ignore[arg-type]
    with refused(
        ConfigError,
        "ring: released_by=… is for products of one thread, which take stages in order; leave out multicast, "
        "overlapped and dealt",
    ):
        k.tma.ring(2, loading, multiplying, released_by=memory, overlapped=True, a=a)
    with refused(
        ConfigError,
        "ring: of a pair of CTAs, released_by=… is for stages that copies of tensors fill; leave out "
        "written, reworked, gathered and stored",
    ):
        k.tma.ring(2, loading, multiplying, released_by=memory, written=True, a=a)


def test_refused_products() -> None:
    of = Parts()
    k = of.k
    outside = (
        "accumulator.mma is for the one thread that commits products, but comes outside of its code; move it "
        "into 'with ring.drain() as stage:' of a ring that is released_by this memory, or into 'with "
        "memory.one_thread():'"
    )
    first = "accumulator.mma: "
    shapes = (
        "expected 128 x K and K x 64 in each CTA, for sums of 128 x 64; a tile whose rows are columns of the "
        "product is transposed by .T"
    )
    types = "expected two matrices of f16, two of bf16, two of f32, or two of e4m3 or e5m2 by as_fp8"
    with of.multiplying, of.sums.fill() as result:
        with refused(TypeMismatchError, outside):
            result.c.mma(of.inputs.tile("a"), of.inputs.tile("b"))
        with of.inputs.drain() as stage:
            for a, b, how, error, message in (
                (
                    stage.a,
                    5,
                    {},
                    TypeMismatchError,
                    "b must be a tile in shared memory, such as stage.b or stage.b.T, got 5",
                ),
                (
                    stage.a,
                    stage.b,
                    {"use": 1},
                    TypeMismatchError,
                    "use must be True, False or a predicate, got 1",
                ),
                (
                    stage.a,
                    stage.other,
                    {},
                    TypeMismatchError,
                    f"a (128 x 64 f16) times other (64 x 64 bf16): {types}",
                ),
                (
                    stage.bytes,
                    stage.right,
                    {},
                    TypeMismatchError,
                    f"bytes (128 x 64 u8) times right (64 x 64 u8): {types}",
                ),
                (stage.b, stage.b, {}, ConfigError, f"b (64 x 64 f16) times b (64 x 64 f16): {shapes}"),
                (
                    stage.a,
                    stage.narrow,
                    {},
                    ConfigError,
                    f"a (128 x 64 f16) times narrow (64 x 32 f16): {shapes}",
                ),
                (
                    stage.a,
                    stage.narrow.T,
                    {},
                    ConfigError,
                    f"a (128 x 64 f16) times narrow.T (32 x 64 f16): {shapes}",
                ),
                (
                    stage.a,
                    stage.flat,
                    {},
                    ConfigError,
                    "a (128 x 64 f16) times flat (64 x 64 f16): tile 'flat' has no swizzle, expected rows of "
                    "a multiple of 32 bytes, or swizzle='128B'",
                ),
                (
                    stage.left,
                    stage.wide,
                    {},
                    ConfigError,
                    "left (128 x 64 f32) times wide (64 x 64 f32): of f32 and e2m1, expected the rows of a "
                    "and the columns of b as rows in memory, as in mma(a, b.T)",
                ),
                (
                    stage.a,
                    stage.b,
                    {"scales": of.scales},
                    TypeMismatchError,
                    "a (128 x 64 f16) times b (64 x 64 f16): for these scales, expected two tiles of u8 with "
                    "two e2m1 in each byte",
                ),
                (
                    stage.bytes,
                    stage.right.T,
                    {"scales": of.wide},
                    TypeMismatchError,
                    "bytes (128 x 64 u8) times right.T (64 x 64 u8): for these scales, expected two "
                    "matrices of e4m3 or e5m2, tiles by as_fp8",
                ),
                (
                    stage.bytes,
                    stage.right.T,
                    {"scales": of.scales},
                    ConfigError,
                    "expected scale factors of a for 128 rows, 8 or more for each, got Scales('nvf4', 128 "
                    "rows, 4 factors)",
                ),
                (
                    stage.bytes,
                    stage.right.T,
                    {"scales": (of.scales[0], of.others)},
                    ConfigError,
                    "scales must have one format, got nvf4 and mxf4",
                ),
                (
                    stage.bytes,
                    stage.right.T,
                    {"scales": of.others},
                    TypeMismatchError,
                    "scales must be a pair of the scale factors of a and of b, got Scales('mxf4', 128 rows, "
                    "4 factors)",
                ),
            ):
                with refused(error, first + message):
                    result.c.mma(a, b, **how)
            with refused(
                ConfigError,
                "scales.copy: expected a tile of 1 x 128 u32 without a swizzle for Scales('nvf4', 128 rows, "
                "4 factors), such as ((1, 128), u32, 'none') of a ring, got BoxTile('a', (128, 64), f16, "
                "swizzle 128B)",
            ):
                of.scales[0].copy(stage.a)
            threads = (
                "accumulator.load: expected a stage that threads load and store, but in this fill of ring "
                "'tensor_ring_1' products use it; the other role of the ring loads and stores"
            )
            with refused(TypeMismatchError, threads):
                result.c.load(0, 32)
        with (
            refused(
                TypeMismatchError,
                "tile 'a' of ring 'ring_1' is used after its drain, when another role may have it; move the "
                "use into 'with ring.drain() as stage:'",
            ),
            of.memory.one_thread(),
        ):
            result.c.mma(stage.a, stage.b)
    assert k.block_depth == 0


def test_refused_uses_by_threads() -> None:
    of = Parts()
    k = of.k
    columns = (
        "expected a first column, an int or a u32 value, and a count of columns, of the 64 of matrix "
        "'c', got "
    )
    products = (
        "accumulator.mma: expected a stage that products use, but in this drain of ring 'tensor_ring_1' "
        "threads load and store it; the other role of the ring starts products"
    )
    with of.storing:
        with of.sums.drain() as result:
            with refused(ConfigError, f"accumulator.load: {columns}first 48 and count 32"):
                result.c.load(48, 32)
            with refused(ConfigError, f"accumulator.store: {columns}first 64 and count 1"):
                result.c.store([k.mov(0.0, type=f32)], 64)
            with refused(TypeMismatchError, "accumulator.store: expected f32 values, got 1.0"):
                result.c.store([1.0])
            tile = "expected a tile of 128 x 64 elements of f16, bf16 or f32, got "
            out = "BoxTile('out', (128, 32), f32, swizzle 128B)"
            with refused(ConfigError, f"accumulator.write: {tile}{out}"):
                result.c.write(of.out)
            some = (
                "accumulator.load inside 'when': all threads of the role 'storing' must come here; move it "
                "out, or promise that they agree with k.when(condition, uniform=True)"
            )
            with k.when(of.storing.thread < 5), refused(TypeMismatchError, some):
                result.c.load(0, 32)
            with of.memory.one_thread(), refused(TypeMismatchError, products):
                result.c.mma(of.inputs.tile("a"), of.inputs.tile("b"))
        used = (
            "matrix 'c' of ring 'tensor_ring_1' is used after its drain, when another role may have it; move "
            "the use into 'with ring.drain() as stage:'"
        )
        with refused(TypeMismatchError, used):
            result.c.load(0, 32)
        even = (
            "operand.store: expected a first column and a number of values in multiples of 2, among the 64 "
            "columns of matrix 'p', got first 1 and 1 values"
        )
        with of.weights.write() as stage, refused(ConfigError, even):
            stage.p.store([k.mov(0.0, type=f32)], 1)
        of_words = even.replace("store:", "store_pairs:").replace("1 values", "4 values")
        word = k.mov(0, type=u32)
        with of.weights.write() as stage, refused(ConfigError, of_words):
            stage.p.store_pairs([word] * 2, 1)
        pairs = (
            "operand.store_pairs: expected values of f16x2 or bf16x2 for matrix 'p' of f16, two elements in "
            f"each, got {word!r}"
        )
        with of.weights.write() as stage, refused(TypeMismatchError, pairs):
            stage.p.store_pairs([word])
        fill = "ring 'tensor_ring_2': fill is for rings made without written=True; use write"
        with refused(ConfigError, fill), of.weights.fill():
            pass
    with of.multiplying:
        write = "ring 'tensor_ring_1': write is for rings made with written=True; use fill"
        with refused(ConfigError, write), of.sums.write():
            pass
        acquire = (
            "ring 'ring_1': acquire, peek and look are for rings whose stages threads release; one thread "
            "drains this one, which is released_by tensor memory: 'with ring.drain() as stage:'"
        )
        with refused(ConfigError, acquire):
            of.inputs.acquire()


def test_loads_are_for_whole_warpgroups() -> None:
    k = builder()
    few, multiplying = k.warp_role("few", warps=2), k.warp_role("multiplying")
    sums = k.tensor_memory(64).ring(1, multiplying, few, c=(ROWS, 64))
    message = (
        "accumulator.load: it is for whole warpgroups of 4 warps, each of which reaches 32 of the 128 rows, "
        "but role 'few' has 2 warps, from warp 0 on; use k.warpgroup_role"
    )
    with few, sums.drain() as result, refused(ConfigError, message):
        result.c.load(0, 32)
    outside = "tensor_memory.one_thread is for the code of a role, 'with role:'"
    k = builder()
    memory = k.tensor_memory(64)
    with refused(TypeMismatchError, outside), memory.one_thread():
        pass


# ---------------------------------------- mistakes in the text


def without(k: KernelBuilder, pattern: str, nth: int = 0, lines: int = 1) -> str:
    """The text of a kernel without some lines from the nth one on that has a match."""
    text = render(k.build()).split("\n")
    found = [n for n, line in enumerate(text) if re.search(pattern, line)]
    return "\n".join(text[: found[nth]] + text[found[nth] + lines :])


@pytest.mark.parametrize(
    ("pattern", "nth", "lines"),
    [
        ("try_wait", 0, 2),  # of the producer for a free stage
        ("try_wait", 2, 2),  # of products for copies
        ("try_wait", 3, 2),  # of threads for sums
        ("tcgen05.commit", 0, 1),
        ("tcgen05.commit", 1, 1),
        ("@%p[0-9]+ mbarrier.arrive", 0, 1),
        ("tcgen05.dealloc", 0, 1),
    ],
)
def test_mistakes_are_noticed(pattern: str, nth: int, lines: int) -> None:
    a, b, c, _ = of_persistent()
    k = persistent()
    assert is_noticed(k, without(k, pattern, nth, lines), a, b, c, 5, 3, grid=2)


@pytest.mark.parametrize("pattern", ["expect_tx", "tcgen05.commit", "mbarrier.arrive.release.cluster"])
def test_mistakes_in_pairs_are_noticed(pattern: str) -> None:
    a, b, c = of_pair()
    k = paired()
    assert is_noticed(k, without(k, pattern), a, b, c, 3, grid=2)

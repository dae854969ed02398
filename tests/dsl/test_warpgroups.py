"""What the warpgroups of a role do by themselves, and roles within a role, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dsl.kernels import SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.check.prove import PROVED, prove_shared
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, PtxGenError, TypeMismatchError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.tensormap import TensorMap
from ptxgen.text import render
from ptxgen.types import f16, f32, u32

WARPGROUP = 128


def proof_of(k: KernelBuilder, **params: Any) -> Any:
    """The proof of a kernel that the assembler takes, too."""
    module = k.build()
    find_assembler(target="sm_90a").assemble(render(module), "sm_90a")
    return prove_shared(module, block=k.threads, params=params or None)


# ------------------------------------------------------------------------ barriers of warpgroups


def reversed_words(warpgroups: int, before: int, rounds: tuple[int, ...]) -> KernelBuilder:
    """Each warpgroup of a role adds the words of its threads to Y in reversed order, as often as `rounds`
    says of it, after `before` other warpgroups; its leading thread counts them in COUNT.
    """
    k = KernelBuilder("reversed_words", target="sm_90a", threads=(before + warpgroups) * WARPGROUP)
    Y, COUNT = k.pointer("Y", u32), k.pointer("COUNT", u32)
    idle = k.warpgroup_role("idle", warpgroups=before) if before else None
    role = k.warpgroup_role("role", warpgroups=warpgroups)
    words = k.shared("words", (1, warpgroups * WARPGROUP), u32)
    if idle is not None:
        with idle:
            pass
    with role:
        leads, barrier = role.warpgroup_leads, role.warpgroup_barrier
        thread, total = role.thread % WARPGROUP, k.var(u32, 0)
        first = role.thread - thread
        for group, times in enumerate(rounds):
            with k.when(first == group * WARPGROUP), k.loop(0, times, type=u32) as i:
                words[0, role.thread] = thread + i
                barrier.sync()
                total.set(total + words[0, first + (WARPGROUP - 1 - thread)])
                barrier.sync()
        role.barrier.sync()  # has another number
        Y[role.thread] = total
        with k.when(leads):
            k.atom(COUNT.element(first >> 7), k.mov(1, type=u32), space="global", op="add", type=u32)
    return k


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("warpgroups", "before", "rounds"), [(2, 1, (2, 5)), (3, 0, (1, 3, 2)), (1, 2, (3,)), (2, 2, (0, 1))]
)
def test_warpgroups_meet_by_themselves_and_have_a_leader(
    warpgroups: int, before: int, rounds: tuple[int, ...]
) -> None:
    k = reversed_words(warpgroups, before, rounds)
    assert proof_of(k).complete
    for schedule in SCHEDULES:
        y, count = np.zeros((warpgroups, WARPGROUP), np.uint32), np.zeros(warpgroups, np.uint32)
        launch(k, y, count, schedules=(schedule,))
        wanted = [np.arange(WARPGROUP)[::-1] * n + sum(range(n)) for n in rounds]
        assert y.tolist() == [row.tolist() for row in wanted]
        assert count.tolist() == [1] * warpgroups


def test_a_barrier_of_warpgroups_that_are_not_apart_is_noticed() -> None:
    """If all warpgroups had one number, threads of different warpgroups would meet."""
    k = reversed_words(2, 1, (2, 5))
    arrays = np.zeros((2, WARPGROUP), np.uint32), np.zeros(2, np.uint32)
    assert is_noticed(k, changed(k, r"bar\.sync %r\d+, 128;", "bar.sync 1, 128;", 4), *arrays)


# ------------------------------------------------------------------------ roles within a role


def stored_by_a_warp(registers: int = 24) -> KernelBuilder:
    """Y = 2 X, a tile of 8 rows after another: of the warps of one warpgroup one loads, and one stores."""
    k = KernelBuilder("stored_by_a_warp", target="sm_90a", threads=2 * WARPGROUP)
    X, Y = k.tma.tensor_map("X", f32), k.tma.tensor_map("Y", f32)
    tiles = k.param("tiles", u32)
    producer = k.warpgroup_role("producer", registers=registers)
    loading, storing = producer.warp_role("loading"), producer.warp_role("storing")
    main = k.warpgroup_role("main", registers=240)
    inputs = k.tma.ring(2, loading, main, x=((8, 32), f32))
    outputs = k.tma.ring(2, main, storing, written=True, y=((8, 32), f32))
    with producer:
        with loading, k.loop(0, tiles) as tile, inputs.fill() as stage:
            k.tma.load(stage.x, X[tile * 8, 0])
        with storing, k.loop(0, tiles) as tile, outputs.drain() as stage:
            k.tma.store(stage.y, Y[tile * 8, 0])
    with main, k.loop(0, tiles), inputs.drain() as source, outputs.write() as result:
        for half in range(2):
            row, column = main.thread // 32 + half * 4, main.thread % 32
            result.y[row, column] = source.x[row, column] * 2.0
    return k


@pytest.mark.ptxas
def test_warps_of_a_warpgroup_load_and_store() -> None:
    k = stored_by_a_warp()
    x, y = np.arange(40 * 32, dtype=np.float32).reshape(40, 32), np.zeros((40, 32), np.float32)
    launch(k, x, y, 5)
    assert np.array_equal(y, 2 * x)
    boxes = k.tma.boxes()
    maps = {name: boxes[name].of(array) for name, array in (("X", x), ("Y", y))}
    assert all(isinstance(one, TensorMap) for one in maps.values())
    proof = proof_of(k, **maps)
    assert proof.complete
    assert all(verdict.verdict == PROVED for verdict in proof.barriers)


def test_all_warps_of_the_warpgroup_execute_one_change_of_registers() -> None:
    text = render(stored_by_a_warp().build())
    before, after = text.split("setmaxnreg.dec.sync.aligned.u32 24;")
    assert "try_wait" not in before
    assert "bra $role" in after


def three_within(k: KernelBuilder, Y: Any) -> None:
    """A role of eight warps with roles within it of warps 0 to 1, 2 to 3 and 4 to 6, and another role."""
    outer, last = k.warp_role("outer", warps=8), k.warp_role("last", warps=2)
    inner = [outer.warp_role(f"inner_{n}", warps=warps) for n, warps in enumerate((2, 2, 3))]
    with outer:
        for number, role in enumerate(inner):
            with role:
                role.barrier.sync()
                Y[k.thread_id()] = role.thread + 1000 * (number + 1)
                with k.when(role.leads):
                    Y[k.thread_id()] = 7
        outer.barrier.sync()
        with k.when(outer.thread >= 7 * 32):
            Y[k.thread_id()] = outer.thread
    with last:
        Y[k.thread_id()] = last.thread


@pytest.mark.ptxas
def test_roles_within_a_role_have_some_of_its_warps() -> None:
    k = KernelBuilder("within", target="sm_90a", threads=10 * 32)
    three_within(k, k.pointer("Y", u32))
    assert render(k.build()).count("bra $role_") == 4  # the last role of the CTA has all warps that are left
    y = np.zeros(320, np.uint32)
    launch(k, y)
    wanted = [
        1000 + np.arange(64),
        2000 + np.arange(64),
        3000 + np.arange(96),
        np.arange(224, 256),
        np.arange(64),
    ]
    expected = np.concatenate(wanted)
    expected[[0, 64, 128]] = 7
    assert y.tolist() == expected.tolist()
    assert proof_of(k).complete


# ------------------------------------------------------------------------ variants of a role


def unequal_registers(second: int = 224) -> KernelBuilder:
    """C = A B, whose 128 rows are those of two warpgroups with different registers, one of which also counts
    the tiles; both take the stages of one ring, and write the signs of their rows to another one.
    """
    k = KernelBuilder("unequal", target="sm_90a", threads=3 * WARPGROUP)
    A, B, C, SIGNS = (
        k.tma.tensor_map("A", f16),
        k.tma.tensor_map("B", f16),
        k.pointer("C", f32),
        k.pointer("S", f32),
    )
    tiles = k.param("tiles", u32)
    producer, main = k.warpgroup_role("producer", registers=24), k.warpgroup_role("main", warpgroups=2)
    variants = [main.warp_role(f"main_{n}", warps=4, registers=(256, second)[n]) for n in range(2)]
    ring = k.tma.ring(2, producer, main, a=((128, 32), f16), b=((32, 64), f16))
    signs = k.tma.ring(1, main, main, written=True, s=((1, 256), f32, "none"))
    with producer, k.loop(0, tiles) as tile, ring.fill() as stage:
        k.tma.load(stage.a, A[0, tile * 32])
        k.tma.load(stage.b, B[tile * 32, 0])
    with main:
        for number, variant in enumerate(variants):
            with variant:
                acc, count = k.wgmma.accumulator(64, 64), k.var(u32, 0)
                with k.loop(0, tiles), ring.drain() as stage:
                    acc += stage.a.part(main.warpgroup * 64, 64) @ stage.b
                    if number == 0:
                        count.set(count + 1)
                    k.wgmma.wait()
                with signs.write() as stage:
                    stage.s[0, main.thread] = k.selp(1.0, -1.0, main.thread < 128, type=f32)
                with signs.drain() as stage:
                    SIGNS[main.thread] = stage.s[0, 255 - main.thread]
                main.barrier.sync()
                acc.store(C.element(main.warpgroup * (64 * 64)), 64)
                if number == 0:
                    with k.when(variant.leads):
                        C[128 * 64] = k.cvt(count, dtype=f32, rnd="rn")
    return k


@pytest.mark.ptxas
def test_warpgroups_of_a_role_may_have_different_registers() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 96), (96, 64)))
    k = unequal_registers()
    for schedule in SCHEDULES:
        c, signs = np.zeros(128 * 64 + 1, np.float32), np.zeros(256, np.float32)
        launch(k, a, b, c, signs, 3, schedules=(schedule,))
        assert np.array_equal(c[:-1].reshape(128, 64), a.astype(np.float32) @ b.astype(np.float32))
        assert c[-1] == 3
        assert signs.tolist() == [-1] * 128 + [1] * 128
    text = render(k.build())
    for change in ("inc.sync.aligned.u32 256;", "inc.sync.aligned.u32 224;", "dec.sync.aligned.u32 24;"):
        assert text.count(f"setmaxnreg.{change}") == 1
    boxes = k.tma.boxes()
    assert proof_of(k, A=boxes["A"].of(a), B=boxes["B"].of(b)).complete


# ------------------------------------------------------------------------ misuse


def two_warps(use: Callable[[Any], object]) -> Callable[[], None]:
    def call() -> None:
        k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
        role = k.warp_role("role", warps=2)
        with role:
            use(role)

    return call


def too_many_barriers() -> None:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
    role = k.warpgroup_role("role", warpgroups=2)
    for _ in range(14):
        k.named_barrier(threads=32)
    with role:
        _ = role.warpgroup_barrier


def within(step: str) -> Callable[[], None]:
    """A call that builds roles within a role, and makes the mistake `step`."""

    def call() -> None:
        k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
        outer = k.warpgroup_role("outer")
        inner = outer.warp_role("inner", warps=3)
        if step == "deep":
            inner.warp_role("deep")
        elif step == "many":
            outer.warp_role("many", warps=2)
        elif step == "outside":
            with inner:
                pass
        elif step == "no code":
            with outer:
                pass
            k.build()
        elif step == "both":
            k.warpgroup_role("other", registers=24).warp_role("inner", warps=4, registers=24)
        elif step == "half":
            outer.warp_role("half", registers=40)
        elif step == "late":
            with outer:
                outer.warp_role("late")
        else:
            with outer, k.when(k.thread_id() < 64), inner:
                pass

    return call


DIRECTLY = "role 'inner' is within role 'outer': enter it directly inside 'with' of the role 'outer'"
REFUSED: list[tuple[Callable[[], None], type[PtxGenError], str]] = [
    (
        two_warps(lambda role: role.warpgroup_leads),
        ConfigError,
        "role 'role' has 2 warps, which are no whole warpgroups",
    ),
    (
        two_warps(lambda role: role.warpgroup_barrier),
        ConfigError,
        "role 'role' has 2 warps, which are no whole warpgroups",
    ),
    (
        too_many_barriers,
        ConfigError,
        "role 'role': warpgroup_barrier: a CTA has 15 named barriers, and 14 are taken",
    ),
    (
        within("deep"),
        ConfigError,
        "role 'inner': warp_role 'deep' is declared in a role within another one; declare it in the outer "
        "role, before its 'with'",
    ),
    (
        within("late"),
        ConfigError,
        "role 'outer': warp_role 'late' is declared after the role has begun; declare it in the outer role, "
        "before its 'with'",
    ),
    (
        within("many"),
        ConfigError,
        "role 'outer': warp_role 'many': warps must be 1 to 1, which the 4 warps of the role have left, "
        "got 2",
    ),
    (
        within("both"),
        ConfigError,
        "role 'other': warp_role 'inner' has 24 registers, but the outer role sets 24 of all its threads; "
        "leave out one of both",
    ),
    (
        within("half"),
        ConfigError,
        "warp_role 'half': registers are set for whole warpgroups of 4 warps, but the role has warps 3 to 3; "
        "use warpgroup_role",
    ),
    (
        lambda: unequal_registers(232),
        ConfigError,
        "warp_role 'main_1': the CTA has 64512 registers (168 for each of its 384 threads), but the roles "
        "need 65536: 24 x 128 (producer) + 256 x 128 (main_0) + 232 x 128 (main_1); give a role fewer",
    ),
    (within("outside"), ConfigError, DIRECTLY),
    (within("in a block"), ConfigError, DIRECTLY),
    (within("no code"), ConfigError, "kernel 'refused': role 'inner' has no code; enter it: 'with role:'"),
]


@pytest.mark.parametrize(("misuse", "kind", "text"), REFUSED)
def test_misuse_is_refused(misuse: Callable[[], None], kind: type[PtxGenError], text: str) -> None:
    with refused(kind, text):
        misuse()


def test_a_barrier_of_warpgroups_is_for_its_role() -> None:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
    first, second = k.warpgroup_role("first"), k.warpgroup_role("second")
    with first:
        barrier = first.warpgroup_barrier
    with (
        second,
        refused(
            TypeMismatchError,
            "warpgroup_barrier.sync belongs into 'with' of the role 'first', but is in the role 'second'",
        ),
    ):
        barrier.sync()

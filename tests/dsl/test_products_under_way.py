"""Products under way where the body of a loop ends: which of them ptxas serialises, and the build refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dsl.kernels import launch

from ptxgen.dsl import KernelBuilder
from ptxgen.dsl.hopper import flight
from ptxgen.errors import AssemblerError, TypeMismatchError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f16, f32, u32

SIZE = 64


class Loop:
    """The body of the loop of `looped`: accumulators X, Y and Z, each of which takes `product`."""

    def __init__(self, k: KernelBuilder, count: Any, product: Callable[[], Any]) -> None:
        self.k = k
        self.count = count
        self.product = product
        self.accumulators = tuple(k.wgmma.accumulator(SIZE, SIZE) for _ in range(3))
        self.X, self.Y, self.Z = self.accumulators

    def add(self, *accumulators: Any) -> None:
        for accumulator in accumulators:
            accumulator += self.product()

    def set(self, *accumulators: Any) -> None:
        for accumulator in accumulators:
            accumulator.set(self.product())

    def wait(self, pending: int = 0) -> None:
        self.k.wgmma.wait(pending)

    def halve(self, *accumulators: Any) -> None:
        for accumulator in accumulators:
            for variable in accumulator.all():
                variable.set(variable * 0.5)


def looped(body: Callable[[Loop], None]) -> KernelBuilder:
    """C = X, Y, Z after `count` iterations of a body, whose products are all A B."""
    k = KernelBuilder("looped", target="sm_90a", threads=256)
    A, B, C, count = (
        k.tma.tensor_map("A", f16),
        k.tma.tensor_map("B", f16),
        k.pointer("C", f32),
        k.param("n", u32),
    )
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(1, producer, consumer, a=((SIZE, SIZE), f16), b=((SIZE, SIZE), f16))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, A[0, 0])
        k.tma.load(stage.b, B[0, 0])
    with consumer:
        stage = ring.acquire()
        loop = Loop(k, count, lambda: stage.a @ stage.b)
        with k.loop(0, count):
            body(loop)
        loop.wait()
        for number, accumulator in enumerate(loop.accumulators):
            accumulator.store(C.element(SIZE * SIZE * number), SIZE)
    return k


def only_adds(e: Loop) -> None:
    e.add(e.X)


def only_sets(e: Loop) -> None:
    e.set(e.X)


def waits_for_all_but_one(e: Loop) -> None:
    e.add(e.X)
    e.wait(1)


def waits_for_all_first(e: Loop) -> None:
    e.wait()
    e.halve(e.X)
    e.add(e.X)


def waits_for_all_with_another(e: Loop) -> None:
    e.set(e.Y)
    e.wait()
    e.halve(e.X, e.Y)
    e.add(e.X)


def another_is_finished_by_count(e: Loop) -> None:
    e.set(e.Y, e.Z)
    e.wait(1)
    e.halve(e.Y)
    e.add(e.X)
    e.wait(1)
    e.halve(e.Z)


def the_second_of_two(e: Loop) -> None:
    e.wait(1)
    e.wait()
    e.halve(e.Y)
    e.add(e.X, e.Y)


def multiplies_again_before_the_use(e: Loop) -> None:
    e.set(e.X)
    e.wait(1)
    e.set(e.Y)
    e.wait(1)
    e.halve(e.X)
    e.wait()
    e.add(e.X)


def in_a_loop_inside(e: Loop) -> None:
    with e.k.loop(0, e.count):
        e.add(e.X)
        e.wait(1)
    e.set(e.Y)
    e.wait()
    e.halve(e.Y)


def is_finished_by_count(e: Loop) -> None:
    e.set(e.Y)
    e.wait(1)
    e.halve(e.X)
    e.wait()
    e.add(e.X)


def is_used_after_both_waits(e: Loop) -> None:
    e.set(e.Y)
    e.wait(1)
    e.wait()
    e.halve(e.X)
    e.add(e.X)


def is_used_under_a_condition(e: Loop) -> None:
    e.set(e.Y)
    e.wait(1)
    e.wait()
    with e.k.when(e.count > 3, uniform=True):
        e.halve(e.X)
    e.add(e.X)


def the_first_of_two(e: Loop) -> None:
    e.wait(1)
    e.wait()
    e.halve(e.X)
    e.add(e.X, e.Y)


def is_multiplied_again_under_way(e: Loop) -> None:
    e.set(e.X, e.Y)
    e.wait(1)
    e.halve(e.X)
    e.wait()
    e.add(e.X)


def is_only_written(e: Loop) -> None:
    e.set(e.Y)
    e.wait(1)
    e.X.fill(0.0)
    e.wait()
    e.halve(e.Y)
    e.add(e.X)


def is_the_newer_of_two_into_one(e: Loop) -> None:
    e.wait(1)
    e.wait()
    e.halve(e.X)
    e.add(e.X, e.X)


def is_read_before_another_starts(e: Loop) -> None:
    e.halve(e.X)
    e.add(e.X)
    e.wait()


TAKEN = (
    *(only_adds, only_sets, waits_for_all_but_one, waits_for_all_first, waits_for_all_with_another),
    *(another_is_finished_by_count, the_second_of_two, multiplies_again_before_the_use, in_a_loop_inside),
    *(is_only_written, is_the_newer_of_two_into_one, is_read_before_another_starts),
)
SERIALISED = (
    *(is_finished_by_count, is_used_after_both_waits, is_used_under_a_condition),
    *(the_first_of_two, is_multiplied_again_under_way),
)


@pytest.mark.ptxas
@pytest.mark.parametrize("body", TAKEN)
def test_what_ptxas_takes_is_built_and_right(body: Callable[[Loop], None]) -> None:
    k = looped(body)
    find_assembler(target="sm_90a").assemble(render(k.build()), "sm_90a")
    a, b = (np.random.default_rng(n).integers(-4, 5, (SIZE, SIZE)).astype(np.float16) for n in range(2))
    c = np.zeros((3, SIZE, SIZE), np.float32)
    launch(k, a, b, c, 3, schedules=("lockstep",))
    product = a.astype(np.float32) @ b.astype(np.float32)
    assert all(np.array_equal(one, product * (one[0, 0] / product[0, 0])) for one in c)
    assert c[0].any() or c[1].any()


@pytest.mark.ptxas
@pytest.mark.parametrize("body", SERIALISED)
def test_what_ptxas_serialises_is_refused(
    body: Callable[[Loop], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeMismatchError, match="ptxas counts no groups across the end of a loop's body"):
        looped(body)
    monkeypatch.setattr(flight._Carried, "read", lambda *_: None)
    text = render(looped(body).build())
    with pytest.raises(AssemblerError, match="C7514"):
        find_assembler(target="sm_90a").assemble(text, "sm_90a")


def test_the_error_names_the_use_the_product_and_the_cure() -> None:
    with pytest.raises(TypeMismatchError) as error:
        looped(is_finished_by_count)
    assert re.sub(r"at \S*:\d+, in Loop\.", "at LINE of ", str(error.value)) == (
        "Accumulator(64 x 64) is used at LINE of halve, after a wait for all but 1 groups that ends the "
        "product started at LINE of add in the iteration before; ptxas counts no groups across the end of a "
        "loop's body, and would serialise all products (C7514): let k.wgmma.wait() be the first wait that "
        "ends this product, at the end of the body or in the next iteration"
    )

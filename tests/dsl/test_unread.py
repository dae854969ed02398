"""`KernelBuilder.build(drop_unread=True)`, a text without instructions whose results nothing reads, and
`KernelBuilder.finish`, which lets go of them.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from dsl.kernels import builder, opcodes
from error_texts import refused

from ptxgen.dsl import KernelBuilder, Pointer
from ptxgen.errors import ConfigError
from ptxgen.interpreter import run
from ptxgen.text import render
from ptxgen.types import s32, u32, u64
from tools.campaign.kernels import subjects

_NAME = re.compile(r"%[a-z]+\d+")


def test_what_only_dropped_instructions_read_is_dropped_with_them() -> None:
    k = builder()
    k.pointer("X").element(k.thread_id() * 3 + 1)
    assert opcodes(k) != ["ret"]
    assert opcodes(k, drop_unread=True) == ["ret"]


def test_parameters_are_declared_as_before() -> None:
    k = builder()
    k.pointer("X")
    k.param("n", u32)
    assert k.build(drop_unread=True).kernels[0].params == k.build().kernels[0].params


def test_a_sum_of_a_loop_that_nothing_reads_is_dropped_and_its_counter_is_not() -> None:
    k = builder()
    total = k.var(s32, 0)
    with k.loop(0, 3) as i:
        total.set(total + i)
    whole, needed = opcodes(k), opcodes(k, drop_unread=True)
    assert [opcode for opcode in whole if opcode not in needed] == []
    assert len(whole) - len(needed) == 3  # the 0, the addition, and the copy of its result
    run(k.build(drop_unread=True), grid=1, block=32, args=[])


def test_accesses_to_memory_stay_with_their_addresses() -> None:
    k = builder()
    X = k.pointer("X", u32)
    k.ld(X.element(k.thread_id()))
    assert opcodes(k, drop_unread=True) == opcodes(k)


def _guarded(k: KernelBuilder, X: Pointer) -> None:
    value = k.var(u32, 1)
    with k.only_if(k.thread_id() < 5):
        value.set(k.thread_id())
    k.st(X.element(k.thread_id()), value)


def _carried(k: KernelBuilder, X: Pointer) -> None:
    low = k.add_cc(k.thread_id(), k.thread_id())
    del low
    k.st(X.element(k.thread_id()), k.addc(k.thread_id(), 1))


def _exchanged(k: KernelBuilder, X: Pointer) -> None:
    k.butterfly(k.thread_id(), 1)
    k.st(X.element(k.thread_id()), k.cvt(k.thread_id(), dtype=u64).as_(u64))


@pytest.mark.parametrize("body", [_guarded, _carried, _exchanged])
def test_what_is_read_by_way_of_guards_and_flags_stays(
    body: Callable[[KernelBuilder, Pointer], None],
) -> None:
    k = builder()
    body(k, k.pointer("X", u64 if body is _exchanged else u32))
    assert opcodes(k, drop_unread=True) == opcodes(k)


@pytest.mark.parametrize("name", ["f32-sm_80", "f16-sm_80-dq-parts", "f16-sm_90a", "f16-sm_80-merge"])
def test_shipped_kernels_read_each_register_that_they_write(name: str) -> None:
    subject = subjects()[name]
    instructions = re.findall(r"^\s+(?:@!?%p\d+ )?[a-z].*;$", render(subject.module), re.MULTILINE)
    seen: dict[str, int] = {}
    for text in instructions:
        for register in set(_NAME.findall(text)):
            seen[register] = seen.get(register, 0) + 1
    written_alone = [register for register, count in seen.items() if count == 1]
    assert [r for r in written_alone if not _has_another_effect(r, instructions)] == []


def _has_another_effect(register: str, instructions: list[str]) -> bool:
    """Whether the only instruction with this register does more than to write it: it accesses memory,
    exchanges values, or writes another register, which is read.
    """
    [text] = [text for text in instructions if register in _NAME.findall(text)]
    opcode = text.split()[0] if not text.strip().startswith("@") else text.split()[1]
    return not opcode.startswith(
        ("ld.param", "mov.", "cvt", "add", "mul", "mad", "sub", "shl", "min", "max", "selp", "setp", "div")
    )


def test_a_kernel_computes_the_same_without_them() -> None:
    k = builder()
    X = k.pointer("X", u32)
    unread = X.element(k.thread_id() * 7)
    del unread
    k.st(X.element(k.thread_id()), k.thread_id() * 2)
    assert len(opcodes(k, drop_unread=True)) < len(opcodes(k))
    x = np.zeros(32, np.uint32)
    run(k.build(drop_unread=True), grid=1, block=32, args=[x])
    assert x.tolist() == [2 * i for i in range(32)]


def squares() -> KernelBuilder:
    """A kernel that stores the squares of the thread numbers and computes a sum that nothing reads."""
    k = builder("squares", threads=64)
    out, x = k.pointer("out", u32), k.thread_id()
    k.add(x, 1)
    k.st(out.element(x), k.mul(x, x))
    return k


def test_a_finished_kernel_is_freed_without_the_collector() -> None:
    builders, modules = [], []
    gc.collect()
    gc.disable()
    try:
        for last in (KernelBuilder.finish, lambda k: k.build(drop_unread=True)):
            k = squares()
            builders.append(weakref.ref(k.warp))
            modules.append(last(k))
            del k
        assert [kept() is None for kept in builders] == [True, False]
    finally:
        gc.enable()
    assert render(modules[0]) == render(modules[1])
    out = np.zeros(64, np.uint32)
    run(modules[0], grid=1, block=64, args=[out])
    assert out.tolist() == [n * n for n in range(64)]


def test_nothing_is_added_to_a_finished_kernel() -> None:
    k = squares()
    x = k.thread_id()
    k.finish()
    says = (
        "kernel 'squares': {} of a builder that is finished; use it before k.finish(), or end with "
        "k.build(), after which a kernel may grow"
    )
    with refused(ConfigError, says.format("thread_id")):
        k.thread_id()
    with refused(ConfigError, says.format("emit")):
        _ = x + 1

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import message as message_of

from ptxgen.errors import LaunchError, ModifierError
from ptxgen.ir import Param
from ptxgen.runtime.attributes import NO_ATTRIBUTES, LaunchAttributes
from ptxgen.runtime.plan import ArgumentBlock, LaunchPlan, ParamSlot, pack, param_slots
from ptxgen.target import MAX_BLOCK, MAX_GRID
from ptxgen.types import TYPES

SLOTS = param_slots(
    (Param("x", "u64"), Param("y", "u64"), Param("a", "f32"), Param("step", "s64"), Param("n", "u32"))
)
PLAN = LaunchPlan("saxpy", (4, 1, 1), (128, 1, 1), 0, SLOTS, (4096, 8192, 2.5, -3, 500))

CTYPES: dict[str, Any] = {
    f"{kind}{bits}": getattr(ctypes, f"c_{'' if kind == 's' else 'u'}int{bits}")
    for kind in "usb"
    for bits in (8, 16, 32, 64)
} | {
    "f16": ctypes.c_uint16,
    "bf16": ctypes.c_uint16,
    "f16x2": ctypes.c_uint32,
    "bf16x2": ctypes.c_uint32,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


def with_values(*values: Any) -> LaunchPlan:
    return dataclasses.replace(PLAN, values=values)


def test_slots_lie_at_multiples_of_their_size() -> None:
    expected = (
        ParamSlot("x", "u64", 0, 8),
        ParamSlot("y", "u64", 8, 8),
        ParamSlot("a", "f32", 16, 4),
        ParamSlot("step", "s64", 24, 8),
        ParamSlot("n", "u32", 32, 4),
    )
    assert expected == SLOTS


def test_arrays_have_their_own_alignment_and_are_passed_as_bytes() -> None:
    slots = param_slots((Param("n", "u32"), Param("map", "b8", 128, 64), Param("k", "u16")))
    assert slots == (
        ParamSlot("n", "u32", 0, 4),
        ParamSlot("map", "b8", 64, 128),
        ParamSlot("k", "u16", 192, 2),
    )
    data = bytes(range(128))
    plan = LaunchPlan("f", (1, 1, 1), (1, 1, 1), 0, slots, (7, data, 9))
    assert pack(plan) == b"\7\0\0\0" + bytes(60) + data + b"\t\0"
    with pytest.raises(LaunchError, match="parameter map is b8, which holds 128 bytes, got 5"):
        LaunchPlan("f", (1, 1, 1), (1, 1, 1), 0, slots, (7, 5, 9))


def test_a_grid_has_whole_clusters() -> None:
    cluster = LaunchAttributes(cluster=(2, 1, 3))
    assert dataclasses.replace(PLAN, grid=(4, 1, 3), attributes=cluster).attributes == cluster
    assert PLAN.attributes is LaunchAttributes().canonical() is NO_ATTRIBUTES
    assert cluster.canonical() is cluster
    with pytest.raises(LaunchError, match=r"grid\.z must be a multiple of 3, .* \(2, 1, 3\) CTAs, got 1"):
        dataclasses.replace(PLAN, attributes=cluster)


@given(st.lists(st.sampled_from(sorted(CTYPES)), max_size=12))
def test_slots_lie_where_a_c_compiler_puts_them(types: list[str]) -> None:
    slots = param_slots(tuple(Param(f"p{i}", name) for i, name in enumerate(types)))
    fields = [(f"p{i}", CTYPES[name]) for i, name in enumerate(types)]
    c_struct = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    assert [slot.offset for slot in slots] == [getattr(c_struct, s.name).offset for s in slots]
    assert [slot.nbytes for slot in slots] == [getattr(c_struct, s.name).size for s in slots]


def test_every_type_but_pred_and_b128_can_be_a_parameter() -> None:
    assert set(CTYPES) == set(TYPES) - {"pred", "b128"}
    assert message_of(lambda: param_slots((Param("flag", "pred"),))) == (
        "kernel parameter flag is pred, which cannot be a parameter; use one of u8, u16, u32, u64, "
        "s8, s16, s32, s64, b8, b16, b32, b64, f16, bf16, f16x2, bf16x2, f32, f64"
    )


def test_an_unknown_type_is_refused() -> None:
    assert (
        message_of(lambda: param_slots((Param("x", "u46"),)), ModifierError)
        == "no PTX type 'u46'; did you mean 'u64'?"
    )


def test_the_argument_block_has_each_value_in_its_place_and_zeros_between() -> None:
    expected = struct.pack("<QQfIqI", 4096, 8192, 2.5, 0, -3, 500)
    assert pack(PLAN) == expected


@pytest.mark.parametrize("name", sorted(CTYPES))
def test_the_extremes_of_each_type_are_packed_and_what_lies_beyond_is_refused(name: str) -> None:
    slots = param_slots((Param("p", name),))
    kind, bits = TYPES[name].kind, TYPES[name].bits
    extremes: tuple[float, ...]
    if kind == "f" and name != "bf16":
        extremes, beyond = (math.inf, -math.inf, -0.0), "text"
    elif kind == "s":
        extremes, beyond = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), 2 ** (bits - 1)
    else:
        extremes, beyond = (0, 2**bits - 1), 2**bits
    for value in extremes:
        plan = LaunchPlan("k", (1, 1, 1), (1, 1, 1), 0, slots, (value,))
        assert len(pack(plan)) == TYPES[name].nbytes
    with pytest.raises(LaunchError, match=rf"^k: parameter p is {name}, which holds .*, got "):
        LaunchPlan("k", (1, 1, 1), (1, 1, 1), 0, slots, (beyond,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (0, 0, 1.0, 0, -1),
            "saxpy: parameter n is u32, which holds an integer from 0 to 4294967295, got -1",
        ),
        (
            (0, 0, 1.0, 2**63, 1),
            "saxpy: parameter step is s64, which holds an integer from -9223372036854775808 to "
            "9223372036854775807, got 9223372036854775808",
        ),
        (
            (0, 0, 1e39, 0, 1),
            "saxpy: parameter a is f32, which holds a floating-point number of its range, got 1e+39",
        ),
        (
            (0, 1.5, 1.0, 0, 1),
            "saxpy: parameter y is u64, which holds an integer from 0 to 18446744073709551615, got 1.5",
        ),
        ((0, 0, 1.0, 0), "saxpy has 5 parameters (x, y, a, step, n), got 4 values"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: tuple[Any, ...], message: str) -> None:
    assert message_of(lambda: with_values(*values)) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"grid": (1, 65536, 1)},
            "saxpy: grid.y must be from 1 to 65535 blocks, got 65536; put the larger count into grid.x",
        ),
        (
            {"grid": (1, 1, 70000)},
            "saxpy: grid.z must be from 1 to 65535 blocks, got 70000; put the larger count into grid.x",
        ),
        ({"grid": (2**31, 1, 1)}, "saxpy: grid.x must be from 1 to 2147483647 blocks, got 2147483648"),
        ({"grid": (0, 1, 1)}, "saxpy: grid.x must be from 1 to 2147483647 blocks, got 0"),
        ({"block": (1025, 1, 1)}, "saxpy: block.x must be from 1 to 1024 threads, got 1025"),
        (
            {"block": (1, 1, 65)},
            "saxpy: block.z must be from 1 to 64 threads, got 65; put the larger count into block.x",
        ),
        (
            {"block": (512, 3, 1)},
            "saxpy: a block of (512, 3, 1) has 1536 threads, more than 1024; use a smaller block",
        ),
        ({"dynamic_shared": -1}, "saxpy: dynamic_shared must be at least 0 bytes, got -1"),
    ],
)
def test_extents_no_gpu_has_are_refused(change: dict[str, Any], message: str) -> None:
    assert message_of(lambda: dataclasses.replace(PLAN, **change)) == message


def test_the_largest_extents_are_accepted() -> None:
    assert dataclasses.replace(PLAN, grid=MAX_GRID).grid == MAX_GRID
    for axis, most in enumerate(MAX_BLOCK):
        block = tuple(most if i == axis else 1 for i in range(3))
        assert dataclasses.replace(PLAN, block=block).threads == most


def test_a_plan_is_used_again_on_other_arrays() -> None:
    again = PLAN.with_pointers((16, 32))
    assert again == with_values(16, 32, 2.5, -3, 500)
    assert PLAN.values == (4096, 8192, 2.5, -3, 500)


def test_a_null_pointer_is_refused() -> None:
    assert message_of(lambda: PLAN.with_pointers((16, 0))) == "saxpy: parameter y is a null pointer"


def read_through_pointers(block: ArgumentBlock) -> bytes:
    pointers = (ctypes.c_void_p * len(block.slots)).from_address(block.address)
    parts = [
        ctypes.string_at(pointer, slot.nbytes) for pointer, slot in zip(pointers, block.slots, strict=True)
    ]
    return b"".join(parts)


def test_the_argument_block_is_written_where_its_pointers_point() -> None:
    block = ArgumentBlock(SLOTS)
    for plan in (PLAN, PLAN.with_pointers((1, 2**64 - 1))):
        block.write(plan)
        assert read_through_pointers(block) == struct.pack("<QQfqI", *plan.values)


def test_a_pointer_beyond_64_bits_is_refused_when_it_is_written() -> None:
    assert message_of(lambda: ArgumentBlock(SLOTS).write(PLAN.with_pointers((2**64,)))) == (
        "saxpy: parameter x is u64, which holds an integer from 0 to 18446744073709551615, "
        "got 18446744073709551616"
    )


def test_a_kernel_without_parameters_has_an_empty_block() -> None:
    plan = LaunchPlan("nothing", (1, 1, 1), (1, 1, 1), 0, (), ())
    assert pack(plan) == b""
    block = ArgumentBlock(())
    block.write(plan)
    assert isinstance(block.lock, type(threading.Lock()))
    assert block.address != 0

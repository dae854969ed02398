from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interpreter.programs import on_elements, ptx

from ptxgen.errors import LaunchError
from ptxgen.interpreter import DeviceArena, run
from ptxgen.interpreter.machine.arena import joined_ranges
from ptxgen.tensormap import TensorMap

INTEGERS = [f"{kind}{bits}" for kind in "usb" for bits in (8, 16, 32, 64)]
PAIR = np.dtype([("a", "<f4"), ("b", "<u2")], align=True)

SCHEDULE = "schedule must be 'lockstep', 'pct:SEED', 'pct:SEED:DEPTH' with numbers, or a PCT, got "


def program(type: str, count: int = 0) -> str:
    """Kernel k(x, a): copies the parameter a to x as it lies in memory, byte after byte."""
    nbytes = count or int(type[1:]) // 8
    align = ".align 8 " if count else ""
    copies = "\n".join(
        f"    ld.param.u8 %r1, [a+{n}];\n    st.global.u8 [%rd1+{n}], %r1;" for n in range(nbytes)
    )
    text = ptx(f"    ld.param.u64 %rd1, [x];\n{copies}", "u64 x, %")
    declared = f".param {align}.{type} a{f'[{count}]' if count else ''}"
    return text.replace(".param .%", declared)


def bytes_of(type: str, value: Any, count: int = 0) -> bytes:
    x = np.zeros(count or int(type[1:]) // 8, np.uint8)
    run(program(type, count), grid=1, block=1, args=[x, value])
    return x.tobytes()


def refused(text: str, args: Any, **launch: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        run(text, **{"grid": 1, "block": 1, "args": args, **launch})
    return str(caught.value)


def wrong(type: str, value: Any, count: int = 0) -> str:
    """The error for `value` as argument a of kernel k, without the words that name the argument."""
    message = refused(program(type, count), [np.zeros(64, np.uint8), value])
    start = "k: argument 1 (a) must "
    assert message.startswith(start)
    return message.removeprefix(start)


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", INTEGERS)
def test_an_integer_of_n_bits_may_be_signed_or_unsigned(type: str) -> None:
    bits = int(type[1:])
    for value in (0, 1, -1, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, (1 << bits) - 1):
        want = (value % (1 << bits)).to_bytes(bits // 8, "little")
        assert bytes_of(type, value) == want
    low, high = -(1 << (bits - 1)), (1 << bits) - 1
    for value in (low - 1, high + 1, 10**40):
        assert wrong(type, value) == f"be from {low} to {high} for its type {type}, got {value}"


@pytest.mark.parametrize(
    "value", [np.int8(-5), np.int64(-5), -5, np.int32(-5)], ids=lambda v: type(v).__name__
)
def test_numpy_integers_are_integers(value: Any) -> None:
    assert bytes_of("u32", value) == b"\xfb\xff\xff\xff"


def test_true_and_false_are_one_and_zero() -> None:
    for value in (True, np.True_):
        assert bytes_of("u8", value) == b"\1"
        assert bytes_of("s64", value) == b"\1" + bytes(7)
    assert bytes_of("f32", True) == b"\0\0\x80\x3f"
    assert wrong("f32", np.True_) == "be a number for its type f32, got np.True_"


@pytest.mark.parametrize(
    ("type", "value", "message"),
    [
        ("u32", 2.5, "be an integer for its type u32, got 2.5"),
        ("u32", 2.0, "be an integer for its type u32, got 2.0"),
        ("s64", np.float32(1), "be an integer for its type s64, got np.float32(1.0)"),
        ("u64", None, "be an integer for its type u64, got None"),
        ("u64", [1, 2], "be an integer for its type u64, got [1, 2]"),
        ("u32", "7", "be an integer for its type u32, got '7'"),
        (
            "b16",
            1.5,
            "be an integer for its type b16, got 1.5; for the bits of a float, pass np.float16(1.5)",
        ),
        (
            "b32",
            1.5,
            "be an integer for its type b32, got 1.5; for the bits of a float, pass np.float32(1.5)",
        ),
        (
            "b64",
            1.5,
            "be an integer for its type b64, got 1.5; for the bits of a float, pass np.float64(1.5)",
        ),
        ("b8", 1.5, "be an integer for its type b8, got 1.5"),
        ("b32", np.float64(1.5), "have 4 bytes for its type b32, got np.float64(1.5)"),
        ("b16", np.float32(1.5), "have 2 bytes for its type b16, got np.float32(1.5)"),
        ("f32", None, "be a number for its type f32, got None"),
        ("f32", "1", "be a number for its type f32, got '1'"),
        ("f64", 1j, "be a number for its type f64, got 1j"),
        ("f32", 1e300, "be a number that its type f32 has, got 1e+300"),
        ("f32", np.float64(-1e39), "be a number that its type f32 has, got np.float64(-1e+39)"),
        ("f32", 10**40, f"be a number that its type f32 has, got {10**40}"),
        ("f64", 10**400, f"be a number that its type f64 has, got {10**400}"),
    ],
)
def test_other_numbers_are_refused(type: str, value: Any, message: str) -> None:
    assert wrong(type, value) == message


@pytest.mark.parametrize("value", [1, -2.5, 0.1, float("inf"), float("-inf"), 1e-50, 2**100])
def test_floats_are_rounded_to_the_type(value: float) -> None:
    assert bytes_of("f32", value) == np.float64(value).astype(np.float32).tobytes()
    assert bytes_of("f64", value) == np.float64(value).tobytes()
    assert bytes_of("f32", np.float64(value)) == np.float64(value).astype(np.float32).tobytes()


def test_a_nan_stays_one() -> None:
    assert np.isnan(np.frombuffer(bytes_of("f32", float("nan")), np.float32)[0])


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("b16", np.float16(1.5)),
        ("b16", ml_dtypes.bfloat16(1.5)),
        ("b32", np.float32(1.5)),
        ("b64", np.float64(1.5)),
        ("b64", np.complex64(1 + 2j)),
    ],
)
def test_untyped_parameters_take_the_bits_of_numpy_numbers(type: str, value: Any) -> None:
    assert bytes_of(type, value) == value.tobytes()


# ---- structures ---------------------------------------------------------------------------------


def test_structures_come_as_bytes_or_numpy_records() -> None:
    record = np.array([(1.5, 7)], PAIR)[0]
    assert bytes_of("b8", record, 8) == record.tobytes()
    assert bytes_of("b8", record.tobytes(), 8) == record.tobytes()
    assert bytes_of("b8", np.void(b"12345678"), 8) == b"12345678"
    assert bytes_of("u64", record) == record.tobytes()
    assert bytes_of("f32", b"1234") == b"1234"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        *((b"1234567", "7 bytes"), (b"123456789", "9 bytes"), (b"", "b''")),
        *((np.array([(1, 2, 3)], "i4,i4,i4")[0], "12 bytes"), (np.float32(1), "4 bytes"), (3, "3")),
        *((None, "None"), ([1, 2], "[1, 2]"), ("12345678", "'12345678'")),
    ],
)
def test_structures_of_another_size_are_refused(value: Any, got: str) -> None:
    assert wrong("b8", value, 8) == f"be a structure of 8 bytes, got {got}"


def test_an_array_for_a_structure_or_a_number_is_refused() -> None:
    assert wrong("b8", np.zeros(8, np.uint8), 8) == (
        "be bytes or a numpy structure for its 8 bytes, got an array"
    )
    for type in ("u32", "f32", "f64", "b16"):
        for array in (np.zeros(1, np.uint32), np.array(1.5)):
            assert wrong(type, array) == f"be a number for its type {type}, got an array"


def test_a_tensor_map_needs_a_parameter_of_its_size() -> None:
    described = TensorMap(np.zeros((8, 8), np.float32), box=(8, 8))
    message = refused(program("u64"), [np.zeros(8, np.uint8), described])
    assert message == "k: argument 1 (a) has 8 bytes, a tensor map has 128"


# ---- arrays -------------------------------------------------------------------------------------

ADD_ONE = on_elements("""
    ld.global.u32 %r4, [%rd0];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
    """)
ADDRESSES = ptx(
    "    ld.param.u64 %rd0, [x];\n    ld.param.u64 %rd1, [y];\n    sub.s64 %rd2, %rd1, %rd0;\n"
    "    ld.param.u64 %rd3, [z];\n    st.global.u64 [%rd3], %rd2;"
)


def distance(x: np.ndarray, y: np.ndarray) -> int:
    """Bytes from where x begins on the device to where y does."""
    z = np.zeros(1, np.int64)
    run(ADDRESSES, grid=1, block=1, args=[x, y, z])
    return int(z[0])


def test_arrays_that_overlap_keep_their_distance() -> None:
    whole = np.zeros(1000, np.float32)
    assert distance(whole[100:300], whole[200:]) == 400
    assert distance(whole[200:], whole[100:300]) == -400
    assert distance(whole, whole) == 0


def test_arrays_that_share_nothing_lie_far_apart() -> None:
    assert abs(distance(np.zeros(10), np.zeros(10))) >= 1 << 20


def test_a_transposed_array_is_device_memory_as_it_lies_on_the_host() -> None:
    whole = np.arange(12, dtype=np.uint32).reshape(3, 4)
    run(ADD_ONE, grid=1, block=12, args=[whole.T])
    assert whole.ravel().tolist() == list(range(1, 13))


def test_all_bytes_between_the_first_and_the_last_element_are_device_memory() -> None:
    whole = np.zeros(9, np.uint32)
    run(ADD_ONE, grid=1, block=9, args=[whole[::4]])
    assert whole.tolist() == [1] * 9


def test_a_read_only_array_may_be_read_and_written_through_another_that_overlaps() -> None:
    whole = np.arange(4, dtype=np.uint64)
    view = whole[2:]
    view.flags.writeable = False
    text = ptx("""
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.global.u64 %rd2, [%rd0+8];
    st.global.u64 [%rd1+16], %rd2;
    """)
    run(text, grid=1, block=1, args=[view, whole])
    assert whole.tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("dtype", ["f2", "i1", "c8", "?", "S4", PAIR, "M8[s]"], ids=str)
def test_arrays_of_every_plain_dtype_are_device_memory(dtype: Any) -> None:
    x = np.zeros(64, dtype)
    run(ADD_ONE, grid=1, block=4, args=[x])
    assert x.view(np.uint8)[:16].tolist() == [1, 0, 0, 0] * 4


def test_arrays_of_objects_are_refused() -> None:
    assert refused(ADD_ONE, [np.array([None, 1])]) == (
        "k: argument 0 (x) must be an array of numbers, got object"
    )


def test_an_address_of_the_arena_goes_where_an_array_does() -> None:
    arena, x = DeviceArena(), np.zeros(8, np.uint32)
    run(ADD_ONE, grid=1, block=3, args=[arena.place(x) + 8], arena=arena)
    assert x.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


# ---- the list of arguments ----------------------------------------------------------------------


def test_the_number_of_arguments_is_that_of_the_parameters() -> None:
    text = program("u32")
    assert refused(text, []) == "k takes 2 arguments (x: u64, a: u32), got 0"
    assert refused(text, [np.zeros(4), 1, 2]) == "k takes 2 arguments (x: u64, a: u32), got 3"
    assert refused(ptx("    ret;"), [1]) == "k takes 0 arguments (), got 1"


@pytest.mark.parametrize(
    ("args", "got"),
    [
        *((None, "NoneType"), (np.zeros(2, np.uint64), "ndarray"), ({"x": 1, "a": 2}, "dict")),
        *(("ab", "str"), (b"ab", "bytes"), (7, "int")),
    ],
)
def test_arguments_come_in_a_list(args: Any, got: str) -> None:
    assert refused(program("u32"), args) == (
        f"k: args must be a list with an argument for each parameter, got {got}"
    )


def test_a_tuple_of_arguments_is_a_list() -> None:
    x = np.zeros(1, np.uint32)
    run(ADD_ONE, grid=1, block=1, args=(x,))
    assert x[0] == 1


# ---- extents and the rest of a launch -----------------------------------------------------------

NOTHING = ptx("    ret;")


def with_directive(directive: str) -> str:
    return ptx("    ret;").replace(")\n{", f")\n{directive}\n{{")


@pytest.mark.parametrize("what", ["grid", "block", "cluster"])
@pytest.mark.parametrize(
    "extent", [0, -1, (), (1, 2, 3, 4), (2, 0), 2.0, "4", None, (2, None), np.array(2.5)], ids=str
)
def test_extents_are_one_to_three_numbers_from_one(what: str, extent: Any) -> None:
    assert refused(NOTHING, [], **{what: extent}) == (
        f"k: {what} must be one to three numbers from 1, got {extent!r}"
    )


@pytest.mark.parametrize("extent", [6, (6,), [3, 2], (1, 2, 3), np.int64(6), np.array([2, 3])])
def test_extents_may_be_numbers_of_python_or_numpy(extent: Any) -> None:
    counters = run(NOTHING, grid=extent, block=extent, args=[]).counters
    assert counters.thread_instructions == 36


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"grid": 1 << 31}, "k: grid must be at most (2147483647, 65535, 65535), got (2147483648, 1, 1)"),
        ({"grid": (1, 65536)}, "k: grid must be at most (2147483647, 65535, 65535), got (1, 65536, 1)"),
        ({"grid": (1, 1, 65536)}, "k: grid must be at most (2147483647, 65535, 65535), got (1, 1, 65536)"),
        ({"block": 1025}, "k: a block has at most 1024 threads, got (1025, 1, 1), 1025 threads"),
        ({"block": (32, 33)}, "k: a block has at most 1024 threads, got (32, 33, 1), 1056 threads"),
        ({"block": (1, 1, 65)}, "k: block must be at most (1024, 1024, 64), got (1, 1, 65)"),
        ({"grid": 17, "cluster": 17}, "k: a cluster has at most 16 CTAs, got (17, 1, 1)"),
        ({"grid": (9, 2), "cluster": (3, 2, 3)}, "k: a cluster has at most 16 CTAs, got (3, 2, 3)"),
        (
            {"grid": (8, 3), "cluster": (2, 2)},
            "k: grid must be a multiple of the cluster (2, 2, 1), got (8, 3, 1)",
        ),
        ({"dynamic_smem": -1}, "dynamic_smem must be an integer from 0, got -1"),
        ({"dynamic_smem": 16.0}, "dynamic_smem must be an integer from 0, got 16.0"),
        ({"dynamic_smem": None}, "dynamic_smem must be an integer from 0, got None"),
        ({"cooperative": 1}, "cooperative must be True or False, got 1"),
        ({"raise_on_report": None}, "raise_on_report must be True or False, got None"),
        (
            {"dynamic_smem": 1 << 40},
            "k needs 1099511627776 bytes of shared memory, 1099511627776 of them dynamic; "
            "a block has at most 232448",
        ),
        ({"max_instructions": 0}, "max_instructions must be an integer from 1, got 0"),
        ({"max_instructions": None}, "max_instructions must be an integer from 1, got None"),
        ({"schedule": "random"}, f"{SCHEDULE}'random'"),
        ({"schedule": None}, f"{SCHEDULE}None"),
        ({"entry": "K"}, "the module has no kernel 'K'; did you mean 'k'? (it has k)"),
        ({"entry": 3}, "the module has no kernel 3 (it has k)"),
    ],
)
def test_launches_beyond_the_limits_are_refused(launch: dict[str, Any], message: str) -> None:
    assert refused(NOTHING, [], **launch) == message


@pytest.mark.parametrize("given", [None, b".version 7.0", 7])
def test_what_is_no_program_is_refused(given: Any) -> None:
    assert refused(given, []) == (f"run: the kernel must be PTX text or a Module, got {given!r}")


@pytest.mark.parametrize(
    ("directive", "fine", "launch", "message"),
    [
        (
            ".maxntid 64, 1, 1",
            {"block": (8, 8)},
            {"block": (65,)},
            "k promises at most 64 threads a block (.maxntid), got 65",
        ),
        (
            ".reqntid 8, 4, 2",
            {"block": (8, 4, 2)},
            {"block": 64},
            "k runs in blocks of (8, 4, 2) threads (.reqntid), got (64, 1, 1)",
        ),
        (
            ".reqntid 64",
            {"block": 64},
            {"block": 32},
            "k runs in blocks of (64,) threads (.reqntid), got (32, 1, 1)",
        ),
        (
            ".explicitcluster\n.reqnctapercluster 2, 2, 1",
            {"grid": (4, 4)},
            {"grid": (4, 4), "cluster": 4},
            "k runs in clusters of (2, 2, 1) CTAs (.reqnctapercluster), got cluster=(4, 1, 1)",
        ),
        (
            ".explicitcluster\n.reqnctapercluster 2, 2, 1",
            {"grid": (4, 4), "cluster": (2, 2)},
            {"grid": (4, 5)},
            "k: grid must be a multiple of the cluster (2, 2, 1), got (4, 5, 1)",
        ),
    ],
)
def test_directives_of_a_kernel_bind_its_launches(
    directive: str, fine: dict[str, Any], launch: dict[str, Any], message: str
) -> None:
    text = with_directive(directive)
    run(text, **{"grid": 1, "block": 1, "args": [], **fine})
    assert refused(text, [], **launch) == message


def test_device_addresses_are_in_the_order_of_the_arguments_whatever_their_host_addresses() -> None:
    whole = np.zeros(64, np.uint32)
    ranges = joined_ranges([("last", whole[32:]), ("first", whole[:16]), ("too", whole[8:24])])
    assert [name for *_, name in ranges] == ["last", "first, too"]

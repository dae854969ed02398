"""`P[i]`, `P[i] = v`, `P.element(i)`, and `tile[row, column]`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, builder, computed, instructions, lanes, launch, opcodes
from error_texts import refused

from ptxgen import ir
from ptxgen.check.prove import prove
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.dsl import Pointer
from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import TYPES, bf16, f16, f32, pred, s32, s64, u16, u32, u64

TYPES_OF_INDICES = [u32, s32, u64, s64]


@pytest.mark.parametrize("index", TYPES_OF_INDICES)
def test_the_instructions_of_an_element_of_global_memory(index):
    k = builder()
    P, i = k.pointer("P"), k.param("i", index)
    before = len(instructions(k))
    P.element(i)
    want = {
        u32: ["mad.wide.u32"],
        s32: ["mad.wide.s32"],
        u64: ["shl.b64", "add.u64"],
        s64: ["shl.b64", "add.s64"],
    }[index]
    assert opcodes(k)[before - 1 :] == [*want, "ret"]


@pytest.mark.parametrize("index", [u32, s32])
def test_a_row_of_a_matrix_has_an_offset_of_64_bits(index):
    k = builder()
    P, i, columns = k.pointer("P"), k.param("i", index), k.param("columns", index)
    before = len(instructions(k))
    P.row(i, columns)
    assert opcodes(k)[before - 1] == f"mul.wide.{index}"
    assert len(opcodes(k)[before:]) == 3  # the two of an element at a 64-bit index, and ret


@pytest.mark.parametrize("columns", [1 << 12, u32])
def test_a_row_may_begin_beyond_4_gib(columns):
    k = builder(threads=1)
    P, Out = k.pointer("P"), k.pointer("Out", u64)
    columns = k.mov(1 << 12, type=u32) if columns is u32 else columns
    k.store(Out, P.row(k.mov(1 << 20, type=u32), columns).value - P.value)
    out = np.zeros(1, np.uint64)
    run(k.build(), grid=1, block=1, args=[np.zeros(1, np.float32), out])
    assert out[0] == 1 << 34


@pytest.mark.parametrize(("index", "columns"), [("u", 0), ("u", "s"), (3, "u"), (3, 3)])
def test_a_row_needs_two_values_of_one_type(index, columns):
    k = builder()
    P, values = k.pointer("P"), {"u": k.param("n", u32), "s": k.param("m", s32)}
    arguments = [values.get(each, each) for each in (index, columns)]
    with pytest.raises(TypeMismatchError) as error:
        P.row(*arguments)
    shown = [str(each) if isinstance(each, int) else repr(each) for each in arguments]
    assert str(error.value) == (
        "Pointer(global f32 [%rd1+0]).row: the index must be a u32 or s32 value, the columns of the same "
        f"type or a positive int, and the address of 64 bits, got {shown[0]} and {shown[1]}; for "
        "an s32 index and u32 columns write P.row(index, k.signed(columns)), or P.row(index.as_(u32), "
        "columns) if the index is not negative; for a Python number as the index, P.element(index * columns)"
    )


@pytest.mark.parametrize("index", [u32, s32])
def test_an_element_of_shared_memory_costs_one_instruction(index):
    k = builder()
    tile, i = k.shared("T", (2, 8)), k.param("i", index)
    before = len(instructions(k))
    tile.pointer(1, 2).element(i)
    assert opcodes(k)[before - 1 :] == [f"mad.lo.{index}", "ret"]


def test_an_element_known_while_building_costs_nothing():
    k = builder()
    P = k.pointer("P")
    before = opcodes(k)
    assert repr(P.at(3).element(-5)) == "Pointer(global f32 [%rd1+-8])"
    assert opcodes(k) == before


def test_an_element_of_a_moving_pointer_is_not_copied_first():
    k = builder()
    P = k.pointer("P")
    moving = Pointer(k.var(u64, P.value), "global", f32)
    before = len(instructions(k))
    moving.element(k.mov(3, type=s32))
    assert opcodes(k)[before - 1 :] == ["mov.s32", "mad.wide.s32", "ret"]


@pytest.mark.parametrize("index", TYPES_OF_INDICES)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "bfloat16", "float32", "float64", "int64"])
def test_elements_are_loaded_and_stored(index, dtype, assembler: Assembler):
    numpy_type = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    element = next(t for t in TYPES.values() if t.kind in "usf" and t.dtype == numpy_type)
    k = builder()
    X, Y = k.pointer("X", element), k.pointer("Y", element)
    t = k.thread_id()
    i = t.as_(index) if index.bits == 32 else k.cvt(t, dtype=index)
    Y.at(31)[0 - i] = X[i]
    Y[32] = X[32]
    module = k.build()
    x = np.arange(1, 34).astype(numpy_type)
    y = np.zeros(33, numpy_type)
    if index.is_signed:
        run(module, grid=1, block=32, args=[x, y], sanitize=True)
        assert (y == [*x[31::-1], x[32]]).all()
    assert assembler.assemble(render(module), "sm_80").cubin


def test_an_unsigned_index_reaches_beyond_the_signed_numbers():
    k = builder()
    X, Y = k.pointer("X", TYPES["u8"]), k.pointer("Y", TYPES["u8"])
    i = k.thread_id()
    Y[i] = X.at(-(2**31) + 1)[i + (2**31 - 1)]
    y = np.zeros(32, np.uint8)
    run(k.build(), grid=1, block=32, args=[np.arange(32, dtype=np.uint8), y], sanitize=True)
    assert (y == np.arange(32)).all()


def test_the_bytes_of_a_32_bit_index_may_exceed_32_bits():
    k = builder()
    out, P = k.pointer("out", u64), k.pointer("P")
    i = k.thread_id()
    out[i] = P.element(i + 2**30).value - P.value
    out.at(32)[i] = P.element(i.as_(s32) - 2**30).value - P.value
    got = np.zeros(64, np.uint64)
    run(k.build(), grid=1, block=32, args=[got, np.zeros(1, np.float32)])
    n = np.arange(32, dtype=np.int64)
    assert (got.view(np.int64) == np.concatenate([4 * n + 2**32, 4 * n - 2**32])).all()


def test_vectors_are_loaded_and_stored_at_an_element():
    k = builder()
    X, Y = k.pointer("X"), k.pointer("Y")
    i = k.thread_id() * 4
    a, b, c, d = k.load(X.element(i), 4)
    k.store(Y.element(i), [d, c, b, a])
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run(k.build(), grid=1, block=32, args=[x, y], sanitize=True)
    assert (y.reshape(-1, 4) == x.reshape(-1, 4)[:, ::-1]).all()


def test_an_element_is_added_to():
    k = builder()
    P = k.pointer("P")
    P[k.thread_id()] += 0.5
    p = lanes("float32")
    run(k.build(), grid=1, block=32, args=[p], sanitize=True)
    assert (p == np.arange(32) + 0.5).all()


def test_a_half_is_loaded_as_it_is_and_converted():
    k = builder()
    X, Y = k.pointer("X", f16), k.pointer("Y")
    i = k.thread_id()
    assert X[i].type is f16
    assert k.pointer("Z", bf16)[i].type is bf16
    Y[i] = k.cvt(X[i], dtype=f32) * 2
    x, y = lanes("float16"), np.zeros(32, np.float32)
    run(k.build(), grid=1, block=32, args=[x, y, np.zeros(32, np.uint16)], sanitize=True)
    assert (y == 2 * np.arange(32)).all()


def test_an_element_of_a_tile():
    def body(k, x):
        tile = k.shared("T", (32, 2), u32, pitch=3)
        i = k.thread_id()
        tile[i, 1] = x
        tile[31 - i, 0] = tile[i, 1] + 100
        k.bar_warp_sync(-1)
        return tile[i, 0] + tile.pointer(0, 0)[3 * i + 1]

    n = lanes()
    assert (computed(body, n) == 131).all()


def test_a_tile_of_one_element_needs_no_index_of_the_gpu():
    k = builder()
    out, tile = k.pointer("out"), k.shared("T", (2, 2))
    with k.when(k.thread_id() == 0):
        tile[1, 1] = 2.5
        out[0] = tile[1, 1]
    arguments = np.zeros(1, np.float32)
    launch(k, arguments, schedules=LOCKSTEP)
    assert arguments.tolist() == [2.5]


# ---------------------------------------- refused


@pytest.mark.parametrize(
    "index", [1.0, True, None, "i", slice(0, 3), (1, 2), u16, f32, TYPES["b32"], pred], ids=str
)
def test_an_index_is_an_integer(index):
    k = builder()
    P = k.pointer("P")
    value = k.fresh(index) if isinstance(index, type(u16)) else index
    message = (
        "the index of an element in global memory must be a Python int or an integer of 32 or 64 bits, "
        f"got {value!r}"
    )
    if isinstance(index, tuple):
        message += "; P.row(i, columns)[j] is an element of a matrix"
    with refused(TypeMismatchError, message):
        P[value]
    with refused(TypeMismatchError, message):
        P[value] = 1.0


def test_an_index_of_shared_memory_has_32_bits():
    k = builder()
    with refused(
        TypeMismatchError,
        "the index of an element in shared memory must be a Python int or an integer of 32 bits, "
        "got Value(%rd0: u64)",
    ):
        k.shared("T", (2, 2)).pointer()[k.param("n", u64)]


@pytest.mark.parametrize("type", [u16, TYPES["bf16"], TYPES["b16"]])
def test_bits_of_another_type_are_no_halves(type):
    k = builder()
    P, value = k.pointer("P", f16), k.fresh(type)
    if type is TYPES["b16"]:
        P[0] = value  # untyped bits may be anything
        return
    with refused(
        TypeMismatchError,
        f"store: the element must be f16, got {value!r}; reinterpret with .as_(f16) or convert with "
        "k.cvt(value, dtype=f16)",
    ):
        P[0] = value


def test_halves_are_loaded_into_variables_and_in_vectors():
    k = builder()
    X, Y = k.pointer("X", f16), k.pointer("Y", f16)
    i = k.thread_id() * 2
    a, b = k.load(X.element(i), 2)
    assert (a.type, b.type) == (f16, f16)
    into = k.fragment(1, 1, f16, initial=None)[0, 0]
    k.load(X.element(i).at(1), into=into)
    k.store(Y.element(i), [into, a])
    x, y = lanes("float16", 64), np.zeros(64, np.float16)
    run(k.build(), grid=1, block=32, args=[x, y], sanitize=True)
    assert (y.reshape(-1, 2) == x.reshape(-1, 2)[:, ::-1]).all()


def test_one_element_is_stored():
    k = builder()
    P, tile = k.pointer("P"), k.shared("T", (2, 2))
    with refused(
        TypeMismatchError,
        "P[i] = v stores one element, got [1.0, 2.0]; store 2 or 4 with P.vec(2)[i] = values",
    ):
        P[0] = [1.0, 2.0]
    with refused(
        TypeMismatchError,
        "shared tile 'T': [row, column] = v stores one element, got (1.0, 2.0); "
        "store 2 or 4 with k.store(tile.pointer(row, column), values)",
    ):
        tile[0, 0] = (1.0, 2.0)


@pytest.mark.parametrize(("place", "got"), [(0, "0"), ((1, 2, 3), "(1, 2, 3)"), ([0, 1], "[0, 1]")])
def test_a_place_in_a_tile_is_a_row_and_a_column(place, got):
    tile = builder().shared("T", (2, 2))
    with refused(TypeMismatchError, f"shared tile 'T': an element is [row, column], got [{got}]"):
        tile[place]


def test_python_does_not_iterate_over_a_pointer():
    message = (
        "Pointer(global f32 [%rd1+0]) does not know how many elements it has, so Python cannot iterate "
        "over it; use 'with k.loop(start, stop) as i:' and P[i]"
    )
    with refused(TypeMismatchError, message):
        list(builder().pointer("P"))


@pytest.mark.parametrize(("type", "caller", "register"), [(u32, "mad_wide", "%r0"), (u64, "shl", "%rd0")])
def test_an_index_of_another_kernel_is_refused(type, caller, register):
    k, other = builder("mine"), builder("theirs")
    P, index = k.pointer("P"), other.fresh(type)
    before = len(instructions(k)), len(instructions(other))
    with refused(
        TypeMismatchError,
        f"{caller}: Value({register}: {type}) belongs to kernel 'theirs', not to 'mine'; "
        "a value lives in the KernelBuilder that made it",
    ):
        P[index]
    assert (len(instructions(k)), len(instructions(other))) == before


@pytest.mark.parametrize("index", [u32, s32])
@pytest.mark.parametrize("word", ["strided", "grid_strided"])
def test_the_elements_of_a_share_are_proved_to_lie_in_the_array(word, index):
    k = builder()
    X, n = k.pointer("X"), k.param("n", index)
    with getattr(k, word)(n) as i:
        X[i] = X[i] * 2
    array = GlobalArray("X", (Axis("n", f32.nbytes),), f32.nbytes, f32.nbytes)
    contract = GlobalContract((array,), (), {"n": (0, 2**24)}, (8, 1, 1))
    proof = prove(k.build(), block=32, contract=contract).global_memory
    assert [access.verdict for access in proof.accesses] == ["proved", "proved"]


def test_the_line_of_an_element_is_the_line_of_the_kernel():
    k = builder()
    P = k.pointer("P")
    P[k.thread_id()] = 1.0
    store = next(i for i in instructions(k) if i.opcode.startswith("st"))
    assert isinstance(store, ir.Instr)
    assert store.origin.code.co_filename == __file__

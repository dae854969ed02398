from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes
from error_texts import refused

from ptxgen import ir
from ptxgen.dsl import Pointer, PointerType
from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.types import TYPES, b32, f16, f16x2, f32, f64, pred, s32, u32, u64

INTEGERS = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "and": (lambda a, b: a & b, np.bitwise_and),
    "or": (lambda a, b: a | b, np.bitwise_or),
    "xor": (lambda a, b: a ^ b, np.bitwise_xor),
}
COMPARISONS = {
    "lt": (lambda a, b: a < b, np.less),
    "le": (lambda a, b: a <= b, np.less_equal),
    "gt": (lambda a, b: a > b, np.greater),
    "ge": (lambda a, b: a >= b, np.greater_equal),
    "eq": (lambda a, b: a == b, np.equal),
    "ne": (lambda a, b: a != b, np.not_equal),
}


def operands(dtype):
    rng = np.random.default_rng(1)
    if dtype.startswith("float"):
        return rng.standard_normal((2, 32)).astype(dtype)
    low = -100 if dtype.startswith("int") else 0
    a, b = rng.integers(low, 100, (2, 32)).astype(dtype)
    b[:4] = a[:4]
    return a, b


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((dtype, name) for dtype in ("uint32", "int32", "uint64", "int64") for name in INTEGERS),
        *((dtype, name) for dtype in ("float32", "float64") for name in ("add", "sub", "mul")),
    ],
)
def test_integer_operators_wrap_and_those_of_floats_round_once_as_numpy_does(dtype, name):
    ours, numpys = INTEGERS[name]
    a, b = operands(dtype)
    assert (computed(lambda _, x, y: ours(x, y), a, b) == numpys(a, b)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_division_of_floats_rounds_once(dtype):
    a, b = operands(dtype)
    assert (computed(lambda _, x, y: x / y, a, b) == a / b).all()
    assert (computed(lambda _, x: 1 / x, a) == 1 / a).all()
    assert (computed(lambda _, x: x / 3, a) == a / a.dtype.type(3)).all()


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint64", "float32", "float64"])
def test_comparisons(dtype, name):
    ours, numpys = COMPARISONS[name]
    a, b = operands(dtype)
    got = computed(lambda k, x, y: k.selp(1, 0, ours(x, y), type=u32), a, b)
    assert (got == numpys(a, b)).all()


def test_predicates_combine_with_and_or_xor_and_not():
    def body(k, x):
        low, odd = x < 16, (x & 1) == 1
        picked = (low & ~odd) | (~low ^ odd) & odd
        return k.selp(1, 0, picked, type=u32)

    n = np.arange(32)
    low, odd = n < 16, n % 2 == 1
    assert (computed(body, lanes()) == (low & ~odd | (~low ^ odd) & odd)).all()


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_division_and_remainder_round_towards_zero(dtype):
    a, b = operands(dtype)
    b[b == 0] = 7
    quotient = np.trunc(a.astype(float) / b).astype(dtype)
    assert (computed(lambda _, x, y: x // y, a, b) == quotient).all()
    assert (computed(lambda _, x, y: x % y, a, b) == a - quotient * b).all()


def test_right_shift_keeps_the_sign_of_signed_values_only():
    a = np.array([-64, 64] * 16, "int32")
    assert (computed(lambda _, x: x >> 3, a) == a >> 3).all()
    assert (computed(lambda _, x: (x.as_(u32) >> 3).as_(s32), a) == a.view("u4") >> 3).all()


def test_left_shift():
    assert (computed(lambda _, x: x << 3, lanes()) == lanes() << 3).all()


def test_negation_and_complement():
    a = lanes("int32")
    assert (computed(lambda _, x: -x, a) == -a).all()
    assert (computed(lambda _, x: ~x, a) == ~a).all()


def test_a_number_may_stand_on_the_left():
    a = lanes("float32")
    assert (computed(lambda _, x: 1.0 - (2.0 + 3 * x), a) == 1 - (2 + 3 * a)).all()


def test_numbers_become_literals_of_the_other_operands_type():
    k = builder()
    k.param("x", f64) * 0.1
    k.param("y", f32) * 0.1
    literals = [i.operands[2] for i in instructions(k) if i.opcode.startswith("mul")]
    assert literals == [ir.FloatImm(0x3FB999999999999A, 64), ir.FloatImm(0x3DCCCCCD, 32)]


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e39, -1e39, pytest.param(10**400, id="huge")])
def test_a_number_too_large_for_f32_is_infinite(number):
    got = computed(lambda _, x: x * 0.0 + number, lanes("float32"))
    assert (got == (math.inf if number > 0 else -math.inf)).all()


def test_nan_is_a_literal():
    assert np.isnan(computed(lambda _, x: x + math.nan, lanes("float32"))).all()


REINTERPRET = "reinterpret with .as_({0}) or convert with k.cvt(value, dtype={0})"
COUNTED = (
    "Value(%r0: u32) is known only on the GPU, so Python cannot count with it; "
    "use 'with k.loop(start, stop) as i:' for a loop and P[i] for an element"
)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda k: k.cvt(k.param("x", f32), dtype=f16) + 1.0,
            "add: operand b is f16, which has no literal in PTX; use k.cvt on an f32 value",
        ),
        (lambda k: k.param("x", s32) + True, "add: operand b must be s32, got True"),
        (
            lambda k: k.param("a", s32) + k.param("b", u32),
            f"add: operand b must be s32, got Value(%r1: u32); {REINTERPRET.format('s32')}",
        ),
        (
            lambda k: k.param("a", f32) * k.param("b", f64),
            "mul: operand b must be f32, got Value(%fd0: f64); convert with k.cvt(value, dtype=f32)",
        ),
        (lambda k: k.param("x", f32) // 2.0, "// is for integers, got Value(%f0: f32); divide floats with /"),
        (lambda k: k.param("x", f32) % 2.0, "% is for integers, got Value(%f0: f32); divide floats with /"),
        (
            lambda k: bool(k.thread_id() < 3),
            "Value(%p0: pred) is known only on the GPU, so Python cannot branch on it; "
            "use 'with k.when(condition):' for a branch, k.selp(a, b, condition) for a choice, k.max and "
            "k.min for max and min, and &, | and ~ for and, or and not",
        ),
        (lambda k: range(k.thread_id()), COUNTED),
        (lambda k: [1, 2][k.thread_id()], COUNTED),
        (lambda k: list(k.thread_id()), "Value(%r0: u32) is a single value and cannot be iterated"),
        (
            lambda k: k.param("x", f32).as_(u64),
            "as_(u64): Value(%f0: f32) has 32 bits, u64 has 64; convert with k.cvt(value, dtype=u64)",
        ),
        (
            lambda k: k.var(f32, 0.0).set(k.thread_id()),
            f"mov: operand a must be f32, got Value(%r0: u32); {REINTERPRET.format('f32')}",
        ),
        (
            lambda k: k.pointer("Q").at(k.thread_id()),
            "the offset of a pointer must be a Python int, got Value(%r0: u32); what is known only "
            "on the GPU goes into pointer.element(index) or tile.pointer(row, column)",
        ),
        (
            lambda k: k.pointer("Q").at(2**29),
            "the offset of a pointer must fit 32 bits, got 2147483648 bytes; "
            "add it to the register with pointer.plus(bytes)",
        ),
        (
            lambda k: k.pointer("Q").plus(k.thread_id()),
            "add: operand b must be u64, got Value(%r0: u32); convert with k.cvt(value, dtype=u64)",
        ),
        (
            lambda k: k.load(builder("theirs").pointer("Q")),
            "ld: Value(%rd1: u64) belongs to kernel 'theirs', not to 'kernel'; "
            "a value lives in the KernelBuilder that made it",
        ),
    ],
)
def test_a_wrong_use_of_a_value_is_refused(use, message):
    with refused(TypeMismatchError, message):
        use(builder())


@pytest.mark.parametrize(
    ("type", "number", "fits"),
    [
        *((u32, 2**32 - 1, True), (u32, 2**32, False), (u32, -(2**31), True), (u32, -(2**31) - 1, False)),
        *((s32, 2**31 - 1, True), (s32, 2**31, False), (s32, -(2**31), True), (s32, -(2**31) - 1, False)),
        *((u64, 2**64 - 1, True), (u64, 2**64, False)),
    ],
)
def test_an_integer_literal_must_fit_the_type(type, number, fits):
    k = builder()
    x = k.param("x", type)
    if fits:
        x + number
        assert instructions(k)[-2].operands[2] == ir.IntImm(number)
    else:
        with refused(TypeMismatchError, f"add: operand b must fit {type}, got {number}"):
            x + number


@pytest.mark.parametrize("first", [2, 2.5])
def test_the_same_message_comes_before_and_after_a_good_call(first):
    """Plans are kept by the kinds of operands, so a plan must not hide what is wrong with one."""
    k = builder()
    x = k.param("x", u32)
    for _ in range(2):
        if isinstance(first, float):
            with refused(TypeMismatchError, "xor: operand b must be b32, got 2.5"):
                x ^ first
        else:
            x ^ first


@pytest.mark.parametrize(
    ("type", "cure"),
    [
        (u32, "divide integers with //"),
        (s32, "divide integers with //"),
        (f16, "convert with k.cvt(value, dtype=f32)"),
        (f16x2, "convert with k.cvt(value, dtype=f32)"),
    ],
)
def test_division_of_what_has_no_rounded_quotient_is_refused(type, cure):
    x = builder().fresh(type)
    message = f"/ is for f32 and f64, got {x!r}; {cure}"
    with refused(TypeMismatchError, message):
        x / 2
    with refused(TypeMismatchError, message):
        2 / x


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
def test_an_unsigned_value_is_not_ordered_beside_a_negative_number(name):
    t = builder().thread_id()
    message = f"{name}: {t!r} is never negative, got -1; compare it as signed with .as_(s32)"
    with refused(TypeMismatchError, message):
        getattr(operator, name)(t, -1)
    assert (computed(lambda k, x: k.selp(1, 0, x == -1, type=u32), lanes() - 1) == (lanes() == 0)).all()


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "ifloordiv", "imod", "iand", "ior", "ixor"])
def test_a_variable_is_changed_in_place(name):
    change = getattr(operator, name)

    def body(k, x):
        before = v = k.var(u32, x)
        with k.loop(0, 3):
            v = change(v, 5)
        assert v is before
        return v

    wanted = lanes() + 40
    for _ in range(3):
        wanted = change(wanted, np.uint32(5))
    assert (computed(body, lanes() + 40) == wanted).all()


def test_a_variable_is_divided_and_shifted_in_place():
    def body(k, x, n):
        v, w = k.var(f32, x), k.var(u32, n)
        with k.loop(0, 2):
            v /= 3.0
            w <<= 3
            w >>= 2
        return v * k.cvt(w, dtype=f32)

    x = np.arange(32, dtype="float32")
    assert (
        computed(body, x, lanes()) == x / np.float32(3) / np.float32(3) * (lanes() * 4).astype("float32")
    ).all()


def test_a_refused_operation_leaves_the_kernel_as_it_was():
    k = builder()
    x = k.param("x", f32)
    before = k.build()
    for wrong in (True, "1", None, 1j):
        with pytest.raises(TypeMismatchError):
            x + wrong
    assert k.build() == before


def test_a_value_of_another_kernel_is_refused():
    k, other = builder("mine"), builder("theirs")
    x, stranger = k.param("x", f32), other.param("y", f32)
    message = (
        "{}: Value(%f0: f32) belongs to kernel 'theirs', not to 'mine'; "
        "a value lives in the KernelBuilder that made it"
    )
    with refused(TypeMismatchError, message.format("add")):
        x + stranger
    out = k.pointer("out")
    with refused(TypeMismatchError, message.format("st")):
        k.store(out, [x, stranger])
    with refused(TypeMismatchError, message.format("fma")):
        k.accumulate(k.var(f32, 0.0), 1.0, stranger)


# ---------------------------------------- as_


def test_as_keeps_the_bits_between_float_and_integer():
    a = np.array([1.5, -0.0, math.inf, 3e-45] * 8, "float32")
    assert (computed(lambda _, x: x.as_(u32), a) == a.view("u4")).all()
    assert (computed(lambda _, x: x.as_(s32).as_(f32), a).view("u4") == a.view("u4")).all()
    double = a.astype("float64")
    assert (computed(lambda _, x: x.as_(u64), double) == double.view("u8")).all()


def test_as_is_free_within_a_register_class():
    k = builder()
    x = k.param("x", u32)
    count = len(instructions(k))
    assert x.as_(s32).reg is x.reg
    assert x.as_(b32).type is b32
    assert len(instructions(k)) == count


def test_bits_of_a_float_can_be_masked():
    a = operands("float32")[0]
    got = computed(lambda _, x: (x.as_(b32) & 0x7FFFFFFF).as_(f32), a)
    assert (got == np.abs(a)).all()


# ---------------------------------------- Var


def test_as_of_a_variable_is_a_copy_of_what_it_holds_then():
    def body(k, x):
        v = k.var(u32, x)
        old = v.as_(s32)
        v.set(0)
        return old

    assert (computed(body, lanes()) == lanes()).all()


def test_a_value_cannot_be_set():
    k = builder()
    assert not hasattr(type(k.thread_id()), "set")


def test_a_variable_of_predicates():
    def body(k, x):
        seen = k.var(pred, x < 3)
        seen.set(seen | (x > 30))
        return k.selp(1, 0, seen, type=u32)

    assert computed(body, lanes()).nonzero()[0].tolist() == [0, 1, 2, 31]


# ---------------------------------------- pointers


@pytest.mark.parametrize(
    "moved",
    [lambda k, at: at(k.thread_id()).plus(k.mov(20, type=u32)), lambda k, at: at(k.thread_id() + 9).at(-4)],
)
def test_at_moves_by_elements_of_either_sign_and_plus_by_bytes(moved):
    def body(k, x):
        tile = k.shared("T", (1, 64), u32)
        k.store(tile.pointer(0, k.thread_id()).at(5), x)
        return k.load(moved(k, lambda column: tile.pointer(0, column)))

    assert (computed(body, lanes()) == lanes()).all()


def test_a_pointer_says_where_it_points():
    assert repr(builder().pointer("Q").at(3)) == "Pointer(global f32 [%rd1+12])"
    assert repr(Pointer(ir.Symbol("Q"), "param", u64)) == "Pointer(param u64 [Q+0])"


def test_the_type_of_a_pointer_names_its_elements():
    assert Pointer[f32] == PointerType(f32)
    assert str(Pointer[f32]) == "Pointer[f32]"
    assert Pointer[f32].dtype is f32


@pytest.mark.parametrize("wrong", ["f32", 4, None, np.float32])
def test_the_type_of_a_pointer_is_made_of_a_type_of_ptx(wrong):
    with refused(
        TypeMismatchError, f"Pointer[...]: the type must be one of ptxgen.types, such as f32, got {wrong!r}"
    ):
        Pointer[wrong]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_floats_are_compared_as_floats_and_not_by_their_bits(dtype):
    k = builder(on="sm_90")
    X, Y = k.pointer("X", TYPES[dtype]), k.pointer("Y", u32)
    t = k.thread_id()
    a, b = X[t], X[t + 32]
    for n, result in enumerate((a == b, a != b, a <= b)):
        Y[t + 32 * n] = k.selp(1, 0, result, type=u32)
    x = np.tile(np.array([0.0, -0.0, np.nan, 1.0]), 16).astype(TYPES[dtype].dtype)
    x[32:] = np.repeat(x[:4], 8)
    y = np.zeros(96, np.uint32)
    run(k.build(), grid=1, block=32, args=[x, y], sanitize=True)
    a, b = x[:32].astype(np.float64), x[32:].astype(np.float64)
    ordered = ~(np.isnan(a) | np.isnan(b))
    assert (y.reshape(3, 32).astype(bool) == [a == b, (a != b) & ordered, a <= b]).all()

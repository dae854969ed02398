from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes, own_place, smem
from error_texts import refused

from ptxgen import ir, register_names
from ptxgen.dsl import KernelBuilder, ops
from ptxgen.errors import ConfigError, ModifierError, TypeMismatchError, UnsupportedTargetError
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render, render_operand
from ptxgen.types import b32, f16, f32, f64, pred, s32, u8, u32, u64

HERE = Path(__file__)


def everything() -> ir.Module:
    """A kernel with every control construct and every kind of operand."""
    k = builder("everything", threads=64)
    out, n = k.pointer("out", u32), k.param("n", u32)
    x = k.thread_id()
    tile = k.shared("T", (2, 64), u32, pitch=68)
    k.note("branches and loops")
    v = k.var(u32, 0)
    with k.when(n > 3, uniform=True):
        with k.loop(0, n, step=2, type=u32) as i:
            with k.when(x < i):
                v.set(v + i)
            with k.otherwise():
                v.set(v + 1)
        k.barrier()
    with k.only_if(x == 7):
        v.set(1000)
    k.note("vectors, pairs, negative offsets")
    k.store(tile.pointer(1, x), v)
    k.barrier(0, threads=64)
    first, _ = k.load(tile.pointer(1, x & 62), 2)
    _, inside = k.shfl_pred(first, 1, 31, -1, mode="down")
    with k.loop(0, 2):
        v.set(k.selp(k.load(tile.pointer(1, x + 1).at(-1)), first, inside))
    k.store(own_place(k, out), v)
    return k.build(header=("everything", "in one kernel"))


def digest() -> str:
    return hashlib.sha256(render(everything()).encode()).hexdigest()


def test_what_is_printed_parses_back():
    module = everything()
    assert parse(render(module)) == module


def test_a_kernel_with_everything_runs():
    out = np.zeros(64, "uint32")
    module = everything()
    run(module, grid=1, block=64, args=[out, np.uint32(8)], dynamic_smem=smem(module))
    x = np.arange(64)
    turns = range(0, 8, 2)
    v = sum(np.where(x < i, i, 1) for i in turns)
    v[7] = 1000
    inside = x % 32 < 31
    assert (out == np.where(inside, v, v[x & 62])).all()


def test_a_kernel_with_everything_assembles(assembler: Assembler):
    assert assembler.assemble(render(everything()), "sm_80").cubin


def test_the_same_kernel_built_again_is_equal_to_the_byte():
    first, second = everything(), everything()
    assert first == second
    assert render(first) == render(second)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_another_process_writes_the_same_bytes(seed):
    """Nothing may hang on the order of a set or on where an object lies."""
    tests, root = HERE.parents[1], HERE.parents[2]
    paths = os.pathsep.join(map(str, (root, tests)))
    program = "from dsl.test_builder import digest; print(digest())"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest()


def test_building_twice_gives_the_same_module():
    k = builder()
    k.thread_id()
    assert k.build() == k.build()


def test_registers_are_declared_as_many_as_are_used():
    k = builder()
    k.param("a", f32) + k.param("b", f32)
    k.pointer("Q")
    assert k.build().kernels[0].registers == (
        ir.RegisterRange("%rd", "b64", 2),
        ir.RegisterRange("%f", "f32", 3),
    )


# ---------------------------------------- kernels


@pytest.mark.parametrize("threads", [0, -32, 1025, 32.0, True, None])
def test_the_threads_of_a_kernel(threads):
    message = f"kernel 'x': threads must be 1..1024 on sm_80, got {threads!r}"
    with refused(ConfigError, message):
        KernelBuilder("x", target=target("sm_80"), threads=threads)


@pytest.mark.parametrize("threads", [(), (32, 0), (32, 33), (2, 2, 65), (4, 4, 4, 1), (8, 1.5)])
def test_the_threads_of_a_kernel_along_axes(threads):
    message = (
        "kernel 'x': threads along x, y and z must be up to three numbers from 1 with a product of at most "
        f"1024 on sm_80, and at most 64 along z, got {threads!r}"
    )
    with refused(ConfigError, message):
        KernelBuilder("x", target=target("sm_80"), threads=threads)


@pytest.mark.parametrize("name", ["", "1st", "a b", "a-b", "größe", "a\n"])
def test_names_that_ptx_does_not_take_are_refused(name):
    end = ": a name is made of ASCII letters, digits and _, and does not begin with a digit"
    with refused(ConfigError, f"kernel {name!r}{end}"):
        builder(name)
    with refused(ConfigError, f"parameter {name!r}{end}"):
        builder().param(name, u32)
    with refused(ConfigError, f"shared tile {name!r}{end}"):
        builder().shared(name, (4, 4))


def test_threads_and_ctas_are_promised():
    k = KernelBuilder("x", target=target("sm_80"), threads=96, min_ctas=2)
    kernel = k.build().kernels[0]
    assert (kernel.threads, kernel.min_ctas) == (96, 2)


# ---------------------------------------- parameters


def test_parameters_keep_their_order_and_types():
    k = builder()
    k.pointer("Q")
    k.param("n", s32)
    k.param("x", f64)
    want = (ir.Param("Q", "u64"), ir.Param("n", "s32"), ir.Param("x", "f64"))
    assert k.build().kernels[0].params == want


def test_a_parameter_of_a_type_that_cannot_be_loaded_leaves_no_trace():
    k = builder()
    with pytest.raises(ModifierError, match="ld: type must be one of"):
        k.param("n", pred)
    assert k.build() == builder().build()


def test_special_registers_by_name():
    def body(k, x):
        return x + k.special("laneid") + k.special("ntid.x") + k.block_id()

    assert (computed(body, lanes()) == 2 * lanes() + 32).all()


def test_a_special_register_may_be_named_as_ptx_does():
    named = [builder() for _ in range(2)]
    for k, name in zip(named, ("ctaid.y", "%ctaid.y"), strict=True):
        k.special(name)
    assert named[0].build() == named[1].build()
    for wrong, near in (("tidx", "%tid.x"), ("%ctaid.w", "%ctaid.z")):
        message = f"no special register '%{wrong.removeprefix('%')}'; did you mean '{near}'?"
        with refused(ModifierError, message):
            builder().special(wrong)


# ---------------------------------------- memory


@pytest.mark.parametrize("count", [2, 4])
def test_vectors_are_loaded_and_stored(count):
    def body(k, x):
        tile = k.shared("A", (32, 4), u32)
        at = tile.pointer(x)
        k.store(at, [x * (10**n) for n in range(count)])
        total = k.var(u32, 0)
        for part in k.load(at, count):
            total.set(total + part)
        return total

    assert (computed(body, lanes()) == lanes() * int("1" * count)).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_load_leaves_variables_as_they_are_where_a_condition_does_not_hold(count):
    def body(k, x):
        at = k.shared("A", (32, 4), u32).pointer(k.thread_id())
        k.store(at, [x + 100] * count)
        result = [k.var(u32, 7) for _ in range(count)]
        with k.only_if(x < 16):
            k.load(at, count, into=result[0] if count == 1 else result)
        total = k.var(u32, 0)
        for part in result:
            total.set(total + part)
        return total

    wanted = np.where(lanes() < 16, lanes() + 100, 7) * count
    assert (computed(body, lanes()) == wanted).all()


def test_a_store_takes_numbers_and_a_vector_may_mix_them_with_values(assembler: Assembler):
    def body(k, x):
        tile = k.shared("A", (32, 4))
        at = tile.pointer(k.thread_id())
        k.store(at, [x, 0.5, 2, x])
        k.store(at.step(columns=3), 7.0)
        a, b, c, d = k.load(at, 4)
        return a + b + c + d

    assert (computed(body, lanes("float32")) == np.arange(32) + 9.5).all()
    k = builder()
    k.store(k.pointer("Q"), [k.param("x", f32), 0.5, 2, 1.0])
    assert assembler.assemble(render(k.build()), "sm_80").cubin


def twice(k):
    k.param("n", u32)
    k.param("n", f32)


def build_in_a_loop(k):
    with k.loop(0, 3):
        k.build()


WRONG_CALLS: dict[type[Exception], dict[str, Any]] = {
    ConfigError: {
        "kernel 'kernel': build inside 'loop'; end the block first": build_in_a_loop,
        "parameter 'n' is declared twice in kernel 'kernel'": twice,
        "parameter 'smem' is declared twice in kernel 'kernel'": lambda k: k.param("smem", u32),
    },
    TypeMismatchError: {
        "load: the first operand must be a Pointer, got Value(%rd0: u64)": lambda k: k.load(
            k.param("x", u64)
        ),
        "store: the first operand must be a Pointer, got Value(%rd0: u64)": lambda k: k.store(
            k.param("x", u64), 1.0
        ),
        "st: operand a must be f32, got Value(%r0: u32); "
        "reinterpret with .as_(f32) or convert with k.cvt(value, dtype=f32)": lambda k: k.store(
            k.pointer("Q"), k.thread_id()
        ),
    },
}


@pytest.mark.parametrize(
    ("error", "message", "use"),
    [(error, message, use) for error, rows in WRONG_CALLS.items() for message, use in rows.items()],
)
def test_a_wrong_call_is_refused(use, error, message):
    with refused(error, message):
        use(builder())


def copy(k, nbytes, valid=None, *, back=False):
    tile, array = k.shared("T", (4, 4)).pointer(), k.pointer("Q")
    k.copy_async(array if back else tile, tile if back else array, nbytes, valid)


@pytest.mark.parametrize(
    ("use", "numbers", "message"),
    [
        (
            lambda k, n: k.load(k.pointer("Q"), n),
            (0, 3, 8, -1, True),
            "load: an access takes 1, 2 or 4 elements, got {!r}",
        ),
        (
            lambda k, n: k.store(k.pointer("Q"), [1.0] * n),
            (0, 3),
            "store: an access takes 1, 2 or 4 elements, got {!r}",
        ),
        (
            lambda k, n: k.butterfly(k.thread_id(), n),
            (0, 3, 32, -1, 1.0),
            "butterfly: distance must be 1, 2, 4, 8 or 16, got {!r}",
        ),
        (copy, (0, 2, 12, 32, 16.0), "copy_async: nbytes must be 4, 8 or 16, got {!r}"),
        (lambda k, n: copy(k, 8, n), (-1, 9), "copy_async: valid_bytes must be 0..8, got {!r}"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(use, numbers, message):
    for number in numbers:
        with refused(ConfigError, message.format(number)):
            use(builder(), number)


@pytest.mark.parametrize(("nbytes", "row"), [(4, "cp_async_ca"), (16, "cp_async_cg")])
def test_an_asynchronous_copy_goes_from_global_to_shared_memory(nbytes, row):
    message = f"{row}: operand dst must point to shared memory, got Pointer(global f32 [%rd1+0])"
    with refused(TypeMismatchError, message):
        copy(builder(), nbytes, back=True)


@pytest.mark.parametrize(("nbytes", "valid"), [(4, None), (8, 4), (16, None), (16, 12), (4, 0)])
def test_an_asynchronous_copy_fills_up_with_zeros(nbytes, valid):
    k = builder()
    Q, O = k.pointer("Q", u8), k.pointer("O", u32)
    tile = k.shared("T", (32, 16), u8)
    location = k.thread_id()
    offset = k.cvt(location * 16, dtype=u64)
    k.copy_async(tile.pointer(location), Q.plus(offset), nbytes, valid)
    k.cp_async_wait_all()
    for part in range(nbytes // 4):
        word = k.ld(tile.pointer(location).at(4 * part), type=u32)
        k.st(O.plus(offset).at(part), word)
    module = k.build()
    arguments = np.arange(1, 513).astype("uint8") | 1
    got = np.zeros(128, "uint32")
    run(module, grid=1, block=32, args=[arguments, got], dynamic_smem=smem(module))
    want = np.zeros((32, 16), "uint8")
    copied = nbytes if valid is None else valid
    want[:, :copied] = arguments.reshape(32, 16)[:, :copied]
    assert (got.view("uint8").reshape(32, 16) == want).all()


# ---------------------------------------- small algebra


def test_accumulate_rounds_once():
    def body(k, x):
        total = k.var(f32, -1.0)
        k.accumulate(total, x, x)
        return total

    x = np.full(32, 1 + 2.0**-12, "float32")
    assert (computed(body, x) == np.float32(2.0**-11 + 2.0**-24)).all()


def test_divide_up():
    want = -(-np.arange(32) // 5)
    assert (computed(lambda k, x: k.divide_up(x, 5), lanes()) == want).all()


@pytest.mark.parametrize("distance", [1, 2, 4, 8, 16])
def test_butterfly_reads_the_lane_that_differs_in_one_bit(distance):
    got = computed(lambda k, x: k.butterfly(x, distance), lanes(threads=64), threads=64)
    assert (got == lanes(threads=64) ^ distance).all()


# ---------------------------------------- comments


@pytest.mark.parametrize("text", ["S = Q Kᵀ", "two\nlines", "tab\there", " blank", "blank ", "a\r"])
def test_a_comment_is_one_line_of_ascii(text):
    message = f"{{}}: the text must be one line of printable ASCII without blanks around it, got {text!r}"
    k = builder()
    with refused(ConfigError, message.format("note")):
        k.note(text)
    with refused(ConfigError, message.format("build: header")):
        k.build(header=("fine", text))


@pytest.mark.parametrize("text", ["", "a \\", "// x", "region", "*/"])
def test_odd_comments_come_back(text, assembler: Assembler):
    k = builder()
    k.note(text)
    k.shared("T", (1, 4))
    module = k.build(header=("h", text, "h"))
    assert parse(render(module)) == module
    assert assembler.assemble(render(module), "sm_80").cubin


def test_a_note_is_not_taken_for_a_tile():
    text = "region T: offset 0, 16 bytes, align 16"
    with refused(ConfigError, f"note: the text must not begin with 'region ', got {text!r}"):
        builder().note(text)


# ---------------------------------------- targets


def test_the_version_is_the_lowest_that_has_everything():
    versions = {}
    for on in ("sm_75", "sm_80", "sm_90"):
        k = builder(on=on)
        k.thread_id()
        versions[on] = k.build().version
    assert versions == {on: target(on).ptx for on in versions}


def test_an_instruction_raises_the_version():
    k = builder(on="sm_75")
    assert k.build().version == (6, 3)
    k.tanh(k.param("x", f32))
    assert k.build().version == (7, 0)


def test_an_instruction_newer_than_the_target_fails_at_its_line():
    k = builder("old", on="sm_75")
    before = k.build()
    with refused(
        UnsupportedTargetError, "cp.async.wait_all needs sm_80 / PTX 7.0, but kernel 'old' targets sm_75"
    ):
        k.cp_async_wait_all()
    assert k.build() == before


def test_a_choice_may_be_newer_than_its_instruction():
    k = builder("old", on="sm_75")
    half = k.cvt(k.param("x", f32), dtype=f16)
    with refused(UnsupportedTargetError, "max.NaN.f16 needs sm_80 / PTX 7.0, but kernel 'old' targets sm_75"):
        k.max(half, half, NaN=True)


# ---------------------------------------- origins


def line() -> int:
    return sys._getframe(1).f_lineno


def origins(k: KernelBuilder) -> list[tuple[str, int]]:
    result = [i.origin for i in instructions(k)[:-1]]
    assert all(o is not None and o.code is not None for o in result)
    assert {o.code.co_filename for o in result} == {__file__}
    return [(o.code.co_name, o.line) for o in result]


def test_an_instruction_knows_the_authors_line():
    k = builder()
    first = line() + 1
    x = k.thread_id()
    y = x + 1
    k.shared("T", (4, 4)).pointer(y)
    k.butterfly(y, 1)
    name = "test_an_instruction_knows_the_authors_line"
    assert origins(k) == [(name, first + n) for n in (0, 1, 2, 2, 3)]


def test_branches_know_the_line_of_their_with():
    k = builder()
    condition = k.thread_id() < 3
    first = line() + 1
    with k.when(condition):
        k.mov(1, type=u32)
    with k.loop(0, condition.k.mov(3, type=s32)):
        pass
    lines = [at - first for _, at in origins(k)[2:]]
    assert lines == [0, 1, 2, 2, 2, 2, 2, 2, 2]


def helper(k: KernelBuilder) -> None:
    k.mov(1, type=u32)


def test_a_helper_of_the_author_is_the_authors_line():
    k = builder()
    helper(k)
    assert origins(k) == [("helper", helper.__code__.co_firstlineno + 1)]


def test_lines_of_one_function_are_told_apart_in_a_loop_of_python():
    k = builder()
    for _ in range(2):
        a = k.mov(1, type=u32)
        b = a + k.mov(2, type=u32)
        k.mov(b, type=u32)
    first = origins(k)[0][1]
    assert [at - first for _, at in origins(k)] == [0, 1, 1, 2] * 2


def test_functions_made_anew_have_lines_of_their_own():
    # The code of each is freed, so that the next one may have its address.
    k = builder()
    for n in range(20):
        scope: dict[str, Any] = {}
        exec(compile("\n" * n + "def f(k): k.thread_id()", __file__, "exec"), scope)
        scope["f"](k)
    assert [at for _, at in origins(k)] == list(range(1, 21))


def test_a_method_of_many_instructions_has_the_line_of_its_call():
    k = builder(threads=128)
    C = k.matrix(k.pointer("C"), 64, 64)
    with k.placed(), k.placed():
        k.thread_id()
    sums = k.accumulator((64, 64))
    first = line() + 1
    C.store(sums)
    sums += 1
    k.thread_id()
    lines = [at - first for _, at in origins(k)]
    assert sorted({at for at in lines if at >= 0}) == [0, 1, 2]
    assert lines.count(0) > 32
    assert lines[-1] == 2


def test_an_error_in_a_method_of_many_instructions_does_not_keep_its_line():
    k = builder(threads=128)
    with pytest.raises(KeyError), k.placed():
        raise KeyError
    k.thread_id()
    assert origins(k)[-1][1] == line() - 1


# ---------------------------------------- what is kept from call to call


def test_untyped_bits_are_told_apart_by_their_registers():
    k = builder()
    x, n = k.mov(1.0, type=f32), k.mov(1, type=u32)
    assert k.add(n.as_(b32), n, type=u32).type is u32
    for a in (x.as_(b32), n.as_(b32), x.as_(b32)):
        if a.reg.declared == "b32":
            k.add(a, n, type=u32)
            continue
        with pytest.raises(TypeMismatchError, match=f"operand a must be u32, got {re.escape(repr(a))}"):
            k.add(a, n, type=u32)


def test_literals_that_are_equal_in_python_are_told_apart():
    k = builder()
    for value in (0.0, -0.0, 0.0, 1, 1.0):
        k.mov(value, type=f32)
    with refused(TypeMismatchError, "mov: operand a must be f32, got True"):
        k.mov(True, type=f32)
    k.mov(1, type=u32)
    with refused(TypeMismatchError, "mov: operand a must be u32, got 1.0"):
        k.mov(1.0, type=u32)
    texts = [render_operand(i.operands[1]) for i in instructions(k)[:-1]]
    assert texts == ["0f00000000", "0f80000000", "0f00000000", "0f3F800000", "0f3F800000", "1"]


def test_a_plan_of_another_target_is_not_taken():
    for on in ("sm_80", "sm_75"):
        k = builder(on=on)
        half = k.cvt(k.param("x", f32), dtype=f16)
        if on == "sm_80":
            k.max(half, half, NaN=True)
            continue
        for _ in range(2):
            with pytest.raises(UnsupportedTargetError, match="needs sm_80"):
                k.max(half, half, NaN=True)


@pytest.mark.parametrize("modifiers", [{"type": u32}, {"type": f32}, {"type": [f32]}], ids=str)
def test_an_error_has_no_other_error_before_it(modifiers: dict[str, Any]):
    k = builder()
    x = k.mov(1.0, type=f32)
    with pytest.raises((TypeMismatchError, ModifierError)) as error:
        k.add(x, 1.5 if modifiers["type"] is u32 else "1", **modifiers)
    assert error.value.__context__ is None


def test_vectors_of_variables_are_checked_one_by_one():
    k, other = builder(), builder("other")
    P = k.pointer("P")
    ours = [k.var(f32, 0) for _ in range(4)]
    k.load(P, 4, into=ours)
    wrong = "ld: into= must be a Var, made by k.var"
    for last, error in (
        (other.var(f32, 0), "belongs to kernel 'other', not to 'kernel'"),
        (k.var(u64, 0), "ld: the result is f32, but into= names"),
        (k.mov(0.0, type=f32), wrong),
        (0.0, wrong),
    ):
        with pytest.raises(TypeMismatchError, match=re.escape(error)):
            k.load(P, 4, into=[*ours[:3], last])
        with pytest.raises(TypeMismatchError):
            k.store(P, [*ours[:3], last] if last != 0.0 else [*ours[:3], "0"])


def test_a_target_may_be_given_by_its_name():
    assert KernelBuilder("k", target="sm_90", threads=32).target is target("sm_90")
    with pytest.raises(UnsupportedTargetError, match=r"^unknown target 'sm90'; did you mean 'sm_9"):
        KernelBuilder("k", target="sm90", threads=32)


class SlowReg(ir.Reg):
    """A register whose making takes so long that other threads go on meanwhile."""

    def __new__(cls, name: str, declared: str) -> SlowReg:
        time.sleep(1e-4)
        return super().__new__(cls, name, declared)


def test_kernels_built_at_once_by_several_threads_have_their_own_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "REGISTERS", {name: type(kept)(name) for name, kept in ops.REGISTERS.items()})
    monkeypatch.setattr(register_names, "Reg", SlowReg)

    def registers(_: int) -> list[str]:
        k = KernelBuilder("many", target="sm_80", threads=32)
        return [k.fresh(f32).reg.name for _ in range(64)]

    with ThreadPoolExecutor(4) as threads:
        for result in threads.map(registers, range(4)):
            assert result == [f"%f{number}" for number in range(64)]

"""`k.printf` and `k.device_assert`."""

from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import builder
from error_texts import refused

from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import f16, s64, u32


def printed(k, *args, block=32):
    module = k.build()
    require_valid(module)
    assert parse(render(module)) == module
    return run(module, grid=1, block=block, args=args).printed


def test_values_are_printed_as_c_prints_them():
    k = builder()
    P, H = k.pointer("P"), k.pointer("H", f16)
    t = k.thread_id()
    with k.when(t == 2):
        k.printf(
            "%u|%5d|%x|%ld|%lu|%f|%.2e|%g|%c|100%%|%p\n",
            t,
            -7,
            255,
            k.cvt(t, dtype=s64),
            1 << 40,
            P[t],
            H[t],
            0.5,
            ord("z"),
            16,
        )
        k.printf("next\n")
    text = printed(k, np.arange(32, dtype=np.float32), np.arange(32, dtype=np.float16))
    assert text == "2|   -7|ff|2|1099511627776|2.000000|2.00e+00|0.5|z|100%|0x10\nnext\n"


def test_each_thread_prints_its_own():
    k = builder()
    with k.loop(0, 2) as i:
        k.printf("%d %u,", i, k.thread_id())
    assert sorted(printed(k, block=3).split(",")) == [
        "",
        *sorted(f"{i} {t}" for i in range(2) for t in range(3)),
    ]


@pytest.mark.parametrize(
    ("format", "values", "error", "message"),
    [
        ("%u %u", [1], TypeMismatchError, "printf: '%u %u' converts 2 values, got 1; give one for each %"),
        (
            "%s",
            [1],
            ConfigError,
            "printf: %s is no conversion of numbers; use %d, %u, %x, %o, %ld, %lu, %f, %e, %g, %a, %c or %p",
        ),
        (
            "50 %",
            [],
            ConfigError,
            "printf: '50 %' has a % that begins no conversion; write %% for the character",
        ),
        (3, [], ConfigError, "printf: the format must be a text, got 3"),
        ("\ud800", [], ConfigError, r"printf: the format must be a text, got '\ud800'"),
    ],
)
def test_formats_that_do_not_fit_are_refused(format, values, error, message):
    with refused(error, message):
        builder().printf(format, *values)


@pytest.mark.parametrize(
    ("format", "takes"), [("%d", "s32"), ("%lu", "u64"), ("%f", "f64, f32, f16 or bf16")]
)
def test_values_of_other_types_are_refused(format, takes):
    k = builder()
    t = k.thread_id()
    message = f"printf: {format} takes {takes}, got {t!r}; use another conversion, or convert the value"
    with refused(TypeMismatchError, message):
        k.printf(format, t)


def asserting(asserts):
    k = KernelBuilder("asserting", target="sm_80", threads=32, asserts=asserts)
    n = k.param("n", u32)
    k.device_assert(k.thread_id() < n, "too many threads")
    k.device_assert(n != 0)
    return k


def test_an_assertion_stops_the_kernel_at_its_line():
    module = asserting(True).build()
    require_valid(module)
    assert parse(render(module)) == module
    run(module, grid=1, block=32, args=[32])
    with pytest.raises(
        TrapError,
        match=r"thread \(31, 0, 0\) .*: assertion `too many threads` failed in "
        r"asserting, test_debugging.py:\d+$",
    ):
        run(module, grid=1, block=32, args=[31])


def test_assertions_cost_nothing_unless_they_are_asked_for():
    module = asserting(False).build()
    assert not module.functions
    assert not module.variables
    assert not any(isinstance(s, ir.Instr) and s.opcode in ("call", "bra") for s in module.kernels[0].body)


def test_wrong_assertions_are_refused_also_if_they_are_left_out():
    k = asserting(False)
    with refused(TypeMismatchError, "device_assert takes a predicate, such as row < seq_q, got True"):
        k.device_assert(True)
    with refused(ConfigError, r"device_assert: the message must be a text, got 'a\x00b'"):
        k.device_assert(k.thread_id() < 1, "a\0b")
    with refused(ConfigError, "device_assert: the message must be a text, got 3"):
        k.device_assert(k.thread_id() < 3, 3)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_ptxas_takes_the_calls(target, assembler: Assembler):
    k = KernelBuilder("calls", target=target, threads=32, asserts=True)
    t = k.thread_id()
    with k.loop(0, 3) as i, k.when(t < 5):
        k.printf("%u %f %d\n", t, 0.5, i)
        k.device_assert(t < 4)
    k.printf("%ld", 1)
    assembler.assemble(render(k.build()), target)

"""Bodies that are read when they are used, and how fast texts are read."""

from __future__ import annotations

import copy
import pickle
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_texts import refused

from ptxgen.errors import ParseError
from ptxgen.frontends import ptx
from ptxgen.interpreter import run
from ptxgen.ir import Kernel, Module, Region
from ptxgen.parse import parse, parse_on_use
from ptxgen.parse.outline import blocks
from ptxgen.parse.unread import UnreadKernel
from ptxgen.text import render

FIXTURES = sorted((Path(__file__).parent / "ptx").glob("*/*.sm_80.ptx"))
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
RIGHT = """.visible .entry right(.param .u64 out)
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, 7;
  st.global.u32 [%rd0], %r0;
  ret;
}
"""
WRONG = ".visible .entry wrong()\n{\n  alloca.u64 %rd1, 32;\n}\n"
OTHER = ".visible .entry other()\n{\n  ret;\n}\n"
NOT_READ = (
    "PTX text, line 14, column 3: alloca.u64 is not read: memory of the stack is not modelled\n"
    "  alloca.u64 %rd1, 32;\n  ^"
)


def unread(module: Module) -> list[str]:
    """The kernels whose bodies have not been read."""
    return [k.name for k in module.kernels if isinstance(k, UnreadKernel) and not k.is_read]


def locations(module: Module) -> list[str]:
    bodies = [*(f.body or () for f in module.functions), *(k.body for k in module.kernels)]
    return [str(s.origin) for body in bodies for s in body if hasattr(s, "origin")]


def test_a_kernel_runs_though_another_has_an_instruction_that_is_not_modelled():
    out = np.zeros(1, np.uint32)
    run(HEAD + RIGHT + WRONG, "right", grid=1, block=1, args=[out])
    assert out[0] == 7
    out[0] = 0
    ptx.load(HEAD + RIGHT + WRONG)["right"].run(1, 1, [out])
    assert out[0] == 7


def test_a_mistake_in_a_body_is_said_with_its_line_when_the_kernel_is_used():
    with refused(ParseError, NOT_READ):
        run(HEAD + RIGHT + WRONG, "wrong", grid=1, block=1, args=[])
    with refused(ParseError, NOT_READ):
        parse(HEAD + RIGHT + WRONG)


def test_a_mistake_in_an_only_kernel_is_said_at_once():
    with pytest.raises(ParseError):
        parse_on_use(HEAD + WRONG)


def test_no_body_is_read_of_a_kernel_that_is_not_run():
    module = parse_on_use(HEAD + RIGHT + WRONG + OTHER)
    assert unread(module) == ["right", "wrong", "other"]
    run(module, "right", grid=1, block=1, args=[np.zeros(1, np.uint32)])
    assert unread(module) == ["wrong", "other"]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_module_read_on_use_equals_one_read_at_once(path):
    text = path.read_text()
    whole, on_use = parse(text), parse_on_use(text)
    assert on_use == whole
    assert whole == on_use
    assert locations(on_use) == locations(whole)


def test_two_modules_with_different_bodies_differ():
    text = HEAD + RIGHT + OTHER
    assert parse_on_use(text) != parse(text.replace("7;", "8;"))
    assert parse_on_use(text) != parse_on_use(text.replace("7;", "8;"))
    assert hash(parse_on_use(text).kernels[0]) == hash(parse(text).kernels[0])


def test_an_unread_kernel_can_be_printed_copied_pickled_and_replaced():
    text = HEAD + RIGHT + OTHER
    whole = parse(text)
    assert render(parse_on_use(text)) == render(whole)
    for change in (copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k)), lambda k: replace(k, threads=32)):
        changed = change(parse_on_use(text).kernels[0])
        assert replace(changed, threads=0) == whole.kernels[0]
    with pytest.raises(AttributeError, match="has no attribute 'bodies'"):
        _ = parse_on_use(text).kernels[0].bodies


BRACES = """.visible .entry braces()
{ // } not the end
  .pragma "}";
  .reg .b32 %r<3>;
  { .reg .b32 %r<3>; mov.b64 {%r0, %r1}, 0; }
  ret; // }
}
"""


def test_braces_in_comments_and_strings_end_no_body():
    text = HEAD + BRACES + OTHER
    assert unread(parse_on_use(text)) == ["braces", "other"]
    assert parse_on_use(text) == parse(text)
    assert [block.kind for block in blocks(text)] == ["entry", "entry"]


@pytest.mark.parametrize(
    "body",
    [
        "  .global .u32 counter;\n  ret;",
        "  .const .u32 counter = 1;\n  ret;",
        "  // region tile: offset 0, 64 bytes, align 16\n  ret;",
        "  /* } */ ret;",
    ],
    ids=["global", "const", "region", "comment"],
)
def test_a_body_on_which_the_rest_of_the_module_depends_is_read_at_once(body):
    text = f"{HEAD}.extern .shared .align 16 .b8 smem[];\n.entry first()\n{{\n{body}\n}}\n{RIGHT}{OTHER}"
    module = parse_on_use(text)
    assert unread(module) == ["right", "other"]
    assert module == parse(text)


SHARED = """.extern .shared .align 128 .b8 wide[];
.extern .shared .align 4 .b8 narrow[];
.entry first()
{
  .reg .b32 %r<2>;
  // wide
  mov.u32 %r0, narrow_1;
  mov.u32 %r0, narrow;
  mov.u32 %r1, wide;
}
.entry second()
{
  .reg .b32 %r<2>;
  mov.u32 %r1, wide;
}
.entry third() { ret; }
"""


def test_the_dynamic_shared_array_of_an_unread_kernel_is_known():
    module = parse_on_use(HEAD + SHARED)
    first, second, third = module.kernels
    assert [k.dynamic_shared for k in module.kernels] == ["narrow", "wide", ""]
    assert second.regions == (Region("wide", 0, 0, 128),)
    assert first.regions == third.regions == ()
    assert unread(module) == ["first", "second", "third"]
    assert module == parse(HEAD + SHARED)


def test_initial_values_of_a_table_are_those_of_single_numbers():
    numbers = ", ".join(map(str, [0, 1, 255, 65535, 2**32 - 1, 2**64 - 1]))
    for type in ("u8", "s16", "b32", "u64"):
        plain, signed = (
            parse(f"{HEAD}.global .{type} x[{size}] = {{{numbers}{more}}};").variables[0].data
            for size, more in ((6, ""), (7, ", -0"))
        )
        assert plain == signed
    data = parse(HEAD + ".global .u16 x[2][3] = {{1, 2}, {3, 010, 0x10}};").variables[0].data
    assert np.frombuffer(data.ljust(12, b"\0"), np.uint16).tolist() == [1, 2, 0, 3, 8, 16]


def test_sections_of_debugging_data_are_not_read():
    section = '.section .debug_str\n{\n.b8 1 // }\n.b64 } "\n'.replace('} "', "x")
    assert parse(HEAD + OTHER + section + "}\n").kernels == parse(HEAD + OTHER).kernels
    with pytest.raises(ParseError, match="wanted '}' after a section, got the end of the text"):
        parse(HEAD + OTHER + section)


def many(copies: int) -> str:
    """A text of nvcc with its kernels many times, under other names."""
    text = (Path(__file__).parent / "ptx/nvcc/math.sm_80.ptx").read_text()
    start, end = text.index(".visible .entry"), text.index("\n.func", text.index(".visible .entry"))
    kernels = [re.sub(r"(?<=\.entry )\w+", rf"\g<0>_{n}", text[start:end]) for n in range(copies)]
    return "\n".join([text[:start], *kernels, text[end:]])


@pytest.mark.nightly
def test_a_megabyte_is_read_in_a_second():
    text = many(60)
    parse(text)  # the table of instructions is looked up once
    seconds = []
    for _ in range(3):
        start = time.process_time()
        parse(text)
        seconds.append(time.process_time() - start)
    assert len(text) / 1e6 / min(seconds) > 1


@pytest.mark.nightly
def test_loading_a_kernel_takes_a_small_part_of_reading_all():
    text = many(60)
    parse(text)
    start = time.process_time()
    program = ptx.load(text)
    name = next(iter(program))
    assert program[name].kernel.body
    loaded = time.process_time()
    parse(text)
    assert 5 * (loaded - start) < time.process_time() - loaded
    assert isinstance(program[name].kernel, Kernel)

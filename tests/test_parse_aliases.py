"""Other names of functions (`.alias`): read, printed, verified, proved and run as the function itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways

from ptxgen.check.prove import prove_global
from ptxgen.check.prove.contract import GlobalArray, GlobalContract
from ptxgen.check.verify import verify
from ptxgen.errors import ParseError
from ptxgen.ir import Module
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
FUNCTION = """.func (.param .b32 back) f(.param .b32 a)
{
    .reg .b32 %r<2>;
    ld.param.b32 %r0, [a];
    add.u32 %r0, %r0, 1;
    st.param.b32 [back], %r0;
    ret;
}
"""
DECLARED = (
    ".visible .func (.param .b32 back) g(.param .b32 b);\n.weak .func (.param .b32 r) h(.param .b32 c);\n"
)
ALIASES = ".alias g, f;\n.alias h, g;\n"
CALLS = {
    "by name": "call (got), h, (given);",
    "through a pointer": "mov.u64 %rd1, g;\n    call (got), %rd1, (given), proto;",
    "through a table": "ld.global.u64 %rd1, [table];\n    call (got), %rd1, (given), proto;",
}


def kernel(call: str) -> str:
    return f""".global .align 8 .u64 table[1] = {{h}};
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    .param .b32 given;
    .param .b32 got;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
    st.param.b32 [given], 41;
    {call}
    ld.param.b32 %r0, [got];
    ld.param.u64 %rd0, [out];
    st.global.u32 [%rd0], %r0;
    ret;
}}
"""


ORDERS = {
    "after all": lambda k: FUNCTION + DECLARED + k + ALIASES,
    "between": lambda k: FUNCTION + DECLARED + ALIASES + k,
}


def module(call: str = "by name", order: str = "between") -> Module:
    return parse(HEAD + ORDERS[order](kernel(CALLS[call])))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_by_another_name_calls_the_function(call: str, order: str) -> None:
    read = module(call, order)
    assert parse(render(read)) == read
    assert verify(read) == ()
    out = np.zeros(1, np.uint32)
    run_both_ways(read, args=[out], grid=1, block=1)
    assert out[0] == 42


def test_the_text_still_declares_the_other_names() -> None:
    text = render(module())
    assert ".alias g, f;\n.alias h, g;\n" in text
    assert "call (got), f, (given);" in text


def test_the_proof_follows_the_function() -> None:
    contract = GlobalContract((GlobalArray("out", (), 4, 4),), (), {}, (1, 1, 1))
    proof = prove_global(module(), block=1, contract=contract)
    assert [a.verdict for a in proof.accesses] == ["proved"]


def test_a_name_of_the_body_hides_the_other_name() -> None:
    local = "mov.u64 %rd1, g;\n    call (got), h, (given);"
    text = kernel(local).replace(".param .b32 given;", ".param .b32 given;\n    .local .b8 g[4];")
    read = parse(HEAD + FUNCTION + DECLARED + ALIASES + text)
    assert "mov.u64 %rd1, g;\n\tcall (got), f, (given);" in render(read)


@pytest.mark.ptxas
@pytest.mark.parametrize("call", CALLS)
def test_the_assembler_takes_the_printed_text(call: str, assembler: Assembler) -> None:
    assembler.assemble(render(module(call)), "sm_90")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".alias g, f;", "no function 'g' is declared above"),
        (".func g;\n.alias g, x;", "no function 'x' is declared above"),
        (".func g { ret; }\n.alias g, f;", "function 'g' is defined, so it is no other name of 'f'"),
        (".func g;\n.alias g, f;\n.alias g, f;", "function 'g' is declared to be 'f' already"),
        (
            ".func g;\n.alias g, f;\n.func g { ret; }",
            "function 'g' is another name of 'f', so it has no body",
        ),
    ],
)
def test_a_wrong_alias_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}{FUNCTION}{text}\n")
    assert str(caught.value).split(": ", 1)[1].splitlines()[0] == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("g(.param .b32 b)", "g(.param .b64 b)", "differ in their parameters or results"),
        (FUNCTION, FUNCTION.split("\n")[0] + ";\n", "'f', which has no body; define 'f' in the module"),
        (".version 9.0", ".version 6.2", "is an alias, which needs PTX 6.3"),
    ],
)
def test_the_verifier_finds_what_the_assembler_would_refuse(old: str, new: str, message: str) -> None:
    text = HEAD + ORDERS["between"](kernel(CALLS["by name"]))
    assert old in text
    problems = verify(parse(text.replace(old, new)))
    assert any(message in str(p) for p in problems)


def test_aliases_in_a_circle_are_found() -> None:
    read = module()
    f, g, h = read.functions
    circle = replace(read, functions=(f, replace(g, alias="h"), h))
    assert [p.kind for p in verify(circle)] == ["symbol", "symbol"]

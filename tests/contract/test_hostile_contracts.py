"""Contracts from elsewhere: what is none is refused with one error, what is one gives code that compiles."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from error_texts import refused
from host_programs import Hosts

from flash import AttentionConfig
from flash.contract.catalogue import build
from ptxgen.contract import LANGUAGES, schema
from ptxgen.contract.check import check_contract
from ptxgen.contract.host_words import Words
from ptxgen.contract.schema_rules import KEYWORDS, misfits
from ptxgen.contract.stub import example, stub
from ptxgen.errors import ConfigError
from ptxgen.kernels.tensor_maps import described_array
from ptxgen.tensormap import Boxes
from ptxgen.types import TYPES, f32

Contract = dict[str, Any]
Change = Callable[[Contract], object]

TEXT = ".version 7.0\n.target sm_80\n.address_size 64\n"
END = "; it must be as launch.schema.json says"
NAME = "a name of ASCII letters, digits and _ that does not begin with a digit"
LINE = "one line of text without control characters"


@cache
def _forward() -> str:
    return json.dumps(build(AttentionConfig(8).kernel()).contract)


@cache
def _mapped() -> str:
    """A contract with tensor maps."""
    return json.dumps(build(AttentionConfig(64, dtype="f16", target="sm_90a").kernel()).contract)


def tiny(**changes: Any) -> Contract:
    """A contract with a pointer, a stride, and a size that is computed; its text is `TEXT`."""
    parameters = [
        ("X", "pointer", "u64", 0, {"array": "X"}),
        ("X_row_stride", "stride", "s64", 8, {"array": "X", "dim": "row"}),
        ("n", "size", "u32", 16, {}),
    ]
    return {
        "schema": 2,
        "kind": "sum",
        "entry": "tiny",
        "target": "sm_80",
        "ptx_version": "7.0",
        "sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
        "parameters": [
            {"name": n, "kind": k, "type": t, "offset": at, "size": TYPES[t].nbytes, "meaning": n, **more}
            for n, k, t, at, more in parameters
        ],
        "arrays": [
            {
                "name": "X",
                "type": "f32",
                "written": True,
                "dims": [{"name": "row", "extent": "n", "stride": "X_row_stride"}],
                "row": 4,
                "alignment": 16,
            }
        ],
        "sizes": {
            "n": {"least": 1, "most": 1 << 20},
            "half": {"least": 0, "most": 1 << 20, "equal": {"ceil_div": ["n", 2]}},
        },
        "block": [32, 1, 1],
        "grid": {"formula": "half", "x": "half", "y": 1, "z": 1},
        "constraints": [],
        "dtype": "f32",
        "dynamic_shared_bytes": 0,
        "static_shared_bytes": 0,
        **changes,
    }


def refusal(contract: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check_contract(contract)
    message = str(caught.value)
    assert message.endswith(END)
    return message.removesuffix(END)


def nested(levels: int) -> Any:
    result: Any = 1
    for _ in range(levels):
        result = {"plus": [1, result]}
    return result


def changed_at(contract: Any, path: str, value: Any) -> None:
    """Sets, or for `GONE` deletes, what a path such as `parameters[2].name` names."""
    *before, last = [int(part) if part.isdigit() else part for part in re.findall(r"\w+", path)]
    for key in before:
        contract = contract[key]
    if value is GONE:
        del contract[last]
    else:
        contract[last] = value


GONE = object()
NUMBER = "must be a number from 0 to 2**63 - 1, a name, or one of times, plus, div and ceil_div of such"
MISFITS: list[tuple[str, Any, str]] = [
    ("sha256", GONE, "it must have 'sha256', got ["),
    ("entry", 'x"; system("rm', "must be a name in PTX"),
    ("entry", "x\n", "must be a name in PTX"),
    ("target", "sm_90a */", "must be a text like ^sm_[0-9]{2,4}[af]?$"),
    ("kind", "sum\n", "must be one of forward, decode, append, merge, backward, sum, kernel"),
    ("block", [32, 1], "must be of 3 to 3 parts"),
    ("block", [1024, 2, 1], "block must have at most 1024 threads, got 2048"),
    ("block[0]", True, "must be an integer"),
    ("block[0]", 32.0, "must be an integer"),
    ("dynamic_shared_bytes", -1, "must be an integer from 0 to 2147483647"),
    ("parameters", {}, "must be a list"),
    ("parameters[2]", None, "must be an object"),
    ("parameters[2].name", "n; int x", f"must be {NAME}"),
    ("parameters[2].name", "größe", f"must be {NAME}"),
    ("parameters[2].name", "n\n", f"must be {NAME}"),
    ("parameters[2].name", "", f"must be {NAME}"),
    ("parameters[2].name", "n" * 300, f"must be {NAME}"),
    ("parameters[2].meaning", "a\nb", f"must be {LINE}"),
    ("parameters[2].meaning", "a\u202eb", f"must be {LINE}"),
    ("parameters[2].meaning", "\ud800", f"must be {LINE}"),
    ("parameters[2].type", "u24", "parameters[2].type must be one of u8, u16, u32, "),
    ("parameters[2].type", "f32", "of a size must be that of an integer, got f32"),
    ("parameters[2].size", 8, "must be 4 bytes (size, u32)"),
    ("parameters[2].offset", 12, "must be at least 16, where the parameter before ends"),
    ("parameters[2].name", "X", "must be one that no other parameter has"),
    ("parameters[0].type", "s64", "of a pointer must be u64 or b64, got s64"),
    ("parameters[1].kind", "strid", "must be one of pointer, stride, size, number, tensor_map"),
    ("parameters[1].dim", GONE, "parameters[1] must have 'dim', got ['name', "),
    ("parameters[1].arra", "X", "parameters[1] must not have 'arra'; did you mean 'array'?"),
    ("parameters[1].array", "Y", "must be one of arrays"),
    ("arrays[0].name", "Y", "must be that of a pointer"),
    ("arrays[0].alignment", 3, "must be one of 1, 2, 4, 8, 16, 32, 64, 128, 256"),
    ("arrays[0].row", 0, "must be an integer from 1 to 2147483647"),
    ("arrays[0].dims[0].extent", "m", "must be made of sizes and strides"),
    (
        "arrays[0].dims[0].stride",
        {"times": ["n", "rows"]},
        "arrays[0].dims[0].stride must be made of sizes and strides, got 'rows'",
    ),
    ("sizes", {"a b": {}}, f"sizes has a key that must be {NAME}, got 'a b'"),
    ("sizes", {1: {}}, f"sizes has a key that must be {NAME}, got 1"),
    ("sizes.n", GONE, "parameters[2] is a size, and sizes does not have n"),
    ("sizes.X", {"least": 0, "most": 1}, "sizes.X must not be the parameter of kind pointer of this name"),
    ("sizes.n.least", 1 << 21, "sizes.n must have least <= most, got 2097152 and 1048576"),
    ("sizes.n.most", 1 << 63, f"must be an integer from {-(2**63) + 1} to {2**63 - 1}"),
    ("sizes.half.equal", {"plus": ["n", "m"]}, "sizes.half.equal must be made of sizes and strides, got 'm'"),
    ("sizes.half.equal", "half", "sizes must not be computed of themselves, got half of half"),
    ("grid.x", -1, NUMBER),
    ("grid.x", "f(1)", NUMBER),
    ("grid.x", {"minus": [1, 2]}, NUMBER),
    ("grid.x", {"plus": [1, "a b"]}, f"grid.x.plus[1] {NUMBER}, got 'a b'"),
    ("grid.x", {"plus": [1] * 17}, "grid.x.plus must be of 2 to 16 parts, got [1, "),
    ("grid.x", nested(5000), f"{'grid.x' + '.plus[1]' * 15}.plus must have at most 32 levels, got more"),
    ("grid.y", "m", "must be made of sizes and strides"),
]


@pytest.mark.parametrize(("path", "value", "message"), MISFITS)
def test_what_is_no_contract_is_refused_with_one_sentence(path: str, value: Any, message: str) -> None:
    contract = tiny()
    changed_at(contract, path, value)
    got = refusal(contract)
    if message.startswith(("must", "of ")):
        message = f"{path} {message}"
        message += "" if ", got " in message else f", got {value!r}"
    assert got.startswith(f"contract: {message}")
    for language in LANGUAGES:
        with refused(ConfigError, got + END):
            stub(contract, TEXT, language)
        with refused(ConfigError, got + END):
            example(contract, language, "tiny.h")


def test_a_number_with_more_digits_than_python_prints_is_refused() -> None:
    assert refusal(tiny(dynamic_shared_bytes=10**5000)) == (
        "contract: dynamic_shared_bytes must be an integer from 0 to 2147483647, got a value of type int"
    )


def test_one_array_is_named_once() -> None:
    contract = tiny()
    contract["arrays"] *= 2
    assert refusal(contract) == "contract: arrays[1].name must be one that no other array has, got 'X'"


def test_a_bound_itself_is_no_misfit() -> None:
    contract = tiny(block=[1024, 1, 1])
    contract["sizes"]["n"] = {"least": 2**63 - 1, "most": 2**63 - 1}
    check_contract(contract)


def test_data_that_contains_itself_is_refused() -> None:
    contract = tiny()
    around: dict[str, list[Any]] = {"plus": [1]}
    contract["grid"]["x"] = around
    around["plus"].append(around)
    assert refusal(contract).endswith(".plus must have at most 32 levels, got more")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("box", GONE, " must have 'box', got ["),
        ("dtype", "f12", ".dtype must be one of u8, u16, "),
        ("swizzle", "16B", ".swizzle must be one of none, 32B, 64B, 128B, got '16B'"),
        ("oob_fill", "ones", ".oob_fill must be one of zeros, nan, got 'ones'"),
        ("box[1]", 257, ".box[1] must be an integer from 1 to 256, got 257"),
        ("element_strides[3]", 2, ".element_strides[3] must be 1, got 2"),
        ("interleave", "16B", ".interleave must be 'none', got '16B'"),
        ("rank", 3, ".dims must have 3 entries for rank 3, got 4"),
        ("address", "seq_q", ".address must be that of a pointer, got 'seq_q'"),
        ("dims[1]", "rows", ".dims[1] must be made of sizes and strides, got 'rows'"),
        ("strides[0]", "K.strides[0]", ".strides[0] must be of MAP with 4 dimensions, got 'K.strides[0]'"),
        ("dims[0]", "K.shape[9]", ".dims[0] must be an expression, or the extent or the stride of an array "),
        ("dims[0]", "K.shape[0]", ".address must be MAP, whose shape dims has, got 'K'"),
    ],
)
def test_what_is_no_tensor_map_is_refused_with_one_sentence(path: str, value: Any, message: str) -> None:
    contract = json.loads(_mapped())
    index, parameter = next(
        (n, p) for n, p in enumerate(contract["parameters"]) if p.get("tensor_map", {}).get("address") == "K"
    )
    changed_at(parameter["tensor_map"], path, value)
    where = f"contract: parameters[{index}].tensor_map"
    assert refusal(contract).startswith(where + message.replace("MAP", parameter["name"]))


def of_itself() -> Contract:
    """A contract whose tensor map is of an array of which the host has shape and strides."""
    boxes = Boxes(f32, (16, 8), "none", loads=True)
    parameter = {"name": "Y", "kind": "tensor_map", "type": "b8", "offset": 64, "size": 128, "meaning": "Y"}
    contract = tiny(kind="kernel", cluster=[1, 1, 1], cooperative=False, programmatic=False)
    contract["parameters"].append({**parameter, "tensor_map": described_array("Y", boxes)})
    return contract


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("dims[0]", "Y.shape[2]", ".dims[0] must be of Y with 2 dimensions, got 'Y.shape[2]'"),
        ("dims[0]", "X.shape[1]", ".dims[0] must be of Y with 2 dimensions, got 'X.shape[1]'"),
        ("strides[0]", "X.strides[1]", ".strides[0] must be of Y with 2 dimensions, got 'X.strides[1]'"),
        ("dims", ["n", "n"], ".address must be that of a pointer, got 'Y'"),
        ("address", "X", ".address must be Y, whose shape dims has, got 'X'"),
    ],
)
def test_a_map_of_an_array_of_the_host_is_of_that_alone(path: str, value: Any, message: str) -> None:
    contract = of_itself()
    check_contract(contract)
    changed_at(contract["parameters"][3]["tensor_map"], path, value)
    assert refusal(contract) == f"contract: parameters[3].tensor_map{message}"


@pytest.mark.parametrize("contract", [None, [], "contract", 7, {}, {"schema": 2}, [[]] * 3])
def test_what_is_not_even_alike_is_refused(contract: object) -> None:
    assert refusal(contract).startswith("contract: it must ")


def test_the_schema_has_the_words_that_are_checked() -> None:
    def keywords(rule: Any, names: bool = False) -> set[str]:
        if isinstance(rule, list):
            return set().union(*(keywords(each) for each in rule))
        if not isinstance(rule, dict):
            return set()
        result = set() if names else set(rule)
        plain = {"const", "enum", "required"}
        return result.union(
            *(
                keywords(each, key in ("properties", "$defs") and not names)
                for key, each in rule.items()
                if names or key not in plain
            )
        )

    assert keywords(schema()) == KEYWORDS
    assert schema()["$defs"]["scalar"]["enum"] == sorted(
        (name for name, type in TYPES.items() if name != "pred" and type.bits <= 64),
        key=schema()["$defs"]["scalar"]["enum"].index,
    )


WRONG = [
    *(None, True, -1, 0, 3, 1 << 70, "", "n", "a b", "x\ny", [], [1, 2], {}, {"plus": [1, "n"]}),
    {"div": [1]},
]


def changed(contract: Contract, chance: random.Random) -> None:
    """One change in a contract: a value replaced, a key dropped, added or repeated."""
    at: Any = contract
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = chance.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and chance.random() < 0.75:
            at = at[key]
            continue
        how = chance.randrange(4)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, list):
            at.append(copy.deepcopy(at[key]))
        elif how == 1:
            at["surprise"] = 1
        else:
            at[key] = copy.deepcopy(chance.choice(WRONG))
        return


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("seed", range(3))
def test_the_rules_are_those_of_json_schema(seed: int) -> None:
    chance = random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema())
    refused = 0
    for of in (_forward(), _mapped(), json.dumps(tiny())) * 8:
        contract = json.loads(of)
        changed(contract, chance)
        wanted = next(validator.iter_errors(contract), None)
        result = next(misfits(contract, schema()), None)
        assert (wanted is None) == (result is None), (wanted, result)
        refused += result is not None
        if result is None:  # names and numbers may disagree: refused in one sentence, or a stub
            contract["sha256"] = hashlib.sha256(TEXT.encode()).hexdigest()
            for language in LANGUAGES:
                with contextlib.suppress(ConfigError):
                    assert "Generated from its launch contract" in stub(contract, TEXT, language)
    assert refused > 8


def test_texts_end_neither_a_comment_nor_a_string() -> None:
    evil = '*/ int evil; /* ??/ "; } [x](y) {{ 7 * 7 }} \\'
    contract = tiny(constraints=[evil], sizes=tiny()["sizes"])
    contract["grid"]["formula"] = evil
    contract["parameters"][0]["meaning"] = evil
    header = stub(contract, TEXT, "c")
    assert header.count("* / int evil; / * ? ?/") == 3
    assert "*/ int" not in header
    module = stub(contract, TEXT, "rust")
    assert (
        len(
            re.findall(
                r"^ *///.*\*/ int evil; .*\\\[x\\\]\(y\) \{\{ 7 \* 7 \}\} \\\.?$", module, re.MULTILINE
            )
        )
        == 3
    )


ODD = [
    *("int", "int_", "and", "NULL", "linux", "UINT64_MAX", "_Bool", "__LINE__", "CU_STREAM_LEGACY"),
    "PTXGEN_HOST",
]
ODD += ["self", "self_", "Self", "crate", "type", "_", "r", "a", "values", "grid", "X_H", "errno", "async"]


@pytest.mark.parametrize(
    ("language", "members", "functions"),
    [
        (
            "c",
            {
                "x": "x",
                "int": "int_",
                "int_": "int__",
                "_": "__",
                "X_H": "X_H_",
                "Y_H": "Y_H",
                "NULL": "NULL_",
            }
            | {
                "UINT64_MAX": "UINT64_MAX_",
                "PRIx64": "PRIx64_",
                "_Bool": "_Bool_",
                "self": "self",
                "a_": "a_",
            },
            {
                "half": "half",
                "load": "load_",
                "load_": "load__",
                "t": "t_",
                "int": "int",
                "tensors": "tensors",
            },
        ),
        (
            "rust",
            {"x": "x", "type": "r#type", "self": "self_", "self_": "self__", "crate": "crate_", "_": "__"}
            | {"int": "int", "type_": "type_", "X_H": "X_H"},
            {
                "half": "half",
                "check": "check_",
                "check_": "check__",
                "fn": "r#fn",
                "super": "super_",
                "load": "load",
            },
        ),
    ],
)
def test_each_name_has_another_one(language: str, members: dict[str, str], functions: dict[str, str]) -> None:
    words = Words(language, "x")
    assert {name: words.member(name) for name in members} == members
    assert {name: words.function(name) for name in functions} == functions
    assert len(set(members.values())) == len(members)


@pytest.mark.parametrize("language", ["c", pytest.param("rust", marks=pytest.mark.slow)])
def test_words_of_the_language_are_names_with_another_spelling(
    language: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[language])
    contract = tiny()
    for number, name in enumerate(ODD):
        contract["parameters"].append(
            {
                "name": name,
                "kind": "number",
                "type": "u32",
                "offset": 20 + 4 * number,
                "size": 4,
                "meaning": name,
            }
        )
    for name in ("load", "THREADS", "check", "dense_strides", "t", "fn", "tensors", "super", "double"):
        contract["sizes"][name] = {"least": -5, "most": 1 << 40, "equal": {"plus": [1, {"div": ["half", 1]}]}}
    # One is computed of another behind it.
    contract["sizes"] = {
        "first": {"least": 0, "most": 9, "equal": {"times": ["load", "last"]}},
        **contract["sizes"],
    }
    contract["sizes"]["last"] = {
        "least": -(2**63) + 1,
        "most": 2**63 - 1,
        "equal": {"plus": ["t", 2**63 - 1]},
    }
    library, main = {"c": ("odd.h", "main.c"), "rust": ("odd.rs", "main.rs")}[language]
    (tmp_path / library).write_text(stub(contract, TEXT, language, "x"))
    (tmp_path / main).write_text(example(contract, language, library, "x"))
    compiled = compilers.c(tmp_path / main) if language == "c" else compilers.rust(tmp_path / main)
    assert compiled.exists()


def test_two_parts_of_one_name_are_refused() -> None:
    contract = tiny()
    contract["sizes"]["X_bytes"] = {"least": 0, "most": 1, "equal": "n"}
    for language in LANGUAGES:
        with refused(
            ConfigError,
            "stub: two functions of tiny would have the name X_bytes; rename a parameter, an array or a size "
            "of the kernel",
        ):
            stub(contract, TEXT, language)


@pytest.mark.parametrize(
    "prefix", ["1x", "a b", "x\n", "größe", "int", "_x", "ptxgen", "PTXGEN", 'x"', 7, "x" * 300]
)
def test_a_prefix_is_a_name(prefix: Any) -> None:
    with refused(
        ConfigError,
        "stub: the prefix must be a name in C that begins with a letter, and neither a word of the language "
        f"nor ptxgen, got {prefix!r}; give another prefix",
    ):
        stub(tiny(), TEXT, "c", prefix)


@pytest.mark.parametrize("character", ["\0", "\r", "\x0b", "\x1b", "\x85", "\u2028", "\u202e", "\ufeff"])
def test_a_text_with_control_characters_is_refused(character: str) -> None:
    text = f"{TEXT}// {character}\n"
    contract = tiny(sha256=hashlib.sha256(text.encode()).hexdigest())
    for language in LANGUAGES:
        with refused(
            ConfigError,
            "stub: the text of tiny must have no control characters but tabs and newlines, got "
            f"U+{ord(character):04X} in line 4; emit it without, with its contract",
        ):
            stub(contract, text, language)


def test_half_a_surrogate_pair_is_another_text() -> None:
    with pytest.raises(ConfigError, match="its sha256 differs"):
        stub(tiny(), TEXT + "\ud800", "c")


def test_letters_beyond_ascii_are_the_same_bytes_for_every_compiler(cc: Hosts, tmp_path: Path) -> None:
    text = TEXT + "// größe ⇒ 1\n"
    contract = tiny(sha256=hashlib.sha256(text.encode()).hexdigest())
    header = stub(contract, text, "c")
    assert header.isascii()
    (tmp_path / "tiny.h").write_text(header)
    (tmp_path / "main.c").write_text(
        '#include "tiny.h"\nint main(void) {\n    size_t n, end = 0;\n'
        "    for (n = 0; n < sizeof tiny_ptx / sizeof *tiny_ptx; n++) end += strlen(tiny_ptx[n]);\n"
        "    return end != TINY_PTX_BYTES;\n}\n"
    )
    assert cc.c(tmp_path / "main.c", "-Wno-unused-function").exists()
    assert f"TINY_PTX_BYTES = {len(text.encode())}" in header

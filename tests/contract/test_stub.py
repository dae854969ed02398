"""Stubs of contracts: those of kernels of one's own, and what is refused."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_programs import Hosts, ran

import ptxgen
from flash import AttentionConfig
from flash.contract.catalogue import build
from ptxgen import Pointer, TensorMap
from ptxgen.contract import LANGUAGES
from ptxgen.contract.stub import example, stub
from ptxgen.errors import ConfigError
from ptxgen.types import f32, s32, u32

PROGRAMS = Path(__file__).parents[1] / "programs"


@ptxgen.kernel(threads=64)
def saxpy(k: Any, X: Pointer[f32], Y: Pointer[f32], n: u32, int: f32, loop: s32) -> None:
    at = k.block_id() * k.threads + k.thread_id()
    with k.when(at < n):
        Y[at] = X[at] * int + k.cvt(loop, dtype=f32, rnd="rn")


def text_and_contract() -> tuple[str, dict[str, Any]]:
    built = saxpy.build()
    return built.text, built.contract()


def early_text_and_contract() -> tuple[str, dict[str, Any]]:
    """Text and contract of a kernel that may begin before the one before it has ended."""

    def early(k: Any, X: Pointer[f32], Y: Pointer[f32], n: u32, int: f32, loop: s32) -> None:
        at = k.block_id() * k.threads + k.thread_id()
        k.griddepcontrol_wait()
        with k.when(at < n):
            Y[at] = X[at] * int + k.cvt(loop, dtype=f32, rnd="rn")

    early.__name__ = "saxpy"
    built = ptxgen.kernel(threads=64, programmatic=True)(early).build(target="sm_90")
    return built.text, built.contract()


@pytest.mark.parametrize("of", [text_and_contract, early_text_and_contract])
@pytest.mark.parametrize("language", ["c", pytest.param("rust", marks=pytest.mark.slow)])
def test_a_kernel_of_ones_own_is_launched_by_its_stub(
    language: str,
    of: Callable[[], tuple[str, dict[str, Any]]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[language])
    text, contract = of()
    library, program = {"c": ("saxpy.h", "saxpy.c"), "rust": ("host.rs", "saxpy.rs")}[language]
    (tmp_path / library).write_text(stub(contract, text, language))
    source = Path(shutil.copy(PROGRAMS / program, tmp_path))
    compiled = compilers.c(source) if language == "c" else compilers.rust(source)
    ended, said = ran(compiled, sanitize=True)
    assert (ended.code, ended.stopped, ended.reports, said) == (0, "", (), [])
    assert capfd.readouterr().out == (
        "saxpy: Y must be an address and a multiple of 4, got 0x0\n0 of 100 wrong\n"
    )


@ptxgen.kernel(threads=64, target="sm_90a")
def moved(k: Any, X: TensorMap[f32], Y: TensorMap[f32]) -> None:
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, x=((8, 16), f32))
    row, column = k.block_id("y") * 8, k.block_id("x") * 16
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[row, column])
    with consumer, ring.drain() as stage:
        k.tma.store(stage.x, Y[row, column])


@pytest.mark.parametrize("language", ["c", pytest.param("rust", marks=pytest.mark.slow)])
def test_tensor_maps_are_encoded_by_the_stub(
    language: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[language])
    built = moved.build()
    library, program = {"c": ("moved.h", "moved_boxes.c"), "rust": ("moved.rs", "moved_boxes.rs")}[language]
    (tmp_path / library).write_text(stub(built.contract(), built.text, language))
    source = Path(shutil.copy(PROGRAMS / program, tmp_path))
    compiled = compilers.c(source) if language == "c" else compilers.rust(source)
    ended, said = ran(compiled, sanitize=True)
    assert said[0].startswith("a tensor map's strides must be")
    assert capfd.readouterr().out == (
        "0 wrong\nstrides of no map: 1\nmoved: X must be an address and a multiple of 16, got 0x8\n"
    )
    assert (ended.code, ended.stopped, ended.reports) == (0, "", ())


def test_a_header_is_also_one_of_cpp(cc: Hosts, tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler, c++")
    text, contract = text_and_contract()
    (tmp_path / "saxpy.h").write_text(stub(contract, text, "c"))
    (tmp_path / "main.cpp").write_text('#include "saxpy.h"\nint main() { return SAXPY_THREADS - 64; }\n')
    cc.cpp(tmp_path / "main.cpp")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_text_inside_is_the_text(language: str) -> None:
    built = build(AttentionConfig(8).kernel())
    text = built.text + '// "quoted"##, back\\slash, what??/ tab\t\n'
    contract = {**built.contract, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    result = stub(contract, text, language)
    if language == "rust":
        (inside,) = re.findall(r'r(#+)"(.*?)"\1;', result, re.DOTALL)
        assert inside == ("###", text)
        return
    lines = re.findall(r'^    ("(?:[^"\\]|\\.)*"),$', result, re.MULTILINE)
    unescaped = [
        re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), line[1:-1]) for line in lines
    ]
    assert "".join(unescaped) == text
    assert "??" not in result


def test_the_same_contract_gives_the_same_stub() -> None:
    built = build(AttentionConfig(8).kernel())
    for language in LANGUAGES:
        assert stub(built.contract, built.text, language) == stub(built.contract, built.text, language)


def test_what_has_no_stub_says_why() -> None:
    text, contract = text_and_contract()

    def says(call: Any, *given: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            call(*given)
        return str(caught.value)

    assert says(stub, contract, text, "go") == "stub: the language must be c or rust, got 'go'"
    assert says(stub, {**contract, "schema": 1}, text, "c") == (
        "contract: schema must be 2, got 1; it must be as launch.schema.json says"
    )
    assert says(stub, contract, text + "\n", "c") == (
        "stub: the text is not that of the contract of saxpy: its sha256 differs"
    )
    assert says(stub, {**contract, "cluster": [2, 1, 1]}, text, "c") == (
        "stub: saxpy has attributes of launches (cluster), which stubs do not have; launch it by "
        "cuLaunchKernelEx as its contract says"
    )
    assert says(example, contract, "c", "saxpy.h") == (
        "example: the contract of saxpy does not say how large its arrays are; write the program by hand"
    )
    forward = build(AttentionConfig(8).kernel()).contract
    assert says(example, forward, "c", 'a".h') == (
        "example: the file must be a plain name, got 'a\".h'; rename it"
    )

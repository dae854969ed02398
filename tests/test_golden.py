"""Whole PTX files that must not change unnoticed; `pytest --update-golden` rewrites them, never
under CI.

A golden proves sameness. That it is right, the assembler and the interpreter say, for the very
text in the file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, run_forward

from flash.contract.catalogue import emit
from flash.error_bound import arithmetic_of_config
from flash.problem.config import AttentionConfig
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

GOLDEN = Path(__file__).parent / "golden"
RESOURCES = GOLDEN / "resources.toml"
# One for each generation of copies, as small as its features allow.
CONFIGS = {
    "sm75_d4": AttentionConfig(4, tile=16, block_q=16, target="sm_75"),
    # `mma` of 8 columns, and copies that wait in registers.
    "sm75_d16_f16_causal_lse": AttentionConfig(
        16, dtype="f16", tile=16, block_q=32, target="sm_75", causal=True, return_lse=True
    ),
    "sm80_d4": AttentionConfig(4, tile=16, block_q=16, target="sm_80"),
    "sm80_d5v3_causal_lse": AttentionConfig(
        5, 3, tile=16, block_q=16, target="sm_80", causal=True, return_lse=True
    ),
    # Tensor copies, roles and wgmma.
    "sm90a_d16_causal_lse": AttentionConfig(
        16, dtype="f16", tile=16, block_q=64, target="sm_90a", causal=True, return_lse=True
    ),
    # Tensor memory, and products that one thread starts.
    "sm100a_d16_causal_lse": AttentionConfig(
        16, dtype="f16", tile=16, block_q=128, target="sm_100a", causal=True, return_lse=True
    ),
}


def emitted(name: str) -> str:
    return render(emit(CONFIGS[name].kernel()))


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.ptx"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_is_the_golden_one(name: str, update_golden: bool) -> None:
    if update_golden:
        golden(name).write_text(emitted(name), encoding="ascii", newline="\n")
    assert golden(name).exists(), f"no {golden(name).name}: run pytest --update-golden"
    assert emitted(name) == golden(name).read_text(encoding="ascii")


def test_every_golden_file_is_asked_for() -> None:
    assert {path.stem for path in GOLDEN.glob("*.ptx")} == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_golden_file_computes_attention(name: str) -> None:
    config = CONFIGS[name]
    arrays = Problem(20, 37, config.head_dim, config.value_dim).arrays(dtype=config.element.numpy)
    module = parse(golden(name).read_text(encoding="ascii"))
    out, lse, _ = run_forward(config, arrays, module, sanitize=True)
    wanted_lse = lse if config.return_lse else None
    assert_attention_is_accurate(
        out, wanted_lse, *arrays, causal=config.causal, arithmetic=arithmetic_of_config(config)
    )


@pytest.mark.ptxas
@pytest.mark.parametrize("name", CONFIGS)
def test_a_golden_file_assembles_without_a_spill(
    name: str, assembler: Assembler, update_golden: bool
) -> None:
    text = golden(name).read_text(encoding="ascii")
    kernel = CONFIGS[name].kernel()
    usage = assembler.assemble(text, kernel.target.name).kernel(kernel.name)
    assert usage.spill_store_bytes == usage.spill_load_bytes == 0
    recorded = tomllib.loads(RESOURCES.read_text()) if RESOURCES.exists() else {}
    if update_golden:
        recorded[name] = {
            "assembler": f"{assembler.name} {assembler.version}",
            "registers": usage.registers,
            "dynamic_shared_bytes": kernel.tiling.shared_bytes,
        }
        lines = [
            f"[{key}]\n" + "".join(f"{field} = {value!r}\n".replace("'", '"') for field, value in row.items())
            for key, row in sorted(recorded.items())
        ]
        RESOURCES.write_text("\n".join(lines))
    assert recorded[name]["dynamic_shared_bytes"] == kernel.tiling.shared_bytes
    if recorded[name]["assembler"] == f"{assembler.name} {assembler.version}":
        assert recorded[name]["registers"] == usage.registers


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_every_process_emits_the_same_bytes(seed: str, tmp_path: Path) -> None:
    # Another hash seed, locale, directory and environment: none of them reaches the text.
    root = str(Path(__file__).parent.parent)
    program = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        "import hashlib\n"
        "from flash.problem.config import AttentionConfig\n"
        "from flash.contract.catalogue import emit\n"
        "from ptxgen.text import render\n"
        "text = render(emit(AttentionConfig(72, 40, causal=True).kernel()))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
    child = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    text = render(emit(AttentionConfig(72, 40, causal=True).kernel()))
    assert child.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()

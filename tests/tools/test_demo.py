from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import Command

import flash.contract.catalogue
from flash import AttentionKernel
from flash.commands import demo as tool
from flash.contract.catalogue import build
from flash.problem.kernel_config import KernelConfig
from ptxgen import interpreter, ir
from ptxgen.errors import BackendError, PtxGenError
from ptxgen.runtime.assembler import Assembly, KernelUsage

PROGRAM = "ptxgen demo"

SCRIPT = str(Path(__file__).parents[2] / "tools" / "demo.py")
SMALL = ["--head-dim", "16", "--seq", "24"]

Body = tuple[Any, ...]
Change = Callable[[Body], Body]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine without a GPU, and with an assembler that spills as many bytes as the test says."""
    result = SimpleNamespace(spilled=0, gpu=None)

    def assemble(ptx: str, target: str) -> Assembly:
        name = ptx.split(".visible .entry ")[1].split("(")[0]
        usage = KernelUsage(name, 80, spill_store_bytes=result.spilled)
        return Assembly(b"", "ptxas", "13.0.88", target, (usage,), (), "")

    assembler = SimpleNamespace(name="ptxas", version="13.0.88", assemble=assemble)
    gpu = SimpleNamespace(
        why_unavailable=lambda: "" if result.gpu else "no driver",
        current_device=lambda: 0,
        device_properties=lambda _: result.gpu,
    )
    monkeypatch.setattr(tool, "find_assembler", lambda **_: assembler)
    monkeypatch.setattr(tool, "cuda_backend", lambda: gpu)
    return result


@pytest.fixture
def broken_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Change], None]]:
    """Replaces the body of every kernel made from here on by what the test makes of it."""
    forward = flash.contract.catalogue.emit

    def use(change: Change) -> None:
        def changed(config: KernelConfig) -> ir.Module:
            module = forward(config)
            kernel = module.kernels[0]
            return replace(module, kernels=(replace(kernel, body=change(kernel.body)),))

        monkeypatch.setattr(flash.contract.catalogue, "emit", changed)

    build.cache_clear()
    yield use
    build.cache_clear()


def demonstrate(argv: list[str], call: Command) -> tuple[int, dict[str, Any]]:
    code, out, _ = call(*argv, "--json")
    return code, json.loads(out)


_RIGHT: list[dict[str, Any]] = []


def right(call: Command) -> dict[str, Any]:
    """What is known of the small kernel when all is well, from one run for all tests."""
    if not _RIGHT:
        code, result = demonstrate(SMALL, call)
        assert code == 0
        _RIGHT.extend(result["kernels"])
    return _RIGHT[0]


def failing(call: Command) -> tuple[list[str], dict[str, Any]]:
    """What fails for the small kernel, and all that is known of it."""
    code, result = demonstrate(SMALL, call)
    assert (code, result["passed"]) == (1, False)
    return result["kernels"][0]["failures"], result["kernels"][0]


# --------------------------------------------------------------------------------- when all is well


def test_the_table_says_what_was_made_and_how_well_it_computes(call: Command) -> None:
    printed = call(*SMALL)
    assert printed.code == 0
    kernel = right(call)
    extra = kernel["memory_beyond_inputs_and_outputs"]
    assert extra["2048"] == "50.5 KiB instead of 16.0 MiB, 324.4 times less"
    shared, outside = (kernel["proved"][space]["of"] for space in ("shared", "global"))
    assert shared > outside > 0
    assert printed.out == (
        "attention, 2 heads, 1 of keys, length 24\n"
        "\n"
        "configuration       f32 d=16 causal\n"
        f"tiles               {kernel['block_q']} queries by {kernel['tile']} keys\n"
        "target              sm_80\n"
        f"text                {kernel['ptx_lines']} lines of PTX 7.0\n"
        "verifier            no problem\n"
        f"proved              {shared} of {shared} shared, {outside} of {outside} global\n"
        "assembler           ptxas 13.0.88\n"
        "registers           80, 0 bytes spilled\n"
        f"shared memory       {kernel['shared_bytes']} of 166912 bytes\n"
        f"extra memory, 512   {extra['512']}\n"
        f"extra memory, 2048  {extra['2048']}\n"
        f"extra memory, 8192  {extra['8192']}\n"
        f"CTAs per SM         {kernel['ctas_per_sm']} of {kernel['threads']} threads\n"
        "sanitizers          no report\n"
        f"error, numpy f32    {kernel['numpy_f32_error']:.2e}\n"
        f"error, interpreter  {kernel['errors']['interpreter']:.2e}\n"
        f"error, cpu          {kernel['errors']['cpu']:.2e}\n"
        "verdict             ok\n"
        "\n"
        "no GPU: no driver\n"
        "\n"
        "all checks passed\n"
    )
    assert printed.err == (
        f"ptxgen demo: f32 d=16 causal: assembling with {tool.find_assembler()} ...\n"
        "ptxgen demo: f32 d=16 causal: running on the interpreter, with sanitizers ...\n"
        "ptxgen demo: f32 d=16 causal: running on cpu ...\n"
    )


def test_errors_are_real_and_small(call: Command) -> None:
    kernel = right(call)
    for error in (kernel["numpy_f32_error"], *kernel["errors"].values()):
        assert 0 < error < 1e-5


def test_json_names_the_kernel_and_what_is_missing(call: Command) -> None:
    code, result = demonstrate([*SMALL, "--target", "sm_90"], call)
    assert code == 0
    assert result["passed"] is True
    assert result["problem"] == {"heads": 2, "kv_heads": 1, "seq": 24}
    assert result["missing"] == {"GPU": "no driver"}
    (kernel,) = result["kernels"]
    built = build(tool.AttentionConfig(16, causal=True, return_lse=True, target="sm_90").kernel())
    assert (kernel["kernel"], kernel["target"]) == (built.kernel.name, "sm_90")
    assert kernel["ptx_lines"] == len(built.text.splitlines())
    assert (kernel["problems"], kernel["reports"], kernel["failures"]) == ([], [], [])
    assert kernel["reads_back"] is True


def test_the_kernels_stand_side_by_side(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def briefly(config: tool.AttentionConfig, seq: int, *_: object, **__: object) -> dict[str, Any]:
        asked.append((config.dtype, config.head_dim, config.causal, seq))
        return small | {"configuration": f"d={config.head_dim}"}

    small = right(call)
    monkeypatch.setattr(tool, "_demonstrate", briefly)
    lines = call.out().splitlines()
    assert asked == [
        ("f32", 64, "bottom_right", 200),
        ("f32", 128, False, 200),
        ("bf16", 128, "bottom_right", 200),
    ]
    assert lines[2].split() == ["configuration", "d=64", "d=128", "d=128"]
    assert lines[4].split() == ["target", "sm_80", "sm_80", "sm_80"]
    assert lines[2].rindex("d=128") == lines[4].rindex("sm_80")


def test_without_an_assembler_registers_are_estimated(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> None:
        raise BackendError("no PTX assembler found")

    monkeypatch.setattr(tool, "find_assembler", none)
    printed = call(*SMALL)
    assert printed.code == 0
    needs = AttentionKernel(tool.AttentionConfig(16, causal=True, return_lse=True)).resources
    assert "\nassembler           none\n" in printed.out
    assert f"\nregisters           about {needs.registers}\n" in printed.out
    assert f"\nCTAs per SM         {needs.ctas_per_sm} of {needs.threads} threads\n" in printed.out
    assert "\nno assembler: no PTX assembler found\n" in printed.out
    assert "assembling" not in printed.err


def test_a_gpu_is_used_and_says_the_target(
    call: Command, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, used = AttentionKernel.launch, []

    def on_cpu(kernel: AttentionKernel, *arrays: object, backend: str) -> Any:
        used.append(backend)
        return launch(kernel, *arrays, backend="cpu")

    machine.gpu = SimpleNamespace(major=9, minor=0)
    monkeypatch.setattr(AttentionKernel, "launch", on_cpu)
    code, result = demonstrate(SMALL, call)
    kernel = result["kernels"][0]
    assert (code, used, result["missing"]) == (0, ["cpu", "cuda"], {})
    assert list(kernel["errors"]) == ["interpreter", "cpu", "cuda"]
    assert kernel["target"] == "sm_90a"
    code, result = demonstrate([*SMALL, "--target", "sm_80"], call)
    assert result["kernels"][0]["target"] == "sm_80"


# -------------------------------------------------------------------------- when something is wrong


def test_spilled_registers_fail(call: Command, machine: SimpleNamespace) -> None:
    machine.spilled = 8
    shown = call.out(*SMALL, code=1)
    assert "\nregisters           80, 8 bytes spilled\n" in shown
    assert "\nverdict             registers are spilled\n" in shown
    assert shown.endswith("\n\nFAILED\n")


def test_a_missing_barrier_fails(call: Command, broken_kernel: Callable[[Change], None]) -> None:
    def without_barriers(body: Body) -> Body:
        return tuple(s for s in body if getattr(s, "opcode", "") != "bar.sync")

    broken_kernel(without_barriers)
    shown = call.out(*SMALL, code=1)
    assert re.search(r"\nsanitizers          \d+ reports:\n {20}kernel attention_forward_f32_d16\w*: ", shown)
    assert "the sanitizers have objections" in shown.partition("\nverdict ")[2]


def test_a_wrong_result_fails(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interpreter.run

    def a_little_off(*args: object, **how: Any) -> interpreter.Result:
        result = run(*args, **how)
        how["args"][3][0, 1, 5, 7] += 1e-4  # O
        return result

    monkeypatch.setattr(interpreter, "run", a_little_off)
    failures, kernel = failing(call)
    most = kernel["allowed_error"]
    assert kernel["errors"]["cpu"] < most < 2e-5
    assert failures == [f"interpreter errs by more than {most:.1e}"]
    assert kernel["errors"]["interpreter"] == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("array", [3, 4])
def test_what_the_kernel_does_not_write_fails(
    call: Command, monkeypatch: pytest.MonkeyPatch, array: int
) -> None:
    run = interpreter.run

    def forgetful(*args: object, **how: Any) -> interpreter.Result:
        before = how["args"][array].copy()
        result = run(*args, **how)
        how["args"][array][0, 1, 23] = before[0, 1, 23]
        return result

    monkeypatch.setattr(interpreter, "run", forgetful)
    failures, kernel = failing(call)
    assert [why.split(" by ")[0] for why in failures] == ["interpreter errs"]
    assert np.isnan(kernel["errors"]["interpreter"])


def test_a_text_that_reads_back_differently_fails(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "parse", lambda text: text)
    assert failing(call)[0] == ["the text does not read back as the same program"]


def test_a_kernel_that_the_verifier_refuses_fails(
    call: Command, broken_kernel: Callable[[Change], None]
) -> None:
    broken_kernel(lambda body: body[:-1])
    printed = call(*SMALL)
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.startswith("ptxgen demo: error: the module has 1 problem:\n1. kernel ")
    assert printed.err.endswith(": control runs off the end of the kernel; end it with ret\n")


def test_an_access_out_of_bounds_fails(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interpreter.run

    def short_of_keys(*args: object, **how: Any) -> interpreter.Result:
        how["args"][1] = how["args"][1][:, :, :-1].copy()
        return run(*args, **how)

    monkeypatch.setattr(interpreter, "run", short_of_keys)
    printed = call(*SMALL)
    assert (printed.code, printed.out) == (1, "")
    line = printed.err.splitlines()[-1]
    assert line.startswith("ptxgen demo: error: kernel attention_forward_f32_d16_")
    assert "bytes after the end of K " in line


# ------------------------------------------------------------------------------------ usage


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (["--head-dim", "0"], {"head_dim": 0, "target": "sm_80"}),
        (["--target", "sm_1"], {"head_dim": 64, "target": "sm_1"}),
    ],
)
def test_an_unsupported_configuration_is_3_with_the_message_of_the_library(
    argv: list[str], config: dict[str, object], call: Command
) -> None:
    with pytest.raises(PtxGenError) as refused:
        tool.AttentionConfig(**config)
    assert call.error(*argv) == (3, f"{refused.value}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seq", "0"], "argument --seq: must be a whole number of at least 1, got '0'"),
        (["--seq", "few"], "argument --seq: must be a whole number of at least 1, got 'few'"),
        (["--head-dim", "3.5"], "argument --head-dim: invalid int value: '3.5'"),
        (["now"], "unrecognized arguments: now"),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message


def test_help_shows_examples_and_exit_codes(call: Command) -> None:
    shown = call.help()
    assert "  ptxgen demo --head-dim 80 --seq 333 " in shown
    assert (
        "\nexit codes:\n  0  all checks passed\n  1  one failed\n  2  wrong usage, or an environment" in shown
    )


def test_half_precision_is_judged_in_its_own_type(call: Command) -> None:
    code, result = demonstrate([*SMALL, "--dtype", "bf16"], call)
    kernel = result["kernels"][0]
    assert code == 0
    assert kernel["configuration"] == "bf16 d=16 causal"
    assert 1e-4 < kernel["errors"]["interpreter"] <= kernel["allowed_error"] < 0.1


def test_a_target_without_tensor_cores_for_it_shows_f32_only(
    call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def briefly(config: tool.AttentionConfig, *_: object, **__: object) -> dict[str, Any]:
        asked.append(config.dtype)
        return small

    small = right(call)
    monkeypatch.setattr(tool, "_demonstrate", briefly)
    assert tool.main(["--target", "sm_75"]) == 0
    assert asked == ["f32", "f32", "f16"]


def test_an_access_that_is_not_proved_fails(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tool._text
    short = {"shared": {"proved": 3, "of": 4}, "global": {"proved": 2, "of": 2}}
    monkeypatch.setattr(tool, "_text", lambda kernel: real(kernel) | {"proved": short})
    assert failing(call)[0] == ["not every access is proved"]


def test_a_variable_with_a_value_that_cannot_be_used_is_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_BACKEND", "gpu")
    assert tool.main(SMALL) == 2
    assert "ptxgen demo: error: PTXGEN_BACKEND must be one of" in capsys.readouterr().err

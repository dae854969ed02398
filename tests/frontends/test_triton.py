"""Triton functions compiled for GPUs that are not there: results, findings, arguments."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontends.lines import line_of
from messages import message

from ptxgen.check.verify import verify
from ptxgen.errors import CompileError, LaunchError, TrapError
from ptxgen.frontends import triton as front
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.text import render

SOURCE = Path(__file__).with_name("triton_kernels.py")

pytestmark = pytest.mark.slow


@pytest.fixture
def k(triton: Any) -> Any:
    """The kernels."""
    assert triton
    return importlib.import_module("frontends.triton_kernels")


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(5).standard_normal(shape, np.float32).astype(dtype)


def wide(x: Any) -> Any:
    return x.astype(np.float64)


def softmax_of(x: Any) -> Any:
    weights = np.exp(wide(x))
    return weights / weights.sum(1, keepdims=True)


# ---- right kernels ------------------------------------------------------------------------------


def test_masked_rows(k: Any) -> None:
    x = floats(3, 100)
    y = np.zeros_like(x)
    outcome = front.run(k.softmax, 3, [x, y, 100, 100], {"BLOCK": 128})
    assert np.allclose(y, softmax_of(x), rtol=1e-5)
    assert outcome.clean
    assert outcome.counters.warp_instructions > 0
    assert ".target sm_80" in outcome.ptx


def test_arguments_by_name_and_a_grid_that_is_computed(k: Any) -> None:
    x = floats(3, 1)
    y = np.zeros_like(x)
    args = {"out": y, "x": x, "columns": 1, "stride": 1}  # 1 is a constant for Triton
    front.run(k.softmax, lambda args: (len(args["x"]),), args, {"BLOCK": 128}, num_warps=2)
    assert y.tolist() == [[1.0]] * 3


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("warps", [4, 8])
def test_a_product_in_tensor_memory(k: Any, target: str, warps: int) -> None:
    a, b = (floats(128, n, dtype=ml_dtypes.bfloat16) for n in (128, 64))
    c = np.zeros((128, 64), np.float32)
    launch = front.launch(
        k.matmul, 1, [a, b, c, 128, 64, 128], {"BM": 128, "BN": 64, "BK": 64}, target=target, num_warps=warps
    )
    module = launch.kernel.program.module
    assert verify(module) == ()
    text = render(module)
    assert parse(text) == module
    used = {opcode.split(".")[1] for opcode in re.findall(r"\btcgen05\.\S+", text)}
    assert used >= {"alloc", "relinquish_alloc_permit", "dealloc", "commit", "mma", "ld", "wait::ld"}
    launch.run()
    assert np.allclose(c, wide(a) @ wide(b), atol=1e-4)


@pytest.mark.judged
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_pipelined_product_on_tensor_cores(k: Any, target: str) -> None:
    a, b = floats(50, 96, dtype=np.float16), floats(96, 64, dtype=np.float16)
    c = np.zeros((50, 64), np.float32)
    outcome = front.run(
        k.matmul,
        (1, 2),
        [a, b, c, 50, 64, 96],
        {"BM": 64, "BN": 32, "BK": 32},
        target=target,
        num_stages=3,
        schedule=["lockstep", PCT(1)],
    )
    assert np.allclose(c, wide(a) @ wide(b), atol=1e-4)
    used = " ".join(outcome.counters.by_opcode)
    assert "cp.async.cg" in used
    assert ("wgmma" if target == "sm_90" else "mma.sync") in used


def test_atomics(k: Any) -> None:
    x = np.random.default_rng(0).integers(0, 8, 300, np.int32)
    bins = np.zeros(8, np.int32)
    front.run(k.histogram, 3, [x, bins, 300], {"BLOCK": 128})
    assert bins.tolist() == np.bincount(x, minlength=8).tolist()


@pytest.mark.parametrize(
    "dtype",
    [np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int64, np.float64],
    ids=lambda d: d.__name__,
)
def test_types_of_elements_and_of_numbers(k: Any, dtype: Any) -> None:
    x = np.arange(100).astype(dtype)
    y = np.zeros(100, np.float32)
    front.run(k.scaled, 1, [x, y, 100, 0.5, True])
    assert y.tolist() == (wide(x) / 2).tolist()
    front.run(k.scaled, 1, [x, y, np.int64(100), 2, False])
    assert y.tolist() == (wide(x) * -2).tolist()


def test_torch_tensors_in_place(k: Any, torch: Any) -> None:
    x, y = torch.ones(100, dtype=torch.bfloat16), torch.zeros(100)
    front.run(k.scaled, 1, [x, y, 100, 3.0, True])
    assert y.tolist() == [3.0] * 100


def test_a_tuple_of_arguments(k: Any) -> None:
    x, y = floats(128), np.zeros(128, np.float32)
    front.run(k.in_parts, 1, [(x, 2.0), y], {"BLOCK": 128})
    assert np.array_equal(y, 2 * x)


@pytest.mark.judged
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tensor_descriptors(k: Any, torch: Any, target: str) -> None:
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    a, b = (torch.from_numpy(floats(64, 64, dtype=np.float16)) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    maps = [descriptor.from_tensor(array, [64, 64]) for array in (a, b)]
    outcome = front.run(
        k.matmul_of_maps, 1, [*maps, c, 64, 64], {"BM": 64, "BN": 64, "BK": 64}, target=target, num_stages=2
    )
    assert np.allclose(c, wide(a.numpy()) @ wide(b.numpy()), atol=1e-4)
    assert any("bulk.tensor" in opcode for opcode in outcome.counters.by_opcode) == (target == "sm_90a")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_descriptors_of_a_part_of_a_tensor(k: Any, torch: Any, target: str) -> None:
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    flat, b = torch.from_numpy(floats(64 * 64, dtype=np.float16)), torch.eye(64, dtype=torch.float16)
    maps = [descriptor(flat, [48, 64], [64, 1], [64, 64], padding="nan"), descriptor.from_tensor(b, [64, 64])]
    c = np.zeros((64, 64), np.float32)
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    front.run(k.matmul_of_maps, 1, [*maps, c, 64, 64], sizes, target=target, num_stages=2)
    assert np.array_equal(c[:48], flat.numpy().reshape(64, 64)[:48])
    assert np.isnan(c[48:]).all()


def test_clusters_of_ctas(k: Any) -> None:
    x = floats(3, 100)
    y = np.zeros_like(x)
    outcome = front.run(k.softmax, 3, [x, y, 100, 100], {"BLOCK": 128}, target="sm_90", num_ctas=2)
    assert np.allclose(y, softmax_of(x), rtol=1e-5)
    assert ".reqnctapercluster 2" in outcome.ptx


@pytest.mark.judged
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tensor_descriptors_made_in_the_kernel(k: Any, target: str) -> None:
    a, b = (floats(64, 64, dtype=np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    sizes = {"BM": 64, "BN": 64, "BK": 32}
    outcome = front.run(k.matmul_of_made_maps, 2, [a, b, c, 64, 64], sizes, target=target)  # both the same
    assert np.allclose(c, wide(a) @ wide(b), atol=1e-4)
    assert any("tensormap.replace" in opcode for opcode in outcome.counters.by_opcode) == (target == "sm_90a")


def test_stages_that_fail_are_named(k: Any, capfd: pytest.CaptureFixture[str]) -> None:
    a, c = np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int32)
    with pytest.raises(CompileError) as error:  # Triton has no product of int8 before sm_80
        front.run(k.integer_product, 1, [a, a, c], {"N": 64}, target="sm_75")
    assert str(error.value) == (
        "integer_product cannot be compiled for sm_75: stage ttgir failed (PassManager::run failed); Triton "
        "says why on standard error"
    )
    assert "error:" in capfd.readouterr().err
    front.run(k.integer_product, 1, [a, a, c], {"N": 64}, target="sm_80")


def test_a_kernel_is_compiled_once_for_arguments_of_a_kind(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, bins = np.zeros(64, np.int32), np.zeros(8, np.int32)
    front.run(k.histogram, 1, [x, bins, 64], {"BLOCK": 64})
    monkeypatch.setattr(front, "_translate", None)
    front.run(k.histogram, 1, [x, bins, 48], {"BLOCK": 64})
    with pytest.raises(TypeError):  # 47 is no multiple of 16: another kernel
        front.run(k.histogram, 1, [x, bins, 47], {"BLOCK": 64})


# ---- decorators ---------------------------------------------------------------------------------


def test_a_configuration_of_an_autotuned_kernel(k: Any) -> None:
    x, bins = np.zeros(100, np.int32), np.zeros(8, np.int32)
    for choice in ({"config": k.CONFIGS[0]}, {"constexprs": {"BLOCK": 64}, "num_warps": 2}):
        bins[:] = 0
        outcome = front.run(k.tuned, lambda args: (-(-args["n"] // args["BLOCK"]),), [x, bins, 100], **choice)
        assert bins[0] == 100
        assert ".reqntid 64" in outcome.ptx


def test_what_is_given_wins_over_a_configuration(k: Any, triton: Any) -> None:
    x, bins, hooked = np.zeros(64, np.int32), np.zeros(8, np.int32), []
    config = triton.Config({"BLOCK": 128}, num_warps=8, pre_hook=lambda args: hooked.append(args["BLOCK"]))
    outcome = front.run(k.tuned, 1, [x, bins, 64], {"BLOCK": 64}, config=config, num_warps=1)
    assert ".reqntid 32" in outcome.ptx
    assert hooked == [64]


def test_heuristics_are_computed(k: Any) -> None:
    x = floats(2, 100)
    y = np.zeros_like(x)
    front.run(k.guessed, 2, [x, y, 100, 100])
    assert np.allclose(y, softmax_of(x), rtol=1e-5)


# ---- findings -----------------------------------------------------------------------------------


def test_a_race_of_programs_names_the_line_of_python(k: Any) -> None:
    x, out = floats(512), np.zeros(1, np.float32)
    outcome = front.run(k.racy_total, 4, [x, out], {"BLOCK": 128}, raise_on_report=False)
    line = line_of(SOURCE, "# of every program")
    text = "tl.store(out, tl.load(out) + total)  # of every program"
    reports = outcome.findings.reports
    assert reports
    for report in reports:
        assert (report.kind, report.space, report.region) == ("race", "global", "out")
        assert report.source is not None
        assert report.other_source is not None
        assert {report.source.line, report.other_source.line} == {line}
        assert report.source.text == text
        assert f"(triton_kernels.py:{line}: {text})" in report.message


def test_an_access_outside_an_array_names_the_parameter_and_the_line(k: Any) -> None:
    x, y = floats(100), np.zeros(128, np.float32)
    error = message(lambda: front.run(k.unmasked, 1, [x, y], {"BLOCK": 128}), TrapError)
    line = line_of(SOURCE, "twice(tl.load(x + at))")
    assert f"(triton_kernels.py:{line}: tl.store(out + at, twice(tl.load(x + at))))" in error
    assert "0 bytes after the end of x (" in error


# ---- what is wrong says so ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "how", "wanted"),
    [
        ("softmax", [1, 2, 3], {}, "softmax needs a value for columns, BLOCK; BLOCK in constexprs"),
        ("softmax", [1] * 6, {}, "softmax takes 5 arguments (x, out, stride, columns, BLOCK), got 6"),
        ("softmax", [1, 2], {"constexprs": {"BLOK": 3}}, "softmax has no parameter 'BLOK'; did you mean "
         "'BLOCK'? (it has x, out, stride, columns, BLOCK)"),
        ("softmax", [1, 2], {"constexprs": {"x": 3}}, "softmax: x is given in args and in constexprs"),
        ("softmax", 3, {}, "softmax: args must be a list of arguments, or a mapping by name, got 3"),
        ("softmax", ["a", 2, 3, 4, 128], {}, "softmax cannot be specialised for these arguments: failed to "
         "specialize argument of type: str"),
        ("tuned", [1, 2, 3], {}, "histogram is autotuned over 2 configurations, which only a GPU can time; "
         "choose one: config=histogram.configs[0], or give BLOCK"),
        ("tuned", [1, 2, 3], {"config": 1}, "histogram: config must be a triton.Config, got 1"),
        ("histogram", [1, 2, 3], {"config": 1}, "histogram: config is for autotuned kernels, and this one is "
         "not; leave it out"),
        ("CONFIGS", [], {}, "ptxgen.frontends.triton: the kernel must be a @triton.jit function, and [] is "
         "none"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(
    k: Any, monkeypatch: pytest.MonkeyPatch, name: str, args: Any, how: dict[str, Any], wanted: str
) -> None:
    monkeypatch.setattr(k, "CONFIGS", [])
    assert message(lambda: front.run(getattr(k, name), 1, args, **how)) == wanted


@pytest.mark.parametrize("grid", [0, (1, 1, 1, 1), "a", lambda _: None])
def test_a_grid_that_is_none(k: Any, grid: Any) -> None:
    x = np.zeros(64, np.int32)
    with pytest.raises(LaunchError, match="histogram: grid must be 1 to 3 positive integers, got "):
        front.run(k.histogram, grid, [x, x, 64], {"BLOCK": 64})


def test_a_function_that_triton_cannot_compile(k: Any) -> None:
    x = floats(100)
    error = message(lambda: front.run(k.unmasked, 1, [x, x], {"BLOCK": 100}), CompileError)
    assert error.startswith("unmasked cannot be compiled:\nat 2:")
    assert error.endswith("arange's range must be a power of 2")

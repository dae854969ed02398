"""`kernel[grid](…)` of unchanged host code runs on the interpreter."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import LaunchError, TrapError

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow


@pytest.fixture
def k(triton: Any) -> Any:
    """The kernels."""
    assert triton
    return importlib.import_module("frontends.triton_kernels")


@pytest.fixture
def interpreted(triton: Any) -> Any:
    assert triton
    return importlib.import_module("ptxgen.frontends.triton_launches").interpreted


def softmax_of(k: Any, x: Any) -> Any:
    """Host code as a library has it."""
    y = np.empty_like(x)
    k.softmax[(len(x),)](x, y, x.shape[1], columns=x.shape[1], BLOCK=128, num_warps=2)
    return y


def test_launches_of_host_code(k: Any, interpreted: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    with interpreted(target="sm_90", schedule=["pct:1", "lockstep"]) as outcomes:
        y = softmax_of(k, x)
    weights = np.exp(x.astype(np.float64))
    assert np.allclose(y, weights / weights.sum(1, keepdims=True), rtol=1e-5)
    assert [(outcome.name, outcome.clean) for outcome in outcomes] == [("softmax", True)]
    assert ".target sm_90" in outcomes[0].ptx
    assert ".reqntid 64" in outcomes[0].ptx


def test_decorators_choose_as_they_can_without_a_gpu(k: Any, interpreted: Any, triton: Any) -> None:
    x, bins, y = np.zeros(100, np.int32), np.zeros(8, np.int32), np.zeros((1, 100), np.float32)
    called: list[Any] = []
    configs = [
        triton.Config(
            {"BLOCK": size}, num_warps=size // 32, pre_hook=lambda args: called.append(args["BLOCK"])
        )
        for size in (32, 64, 128)
    ]
    prune = {"early_config_prune": lambda configs, named, **_: [c for c in configs if named["n"] >= 50][1:]}
    tuned = triton.autotune(configs=configs, key=["n"], prune_configs_by=prune)(k.histogram)
    with interpreted() as outcomes:
        tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, bins, 100)
        k.guessed[(1,)](y, y, 100, 100)
        k.histogram.warmup(x, bins, 100, BLOCK=64, grid=(1,))
    assert bins[0] == 100
    assert called == [64]
    assert ".reqntid 64" in outcomes[0].ptx
    assert [outcome.name for outcome in outcomes] == ["histogram", "softmax"]


def test_what_a_launch_returns_launches_the_kernel_for_other_arguments(k: Any, interpreted: Any) -> None:
    x, bins = np.zeros(100, np.int32), np.zeros((3, 8), np.int32)
    with interpreted() as outcomes:
        compiled = k.histogram[(2,)](x, bins[0], 100, BLOCK=64, num_warps=2)
        compiled[(1,)](x, bins[1], 50)
        compiled[(2, 1, 1)](x, bins[2], 100, 64)
        with pytest.raises(ValueError, match="zip"):
            compiled[(1,)](x)
    assert bins[:, 0].tolist() == [100, 50, 100]
    assert all(".reqntid 64" in outcome.ptx for outcome in outcomes)


def test_a_launch_returns_the_texts_and_metadata_of_the_compiled_kernel(
    k: Any, interpreted: Any, triton: Any
) -> None:
    torch = pytest.importorskip("torch")
    x, bins = torch.zeros(100, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with interpreted() as outcomes:
        launched = k.histogram[(2,)](triton.reinterpret(x, triton.language.uint32), bins, 100, BLOCK=64)
        warm = k.histogram.warmup(x, bins, 100, BLOCK=64, grid=(2,))
    assert bins[0] == 100
    assert launched.asm["ptx"] == outcomes[0].ptx
    assert list(launched.asm) == ["ttir", "ttgir", "llir", "ptx"]
    assert (launched.name, launched.metadata.num_warps) == ("histogram", 4)
    assert warm.asm["ttir"] != launched.asm["ttir"]  # another type of elements


def test_tuners_of_libraries_choose_without_a_gpu_and_say_what(k: Any, interpreted: Any, triton: Any) -> None:
    class OwnTuner(triton.runtime.Autotuner):  # type: ignore[misc]
        def run(self, *args: Any, **named: Any) -> None:
            raise AssertionError(f"asked the GPU for {args} and {named}")

    x, bins = np.zeros(100, np.int32), np.zeros(8, np.int32)
    configs = [triton.Config({"BLOCK": size}, num_warps=size // 32) for size in (64, 128)]
    names = k.histogram.arg_names
    tuned = OwnTuner(k.histogram, names, configs, ["n"], None, None)
    own = OwnTuner.run
    with interpreted() as outcomes:
        tuned.run(x, bins, 100, grid=(2,))
    assert bins[0] == 100
    assert tuned.best_config is configs[0]
    assert ".reqntid 64" in outcomes[0].ptx
    assert OwnTuner.run is own


def test_a_finding_is_raised_where_the_kernel_is_launched(k: Any, interpreted: Any) -> None:
    x, out = np.ones(256, np.float32), np.zeros(1, np.float32)
    with interpreted(), pytest.raises(TrapError, match=r"race.*triton_kernels\.py"):
        k.racy_total[(2,)](x, out, BLOCK=128)
    with interpreted(sanitize=False) as outcomes:
        k.racy_total[(2,)](x, out, BLOCK=128)
    assert outcomes[0].clean
    with (
        interpreted(),
        pytest.raises(LaunchError, match=r"racy_total takes 3 arguments \(x, out, BLOCK\), got 4"),
    ):
        k.racy_total[(2,)](x, out, 128, 4)


def test_options_of_the_compiler_are_those_of_all_launches_that_give_none(k: Any, interpreted: Any) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)

    def launched(common: dict[str, Any], **own: Any) -> str:
        with interpreted(**common) as outcomes:
            k.affine[(1,)](x, y, 100, BLOCK=128, **own)
        assert y[3] == 7
        ptx: str = outcomes[0].ptx
        return ptx

    assert "fma.rn.f32" in launched({})
    without = {"enable_fp_fusion": False}
    for common, own in (
        ({"options": without}, {}),
        (without, {}),
        ({}, without),
        ({"enable_fp_fusion": True}, without),
    ):
        assert "fma.rn.f32" not in launched(common, **own)
    assert ".reqntid 64" in launched({"num_warps": 2, "options": {"num_stages": 2}})
    assert ".reqntid 32" in launched({"num_warps": 2}, num_warps=1)


@pytest.mark.parametrize("given", ["interpreted", "options", "launch"])
def test_an_option_that_nobody_knows_is_refused_by_its_name(k: Any, interpreted: Any, given: str) -> None:
    y, wrong = np.zeros(100, np.float32), {"num_warpz": 2}
    common = {"interpreted": wrong, "options": {"options": wrong}, "launch": {}}[given]
    with interpreted(**common), pytest.raises(LaunchError) as error:
        k.affine[(1,)](y, y, 100, BLOCK=128, **(wrong if given == "launch" else {}))
    said = str(error.value)
    assert said.startswith(
        "affine: there is no option 'num_warpz'; did you mean 'num_warps'? (those of Triton's compiler are "
        "num_warps, "
    )
    assert ", enable_fp_fusion, " in said
    assert "; those of a run shared, cluster, sanitize, schedule, " in said


def test_tensors_as_triton_takes_them(k: Any, interpreted: Any, torch: Any) -> None:
    base, y = torch.arange(200, dtype=torch.float32), torch.zeros(100)
    with interpreted() as outcomes:
        k.affine[(1,)](torch.nn.Parameter(base), torch.nn.Parameter(y), 100, BLOCK=128)
        assert y.tolist() == [2.0 * n + 1 for n in range(100)]
        leaf = torch.zeros(100, requires_grad=True)
        k.affine[(1,)](base.view(2, 100).t(), leaf, 100, BLOCK=128)  # what lies behind the pointer
        assert torch.equal(leaf.detach(), y)
        assert leaf.grad is None
        y.zero_()
        k.affine[(1,)](torch.ones(()).expand(100), y, 1, BLOCK=128)
        assert y[:2].tolist() == [3, 0]
        k.affine[(1,)](y, y, 100, BLOCK=128)  # in place
        k.affine[(1,)](base, base[100:], 100, BLOCK=128)  # side by side in one tensor
    assert y[:2].tolist() == [7, 1]
    assert base[100:].tolist() == [2.0 * n + 1 for n in range(100)]
    assert all(outcome.clean for outcome in outcomes)
    with interpreted(), pytest.raises(TrapError, match="race"):
        k.affine[(1,)](base, base[1:], 100, BLOCK=128)


def test_the_fixture_of_the_plugin(k: Any, pytester: pytest.Pytester) -> None:
    assert k
    test = """
    import numpy as np
    from frontends.triton_kernels import racy_total, softmax

    def test_right(interpret_triton):
        y = np.zeros((1, 100), np.float32)
        softmax[(1,)](y, y, 100, 100, BLOCK=128)
        assert interpret_triton[0].name == "softmax"
        assert ".target sm_100a" in interpret_triton[0].ptx

    def test_racy(interpret_triton):
        racy_total[(2,)](np.ones(256, np.float32), np.zeros(1, np.float32), BLOCK=128)
    """
    pytester.makepyfile(test)
    pytester.makeini(
        "[pytest]\naddopts = -p ptxgen.pytest_plugin --ptx-schedules=2 --ptx-triton-target=sm_100a"
    )
    tests = Path(__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tests}:{tests.parent}")
        result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    lines = [line.split() for line in result.outlines]
    assert ["softmax", "1", "run"] in [line[:3] for line in lines]
    assert any(line[:2] == ["racy_total", "1"] and line[-1].startswith("finding") for line in lines)


def test_outside_the_context_triton_is_as_it_was(k: Any, interpreted: Any, triton: Any) -> None:
    before = triton.runtime.JITFunction.run, triton.runtime.Autotuner.run
    with pytest.raises(ZeroDivisionError), interpreted():
        raise ZeroDivisionError
    assert (triton.runtime.JITFunction.run, triton.runtime.Autotuner.run) == before
    assert k.softmax.run.__func__ is before[0]

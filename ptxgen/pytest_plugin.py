"""A plugin for pytest: the fixtures `run_ptx` and `interpret_triton` run kernels without a GPU, and
fail the test with what the sanitizers find; `mutate_ptx` fails it with the mistakes in a kernel that its
problems would miss. With `--gpu=interpreter`, tests that ask PyTorch for a GPU run without one.

pytest loads it wherever `ptxgen` is installed. It imports nothing of `ptxgen` until a test asks for
a fixture, or the command line for a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from ptxgen.frontends.program import Outcome
    from ptxgen.mutation.judge import Verdict

_NONE: Final = "none"
_PROPERTY: Final = "ptxgen_run"  # of a test, for each run: JSON


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup(
        "ptxgen", "kernels on the PTX interpreter (the fixtures run_ptx and interpret_triton)"
    )
    group.addoption(
        "--ptx-sanitize",
        default="all",
        metavar="NAMES",
        help="the sanitizers that watch kernels: all, none, or some of bounds, init, race, sync, proxy, "
        "and mbarrier_init, which is not in all, with commas (default: all)",
    )
    group.addoption(
        "--ptx-schedules",
        type=int,
        default=1,
        metavar="N",
        help="run each kernel in N orders of its warps: in lockstep, and N - 1 drawn from seeds (default: 1)",
    )
    group.addoption(
        "--ptx-max-instructions",
        type=int,
        default=None,
        metavar="N",
        help="stop a kernel after N instructions in sequence of a batch of CTAs (default: 20000000)",
    )
    group.addoption(
        "--ptx-triton-target",
        default=None,
        metavar="NAME",
        help="what interpret_triton compiles for, such as sm_90a or sm_100a (default: sm_80)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Let PyTorch have a GPU before the first conftest is imported, if the command line asks for one.

    The options exist only where they are used or explained: other projects may have a `--gpu` of their own.
    """
    if not {"-h", "--help"}.isdisjoint(args) or any(arg.startswith("--gpu=interp") for arg in args):
        group = parser.getgroup("ptxgen")
        group.addoption(
            "--gpu",
            choices=("interpreter",),
            default=None,
            help="interpreter: PyTorch's tensors say that they are on CUDA, and kernels of Triton and of "
            "ptxgen run on the interpreter",
        )
        group.addoption(
            "--gpu-target",
            default="sm_80",
            metavar="NAME",
            help="the GPU of --gpu=interpreter, such as sm_90a or sm_100a (default: sm_80)",
        )
    asked = parser.parse_known_args(args)
    if getattr(asked, "gpu", None) is None:
        return
    from ptxgen.errors import PtxGenError
    from ptxgen.frontends.emulated.gpu import emulated_gpu

    stack = ExitStack()
    try:
        outcomes = stack.enter_context(emulated_gpu(target=asked.gpu_target, **_how(asked)))
    except PtxGenError as error:
        raise pytest.UsageError(str(error)) from error
    early_config.add_cleanup(stack.close)
    early_config.pluginmanager.register(_Gpu(outcomes), "ptxgen gpu")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, if they are given."""
    config.pluginmanager.register(_Summary(), "ptxgen summary")
    count = config.getoption("--ptx-schedules")
    if count < 1:
        raise pytest.UsageError(f"--ptx-schedules must be at least 1, got {count}")
    limit = config.getoption("--ptx-max-instructions")
    if limit is not None and limit < 1:
        raise pytest.UsageError(f"--ptx-max-instructions must be at least 1, got {limit}")
    names = config.getoption("--ptx-sanitize")
    if names not in ("all", _NONE):
        from ptxgen.errors import LaunchError
        from ptxgen.interpreter.sanitizers.names import sanitizers

        try:
            sanitizers(names)
        except LaunchError as error:
            raise pytest.UsageError(f"--ptx-sanitize: {error}") from error


@pytest.fixture
def run_ptx(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Run a kernel without a GPU: `run_ptx(kernel, grid, block, args)`, as
    `ptxgen.frontends.dispatch.run`, with the sanitizers, schedules and limit of the command line.

    The test fails with what they find, unless `raise_on_report=False`; then the outcome has it.
    """
    from ptxgen.frontends.dispatch import run as run_any

    asked = _how(request.config.option)

    def run(*arguments: Any, raise_on_report: bool = True, **how: Any) -> Outcome:
        outcome = run_any(*arguments, raise_on_report=False, **{**asked, **how})
        _record(request.node, outcome, failed=raise_on_report)
        if raise_on_report and not outcome.clean:
            pytest.fail(f"kernel {outcome.name} on the PTX interpreter:\n{outcome.findings}", pytrace=False)
        return outcome

    return run


@pytest.fixture
def interpret_triton(request: pytest.FixtureRequest) -> Iterator[list[Outcome]]:
    """Run every Triton kernel that the test launches, by whatever code, on the interpreter, with the
    target, sanitizers and schedules of the command line; what they find is raised by the launch. The value is
    the list of the outcomes.
    """
    from ptxgen.frontends.triton_launches import interpreted

    target = request.config.getoption("--ptx-triton-target")
    of = {} if target is None else {"target": target}
    with interpreted(**of, **_how(request.config.option)) as outcomes:
        yield outcomes
    for outcome in outcomes:
        _record(request.node, outcome, failed=True)


@pytest.fixture
def mutate_ptx() -> Callable[..., list[Verdict]]:
    """Break a kernel in every small way, and fail the test with the mutants that no check notices on its
    problems: `mutate_ptx(kernel, [(grid, arguments), …], rtol=1e-6)`.

    The arguments are those of `ptxgen.mutation.testing.judges` and `sample`; `reasons` is the path of a file
    (default: `equivalent.toml` next to the kernel's source). The value is the list of all verdicts.
    """
    from ptxgen.mutation.judge import HOLE
    from ptxgen.mutation.survivors import survivor
    from ptxgen.mutation.testing import judges, reasons_of, sample

    def mutate(
        kernel: Any,
        problems: Any,
        *,
        kinds: Sequence[str] | None = None,
        short: bool = False,
        reasons: Path | str | None = None,
        **how: Any,
    ) -> list[Verdict]:
        by_name = judges(kernel, problems, reasons=reasons_of(kernel, reasons), **how)
        for judge in by_name.values():
            judge.require_right()
        verdicts = [judge.verdict(n) for judge in by_name.values() for n in sample(judge, kinds, short=short)]
        missed = [v for v in verdicts if v.caught_by == HOLE]
        if missed:
            listed = "".join(survivor(by_name[v.kernel], v) for v in missed)
            head = f"{len(missed)} of {len(verdicts)} mutants of {', '.join(by_name)} survive:\n"
            pytest.fail(head + listed, pytrace=False)
        return verdicts

    return mutate


def _how(options: argparse.Namespace) -> dict[str, Any]:
    """The sanitizers and schedules that the options of the command line select."""
    from ptxgen.interpreter import PCT
    from ptxgen.interpreter.schedule.policies import LOCKSTEP

    names = options.ptx_sanitize
    # Lockstep last: the arrays hold its results, however many schedules there are.
    schedules = (*map(PCT, range(options.ptx_schedules - 1)), LOCKSTEP)
    limit = options.ptx_max_instructions
    how = {} if limit is None else {"max_instructions": limit}
    return {"sanitize": False if names == _NONE else names, "schedule": schedules, **how}


def _record(test: pytest.Item, outcome: Outcome, *, failed: bool) -> None:
    """Record a run for the summary; its findings count if it failed the test."""
    findings = outcome.findings
    run = {
        "kernel": outcome.name,
        "instructions": outcome.counters.warp_instructions,
        "findings": len(findings.reports) + len(findings.faults) if failed else 0,
    }
    test.user_properties.append((_PROPERTY, json.dumps(run)))


class _Gpu:
    """The launches of each test on the GPU of the command line."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Record the launches of a test and of its fixtures; what was found fails it, even if code of the
        test caught the error.
        """
        try:
            yield
        finally:
            outcomes = self.outcomes[:]
            self.outcomes.clear()
            for outcome in outcomes:
                _record(item, outcome, failed=True)
        caught = [outcome for outcome in outcomes if not outcome.clean]
        if caught:
            texts = [
                f"kernel {outcome.name} on the PTX interpreter:\n{outcome.findings}" for outcome in caught
            ]
            pytest.fail("\n".join(texts), pytrace=False)


class _Summary:
    """The runs of all tests, and the section about them at the end."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the runs of a test, which workers of pytest-xdist send with its report."""
        if report.when == "teardown":
            texts = [str(value) for name, value in report.user_properties if name == _PROPERTY]
            self.runs += map(json.loads, texts)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the kernels that ran, if any did."""
        if not self.runs:
            return
        terminalreporter.section("kernels on the PTX interpreter")
        names = list(dict.fromkeys(run["kernel"] for run in self.runs))
        width = max(map(len, names))
        for name in names:
            of_kernel = [run for run in self.runs if run["kernel"] == name]
            terminalreporter.line(_words(f"{name:{width}}", of_kernel))
        if len(names) > 1:
            terminalreporter.line(_words(f"{'all':{width}}", self.runs))


def _words(head: str, runs: list[dict[str, Any]]) -> str:
    instructions = sum(run["instructions"] for run in runs)
    findings = sum(run["findings"] for run in runs)
    ran = f"{len(runs):>5} run{'s' if len(runs) != 1 else ' '}"
    counted = f"{findings} finding{'s' * (findings != 1)}"
    return f"{head}  {ran}  {instructions:>15,} warp instructions  {counted}"

"""`Trial`: the launches of a public kernel, and its results compared with a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from ptxgen.commands.parts.check_findings import ERROR, block_of, check_entry, module_findings
from ptxgen.frontends.program import Outcome, Program, ProgramKernel
from ptxgen.frontends.triton_launches import interpreted
from ptxgen.parse import parse

TARGET: Final = "sm_80"
_NO_FUNCTION: Final = "the interpreter has no function"


class Trial:
    """The outcome of the launches of one kernel, which all sanitizers watch.

    `findings` are the sanitizers' reports, `not_modelled` the instructions that the interpreter does not
    model, `differences` say where a result is not the reference's, and `violations` are the reports of
    `ptxgen check` on the PTX that ran.
    """

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.not_modelled: list[str] = []
        self.differences: list[str] = []
        self.violations: list[str] = []
        self.launches = 0
        self._checked: set[str] = set()

    def launch(
        self, kernel: ProgramKernel, grid: Any, block: Any, args: Sequence[object], **how: Any
    ) -> None:
        """Run a kernel of a program; arguments are those of `ProgramKernel.run`."""
        outcome = kernel.run(grid, block, args, raise_on_report=False, **how)
        self._note(outcome, kernel, block, how.get("shared", 0))

    def note(self, outcome: Outcome, block: Any = None) -> None:
        """Record a launch by another front end, of a program with one kernel. `block` are its threads, if the
        kernel does not declare them.
        """
        self._note(outcome, Program(outcome.ptx).only(), block, None)

    @contextmanager
    def triton(self, *, target: str = TARGET, fusion: bool = False) -> Iterator[None]:
        """Run the Triton kernels that code within the context launches. With `fusion` the compiler
        fuses products into sums, so that the lanes of a warp may differ in the last bit of a sum.
        """
        options = {"enable_fp_fusion": fusion}
        with interpreted(target=target, raise_on_report=False, options=options) as outcomes:
            yield
        for outcome in outcomes:
            self.note(outcome)

    def close(self, what: str, got: Any, wanted: Any, tolerance: float) -> None:
        """Compare a result with the reference, both as arrays; the difference of each element may be
        `tolerance` times the largest magnitude of the reference. Infinities and NaN must be equal.
        """
        a, b = _array(got), _array(wanted)
        if a.shape != b.shape:
            self.differences.append(f"{what} has the shape {a.shape}, the reference {b.shape}")
            return
        if not a.size:
            self.differences.append(f"{what} is empty, which compares nothing")
            return
        finite = np.isfinite(b)
        largest = float(np.abs(b[finite]).max()) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            equal = np.where(finite, np.abs(a - b) <= tolerance * largest, (a == b) | (a != a) & (b != b))
        if not equal.all():
            at = tuple(int(n) for n in np.argwhere(~equal)[0])
            self.differences.append(
                f"{what}{list(at)} is {a[at]:g}, the reference {b[at]:g}; {int((~equal).sum())} of {a.size} "
                f"elements differ by more than {tolerance:g} of the largest"
            )

    def _note(self, outcome: Outcome, kernel: ProgramKernel, block: Any, shared: int | None) -> None:
        self.launches += 1
        self.findings += [str(report) for report in outcome.findings.reports]
        for fault in outcome.findings.faults:
            (self.not_modelled if _NO_FUNCTION in fault else self.findings).append(fault)
        if outcome.ptx not in self._checked:
            self._checked.add(outcome.ptx)
            self.violations += _violations(kernel, block, shared)


def _violations(kernel: ProgramKernel, block: Any, shared: int | None) -> list[str]:
    """The violations that `ptxgen check` reports for the kernel, for any arguments."""
    module = parse(kernel.program.ptx)
    findings = module_findings(module)
    if not any(finding.severity == ERROR for finding in findings):
        extents = (block,) if isinstance(block, int) else block
        entry = check_entry(
            module,
            kernel.kernel,
            block_of(kernel.kernel, extents),
            dynamic_smem=shared,
            dynamic_align=1024,
            params={},
            usage=None,
            launch=None,
        )
        findings += entry.findings
    return [str(finding) for finding in findings if finding.severity == ERROR]


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor or an array as float64; integers, too, of which none here has more than 53 bits."""
    detach = getattr(value, "detach", None)
    array = value if detach is None else detach().double().numpy()
    return np.asarray(array, np.float64)

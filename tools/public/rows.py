"""`Row`: a public kernel with the verdict that is expected of it; `Source`: where kernels come from."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ptxgen.errors import PtxGenError
from tools.public.cuda_text import why_no_nvcc
from tools.public.trial import Trial

RIGHT: Final = "right"
REPORTED: Final = "reported"
STOPPED: Final = "stopped"
WRONG: Final = "wrong"
VERDICTS: Final = {
    RIGHT: "the results are those of the reference, and nothing is found",
    REPORTED: "sanitizers or `ptxgen check` find something",
    STOPPED: "refused before it runs: a compiler's error, or an instruction that is not modelled",
    WRONG: "nothing is found, but the results are not those of the reference",
}
FOLDER: Final = "PTXGEN_PUBLIC_SOURCES"  # names the folder that has the checkouts
# Packages stand apart from the environment: some of them change what transformers does.
PACKAGES: Final = Path(sys.prefix) / "public"

_Run = Callable[[Trial], None]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a row: one of `VERDICTS`, and the sentences that give the reason."""

    kind: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A kernel, the function that runs it and compares its results, and the expected verdict.

    `twin` are kernels that are made wrong on purpose, of which every one must be reported. `reason`
    says why a verdict is not `RIGHT`; `says` is a text that each sentence of the verdict then contains.
    """

    source: Source
    name: str
    about: str
    run: _Run
    expected: str
    reason: str
    says: str
    twin: bool

    def is_expected(self, verdict: Verdict) -> bool:
        """Whether a verdict is the expected one, for the expected reason alone."""
        return verdict.kind == self.expected and all(self.says in detail for detail in verdict.details)

    def judge(self) -> Verdict:
        """Run the kernel. Raises what is no verdict about it, such as a mistake in the row."""
        _see_packages()
        trial = Trial()
        try:
            self.run(trial)
        except PtxGenError as error:
            return Verdict(STOPPED, (str(error),))
        if not trial.launches:
            raise AssertionError(f"{self.source.name}, {self.name}: the row launched no kernel")
        if trial.not_modelled:
            return Verdict(STOPPED, tuple(trial.not_modelled))
        if trial.findings or trial.violations:
            return Verdict(REPORTED, (*trial.findings, *trial.violations))
        if trial.differences:
            return Verdict(WRONG, tuple(trial.differences))
        return Verdict(RIGHT)


@dataclass(frozen=True)
class Source:
    """The origin of kernels: a package of an index, or a folder with a checkout; `rows` fills itself by
    `row`.

    `package` is what to install, with its version, and `needs` what it imports besides PyTorch and
    Triton; `checkout` is the folder's name within that which
    `PTXGEN_PUBLIC_SOURCES` names, and `version` the commit with which the verdicts were seen.
    `nvcc` says that the kernels need this compiler.
    """

    name: str
    package: str = ""
    needs: tuple[str, ...] = ()
    checkout: str = ""
    version: str = ""
    nvcc: bool = False
    rows: list[Row] = field(default_factory=list)

    def row(
        self, expected: str = RIGHT, reason: str = "", *, says: str = "", twin: bool = False
    ) -> Callable[[_Run], _Run]:
        """A decorator for the function that runs a kernel: its name is the kernel's, its docstring
        says what is computed. The arguments are those of `Row`.
        """

        def add(run: _Run) -> _Run:
            name = run.__name__.strip("_")
            about = inspect.cleandoc(run.__doc__ or "").rstrip(".")
            self.rows.append(Row(self, name, about, run, expected, reason, says, twin))
            return run

        return add

    @property
    def folder(self) -> Path:
        """The folder of the source's checkout."""
        return Path(os.environ.get(FOLDER, "")) / self.checkout

    def why_missing(self) -> str:
        """Why the kernels cannot run here; "" if they can."""
        _see_packages()
        return next(self._missing(), "")

    def _missing(self) -> Iterator[str]:
        for wanted in filter(None, (self.package, *self.needs)):
            name = wanted.partition("==")[0]
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                yield f"{self.name}: {name} is not installed (make public installs it)"
        if self.checkout and FOLDER not in os.environ:
            yield f"{self.name}: {FOLDER} does not name a folder with sources"
        elif self.checkout and not self.folder.is_dir():
            yield f"{self.name}: the folder that {FOLDER} names has no {self.checkout}"
        if self.nvcc and (why := why_no_nvcc()):
            yield f"{self.name}: {why}"


def _see_packages() -> None:
    """Let Python import the packages that `make public` installs."""
    if PACKAGES.is_dir() and str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))

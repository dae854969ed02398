"""Assembles PTX text to a cubin with ptxas or nvJitLink, whichever is installed.

No GPU is needed. ptxas is preferred: nvJitLink makes relocatable code, which is a few instructions
longer and in which `setmaxnreg` is never honoured (C7504), so warp-specialised kernels need ptxas.
"""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ptxgen.errors import AssemblerError, BackendError, ConfigError, did_you_mean
from ptxgen.runtime.assembler_log import (
    Advisory,
    KernelUsage,
    advisories_of,
    gives_reason,
    installation,
    kernels_of,
    log_at_end,
    refusal_error,
    ruin,
)
from ptxgen.runtime.settings import Settings

__all__ = [
    "Advisory",
    "Assembler",
    "Assembly",
    "KernelUsage",
    "NvJitLink",
    "Ptxas",
    "assemble",
    "find_assembler",
]

KINDS: Final = ("ptxas", "nvJitLink")
ASSEMBLY_TIMEOUT_S: Final = 600.0  # large unrolled kernels take ten seconds on a busy machine
QUESTION_TIMEOUT_S: Final = 60.0  # for `--version` and `--help`, which take ten milliseconds


@dataclass(frozen=True, slots=True)
class Assembly:
    """A cubin (an ELF file) and the assembler's report on it.

    `assembler` is its name, one of `KINDS`; `target` such as `"sm_90a"`; `kernels` the resource
    usage of each entry function, sorted by name; `log` the whole text that the assembler printed.
    """

    cubin: bytes
    assembler: str
    version: str
    target: str
    kernels: tuple[KernelUsage, ...]
    advisories: tuple[Advisory, ...]
    log: str

    def kernel(self, name: str) -> KernelUsage:
        """The usage of the entry function `name`; raises ConfigError if there is none."""
        for usage in self.kernels:
            if usage.name == name:
                return usage
        names = [usage.name for usage in self.kernels]
        raise ConfigError(
            f"the assembled text has no kernel {name!r}, only {names}{did_you_mean(name, names)}"
        )


class Assembler(Protocol):
    """Turns PTX text into a cubin; the key of a cached cubin includes `name` and `version`."""

    @property
    def name(self) -> str:
        """The name of the assembler, one of `KINDS`."""

    @property
    def version(self) -> str:
        """The version of the assembler, such as `"13.0.88"`."""

    def knows(self, target: str) -> bool:
        """Whether the assembler can assemble for `target`, such as `"sm_90a"`."""

    def assemble(self, ptx: str, target: str, *, opt_level: int = 3, line_info: bool = False) -> Assembly:
        """Assemble `ptx` for `target`, such as `"sm_90a"`, at `opt_level` 0 to 3. With `line_info` the
        cubin has a line table of the text's `.loc` directives; the instructions are the same.

        The same text gives the same bytes. Raises AssemblerError if the text is refused, or
        accepted with a ruinous advisory; BackendError if the assembler itself fails; ConfigError
        for a malformed `target` or another `opt_level`.
        """


@dataclass(frozen=True, slots=True)
class Ptxas:
    """The ptxas at the absolute path `path`; `timeout_s` limits one assembly, in seconds."""

    path: Path
    version: str
    timeout_s: float = ASSEMBLY_TIMEOUT_S
    name: str = field(default="ptxas", init=False)

    @classmethod
    def at(cls, path: Path) -> Ptxas:
        """The ptxas at `path`; raises BackendError if the file is no ptxas that can be run."""
        output = _run([str(path), "--version"], QUESTION_TIMEOUT_S).log
        version = re.search(r"\bV(\d+(?:\.\d+)+)", output)
        if version is None:
            raise BackendError(
                f"{path} is not a usable ptxas: --version should print a version such as V13.0.88, "
                f"got {output.strip()[:200]!r}"
            )
        return cls(path, version[1])

    def __str__(self) -> str:
        return f"ptxas {self.version} ({self.path})"

    def knows(self, target: str) -> bool:
        """Whether the help text of this ptxas lists `target`, or lists no targets at all."""
        known = _ptxas_targets(self.path)
        return not known or target in known

    def assemble(self, ptx: str, target: str, *, opt_level: int = 3, line_info: bool = False) -> Assembly:
        """See `Assembler.assemble`."""
        _check_request(target, opt_level)
        # With a file, unlike standard input, the log names `kernel.ptx` and no random file name.
        options = ["-v", f"-arch={target}", f"-O{opt_level}", "-o", "kernel.cubin"]
        options += ["-lineinfo"] if line_info else []
        with _folder_with("kernel.ptx", ptx.encode()) as folder:
            ran = _run([str(self.path), *options, "kernel.ptx"], self.timeout_s, folder)
            cubin = Path(folder, "kernel.cubin")
            produced = cubin.read_bytes() if cubin.exists() else b""
        if ran.exit_code != 0:
            # ptxas 12.0 dies of SIGSEGV after it has refused a text; the logged reason is used.
            if not gives_reason(ran.log):
                _refuse_death(f"{self}", ran, target)
            raise refusal_error(f"{self}", ran.log, ptx, target, f"exit {ran.exit_code}")
        return _assembly(self, produced, ran.log, ptx, target)


@dataclass(frozen=True, slots=True)
class NvJitLink:
    """The nvJitLink library, through cuda-python."""

    version: str
    name: str = field(default="nvJitLink", init=False)

    @classmethod
    def loaded(cls) -> NvJitLink:
        """Load the library; raises BackendError if it or cuda-python is not installed."""
        try:
            major, minor = _nvjitlink().version()
        except (ImportError, RuntimeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise BackendError(f"nvJitLink cannot be loaded: {reason}") from error
        return cls(f"{major}.{minor}")

    def __str__(self) -> str:
        return f"nvJitLink {self.version}"

    def knows(self, target: str) -> bool:
        """Whether the library accepts `target`."""
        library = _nvjitlink()
        try:
            library.destroy(library.create(1, [f"-arch={target}"]))
        except library.nvJitLinkError:
            return False
        return True

    def assemble(self, ptx: str, target: str, *, opt_level: int = 3, line_info: bool = False) -> Assembly:
        """See `Assembler.assemble`."""
        _check_request(target, opt_level)
        library = _nvjitlink()
        data = ptx.encode()
        try:
            options = [f"-arch={target}", "-verbose", f"-O{opt_level}"]
            options += ["-lineinfo"] if line_info else []
            handle = library.create(len(options), options)
        except library.nvJitLinkError as error:
            raise refusal_error(f"{self}", "", ptx, target, f"{error}") from error
        try:
            library.add_data(handle, library.InputType.PTX, data, len(data), "kernel")
            library.complete(handle)
            log = self._read(handle, "info_log").decode(errors="replace").rstrip("\0")
            cubin = self._read(handle, "linked_cubin")
        except library.nvJitLinkError as error:
            log = self._read(handle, "error_log").decode(errors="replace").rstrip("\0")
            raise refusal_error(f"{self}", log, ptx, target, f"{error}") from error
        finally:
            library.destroy(handle)
        return _assembly(self, cubin, log, ptx, target)

    @staticmethod
    def _read(handle: object, what: str) -> bytes:
        library = _nvjitlink()
        buffer = bytearray(getattr(library, f"get_{what}_size")(handle))
        if buffer:
            getattr(library, f"get_{what}")(handle, buffer)
        return bytes(buffer)


def assemble(ptx: str, target: str) -> Assembly:
    """Assemble `ptx` for `target`, such as `"sm_90a"`, with the first assembler that knows it.

    Raises the errors of `find_assembler` and of `Assembler.assemble`.
    """
    return find_assembler(target=target).assemble(ptx, target)


def find_assembler(kind: str | None = None, target: str | None = None) -> Assembler:
    """The first assembler found of `kind` (one of `KINDS`) that knows `target`; None means any.

    A ptxas named by PTXGEN_PTXAS is the only one tried, unless `kind` is nvJitLink. Otherwise the
    order is: ptxas on PATH, ptxas in the pip package or the toolkit, nvJitLink. The process keeps
    the result for later calls.

    Raises BackendError if there is none, ConfigError for an unknown `kind`, a `target` that is not
    like `"sm_90a"`, or a wrong PTXGEN_PTXAS.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"find_assembler: kind must be one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
        )
    if target is not None:
        _check_target(target)
    named = None if kind == "nvJitLink" else Settings.from_environment().ptxas
    return _find(kind, target, named)


@functools.cache
def _find(kind: str | None, target: str | None, named: Path | None) -> Assembler:
    refused = []
    for probed_kind, probe in _probes(named):
        if kind not in (None, probed_kind):
            continue
        try:
            assembler = probe()
        except BackendError as error:
            refused.append(str(error))
            continue
        if target is None or assembler.knows(target):
            return assembler
        refused.append(f"{assembler} does not know {target}")
    wanted = kind or "PTX assembler"
    knowing = f" that knows {target}" if target else ""
    reasons = "".join(f"\n  {reason}" for reason in refused)
    raise BackendError(f"no {wanted}{knowing} found:{reasons}\nto get one: {installation(target)}")


def _probes(named: Path | None) -> Iterator[tuple[str, Callable[[], Assembler]]]:
    """The kinds to try, in order, each with a probe that raises BackendError if there is none."""
    if named is not None:
        # A user who names a ptxas wants that one, or the reason why it cannot be used.
        yield "ptxas", lambda: Ptxas.at(named)
        return
    yield "ptxas", _ptxas_on_path
    yield "ptxas", _ptxas_of_toolkit
    yield "nvJitLink", NvJitLink.loaded


def _ptxas_on_path() -> Ptxas:
    path = shutil.which("ptxas")
    if path is None:
        raise BackendError("there is no ptxas on PATH")
    return Ptxas.at(Path(path).absolute())


def _ptxas_of_toolkit() -> Ptxas:
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        path = pathfinder.find_nvidia_binary_utility("ptxas")
    except (ImportError, AttributeError, RuntimeError) as error:
        raise BackendError(f"cuda.pathfinder cannot search for ptxas: {error}") from error
    if path is None:
        raise BackendError("there is no ptxas in a pip package or a CUDA toolkit")
    return Ptxas.at(Path(path).absolute())


def _nvjitlink() -> Any:
    return importlib.import_module("cuda.bindings.nvjitlink")


@functools.cache
def _ptxas_targets(path: Path) -> frozenset[str]:
    help_text = _run([str(path), "--help"], QUESTION_TIMEOUT_S).log
    return frozenset(re.findall(r"'(sm_[0-9]+[a-z]?)'", help_text))


def _check_request(target: str, opt_level: int) -> None:
    _check_target(target)
    if opt_level not in range(4):
        raise ConfigError(f"opt_level must be 0, 1, 2 or 3, got {opt_level!r}")


def _check_target(target: str) -> None:
    if not re.fullmatch(r"sm_[0-9]+[af]?", target):
        raise ConfigError(f"target must be like 'sm_80' or 'sm_90a', got {target!r}")


def _assembly(assembler: Assembler, cubin: bytes, log: str, ptx: str, target: str) -> Assembly:
    """The result of a successful run; raises AssemblerError for a ruinous advisory in its log."""
    if not cubin.startswith(b"\x7fELF"):
        raise BackendError(
            f"{assembler} reported success for {target} but made no cubin "
            f"({len(cubin)} bytes that are not an ELF file); "
            f"try another version through PTXGEN_PTXAS{log_at_end(log)}"
        )
    advisories = advisories_of(log)
    ruinous = [advisory for advisory in advisories if advisory.ruinous]
    if ruinous:
        count = "an advisory that ruins" if len(ruinous) == 1 else f"{len(ruinous)} advisories that ruin"
        shown = "".join(ruin(advisory, ptx) for advisory in ruinous)
        error = AssemblerError(
            f"{assembler} took the PTX for {target}, but with {count} the kernel:{shown}{log_at_end(log)}"
        )
        error.line = ruinous[0].line or 0
        raise error
    return Assembly(cubin, assembler.name, assembler.version, target, kernels_of(log), advisories, log)


@dataclass(frozen=True, slots=True)
class _Ran:
    exit_code: int
    log: str


def _folder_with(name: str, content: bytes) -> tempfile.TemporaryDirectory[str]:
    """A temporary directory with one file in it."""
    try:
        # A process stopped by the timeout may leave a child that still writes to this directory.
        folder = tempfile.TemporaryDirectory(prefix="ptxgen-", ignore_cleanup_errors=True)
        Path(folder.name, name).write_bytes(content)
    except OSError as error:
        raise BackendError(
            f"{name} cannot be written to a temporary directory for the assembler: {error}; "
            "name one with free space in TMPDIR"
        ) from error
    return folder


def _run(command: list[str], timeout_s: float, folder: str | None = None) -> _Ran:
    """Run `command`; the log is its standard output and standard error together.

    The log goes through a file: with a pipe, a child of a process stopped by the timeout could keep
    this process waiting.
    """
    try:
        with tempfile.TemporaryFile() as log:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                timeout=timeout_s,
                check=False,
            )
            log.seek(0)
            return _Ran(done.returncode, log.read().decode(errors="replace"))
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"{command[0]} was stopped: it had not finished after {timeout_s:g} s; "
            "use a smaller tile, or another version through PTXGEN_PTXAS"
        ) from error
    except OSError as error:
        raise BackendError(f"{command[0]} cannot be run: {error}") from error


def _refuse_death(assembler: str, ran: _Ran, target: str) -> None:
    """Raise BackendError if a signal ended the process, or the process that a script ran."""
    number = -ran.exit_code if ran.exit_code < 0 else ran.exit_code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return
    raise BackendError(
        f"{assembler} died of {name} while it assembled for {target}; this is its fault, "
        f"not the text's: try another version through PTXGEN_PTXAS{log_at_end(ran.log)}"
    )

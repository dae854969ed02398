"""Reads an assembler's log, and makes error messages of it; no file or process is touched.

The log formats are those of ptxas 12.0, 13.0 and 13.5 and of nvJitLink 13.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from ptxgen.errors import AssemblerError
from ptxgen.target import EARLY_TARGETS

INSTALL: Final = (
    "pip install 'ptxgen[test]' (or: pip install nvidia-cuda-nvcc; Linux and Windows), "
    "or name a ptxas in PTXGEN_PTXAS"
)

# How to get an assembler for `EARLY_TARGETS`.
INSTALL_EARLY: Final = (
    "pip install nvidia-cuda-nvcc-cu12, since CUDA 13 no longer knows these GPUs, and name its ptxas in "
    "PTXGEN_PTXAS"
)

# The assembler reports these codes as mere information and exits with 0, but its kernel is
# serialised, spills, or has waits that the text does not. Value: the meaning, and what to do.
RUINOUS: Final = {
    "C7504": "relocatable code never honours setmaxnreg; assemble with ptxas, not nvJitLink",
    "C7508": "setmaxnreg needs a known register count at entry: give .maxntid and .minnctapersm",
    "C7511": "too few registers for the wgmma pipeline: use a smaller tile or fewer in flight",
    "C7512": "too few registers for the function: use a smaller tile or fewer in flight",
    "C7514": "an accumulator is read while its wgmma runs: move the read below the wait",
    "C7515": "an accumulator is written while its wgmma runs: move the write below the wait",
    "C7517": "wgmma.wait_group is missing before a register is used, so one was injected",
    "C7518": "a wait for wgmma would be needed on a divergent path, so all of them are serialised",
    "C7519": "wgmma.fence is missing before registers are handed to wgmma, so one was injected",
}
# All other advisories of the same family (setmaxnreg ignored, wgmma serialised) begin like this.
RUINOUS_BEGINNING: Final = "Potential Performance Loss"

_CONTEXT_LINES: Final = 2  # lines shown before and after an offending line
_MAX_ERRORS_SHOWN: Final = 10
_MAX_LINE_SHOWN: Final = 160  # characters
_MAX_LOG_SHOWN: Final = 4000  # characters


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """The resources that one entry function needs.

    Per thread: `registers`, `stack_bytes` (cumulative over calls, spilled registers included), and
    `spill_store_bytes` and `spill_load_bytes`, moved by the spill code of the entry itself and
    counted once however often it runs. Per block: `static_shared_bytes`, and `barriers`, None where
    the assembler does not say (ptxas 12.0). `constant_bytes` covers all banks reported, parameters
    included; from sm_90 on it is 0.
    """

    name: str
    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0
    constant_bytes: int = 0
    barriers: int | None = None


@dataclass(frozen=True, slots=True)
class Advisory:
    """A warning, or a numbered remark: `code` is like `"C7508"`, or empty; `line` counts from 1."""

    code: str
    text: str
    line: int | None = None

    @property
    def ruinous(self) -> bool:
        """Whether the advisory means that the kernel is too slow to be worth running."""
        return self.code in RUINOUS or self.text.startswith(RUINOUS_BEGINNING)


_MESSAGE: Final = re.compile(
    r"^(?:\w+ +)?(?:.*?, line (?P<line>\d+); )?(?P<severity>error|fatal|warning|info) *: "
    r"(?:\((?P<code>C\d+)\) )?(?P<text>.*?) *$",
    re.MULTILINE,
)
_LINE_IN_TEXT: Final = re.compile(r"\bline (\d+)\b")
_ABORTED: Final = "Ptx assembly aborted due to errors"


@dataclass(frozen=True, slots=True)
class _Remark:
    severity: str
    code: str
    text: str
    line: int | None


def _remarks(log: str) -> list[_Remark]:
    """Each line of the log that has a severity, in order, without repetitions."""
    remarks: dict[_Remark, None] = {}
    for match in _MESSAGE.finditer(log):
        named = _LINE_IN_TEXT.search(match["text"])
        line = match["line"] or (named[1] if named else None)
        remark = _Remark(match["severity"], match["code"] or "", match["text"], int(line) if line else None)
        remarks[remark] = None
    return list(remarks)


def _errors(log: str) -> list[_Remark]:
    errors = [remark for remark in _remarks(log) if remark.severity in ("error", "fatal")]
    return [error for error in errors if error.text != _ABORTED] or errors


def gives_reason(log: str) -> bool:
    """Whether the log says why the text was refused."""
    return bool(_errors(log))


def advisories_of(log: str) -> tuple[Advisory, ...]:
    """All warnings, and all remarks that have a code such as `C7508`."""
    return tuple(
        Advisory(remark.code, remark.text, remark.line)
        for remark in _remarks(log)
        if remark.severity == "warning" or (remark.severity == "info" and remark.code)
    )


def _number(pattern: str, text: str) -> int | None:
    """The sum of the integers that `pattern` matches in `text`, or None if it matches none."""
    numbers = re.findall(pattern, text)
    return sum(map(int, numbers)) if numbers else None


def kernels_of(log: str) -> tuple[KernelUsage, ...]:
    """The resources of each entry function, sorted by name, from a log with `-v` or `-verbose`.

    Per entry the log has the lines `Compiling entry`, `Function properties`, a line about the stack
    frame, and `Used`. nvJitLink begins the frame line in its own way, and adds a report of the
    linked code, with `used` in lower case: its registers, stack and memory are the final ones, its
    barriers are not credible (5 for a kernel without barriers).
    """
    usages: dict[str, KernelUsage] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(.+?)'", line):
            entry = match[1]
            usages[entry] = KernelUsage(entry)
        elif match := re.search(r"Function properties for '?([^':\s]+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes stack.*?(\d+) .*?stores.*?(\d+) .*?loads", line):
            if function in usages:
                frame, stored, loaded = map(int, match.groups())
                usages[function] = replace(
                    usages[function], stack_bytes=frame, spill_store_bytes=stored, spill_load_bytes=loaded
                )
        elif match := re.search(r"\b(U|u)sed (\d+) registers", line):
            name = entry if match[1] == "U" else function
            if name in usages:
                usages[name] = _with_resources(usages[name], line, linked=match[1] == "u")
    return tuple(usages[name] for name in sorted(usages))


def _with_resources(usage: KernelUsage, line: str, *, linked: bool) -> KernelUsage:
    """`usage` with the values of a `Used … registers` line of the log."""
    stack = _number(r"(\d+) (?:bytes cumulative )?stack", line)
    constant = _number(r"(\d+) bytes cmem", line)
    return replace(
        usage,
        registers=_number(r"sed (\d+) registers", line) or 0,
        stack_bytes=usage.stack_bytes if stack is None else stack,
        static_shared_bytes=_number(r"(\d+) bytes smem", line) or 0,
        constant_bytes=usage.constant_bytes if constant is None else constant,
        barriers=usage.barriers if linked else _number(r"used (\d+) barriers", line),
    )


def ruin(advisory: Advisory, ptx: str) -> str:
    """The part of an error message about one ruinous advisory, with an excerpt of the PTX."""
    text = f"{advisory.code} {advisory.text}"
    remedy = RUINOUS.get(advisory.code)
    because = f"\n  {remedy}" if remedy else ""
    return f"\n\n{text}{because}{_excerpt(ptx, advisory.line, '')}"


def refusal_error(assembler: str, log: str, ptx: str, target: str, outcome: str) -> AssemblerError:
    """The error for refused PTX, as `refusal` describes it."""
    error = AssemblerError(refusal(assembler, log, ptx, target, outcome))
    error.line = next((remark.line for remark in _errors(log) if remark.line), 0)
    return error


def refusal(assembler: str, log: str, ptx: str, target: str, outcome: str) -> str:
    """The error message for refused PTX; it shows `outcome` if the log gives no reason."""
    errors = _errors(log)
    if not errors:
        return (
            f"{assembler} refused the PTX for {target} without a reason ({outcome})"
            f"{_hint(outcome, ptx, target)}{log_at_end(log)}"
        )
    count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
    shown = "".join(_error(error, ptx, target) for error in errors[:_MAX_ERRORS_SHOWN])
    more = len(errors) - _MAX_ERRORS_SHOWN
    rest = f"\n\nand {more} more" if more > 0 else ""
    return f"{assembler} refused the PTX for {target}: {count}{shown}{rest}{log_at_end(log)}"


def _error(error: _Remark, ptx: str, target: str) -> str:
    where = f"line {error.line}: " if error.line else ""
    quoted = re.search(r"'([^']+)'", error.text)
    token = quoted[1] if quoted else ""
    hint = _hint(error.text, ptx, target)
    return f"\n\n{where}{error.text}{hint}{_excerpt(ptx, error.line, token)}"


def installation(target: str | None) -> str:
    """How to get an assembler that knows `target`; None: any."""
    return INSTALL_EARLY if target in EARLY_TARGETS else INSTALL


def _hint(text: str, ptx: str, target: str) -> str:
    """Advice on an error text of the assembler that gives none, or the empty string."""
    if "is not defined for option 'gpu-name'" in text or "ERROR_UNSUPPORTED_ARCH" in text:
        return f"\n  this assembler does not know {target}; to get another: {installation(target)}"
    if "Unsupported .version" in text:
        return f"\n  the assembler is older than the text; to get another: {INSTALL}"
    if "SM version specified by .target is higher" in text:
        declared = re.search(r"^\s*\.target\s+(\w+)", ptx, re.MULTILINE)
        name = declared[1] if declared else "none"
        return f"\n  the text declares .target {name}; assemble for that, or generate for {target}"
    return ""


def _excerpt(ptx: str, number: int | None, token: str) -> str:
    """Line `number` of `ptx` and its neighbours, with a marker under `token` or the statement."""
    lines = ptx.split("\n")
    if number is None or not 1 <= number <= len(lines):
        return ""
    shown = []
    for at in range(max(1, number - _CONTEXT_LINES), min(len(lines), number + _CONTEXT_LINES) + 1):
        line = lines[at - 1].expandtabs()
        cut = line if len(line) <= _MAX_LINE_SHOWN else f"{line[:_MAX_LINE_SHOWN]} …"
        shown.append(f"\n{'>' if at == number else ' '} {at:>6} | {cut}".rstrip(" "))
        if at == number:
            shown.append(f"\n  {'':>6} | {_marker(cut, token)}")
    return "".join(shown)


def _marker(line: str, token: str) -> str:
    # Whole words only: `%f1` is not in `%f12`, but `.u65` is in `add.u65`.
    begin = r"\b" if token[:1].isalnum() else ""
    starts = [at.start() for at in re.finditer(rf"{begin}{re.escape(token)}(?!\w)", line)]
    # If the token occurs twice on the line, it is unknown which one is meant: mark the statement.
    if len(starts) == 1 and token:
        return f"{' ' * starts[0]}^{'~' * (len(token) - 1)}"
    statement = line.strip()
    return f"{' ' * line.find(statement)}^{'~' * (len(statement) - 1)}"


def log_at_end(log: str) -> str:
    """The last part of an error message: the log, its middle left out beyond 4000 characters."""
    log = log.strip()
    if not log:
        return "\n\nits log is empty"
    if len(log) > _MAX_LOG_SHOWN:
        head, tail = log[: _MAX_LOG_SHOWN * 3 // 4], log[-_MAX_LOG_SHOWN // 4 :]
        log = f"{head}\n… ({len(log) - len(head) - len(tail)} characters left out) …\n{tail}"
    return f"\n\nits log:\n{log}"

"""Findings about PTX files for code review: SARIF 2.1.0, and the messages of GitHub's workflows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import ptxgen
from ptxgen.commands.parts.check_findings import ERROR, LINT, UNPROVED, Finding
from ptxgen.commands.parts.run_arguments import STDIN

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {ERROR: "error", UNPROVED: "warning", LINT: "note"}  # of SARIF
_COMMANDS: Final = {ERROR: "error", UNPROVED: "warning", LINT: "notice"}  # of a workflow
_RULES: Final = {
    "parse": "the text is not PTX",
    "verifier": "types, definitions, targets, alignment and budgets are right",
    "proof": "each access to shared memory is in bounds and aligned, and no barrier is divergent",
    "sanitizer": "a run shows no race, no missing wait and no uninitialised value",
    "run": "a run ends without a trap",
    "assembler": "the assembler accepts the kernel, without spills and advisories",
    "unused": "each parameter and each variable is used",
    "bank conflicts": "accesses to shared memory do not wait for each other",
    "uncoalesced": "accesses to global memory move no sector that they do not need",
}


class Line(NamedTuple):
    """A line of a file: the URI reference of the file, and the number, from 1."""

    uri: str
    number: int


@dataclass(frozen=True, slots=True)
class FileFindings:
    """The findings about one file, in its order; `text` is the file's text."""

    path: str
    text: str
    findings: Sequence[Finding]

    def lines(self, finding: Finding) -> list[Line]:
        """The lines that a finding is about, the one to annotate first: the line of the source that the PTX
        was compiled from, if the file is in the working directory, and that of the PTX; otherwise the line of
        the PTX first, then that of the source if the PTX names it.
        """
        of_ptx = Line(_uri(self.path), self._line(finding))
        source = finding.source
        while source is not None:
            uri = _in_working_directory(source.file)
            if uri:
                return [Line(uri, source.line), of_ptx]
            source = source.inlined_at
        if finding.source is None:
            return [of_ptx]
        return [of_ptx, Line(_uri(finding.source.file), finding.source.line)]

    def _line(self, finding: Finding) -> int:
        """The line of the PTX: the instruction's, else that where its kernel begins, else the first."""
        if finding.line:
            return finding.line
        if finding.kernel:
            name = rf"\.(?:entry|func)\b[^{{;]*?(?<![\w$%]){re.escape(finding.kernel)}(?![\w$])"
            begins = re.search(name, self.text)
            if begins:
                return self.text.count("\n", 0, begins.end()) + 1
        return 1


def _in_working_directory(file: str) -> str:
    """The URI reference of a file of the working directory, relative to it; empty for any other path."""
    folder = Path.cwd()
    path = folder / file
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        return ""
    return quote(path.resolve().relative_to(folder.resolve()).as_posix())


def _rule(finding: Finding) -> str:
    """The rule that a finding breaks, which is the check that found it."""
    return finding.kind.partition(",")[0]


def sarif(files: Sequence[FileFindings]) -> dict[str, Any]:
    """The findings as a log of SARIF 2.1.0 (OASIS Standard, 2020), with one run."""
    rules = list(dict.fromkeys(_rule(f) for file in files for f in file.findings))
    driver = {
        "name": "ptxgen check",
        "version": ptxgen.__version__,
        "rules": [{"id": rule, "shortDescription": {"text": _RULES.get(rule, rule)}} for rule in rules],
    }
    results = [_result(file, finding, rules) for file in files for finding in file.findings]
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(file: FileFindings, finding: Finding, rules: Sequence[str]) -> dict[str, Any]:
    location, *related = map(_location, file.lines(finding))
    if finding.kernel:
        location["logicalLocations"] = [{"name": finding.kernel, "kind": "function"}]
    rule = _rule(finding)
    result = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [location],
    }
    return {**result, "relatedLocations": related} if related else result


def _location(line: Line) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": line.uri}, "region": {"startLine": line.number}}}


def _uri(path: str) -> str:
    """A path as a URI reference: of a relative path, relative to the working directory."""
    if path == STDIN:
        return "stdin"
    pure = Path(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())


def github(files: Sequence[FileFindings]) -> Iterator[str]:
    """The findings as commands of a workflow, from which GitHub makes annotations of the lines."""
    for file in files:
        for finding in file.findings:
            first, *others = file.lines(finding)
            path = unquote(first.uri) if others else file.path
            properties = {"file": path, "line": str(first.number), "title": finding.kind}
            words = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
            also = "".join(f"\nalso {unquote(line.uri)}:{line.number}" for line in others)
            yield f"::{_COMMANDS[finding.severity]} {words}::{_data(_message(finding) + also)}"


def _message(finding: Finding) -> str:
    kernel = f"{finding.kernel}: " if finding.kernel else ""
    instr = f"\nin {finding.instr}" if finding.instr else ""
    return f"{kernel}{finding.message}{instr}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

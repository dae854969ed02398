"""The functions of CUDA's libraries: all names and versions, and which function answers each.

Version and stream are two ways in which one call has several names. `cuMemAlloc_v2` is what programs
call since CUDA 3.2, and a program that asks `cuGetProcAddress` for `cuMemAlloc` says for which version of
CUDA; `cuMemcpyHtoD_v2_ptds` is the call for a program whose default stream is its thread's. All of them
come from the tables in `answers/`, `names.txt` for the runtime and `driver_calls.txt` for the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Streams run their work at once here, so the default stream of a thread is that of the process.
_OF_A_THREAD: Final = re.compile(r"(\w+)_(?:ptsz|ptds)")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a call: the CUDA version (1000 major + 10 minor) since which programs get it, and the
    function's name.
    """

    since: int
    symbol: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that a library exports.

    `functions` are functions with a body, which ends the program unless a source file answers the call;
    `same` maps each alias to the function; `versions` are the versions of each call that a program can ask
    for by its name, oldest first.
    """

    functions: tuple[str, ...]
    same: Mapping[str, str]
    versions: Mapping[str, tuple[Version, ...]]

    def source(self) -> str:
        """C source of weak bodies that end the program, for calls without an answer, and of the table of
        versions for wire.h.
        """
        # Weak: the symbols of the sources that answer calls are strong.
        bodies = [
            f'__attribute__((weak)) void {name}(void) {{ wire_unanswered("{name}"); }}'
            for name in self.functions
        ]
        further = [f"void {name}(void);" for name in self.same]
        rows = [
            f'    {{"{name}", {version.since}, {version.symbol}}},'
            for name, versions in self.versions.items()
            for version in versions
        ]
        table = ["const WireVersion wire_versions[] = {", *rows, "    {0, 0, 0}", "};"]
        return "\n".join(['#include "wire.h"', *bodies, *further, *table, ""])

    def linked(self) -> Iterator[str]:
        """The linker options that define the aliases of functions."""
        for name, function in self.same.items():
            yield f"-Wl,--defsym={name}={function}"


def calls_of_names(text: str) -> Calls:
    """The functions of a list of names, separated by white space."""
    names = text.split()
    functions = tuple(name for name in names if not _OF_A_THREAD.fullmatch(name))
    return Calls(functions, _same(names), {})


def calls_of_versions(text: str) -> Calls:
    """The functions of a table of calls and their versions, a line for each; `driver_calls.txt` documents the
    format.
    """
    names: list[str] = []
    same: dict[str, str] = {}
    versions: dict[str, tuple[Version, ...]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        call, *words = line.split()
        suffix = "" if words[0].isdigit() else words.pop(0)
        of_call = []
        for since, word in zip(words[::2], words[1::2], strict=True):
            symbol, _, other = word.partition("=")
            if other:
                same[symbol] = other
            names += [symbol, f"{symbol}_{suffix}"] if suffix else [symbol]
            of_call.append(Version(int(since), symbol))
        versions[call] = tuple(of_call)
    names = list(dict.fromkeys(names))  # a function may be a version of two calls
    functions = tuple(name for name in names if name not in same and not _OF_A_THREAD.fullmatch(name))
    return Calls(functions, same | _same(names), versions)


def _same(names: Sequence[str]) -> dict[str, str]:
    """The aliases of calls for the per-thread default stream, each with the call's usual name."""
    return {name: match[1] for name in names if (match := _OF_A_THREAD.fullmatch(name))}

"""A host in C or Rust: the program that `tools/emit.py --stub --example` writes, compiled and run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from contract_host import Array, Host
from host_programs import Hosts, ran

from flash.commands import emit

ENDINGS: Final = {"c": ("h", "c"), "rust": ("rs", "rs")}


class StubHost(Host):
    """One kernel, with the options `argv` of `tools/emit.py`; its program is compiled in `folder`."""

    def __init__(self, compilers: Hosts, language: str, folder: Path, *argv: str) -> None:
        folder.mkdir()
        self.folder = folder
        library, program = (
            folder / f"{name}.{end}" for name, end in zip(("kernel", "main"), ENDINGS[language], strict=True)
        )
        text, contract = folder / "kernel.ptx", folder / "kernel.json"
        assert emit.main([*argv, "-o", str(text)]) == 0
        assert emit.main([*argv, "--json", "-o", str(contract)]) == 0
        assert emit.main([*argv, "--stub", language, "-o", str(library), "--example", str(program)]) == 0
        super().__init__(text.read_text(), contract.read_text())
        self.program = compilers.c(program) if language == "c" else compilers.rust(program)
        self.runs = itertools.count()

    def launch(self, arrays: Mapping[str, Array], **numbers: float) -> None:
        """Run the program on arrays, by name, which are dense, and numbers that no array has."""
        said = self.run(arrays, {**numbers, **self._sizes(arrays, numbers)})
        assert said == ""

    def run(self, arrays: Mapping[str, Array], numbers: Mapping[str, float]) -> str:
        """What stopped the program, "" if nothing did."""
        folder = self.folder / str(next(self.runs))
        folder.mkdir()
        words, written = [], []
        for array in self.contract["arrays"]:
            path, name = folder / array["name"], array["name"]
            np.ascontiguousarray(arrays[name]).tofile(path)
            words.append(f"{name}={'inout:' if array['written'] else ''}{path}")
            written += [name] if array["written"] else []
        words += [f"{name}={numbers[name]}" for name in self.numbers if name in numbers]
        ended, said = ran(self.program, *words, sanitize=True)
        assert (ended.stopped, ended.reports, ended.faults, said) == ("", (), (), [])
        for name in written:
            arrays[name][...] = np.fromfile(folder / name, arrays[name].dtype).reshape(arrays[name].shape)
        return "" if ended.code == 0 else f"exit code {ended.code}"

    @property
    def numbers(self) -> list[str]:
        """The names of all numbers that the program is given."""
        parameters = [p["name"] for p in self.contract["parameters"]]
        arguments = [p["name"] for p in self.contract["parameters"] if p["kind"] in ("size", "number")]
        sizes: dict[str, Any] = self.contract["sizes"]
        return [*arguments, *(n for n, size in sizes.items() if n not in parameters and "equal" not in size)]

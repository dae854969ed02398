"""Write `docs/api.md` from the docstrings of the public names, or check that it is up to date."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from ptxgen import errors
from ptxgen.commands.parts.quiet import quietly
from ptxgen.errors import PtxGenError
from ptxgen.frames import load_template
from ptxgen.isa import rows
from ptxgen.types import ScalarType
from tools.commands.generated_file import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"

# The public modules; what is public in one is its `__all__`, or all exceptions.
MODULES: Final = (
    "flash",
    "flash.cache_kernels",
    "flash.gradient_kernels",
    "flash.mods",
    "ptxgen",
    "ptxgen.interpreter",
    "ptxgen.check.prove",
    "ptxgen.notebook",
    "ptxgen.program",
    "ptxgen.contract",
    "ptxgen.contract.stub",
    "ptxgen.errors",
)
_OURS: Final = ("flash", "ptxgen")
_MOST_COLUMNS: Final = 100


class _Some:
    """A default that has no name, such as a function."""

    def __repr__(self) -> str:
        return "…"


_SOME: Final = _Some()


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_api_docs.py", __doc__, PAGE, "the docstrings say", render)


def render() -> str:
    """The page as Markdown."""
    modules = [_module(name) for name in MODULES]
    text = load_template("api.md.j2").render(modules=modules)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _module(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    public: Sequence[str] = getattr(module, "__all__", ())
    if module is errors:
        public = [n for n, of in vars(errors).items() if inspect.isclass(of) and issubclass(of, PtxGenError)]
    values = {each: getattr(module, each) for each in public}
    entries = [
        _entry(name, each, of) for each, of in values.items() if callable(of) or isinstance(of, ScalarType)
    ]
    return {"name": name, "doc": _doc(module), "entries": entries}


def _entry(module: str, name: str, of: Any) -> dict[str, Any]:
    kind = "class " if inspect.isclass(of) else ""
    called = callable(of) and not (inspect.isclass(of) and issubclass(of, PtxGenError))
    signature = _signature(name, of) if called else name
    title = f"{module}.{name}"
    return {
        "name": name,
        "title": title,
        "anchor": title.replace(".", "").lower(),
        "signature": kind + signature,
        "doc": _doc(of) if callable(of) else f"The element type {of}.",
        "members": [*_members(of)] if inspect.isclass(of) else [],
    }


def _members(of: type) -> Iterator[dict[str, str]]:
    """The public methods and properties of a class and its bases in this project, by name. Instructions,
    which are methods of a builder, too, are in docs/isa.md.
    """
    members: dict[str, Any] = {}
    for base in reversed(of.__mro__):
        if base.__module__.partition(".")[0] in _OURS:
            members |= vars(base)
    for name, member in sorted(members.items()):
        code = getattr(member, "__func__", member)  # of a classmethod
        is_property = isinstance(member, property) or hasattr(member, "func")
        if name.startswith("_") or name in rows() or not (is_property or inspect.isfunction(code)):
            continue
        doc = _doc(member)
        if doc:
            yield {"signature": name if is_property else _signature(name, code, of), "doc": doc}


def _signature(name: str, of: Any, owner: type | None = None) -> str:
    """A signature with the names and defaults of parameters; their types are described in the docstring."""
    signature = inspect.signature(of)
    parameters = [
        p.replace(annotation=p.empty, default=_SOME if inspect.isroutine(p.default) else p.default)
        for p in signature.parameters.values()
    ]
    if owner is not None and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    text = f"{name}{signature.replace(parameters=parameters, return_annotation=signature.empty)}"
    if owner is not None or len(text) <= _MOST_COLUMNS:
        return text
    lines, line = [], f"{name}("
    for word in re.split(r"(?<=,) ", text.removeprefix(f"{name}(")):
        if len(line) + len(word) > _MOST_COLUMNS:
            lines.append(line.rstrip())
            line = "    "
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])


def _doc(of: object) -> str:
    """The docstring as Markdown: a literal "<" is no tag."""
    doc = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", doc)


if __name__ == "__main__":
    sys.exit(quietly(main))

"""The parser of a command line: no abbreviations, suggestions, and completion by the shell."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from ptxgen.errors import did_you_mean

COMPLETING: Final = "_ARGCOMPLETE"  # set in the environment by the shell functions of argcomplete
_UNKNOWN: Final = "unrecognized arguments"  # how argparse begins its message about these


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests the option or the value that a mistyped one may have meant.

    `prog` is the command as a user types it, such as `ptxgen emit decode`. If the shell asks for completions,
    `parse_args` answers it and ends the process; `kernels` are then words that may come before the options,
    which the command reads before it parses.
    """

    def __init__(
        self, prog: str, description: str = "", epilog: str = "", kernels: Sequence[str] = (), **more: Any
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )
        self.suggest_on_error = False  # of Python 3.14: ours has the words of other libraries, too
        self.kernels = kernels
        self._words: Sequence[str] = ()

    def parse_args(  # type: ignore[override]  # of its overloads, the one that commands need
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The parsed arguments. Raises SystemExit, with 2 for wrong arguments and 0 after `--help`."""
        if COMPLETING in os.environ:
            complete(self)
        self._words = args or ()
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage and a message, with what a mistyped option may have meant; exit with 2."""
        options = sorted(set(self._options()))
        for word in self._words:
            name = word.partition("=")[0]
            if name == "--":
                break
            if name.startswith("--") and name not in options:
                # Without the dashes, which would make all options alike.
                near = did_you_mean(name[2:], [option[2:] for option in options if option.startswith("--")])
                hint = near.replace("'", "'--", 1)
                known = message.startswith(_UNKNOWN)
                message += hint if known or not hint else f"; there is no {name}{hint}"
                break
        super().error(message)

    def _options(self) -> Iterable[str]:
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(value, [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None


Words = Callable[[argparse.Namespace], Iterable[str]]


def completed(action: argparse.Action, words: Iterable[str] | Words) -> argparse.Action:
    """The action, whose values the shell completes from these words, or from those that a function
    makes of the arguments so far; other values are still accepted.
    """

    def completer(parsed_args: argparse.Namespace, **_: object) -> list[str]:
        return list(words(parsed_args) if callable(words) else words)

    action.completer = completer  # type: ignore[attr-defined]  # argcomplete reads it
    return action


def kernel_names(file: str) -> Words:
    """A completer: the names of the kernels of the PTX file in the argument called `file`."""

    def names(arguments: argparse.Namespace) -> list[str]:
        path = getattr(arguments, file)
        text = Path(path[0] if isinstance(path, list) else path).read_text(encoding="utf-8", errors="replace")
        return re.findall(r"\.entry\s+([\w$%]+)", text)

    return names


def complete(parser: CommandParser) -> NoReturn:
    """Answer the shell with the completions of the command line, whose first words are `prog`."""
    os.environ[COMPLETING] = str(len(parser.prog.split()))
    argcomplete: Any = importlib.import_module("argcomplete")
    files = argcomplete.completers.FilesCompleter()
    first = [action for action in parser._actions if not action.option_strings][:1]
    if parser.kernels and not first:
        parser.add_argument("kernel", nargs="?", choices=parser.kernels)
    for action in first if parser.kernels else ():
        action.completer = lambda prefix, **_: [*parser.kernels, *files(prefix)]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)
    raise AssertionError("argcomplete ends the process")


def words_to_complete() -> list[str]:
    """The words of the command line after `ptxgen` that are complete."""
    argcomplete: Any = importlib.import_module("argcomplete")
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words: list[str] = argcomplete.split_line(line, point)[3]
    return words[1:]

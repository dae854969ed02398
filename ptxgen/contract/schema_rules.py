"""Whether data is as a JSON Schema says, for the keywords that `launch.schema.json` uses: a stub must not
depend on a package for it.

Unlike JSON Schema, `1.0` is no integer and `$` in a pattern is the end of the text, not of its last line.
Data nested deeper than `MOST_LEVELS` is a misfit, so that no data can exhaust the stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ptxgen.arguments import is_one_of
from ptxgen.errors import did_you_mean, shown

Path = tuple[str | int, ...]  # keys and indices from the root to a value
Misfit = tuple[Path, str]  # where, and what was wanted and got
Rule = Mapping[str, Any]

MOST_LEVELS: Final = 32

_IS: Final[dict[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_IN_WORDS: Final = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "an integer",
    "boolean": "true or false",
    "null": "null",
}
_OF_SCHEMA: Final = """
$schema $id $defs $ref title description type const enum minimum maximum pattern maxLength items minItems
maxItems required properties additionalProperties propertyNames minProperties maxProperties oneOf allOf if
then else
"""
KEYWORDS: Final = frozenset(_OF_SCHEMA.split())


def misfits(value: object, schema: Rule) -> Iterator[Misfit]:
    """Where `value` is not as `schema` says, lazily: the first is meant to be reported."""
    return _Rules(schema.get("$defs", {})).misfits(value, schema, ())


class _Rules:
    """The rules by which data is checked against a JSON Schema, with its definitions by name."""

    def __init__(self, definitions: Mapping[str, Rule]) -> None:
        self.definitions = definitions

    def misfits(self, value: object, rule: Rule, path: Path) -> Iterator[Misfit]:
        if len(path) > MOST_LEVELS:
            yield path, f"must have at most {MOST_LEVELS} levels, got more"
            return
        if "$ref" in rule:
            yield from self.misfits(value, self.definitions[rule["$ref"].rpartition("/")[2]], path)
        if "oneOf" in rule:
            yield from self._of_one(value, rule, path)
        for part in rule.get("allOf", ()):
            yield from self.misfits(value, part, path)
        wrong = _plainly_wrong(value, rule)
        if wrong:
            yield path, f"must be {rule.get('title', wrong)}, got {shown(value)}"
        elif isinstance(value, Mapping):
            yield from self._in_object(value, rule, path)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from self.misfits(item, rule.get("items", {}), (*path, index))
        if "if" in rule:
            holds = next(self.misfits(value, rule["if"], path), None) is None
            yield from self.misfits(value, rule.get("then" if holds else "else", {}), path)

    def _of_one(self, value: object, rule: Rule, path: Path) -> Iterator[Misfit]:
        """The misfit of the rule that fits furthest, if none fits. Rules of one value exclude each other."""
        firsts = [next(self.misfits(value, each, path), None) for each in rule["oneOf"]]
        misfits = [first for first in firsts if first is not None]
        if len(misfits) < len(firsts):
            return
        deepest = max(misfits, key=lambda misfit: len(misfit[0]))
        yield (
            deepest if len(deepest[0]) > len(path) else (path, f"must be {rule['title']}, got {shown(value)}")
        )

    def _in_object(self, value: Mapping[Any, Any], rule: Rule, path: Path) -> Iterator[Misfit]:
        known, rest = rule.get("properties", {}), rule.get("additionalProperties", True)
        for name, of in known.items():
            if name in value:
                yield from self.misfits(value[name], of, (*path, name))
        for name in rule.get("required", ()):
            if name not in value:
                yield path, f"must have {name!r}, got {shown(list(value))}"
        for name, item in value.items():
            for _, text in self.misfits(name, rule.get("propertyNames", {}), ()):
                yield path, f"has a key that {text}"
            if name in known:
                continue
            if rest is False:
                yield path, f"must not have {shown(name)}{did_you_mean(name, known)}"
            elif rest is not True:
                yield from self.misfits(item, rest, (*path, str(name)))


def _plainly_wrong(value: object, rule: Rule) -> str:
    """What a value must be by the first broken keyword that is not about its items; "" if none is broken."""
    types = rule.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_IS[type](value) for type in types):
        return " or ".join(_IN_WORDS[type] for type in types)
    if "const" in rule and not is_one_of(value, [rule["const"]]):
        return repr(rule["const"])
    if "enum" in rule and not is_one_of(value, rule["enum"]):
        return "one of " + ", ".join(map(str, rule["enum"]))
    return _of_wrong_size(value, rule)


def _of_wrong_size(value: object, rule: Rule) -> str:
    """What a value must be by the first broken keyword for length, size or pattern; "" if none is broken."""
    if isinstance(value, str):
        if len(value) > rule.get("maxLength", len(value)):
            return f"at most {rule['maxLength']} characters"
        if not re.fullmatch(rule.get("pattern", "(?s:.*)"), value):
            return f"a text like {rule['pattern']}"
    elif isinstance(value, int):
        least, most = rule.get("minimum", value), rule.get("maximum", value)
        if not least <= value <= most:
            return f"an integer from {least} to {most}"
    elif isinstance(value, Mapping | list | tuple):
        what = "Properties" if isinstance(value, Mapping) else "Items"
        least, most = rule.get(f"min{what}", 0), rule.get(f"max{what}", len(value))
        if not least <= len(value) <= most:
            return f"of {least} to {most} parts"
    return ""

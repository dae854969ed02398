"""`ptxgen.records.dataclass` beside `dataclasses.dataclass`: what a class can do is the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ptxgen import records

ROOT = Path(__file__).parents[1]
FROZEN: dict[str, Any] = {"frozen": True, "slots": True}


def two_fields(dataclass: Any, **options: Any) -> Any:
    @dataclass(**options)
    class Record:
        """Two fields."""

        a: int
        b: str = "x"

    return Record


def every_kind_of_field(dataclass: Any, **options: Any) -> Any:
    @dataclass(**options)
    class Record:
        """Fields that are compared, shown, set and hashed, or not."""

        count: ClassVar[int] = 3
        a: int
        b: list[int] = field(default_factory=list, hash=False)
        c: int = field(default=4, repr=False)
        d: int = field(default=5, compare=False)
        e: int = field(init=False)
        f: list[int] = field(default_factory=list, init=False, hash=False)
        g: int = field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "e", self.a + 1)

    return Record


def no_fields(dataclass: Any, **options: Any) -> Any:
    @dataclass(**options)
    class Record:
        """Nothing."""

    return Record


def own_methods(dataclass: Any, **options: Any) -> Any:
    @dataclass(**options)
    class Record:
        """A class with methods that `dataclass` leaves alone."""

        a: int
        b: int = 0

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and other.a == self.a

    return Record


def inherited(dataclass: Any, **options: Any) -> Any:
    @dataclass(**options)
    class Base:
        """A base."""

        a: int
        b: int = 1

    @dataclass(**options)
    class Record(Base):
        """It changes a default, and adds a field."""

        b: int = 2
        c: int = 3

    return Record


CLASSES = [two_fields, every_kind_of_field, no_fields, own_methods, inherited]
OPTIONS: list[dict[str, Any]] = [
    *({}, {"slots": True}, {"frozen": True}, FROZEN, {"frozen": True, "kw_only": True}),
    *({"frozen": True, "eq": False}, {"frozen": True, "repr": False}, {"slots": True, "unsafe_hash": True}),
]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"a": 1, "b": 2}), ((1,), {"a": 1}),
    ((1,), {"g": 9}), ((1, [2], 3, 4), {}), ((1,), {"no": 2}), (tuple(range(9)), {}),
]  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def assign(given: Any, name: str) -> None:
    setattr(given, name, 1)


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_as_that_of_the_standard_library(
    make: Callable[..., Any], options: dict[str, Any]
) -> None:
    ours, theirs = (make(dataclass, **options) for dataclass in (records.dataclass, dataclasses.dataclass))
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert ours.__match_args__ == theirs.__match_args__
    assert (ours.__hash__ is None) is (theirs.__hash__ is None)
    assert hasattr(ours, "__slots__") is hasattr(theirs, "__slots__")
    objects = [outcome(lambda c=c, a=a, k=k: c(*a, **k)) for c in (ours, theirs) for a, k in CALLS]
    pairs = list(zip(objects[: len(CALLS)], objects[len(CALLS) :], strict=True))
    assert any(isinstance(mine, ours) for mine, _ in pairs)
    for mine, other in pairs:
        if not isinstance(mine, ours):
            assert mine == other  # the same error
            continue
        default = options.get("repr") is False and make is not own_methods
        assert default or repr(mine) == repr(other)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        if default or options.get("eq", True):
            assert [mine == x for x, _ in pairs] == [other == x for _, x in pairs]
        replaced = [
            outcome(lambda x=x: dataclasses.asdict(dataclasses.replace(x, a=8))) for x in (mine, other)
        ]
        assert replaced[0] == replaced[1]
        if options.get("eq", True):
            assert outcome(lambda x=mine: hash(x)) == outcome(lambda x=other: hash(x))
    for mine, other in pairs:
        # For a name without a field, the message of a slotted class of the standard library is about `super`.
        for name in ours.__match_args__[:1] if options.get("slots") else ("a", "new"):
            for change in (assign, delattr):
                assert outcome(lambda: change(mine, name)) == outcome(lambda: change(other, name))  # noqa: B023


@records.dataclass(frozen=True, slots=True)
class BoundedCache:
    """A class that pickle finds by its name."""

    a: int
    b: list[int] = field(default_factory=list)


@records.dataclass(frozen=True)
class KeptLoosely:
    """A frozen record without slots."""

    a: int
    b: list[int] = field(default_factory=list)


@pytest.mark.parametrize("cls", [BoundedCache, KeptLoosely])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_frozen_object_is_copied(cls: type[BoundedCache], copied: Callable[[Any], Any]) -> None:
    arguments = cls(1, [2])
    assert copied(arguments) == arguments
    assert type(copied(arguments)) is cls


def test_an_object_that_holds_itself_is_shown() -> None:
    arguments = BoundedCache(1)
    arguments.b.append(arguments)  # type: ignore[arg-type]
    assert repr(arguments) == "BoundedCache(a=1, b=[...])"


def test_an_unlike_base_is_refused() -> None:
    loose = two_fields(records.dataclass)
    with pytest.raises(
        TypeError, match=r"^test_.*<locals>\.Record is frozen, and its base two_fields.* not$"
    ):

        @records.dataclass(frozen=True)
        class Record(loose):  # type: ignore[misc, valid-type]
            """Its base is not frozen."""


def test_a_hash_of_its_own_and_a_generated_one_are_refused() -> None:
    with pytest.raises(TypeError, match="unsafe_hash=True, and the class has its own __hash__"):

        @records.dataclass(unsafe_hash=True)
        class Record:
            """Two hashes."""

            def __hash__(self) -> int:
                return 1


@pytest.mark.parametrize(
    "kernel",
    [
        ("--dtype", "f16"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (("--causal",), ("--target", "sm_90a"))),
    ],
)
def test_emission_makes_no_class_the_slow_way(kernel: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from flash.commands import emit\n"
        "emit.main(['--head-dim', '64', '-o', '/dev/null', *sys.argv[1:]])\n"
        "ours = [m for n, m in sys.modules.items() if n.partition('.')[0] in ('ptxgen', 'flash')]\n"
        "found = [x.__dict__ for m in ours for x in vars(m).values() if isinstance(x, type)]\n"
        "found = [x for x in found if '__dataclass_fields__' in x]\n"
        "print(len(found) > 100, {x['__module__'] for x in found if '__frozen_record__' not in x})"
    )
    argv = [sys.executable, "-c", code, *kernel]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"

"""Whatever a caller passes, what is raised is an error of ours, which says who and what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hostile import Case, cases, values

import flash
from ptxgen.errors import BackendError, PtxGenError

CASES = cases()
STEP = 7  # of so many values the gate tries one; no divisor of their number, so that all are tried


def hostile(case: Case) -> Iterator[tuple[str, str]]:
    """Each parameter with each value, by name; but no function, which may raise what it likes."""
    for parameter in case.parameters:
        for name, value in values().items():
            if parameter != "progress" or not callable(value):
                yield parameter, name


def raised_by(case: Case, parameter: str, value: str) -> str:
    """What a call with one hostile value raises that is not ours; empty for ours, and for none."""
    try:
        case.call(**{**case.arguments(), parameter: values()[value]})
    except PtxGenError as error:
        return "" if str(error) else "an error without a text"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", CASES)
def test_the_call_without_a_hostile_value_works(name: str) -> None:
    case = CASES[name]
    needs_gpu = name == "to_device"
    with contextlib.suppress(BackendError) if needs_gpu else contextlib.nullcontext():
        case.call(**case.arguments())


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *((name, STEP) for name in CASES),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in CASES),
    ],
)
def test_a_hostile_value_gives_an_error_of_ours_or_a_result(name: str, step: int) -> None:
    case = CASES[name]
    first = list(CASES).index(name) % step
    wrong = [
        (parameter, value, said)
        for parameter, value in list(hostile(case))[first::step]
        if (said := raised_by(case, parameter, value))
    ]
    assert wrong == []


def test_every_public_name_is_called() -> None:
    called = {name.split(".")[0].split(" ")[0] for name in CASES}
    assert set(flash.__all__) <= called

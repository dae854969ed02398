"""What jobs of `ptxgen bench` return, by kind."""

from __future__ import annotations

from flash.commands.measure.record import Measurement, Rows


def by_name(found: Rows) -> dict[str, Measurement]:
    """The measurements by their names."""
    return {item.name: item for item in found if isinstance(item, Measurement)}


def remarks(found: Rows) -> list[str]:
    return [item for item in found if isinstance(item, str)]


def rows(found: Rows) -> list[list[str]]:
    """The cells of the rows of a table, which are remarks."""
    return [row.split(" | ") for row in remarks(found)]


def goals_met(found: Rows) -> dict[str, bool | None]:
    """Whether each measurement meets its goal, by name; None without a goal."""
    return {name: item.goal and item.goal.met_by(item.median) for name, item in by_name(found).items()}

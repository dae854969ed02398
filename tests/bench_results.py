"""What jobs of `ptxgen bench` return, by kind."""

from __future__ import annotations

from flash.commands.measure.record import Found, Measurement


def by_name(found: Found) -> dict[str, Measurement]:
    """The measurements by their names."""
    return {item.name: item for item in found if isinstance(item, Measurement)}


def remarks(found: Found) -> list[str]:
    return [item for item in found if isinstance(item, str)]


def rows(found: Found) -> list[list[str]]:
    """The cells of the rows of a table, which are remarks."""
    return [row.split(" | ") for row in remarks(found)]


def goals_met(found: Found) -> dict[str, bool | None]:
    """Whether each measurement meets its goal, by name; None without a goal."""
    return {name: item.goal and item.goal.met_by(item.median) for name, item in by_name(found).items()}

"""A picture of what ranks did when, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

_WIDTH: Final = 720
_LEFT, _TOP, _LANE, _BAR = 70, 40, 44, 14
_COLOURS: Final = {"compute": "#5b7aa8", "transfer": "#b98a34", "wait": "#c2504a"}
_ROWS: Final = {"compute": 0, "wait": 0, "transfer": _BAR + 2}  # below the top of the lane


class Timed(Protocol):
    """What a rank did: "compute", "wait" or "transfer", with the name of the step, in seconds."""

    @property
    def kind(self) -> str:
        """The kind of work: "compute", "wait" or "transfer"."""

    @property
    def what(self) -> str:
        """The name of the step."""

    @property
    def begin(self) -> float:
        """When the work begins, in seconds."""

    @property
    def end(self) -> float:
        """When the work ends, in seconds."""


def timeline(ranks: Sequence[Sequence[Timed]]) -> str:
    """The events of each rank on a common axis of milliseconds: in a lane of its own what it computed and
    where it waited, and below them the messages under way. The times of all ranks are by one clock.
    """
    every = [event for events in ranks for event in events]
    begin = min((event.begin for event in every), default=0.0)
    span = max((event.end for event in every), default=1.0) - begin or 1.0
    scale = (_WIDTH - _LEFT - 20) / span
    height = _TOP + _LANE * len(ranks) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, '
        'sans-serif" font-size="12" role="img" aria-label="What each rank computed, sent and waited for">',
        f'  <rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for n, (kind, colour) in enumerate(_COLOURS.items()):
        lines.append(f'  <rect x="{_LEFT + 110 * n}" y="12" width="14" height="12" fill="{colour}"/>')
        lines.append(f'  <text x="{_LEFT + 110 * n + 20}" y="22" fill="#43525f">{kind}</text>')
    for rank, events in enumerate(ranks):
        top = _TOP + _LANE * rank
        lines.append(f'  <text x="12" y="{top + 13}" fill="#1c2733">rank {rank}</text>')
        for event in events:
            x, width = _LEFT + (event.begin - begin) * scale, max((event.end - event.begin) * scale, 0.5)
            lines.append(
                f'  <rect x="{x:.1f}" y="{top + _ROWS[event.kind]}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_COLOURS[event.kind]}" stroke="#ffffff" stroke-width="0.5">'
                f"<title>{event.what}: {(event.end - event.begin) * 1e3:.2f} ms</title></rect>"
            )
    axis = _TOP + _LANE * len(ranks) + 4
    lines.append(f'  <path d="M {_LEFT} {axis} H {_WIDTH - 20}" stroke="#43525f"/>')
    for part in range(5):
        x = _LEFT + (_WIDTH - _LEFT - 20) * part / 4
        at = f"{span * part / 4 * 1e3:.1f}"
        lines.append(f'  <text x="{x:.1f}" y="{axis + 18}" fill="#43525f" text-anchor="middle">{at}</text>')
    lines.append(f'  <text x="12" y="{axis + 18}" fill="#43525f">ms</text>')
    lines.append("</svg>")
    return "\n".join(lines) + "\n"

"""SVG pictures of the documents: boxes, words and lines, in the style that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

_STYLE: Final = """  <style>
    .blue { fill: #dbe7f6; stroke: #5b7aa8 }
    .amber { fill: #fdf3e1; stroke: #b98a34 }
    .dark { fill: #f3d9a4; stroke: #b98a34 }
    .none { fill: #ffffff; stroke: #b6bec6; stroke-dasharray: 3 2 }
    .wait { fill: url(#hatch); stroke: #b6bec6 }
    .dot { fill: #b98a34 }
    .name { font-weight: 600; font-size: 13px; fill: #1c2733 }
    .what { fill: #43525f; font-size: 12.5px }
    .small { fill: #1c2733; font-size: 11px }
    .arrow { fill: none; stroke: #5b7aa8; stroke-width: 1.5; marker-end: url(#tip) }
    .line { fill: none; stroke: #b98a34; stroke-width: 1.5; stroke-dasharray: 5 3 }
    .path { fill: none; stroke: #a8322a; stroke-width: 2.5; marker-end: url(#end) }
  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">
      <path d="M 0 0 L 8 4 L 0 8 z" fill="#5b7aa8"/>
    </marker>
    <marker id="end" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">
      <path d="M 0 0 L 8 4 L 0 8 z" fill="#a8322a"/>
    </marker>
    <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" fill="#f6f6f6"/>
      <rect width="2" height="6" fill="#d5d5d5"/>
    </pattern>
  </defs>
"""


class Drawing:
    """A picture of `width` x `height` pixels; `label` says what it shows."""

    def __init__(self, width: int, height: int, label: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(label)}">\n',
            _STYLE,
            f'  <rect width="{width}" height="{height}" fill="#ffffff"/>\n',
        ]

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """Draw a rectangle of CSS class `kind`."""
        self._add(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')

    def dot(self, x: float, y: float) -> None:
        """Draw a small disc."""
        self._add(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="4"/>')

    def text(self, words: str, x: float, y: float, kind: str = "what", anchor: str = "start") -> None:
        """Words that begin at x, or whose `anchor` ("middle", "end") is there."""
        end = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._add(f'<text class="{kind}" x="{x:g}" y="{y:g}"{end}>{escape(words)}</text>')

    def line(self, kind: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw a polyline through the points."""
        steps = " L ".join(f"{x:g} {y:g}" for x, y in points)
        self._add(f'<path class="{kind}" d="M {steps}"/>')

    def render(self) -> str:
        """The picture as SVG."""
        return "".join([*self._parts, "</svg>\n"])

    def _add(self, element: str) -> None:
        self._parts.append(f"  {element}\n")

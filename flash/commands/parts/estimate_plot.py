"""A plot of estimated times against numbers of GPUs, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 380, 80, 120, 24, 48
_COLOURS: Final = ("#5b7aa8", "#b98a34", "#c2504a", "#4d8a5f", "#6b6f76")

Points = Sequence[tuple[int, float]]


def estimate_plot(lines: Mapping[str, Points]) -> str:
    """Lines of (GPUs, seconds) by name, on logarithmic axes. There is at least one point."""
    every = [point for points in lines.values() for point in points]
    gpus = sorted({number for number, _ in every})
    low = math.floor(math.log10(min(s for _, s in every)))
    high = max(low + 1, math.ceil(math.log10(max(s for _, s in every))))
    wide = math.log2(gpus[-1] / gpus[0]) or 1.0

    def x(number: int) -> float:
        return _LEFT + math.log2(number / gpus[0]) / wide * (_WIDTH - _LEFT - _RIGHT)

    def y(seconds: float) -> float:
        return _TOP + (high - math.log10(seconds)) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, '
        'sans-serif" font-size="12" role="img" aria-label="Estimated time of a call against the number of '
        'GPUs, for each scheme">',
        f'  <rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        elements.append(f'  <path d="M {_LEFT} {at:.1f} H {_WIDTH - _RIGHT}" stroke="#e3e7eb"/>')
        text = f"{10.0 ** (power + 3):g} ms"
        elements.append(
            f'  <text x="{_LEFT - 8}" y="{at + 4:.1f}" fill="#43525f" text-anchor="end">{text}</text>'
        )
    below = _HEIGHT - _BOTTOM + 20
    elements += [
        f'  <text x="{x(number):.1f}" y="{below}" fill="#43525f" text-anchor="middle">{number}</text>'
        for number in gpus
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    elements.append(f'  <text x="{middle}" y="{_HEIGHT - 8}" fill="#43525f" text-anchor="middle">GPUs</text>')
    for n, (name, points) in enumerate(sorted(lines.items(), key=lambda line: line[1][-1][1])):
        colour, at = _COLOURS[n % len(_COLOURS)], _TOP + 16 * n + 8
        drawn = " ".join(f"{x(number):.1f},{y(seconds):.1f}" for number, seconds in points)
        elements.append(f'  <polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        elements += [
            f'  <circle cx="{x(number):.1f}" cy="{y(seconds):.1f}" r="3" fill="{colour}"/>'
            for number, seconds in points
        ]
        elements.append(
            f'  <rect x="{_WIDTH - _RIGHT + 12}" y="{at - 9}" width="12" height="4" fill="{colour}"/>'
        )
        elements.append(f'  <text x="{_WIDTH - _RIGHT + 30}" y="{at}" fill="#1c2733">{name}</text>')
    elements.append("</svg>")
    return "\n".join(elements) + "\n"

"""Lines over two axes as SVG: small, without a library, and the same bytes for the same figures.

Matplotlib was considered: it and numpy are 60 MB to install for eight line charts, and what it draws differs from one of its
versions to the next, so that every renewal of the figures would be a diff of all plots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 40, 48
FONT = "system-ui, sans-serif"
# Okabe and Ito's, told apart by the colour-blind too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("", "6 3", "2 3")
MOST_TICKS = 6
# Room above the highest and below the lowest point of a logarithmic axis.
MARGIN = 1.25


class Axis:
    """Values to places on a line; logarithmic ones must be above 0."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, is_log: bool) -> None:
        self.is_log = is_log
        self._begin, self._end = begin, end
        low, high = min(values), max(values)
        if is_log:
            low, high = (low, high) if high > low else (low / MARGIN, high * MARGIN)
        else:
            low, high = min(low, 0.0), high if high > min(low, 0.0) else low + 1.0
        self.low, self.high = low, high

    def place(self, value: float) -> float:
        """Return where a value lies."""
        if self.is_log:
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Return round values within the axis."""
        found = self._decades() if self.is_log else self._steps()
        return found or [self.low, self.high]

    def _steps(self) -> list[float]:
        rough = (self.high - self.low) / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, int(self.high / step + 1e-9) + 1)]

    def _decades(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1, 2, 5), (1,)):
            found = [
                factor * 10.0**decade
                for decade in decades
                for factor in factors
                if self.low * 0.999 <= factor * 10.0**decade <= self.high * 1.001
            ]
            if len(found) <= MOST_TICKS + 2:
                return found
        return found[:: math.ceil(len(found) / MOST_TICKS)]


def number(value: float) -> str:
    """Return a number as people read it, with three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def line_chart(plot: dict[str, Any]) -> str:
    """Return a plot (measuring.Plot as JSON) as SVG: its medians as lines, the spread as whiskers."""
    points = [point for series in plot["series"] for point in series["points"]]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_axis = Axis([point[0] for point in points], LEFT + 8, right - 8, is_log=plot["log_x"])
    spread = [value for point in points for value in point[1:]]
    if plot["log_y"]:
        spread += [min(spread) / MARGIN, max(spread) * MARGIN]
    y_axis = Axis(spread, bottom, TOP, is_log=plot["log_y"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family={quoteattr(FONT)} font-size="12" role="img" aria-label={quoteattr(plot["title"])}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, plot["title"], size=15),
    ]
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(_line(LEFT, y, right, y, "#dddddd"))
        parts.append(_text(LEFT - 6, y + 4, number(value), anchor="end"))
    for value in _x_ticks(points, x_axis):
        x = x_axis.place(value)
        parts.append(_line(x, bottom, x, bottom + 4, "#666666"))
        parts.append(_text(x, bottom + 18, number(value), anchor="middle"))
    parts.append(_line(LEFT, bottom, right, bottom, "#666666"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 10, plot["x"], anchor="middle"))
    parts.append(_text(6, TOP - 8, plot["y"], size=11))
    for index, series in enumerate(plot["series"]):
        parts += _series(index, series, x_axis, y_axis, right)
    return "\n".join([*parts, "</svg>", ""])


def _x_ticks(points: list[list[float]], axis: Axis) -> list[float]:
    """Where few values were measured, these; else round ones."""
    measured = sorted({point[0] for point in points})
    return measured if len(measured) <= MOST_TICKS else axis.ticks()


def _series(index: int, series: dict[str, Any], x_axis: Axis, y_axis: Axis, right: float) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    places = [(x_axis.place(x), *map(y_axis.place, rest)) for x, *rest in sorted(series["points"])]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>']
    for x, y, low, high in places:
        parts.append(_line(x, low, x, high, colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    legend_y = TOP + 10 + index * 20
    parts.append(_line(right + 12, legend_y, right + 32, legend_y, colour, width=2))
    parts.append(_text(right + 38, legend_y + 4, series["name"]))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#222222">{escape(text)}</text>'

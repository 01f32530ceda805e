"""The look that all tables share, and the colours that say how something stands."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from agenttx_server.cli.output import printable

__all__ = ["cell", "facts_grid", "lined_table", "lines_text", "plural", "status_text"]

_STYLES = {
    "ACTIVE": "green",
    "EXECUTING": "cyan",
    "AWAITING_APPROVAL": "yellow",
    "IN_DOUBT": "bold yellow",
    "ROLLING_BACK": "yellow",
    "COMMITTING": "cyan",
    "COMMITTED": "bold green",
    "COMPLETED": "green",
    "ROLLED_BACK": "magenta",
    "FAILED": "bold red",
    "SUPERSEDED": "dim",
    "READY": "yellow",
    "DELIVERED": "green",
    "DEAD": "bold red",
    "DISCARDED": "dim",
    "WITHDRAWN": "dim",
    "WAITING": "yellow",
}


def lined_table(*headings: str, right: Iterable[str] = ()) -> Table:
    """Return a table without a frame; the headings named in ``right`` are of numbers."""
    numbers = set(right)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in numbers else "left",
            no_wrap=heading in numbers,
            overflow="fold",
        )
    return table


def facts_grid(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values below one another; facts without a value are left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        if value:
            grid.add_row(name, value if isinstance(value, Text) else cell(value))
    return grid


def cell(text: str, style: str = "") -> Text:
    """Return a text of anybody's as it may be shown."""
    return Text(printable(text), style=style)


def lines_text(lines: Iterable[str], style: str = "") -> Text:
    """Return lines of anybody's as they may be shown, each on one of its own."""
    return Text("\n").join(cell(line, style) for line in lines)


def status_text(status: str) -> Text:
    """Return a status or a state in its colour."""
    return Text(status, style=_STYLES.get(status, ""), no_wrap=True)


def plural(count: int, noun: str) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

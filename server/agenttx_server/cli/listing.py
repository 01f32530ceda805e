"""What commands that list things have in common: how many, as JSON, and whether there are more."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, TypeVar

import typer

__all__ = ["DEFAULT_LIMIT", "AsJson", "Limit", "OfTransaction", "first_of", "say_there_are_more"]

DEFAULT_LIMIT = 50

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, metavar="COUNT", help="At most so many; 0 for all.")
]
OfTransaction = Annotated[
    str,
    typer.Option(
        "--transaction", "-t", metavar="TRANSACTION", help="Only of this transaction; `latest` is the newest."
    ),
]

T = TypeVar("T")


def first_of(found: Iterable[T], limit: int) -> tuple[list[T], bool]:
    """Return the first so many, all for 0, and whether there are more."""
    if not limit:
        return list(found), False
    # One more than shown says whether there are more.
    items = list(islice(found, limit + 1))
    return items[:limit], len(items) > limit


def say_there_are_more(limit: int, which: str = "first") -> None:
    """Say on stderr, where it is in no program's way, that the list was cut."""
    typer.echo(f"\nThe {which} {limit}; --limit 0 lists all.", err=True)

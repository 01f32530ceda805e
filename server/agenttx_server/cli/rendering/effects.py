"""Effects of the outbox: as rows of a list, and in full."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agenttx.records import Effect
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table, status_text
from agenttx_server.cli.rendering.times import moment

__all__ = ["effect_details", "effect_table"]


def effect_table(effects: Iterable[Effect], now: datetime) -> RenderableType:
    """Return effects as a table, in the order given."""
    numbers = ("STEP", "TRIES")
    table = lined_table("TRANSACTION / EFFECT", "STEP", "CHANNEL", "STATE", "TRIES", "SINCE", right=numbers)
    table.columns[0].no_wrap = True
    for effect in effects:
        error = [cell(effect.last_error, "yellow")] if effect.last_error else []
        table.add_row(
            Text("\n").join([cell(effect.transaction_id), cell(f"  {effect.effect_id}")]),
            _position(effect),
            Text("\n").join([cell(effect.channel), *error]),
            status_text(effect.state),
            str(effect.delivery_attempts),
            moment(effect.settled_at or effect.ready_at or effect.staged_at, now),
        )
    return table


def effect_details(effects: Iterable[Effect], now: datetime) -> RenderableType:
    """Return effects one below the other, with everything that is known of them."""
    parts: list[RenderableType] = []
    for effect in effects:
        heading = Text.assemble(
            (f"{effect.transaction_id}  {effect.effect_id}", "bold"), "  ", status_text(effect.state)
        )
        facts = (
            ("channel", effect.channel),
            ("step", f"{_position(effect)}, attempt {effect.attempt}"),
            ("payload", orjson.dumps(effect.payload).decode()),
            ("key", effect.idempotency_key),
            ("tries", str(effect.delivery_attempts)),
            ("error", effect.last_error),
            ("staged", moment(effect.staged_at, now)),
            ("committed", _moment(effect.ready_at, now)),
            ("next try", _moment(effect.next_attempt_at, now)),
            ("settled", _moment(effect.settled_at, now)),
        )
        parts += [heading, Padding(facts_grid(facts), (0, 0, 1, 2))]
    return Group(*parts)


def _moment(time: datetime | None, now: datetime) -> str:
    return "" if time is None else moment(time, now)


def _position(effect: Effect) -> str:
    return f"{effect.step_id}.{effect.sub_step}" if effect.sub_step else str(effect.step_id)

"""Events of a transaction's journal, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from agenttx.records import Event
from agenttx_server.cli.output import printable
from agenttx_server.cli.rendering.times import clock_time

__all__ = ["event_line"]

_WIDEST_TYPE = 23
_STYLES = {
    "STEP_COMPLETED": "green",
    "STEP_FAILED": "red",
    "STEP_IN_DOUBT": "yellow",
    "STEP_CANCELLED": "yellow",
    "STEP_AWAITING_APPROVAL": "yellow",
    "STEP_APPROVED": "green",
    "STEP_REJECTED": "red",
    "APPROVAL_WITHDRAWN": "yellow",
    "ROLLBACK_STARTED": "yellow",
    "TRANSACTION_REWOUND": "yellow",
    "ROLLBACK_HELD": "bold red",
    "UNDO_FAILED": "bold red",
    "LATE_EFFECT_REPORTED": "bold red",
    "TRANSACTION_COMMITTED": "bold green",
    "TRANSACTION_ROLLED_BACK": "magenta",
    "TRANSACTION_FAILED": "bold red",
    "COMMIT_CONFLICT": "red",
    "EFFECT_DELIVERED": "green",
    "EFFECT_FAILED": "yellow",
    "EFFECT_DEAD": "bold red",
}
# What a line leads with, in this order; the rest of an event's facts follow by name.
_LEADING = ("tool_name", "agent_id", "strategy", "hint", "abort_reason")
_LEFT_OUT = frozenset({"effect_class", "error_keys"})


def event_line(event: Event) -> Text:
    """Return an event on one line: when, its number, what, which step, its facts."""
    line = Text(f"{clock_time(event.occurred_at)} {event.sequence:>5}  ", style="dim", no_wrap=False)
    line.append(event.type.ljust(_WIDEST_TYPE), _STYLES.get(event.type, "not dim"))
    line.append(f"  {_step(event):<12}", "not dim")
    line.append(f"  {printable('  '.join(_facts(event.payload)))}".rstrip(), "not dim")
    return line


def _step(event: Event) -> str:
    if not event.step_id:
        return ""
    number = f"{event.step_id}.{event.sub_step}" if event.sub_step else str(event.step_id)
    return f"step {number}" if event.attempt <= 1 else f"step {number} ({event.attempt})"


def _facts(payload: Any) -> list[str]:
    if not isinstance(payload, Mapping):
        return []
    leading = [str(payload[name]) for name in _LEADING if payload.get(name)]
    rest = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in payload.items()
        if name not in _LEADING and name not in _LEFT_OUT and value not in ("", None, [])
    ]
    return leading + rest

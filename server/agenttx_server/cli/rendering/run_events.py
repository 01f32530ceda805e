"""Events of runs of graphs, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from agenttx.run_events import GraphEvent
from agenttx_server.cli.output import printable
from agenttx_server.cli.rendering.times import clock_time

__all__ = ["run_event_line"]

_WIDEST_KIND = 20
_STYLES = {
    "run.completed": "bold green",
    "run.failed": "bold red",
    "run.interrupted": "yellow",
    "run.cancelled": "magenta",
    "run.drained": "yellow",
    "node.completed": "green",
    "node.failed": "red",
    "node.retry_scheduled": "yellow",
    "interrupt.emitted": "yellow",
    "interrupt.withdrawn": "yellow",
    "rollback.decided": "yellow",
    "checkpoint.restored": "yellow",
}
# What a line leads with, in this order; the rest of an event's keys follow by name.
_LEADING = ("trigger", "strategy", "hint", "name")
_LEFT_OUT = frozenset({"version", "graph"})


def run_event_line(event: GraphEvent, *, of_one_run: bool = True) -> Text:
    """Return an event on one line: when, its number, what, where, its keys; of many runs also which run."""
    number = event.offset if of_one_run else event.sequence
    line = Text(f"{clock_time(event.occurred_at)} {'live' if number is None else number:>5}  ", style="dim")
    if not of_one_run:
        line.append(f"{printable(event.thread_id or event.run_id):<16}  ", "not dim")
    line.append(event.kind.ljust(_WIDEST_KIND), _STYLES.get(event.kind, "not dim"))
    line.append(f"  {printable(_where(event)):<16}", "not dim")
    line.append(f"  {printable('  '.join(_facts(event.payload)))}".rstrip(), "not dim")
    return line


def _where(event: GraphEvent) -> str:
    place = "/".join(filter(None, (event.namespace, event.node)))
    return f"{event.superstep} {place}".rstrip() if event.superstep else place


def _facts(payload: Mapping[str, Any]) -> list[str]:
    error = payload.get("error")
    if isinstance(error, Mapping):
        return [f"{error.get('reason', '')}  {error.get('message', '')}"]
    leading = [str(payload[name]) for name in _LEADING if payload.get(name)]
    rest = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in payload.items()
        if name not in _LEADING and name not in _LEFT_OUT and value not in ("", None, [])
    ]
    return leading + rest

"""Pipelines and their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from agenttx.pipeline_records import PipelineRun, PipelineVersion, PipelineViolation
from agenttx_server.cli.output import printable
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table, status_text
from agenttx_server.cli.rendering.times import moment

__all__ = [
    "pipeline_mermaid",
    "pipeline_tree",
    "run_facts",
    "run_table",
    "version_table",
    "violation_table",
]

_COUNTS = ("processed", "skipped", "filtered", "dropped", "failed", "blocked")


def violation_table(violations: Iterable[PipelineViolation]) -> RenderableType:
    """Return what was found as a table."""
    table = lined_table("", "WHERE", "WHAT", "CODE")
    for item in violations:
        kind = cell("warning", "yellow") if item.is_warning else cell("error", "bold red")
        table.add_row(kind, cell(item.where), cell(item.message), cell(item.code, "dim"))
    return table


def version_table(versions: Iterable[PipelineVersion]) -> RenderableType:
    """Return versions as a table."""
    table = lined_table("PIPELINE", "VERSION", "ACTIONS", "SINCE", "DESCRIPTION", right=("ACTIONS",))
    now = datetime.now(UTC)
    for item in versions:
        table.add_row(
            cell(item.name),
            cell(item.version[:12]),
            str(item.actions),
            moment(item.registered_at, now),
            cell(item.description),
        )
    return table


def run_table(runs: Iterable[PipelineRun]) -> RenderableType:
    """Return runs as a table."""
    table = lined_table(
        "RUN",
        "PIPELINE",
        "STATUS",
        "ROWS",
        "COMMITTED",
        "FAILED",
        "SINCE",
        right=("ROWS", "COMMITTED", "FAILED"),
    )
    now = datetime.now(UTC)
    for run in runs:
        table.add_row(
            cell(run.run_id),
            cell(run.pipeline),
            status_text(str(run.status)),
            str(run.rows),
            str(run.rows_committed),
            str(run.rows_failed),
            moment(run.created_at, now),
        )
    return table


def run_facts(run: PipelineRun) -> RenderableType:
    """Return how a run stands, and what each action did."""
    rows = f"{run.rows_committed} of {run.rows} committed"
    # The counts are of records: of how many rows they are isn't told.
    rows += ", with failures" if run.rows_committed and any(did.failed for did in run.counts) else ""
    rows += f", {run.rows_failed} rolled back" if run.rows_failed else ""
    rows += f", {run.rows_running} under way" if run.rows_running else ""
    facts: list[tuple[str, str | Text]] = [
        ("run", run.run_id),
        ("pipeline", run.pipeline),
        ("status", status_text(str(run.status))),
        ("cancelling", "yes" if run.cancel_requested and not run.status.is_final else ""),
        ("rows", rows),
        ("reason", run.reason),
    ]
    shown: list[RenderableType] = [facts_grid(facts)]
    if run.counts:
        named = [name for name in _COUNTS if any(getattr(item, name) for item in run.counts)]
        table = lined_table("ACTION", *(name.upper() for name in named), right=[n.upper() for n in named])
        for item in run.counts:
            table.add_row(cell(item.action), *(str(getattr(item, name)) for name in named))
        shown.append(table)
    return Group(*shown)


def pipeline_tree(definition: Mapping[str, Any]) -> str:
    """Draw a pipeline as lines: each action below the first action that it depends on, with the others named."""
    actions: Sequence[Mapping[str, Any]] = definition.get("actions", ())
    names = {str(action["name"]) for action in actions}
    below: dict[str, list[Mapping[str, Any]]] = {}
    for action in actions:
        upper = next((name for name in action.get("dependencies", ()) if name in names), "source")
        below.setdefault(upper, []).append(action)
    lines = ["source"]
    # A stack and not recursion: a chain of actions may be as long as a pipeline.
    stack = [(action, "", number == 0) for number, action in enumerate(reversed(below.get("source", [])))]
    while stack:
        action, lead, is_last = stack.pop()
        lines.append(printable(f"{lead}{'└── ' if is_last else '├── '}{_action_label(action)}"))
        deeper = lead + ("    " if is_last else "│   ")
        mine = below.pop(str(action["name"]), [])
        stack += [(item, deeper, number == 0) for number, item in enumerate(reversed(mine))]
    return "\n".join(lines)


def _action_label(action: Mapping[str, Any]) -> str:
    name = str(action["name"])
    tool = action.get("tool")
    said = [f"{name} ({tool})" if tool and tool != name else name]
    others = [str(item) for item in action.get("dependencies", ())][1:]
    if others:
        said.append("with " + ", ".join(others))
    if guard := action.get("guard"):
        said.append(f"if {guard.get('condition', '')}, else {guard.get('on_false', 'filter')}")
    if reduce := action.get("reduce"):
        said.append(f"by {reduce.get('by', '')}")
    if action.get("granularity", "record") != "record":
        said.append(f"a {action['granularity']} at a time")
    return "  ".join(said)


def pipeline_mermaid(definition: Mapping[str, Any]) -> str:
    """Draw a pipeline as a flowchart."""
    actions: Sequence[Mapping[str, Any]] = definition.get("actions", ())
    ids = {"source": "source"} | {str(a["name"]): f"a{n}" for n, a in enumerate(actions)}
    lines = ["flowchart TD", "    source([source])"]
    for action in actions:
        tool = action.get("tool") or action["name"]
        text = f"{_plain(action['name'])}<br/>{_plain(tool)}"
        lines.append(f'    {ids[str(action["name"])]}["{text}"]')
    for action in actions:
        arrow = "-. if .->" if action.get("guard") else "-->"
        for name in action.get("dependencies") or ["source"]:
            lines.append(f"    {ids.get(str(name), 'missing')} {arrow} {ids[str(action['name'])]}")
    return "\n".join(lines)


def _plain(text: Any) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in str(text))

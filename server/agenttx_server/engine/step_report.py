"""A step that the agent ran itself: its report is checked here and stands for the run of a tool.

What is wrong with a report is refused before anything is recorded, and never made a failure of the step: the
effect has happened, and the agent has to be able to tell of it again. (Of a call that the server is yet to make,
bad arguments are a failed step.)
"""

from __future__ import annotations

from agenttx_server.engine import json_values, limits
from agenttx_server.engine.errors import FieldViolation
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.recorded_answers import fingerprint
from agenttx_server.engine.records import (
    AttemptRecord,
    EffectClass,
    MicrosecondsUtc,
    ToolDescription,
    UndoRecord,
)
from agenttx_server.engine.requests import AgentUndo, StepCall, StepReport

__all__ = ["MOST_UNDO_ACTIONS", "checked", "report_fingerprint", "tool_of", "undo_rows"]

MOST_UNDO_ACTIONS = 64


def checked(call: StepCall, bounds: limits.Limits, found_before: tuple[FieldViolation, ...] = ()) -> StepCall:
    """Return a reported call with its JSON canonical. Raises InvalidRequest with all that is wrong with it.

    ``found_before`` is what was found wrong with other fields of the request already.
    """
    report = call.report
    if report is None:
        raise RuntimeError("the call was not made by the agent")
    found = limits.Violations(found_before)
    found.call(call, bounds)
    _json(found, "arguments_json", call.arguments_json or "{}")
    output = report.output_json
    if output is not None:
        found.size("output_json", output, bounds.output_bytes)
        output = _json(found, "output_json", output or "null")
    found.size("error", report.error, bounds.raw_context_bytes)
    undo = _undo(found, report, bounds)
    _effect_class(found, report)
    found.raise_if_any()
    return replace(call, report=replace(report, output_json=output, undo=undo))


def _undo(found: limits.Violations, report: StepReport, bounds: limits.Limits) -> tuple[AgentUndo, ...]:
    if len(report.undo) > MOST_UNDO_ACTIONS:
        found.add("undo_actions", f"has {len(report.undo)} entries; the limit is {MOST_UNDO_ACTIONS}")
        return ()
    checked_undo = []
    for index, undo in enumerate(report.undo):
        name = f"undo_actions[{index}]"
        if not undo.action:
            found.add(f"{name}.action", "is empty; name what the agent has to do")
        found.plain(f"{name}.action", undo.action, bounds.tool_name_bytes)
        found.size(f"{name}.arguments_json", undo.arguments_json, bounds.arguments_bytes)
        arguments = _json(found, f"{name}.arguments_json", undo.arguments_json or "{}")
        checked_undo.append(AgentUndo(undo.action, arguments))
    return tuple(checked_undo)


def _effect_class(found: limits.Violations, report: StepReport) -> None:
    effect_class = report.effect_class
    if effect_class is None:
        if all(violation.field != "effect_class" for violation in found.found):
            found.add("effect_class", "is unset; say what the call may have changed outside")
    elif report.undo and not effect_class.acts_outside:
        found.add(
            "undo_actions", f"a {effect_class} call changes nothing outside, so there is nothing to undo"
        )
    elif effect_class is EffectClass.COMPENSATABLE and report.output_json is not None and not report.undo:
        found.add(
            "undo_actions",
            "is empty; a COMPENSATABLE call that succeeded needs at least one. Of a call that can't be undone say "
            "IRREVERSIBLE, of one that is safe to repeat IDEMPOTENT",
        )


def _json(found: limits.Violations, name: str, text: str) -> str:
    """Return canonical JSON; note why a text is none."""
    try:
        return json_values.canonical(json_values.parse(text))
    except json_values.ValueRefused as refused:
        found.add(name, f"is refused at {refused}")
        return ""


def report_fingerprint(step_id: int, call: StepCall, report: StepReport, arguments: str) -> str:
    """Return the identity of a request to report a step: all that it says of the call and its outcome."""
    parts = [str(step_id), call.tool_name, arguments, report.effect_class or ""]
    outcome = ["error", report.error] if report.output_json is None else ["output", report.output_json]
    undo = [part for item in report.undo for part in (item.action, item.arguments_json)]
    return fingerprint("ReportStep", *parts, *outcome, *undo)


def tool_of(call: StepCall, report: StepReport) -> ToolDescription:
    """Return what a report says of the tool; the server may know none of that name, or another one."""
    return ToolDescription(call.tool_name, "", "{}", report.effect_class or EffectClass.IRREVERSIBLE)


def undo_rows(
    attempt: AttemptRecord, report: StepReport, after: int, keys: list[str], now: MicrosecondsUtc
) -> list[UndoRecord]:
    """Return the undo actions of a reported attempt, numbered from ``after`` + 1; ``keys`` has one for each."""
    return [
        UndoRecord(
            sequence=after + number,
            step_id=attempt.step_id,
            attempt=attempt.attempt,
            tool_name=attempt.tool_name,
            undo_name=undo.action,
            arguments=undo.arguments_json,
            idempotency_key=keys[number - 1],
            registered_at=now,
            by_agent=True,
        )
        for number, undo in enumerate(report.undo, start=1)
    ]

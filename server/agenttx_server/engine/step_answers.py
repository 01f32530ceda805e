"""Step answers as they are recorded under a request_id, and back.

The recorded text leaves out the output and the dependencies, which the attempt's row has. What comes back
equals what was sent in every field but ``replayed`` and ``rewound``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import orjson

from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.records import (
    Decision,
    Edge,
    EffectClass,
    Hint,
    HintCategory,
    KeptEffect,
    PassedOverRung,
    PathElement,
    PathSource,
    Strategy,
)
from agenttx_server.engine.requests import ApprovalView, StepAnswer, StepStatus

__all__ = [
    "decode_answer",
    "encode_answer",
    "fields_to_json",
    "kept_effects_from",
    "within_arguments_limit",
    "within_output_limit",
]

SHOWN_ARGUMENTS_BYTES = 1 << 20
_LEFT_OUT = {"output", "replayed", "dependencies", "pending_undo"}


def fields_to_json(value: Any) -> Any:
    """Turn records into plain JSON values: dataclasses to objects, enums and decimals to strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: fields_to_json(getattr(value, item.name))
            for item in dataclasses.fields(value)
            if getattr(value, item.name) != item.default
        }
    if isinstance(value, (list, tuple)):
        return [fields_to_json(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    return value


def encode_answer(answer: StepAnswer) -> str:
    """Return the text to record."""
    plain = answer.strategy is Strategy.NONE and answer.hint is None
    if plain:  # the common success: no nested records
        values: dict[str, Any] = {
            "status": answer.status,
            "next_step_id": answer.next_step_id,
            "generation": answer.generation,
            "attempt": answer.attempt,
        }
        if answer.constraints:
            values["constraints"] = answer.constraints
        if answer.rewound:
            values["rewound"] = True
        if answer.output_omitted:
            values["output_omitted"] = True
    else:
        values = {name: value for name, value in fields_to_json(answer).items() if name not in _LEFT_OUT}
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()


def within_output_limit(answers: Sequence[StepAnswer], limit: int) -> tuple[StepAnswer, ...]:
    """Leave out the outputs of a group's answers beyond ``limit`` bytes in all; a plain step keeps its own."""
    if any(answer.approval is not None for answer in answers):
        shown = iter(
            within_arguments_limit([answer.approval for answer in answers if answer.approval is not None])
        )
        answers = [
            dataclasses.replace(answer, approval=next(shown)) if answer.approval is not None else answer
            for answer in answers
        ]
    if len(answers) == 1:
        return tuple(answers)
    kept = []
    left = limit
    for answer in answers:
        output = answer.output or ""
        size = len(output) if output.isascii() else len(output.encode())
        if size > left:
            kept.append(dataclasses.replace(answer, output=None, output_omitted=True))
        else:
            left -= size
            kept.append(answer)
    return tuple(kept)


def within_arguments_limit(approvals: Sequence[ApprovalView]) -> tuple[ApprovalView, ...]:
    """Leave out arguments that wait for approval beyond 1 MiB in all: ListApprovals has them."""
    shown = []
    left = SHOWN_ARGUMENTS_BYTES
    for view in approvals:
        size = utf8_size(view.approval.arguments)
        if size > left:
            without = dataclasses.replace(view.approval, arguments="")
            shown.append(dataclasses.replace(view, approval=without, arguments_omitted=True))
        else:
            left -= size
            shown.append(view)
    return tuple(shown)


def decode_answer(text: str, output: str | None, dependencies: tuple[Edge, ...]) -> StepAnswer:
    """Return the answer recorded, its output and dependencies put back."""
    values = orjson.loads(text)
    hint = values.get("hint")
    decision = values.get("decision")
    return StepAnswer(
        status=StepStatus(values["status"]),
        next_step_id=values["next_step_id"],
        generation=values["generation"],
        attempt=values["attempt"],
        output=None if values.get("output_omitted") else output,
        hint=_hint(hint) if hint else None,
        strategy=Strategy(values.get("strategy", Strategy.NONE)),
        rollback_to_step=values.get("rollback_to_step", 0),
        constraints=tuple(values.get("constraints", ())),
        context_reset=values.get("context_reset", False),
        rollback_latency_ms=values.get("rollback_latency_ms", 0.0),
        abort_reason=values.get("abort_reason", ""),
        compensation_errors=tuple(values.get("compensation_errors", ())),
        dependencies=dependencies,
        decision=_decision(decision) if decision else None,
        rewound=values.get("rewound", False),
        rollback_incomplete=values.get("rollback_incomplete", False),
        kept_effects=kept_effects_from(values),
        output_omitted=values.get("output_omitted", False),
    )


def _hint(values: dict[str, Any]) -> Hint:
    return Hint(
        values["text"], HintCategory(values["category"]), values.get("rule"), tuple(values.get("keys", ()))
    )


def kept_effects_from(values: dict[str, Any]) -> tuple[KeptEffect, ...]:
    """Return the effects that a recorded answer names as kept."""
    return tuple(
        KeptEffect(
            item["step_id"],
            item["attempt"],
            item["tool_name"],
            EffectClass(item["effect_class"]),
            item["reason"],
            item.get("sub_step", 0),
        )
        for item in values.get("kept_effects", ())
    )


def _decision(values: dict[str, Any]) -> Decision:
    return Decision(
        strategy=Strategy(values["strategy"]),
        failed_step=values["failed_step"],
        target_step=values["target_step"],
        failure_number=values["failure_number"],
        cost=values["cost"],
        budget_total=values["budget_total"],
        budget_spent_before=values["budget_spent_before"],
        error_keys=tuple(values.get("error_keys", ())),
        error_key=values.get("error_key"),
        path=tuple(
            PathElement(item["step_id"], item["key"], PathSource(item.get("source", PathSource.ERROR_KEY)))
            for item in values.get("path", ())
        ),
        passed_over=tuple(
            PassedOverRung(Strategy(item["strategy"]), item["target_step"], item["reason"])
            for item in values.get("passed_over", ())
        ),
        abort_reason=values.get("abort_reason", ""),
        kept_effects=kept_effects_from(values),
    )

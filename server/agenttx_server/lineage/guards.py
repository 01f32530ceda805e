"""Guards: whether an action takes a record. CEL over the namespaces upstream (docs/decisions/0018).

A null (skipped) namespace is bound as the empty object, so ``has()`` of it is false. An error at the top means that the
condition does not hold, negated or not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agenttx_server.expressions import EvaluationFailed, Expression, Kind, compile_expression

__all__ = ["GuardVerdict", "compile_guard", "judge"]


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """Whether the condition holds; ``problem`` is why there was no answer, empty if there was one."""

    holds: bool
    problem: str = ""


def compile_guard(condition: str, namespaces: Collection[str]) -> Expression:
    """Compile a condition. Raises ExpressionInvalid: an unknown name, a bare word or field, no bool."""
    return compile_expression(condition, dict.fromkeys(namespaces, Kind.OBJECT))


def judge(condition: Expression, content: Mapping[str, Any]) -> GuardVerdict:
    """Judge a record's whole content, whatever the action's context_scope withholds."""
    try:
        named = {name: content.get(name) for name in condition.variables}
        return GuardVerdict(condition.evaluate(named) is True)
    except EvaluationFailed as failed:
        return GuardVerdict(holds=False, problem=failed.reason)

"""A pipeline's document (the value of its YAML or JSON) as a definition, or everything that is wrong with its shape.

The forms::

    pipeline: catalog                 actions:                  - name: extract
    actions:                            - name: extract         - name: merge
      - {name: extract, tool: text.extract}

``impl`` is ``tool``. ``kind``, ``model_vendor``, ``model_name`` and ``metadata`` go to the tool as metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from agenttx_server.engine.json_values import JsonValue
from agenttx_server.lineage.definition import (
    Action,
    ContextScope,
    Granularity,
    Guard,
    OnEmpty,
    OnFailedBranch,
    OnFailure,
    OnFalse,
    OnMultiple,
    PipelineDefinition,
    Reduce,
    TransactionScope,
    VersionMode,
    Versions,
)
from agenttx_server.lineage.violations import Violation, suggestion, violation

__all__ = ["Reading", "read_document", "to_document"]

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)

_METADATA: Final = ("kind", "model_vendor", "model_name")
_PIPELINE_KEYS: Final = ("pipeline", "name", "description", "actions", "transaction", "max_concurrency")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: ``definition`` holds what could be, however much was wrong."""

    definition: PipelineDefinition
    violations: tuple[Violation, ...]
    lost_actions: bool = False
    """Whether it may have actions, of which none could be read: it is not one without actions."""


def read_document(document: JsonValue, name: str = "") -> Reading:
    """Read a document; ``name`` is the pipeline's where it names none."""
    reader = _Reader()
    if isinstance(document, list):
        document = {"actions": document}
    if not isinstance(document, dict):
        problem = violation("INVALID_DOCUMENT", "pipeline", "a pipeline is an object with actions")
        return Reading(PipelineDefinition(name, ()), (problem,), lost_actions=True)
    fields = _Fields(reader, document, "pipeline", _PIPELINE_KEYS)
    found = fields.text("pipeline") or fields.text("name") or name
    actions = document.get("actions", [])
    has_actions = actions != []
    if not isinstance(actions, list):
        reader.wrong("pipeline", "actions", "must be a list")
        actions = []
    read = (_action(reader, item, index) for index, item in enumerate(actions))
    definition = PipelineDefinition(
        name=found,
        actions=tuple(action for action in read if action is not None),
        description=fields.text("description"),
        transaction=fields.choice("transaction", TransactionScope, TransactionScope.ROOT),
        max_concurrency=fields.count("max_concurrency"),
    )
    return Reading(definition, tuple(reader.violations), has_actions and not definition.actions)


def to_document(definition: PipelineDefinition) -> dict[str, JsonValue]:
    """Write a definition as the document it is read from; what is as by default is left out."""
    document: dict[str, Any] = {"pipeline": definition.name}
    if definition.description:
        document["description"] = definition.description
    if definition.transaction is not TransactionScope.ROOT:
        document["transaction"] = definition.transaction.value
    if definition.max_concurrency is not None:
        document["max_concurrency"] = definition.max_concurrency
    document["actions"] = [_action_document(action) for action in definition.actions]
    return document


class _Reader:
    """Collects what is wrong."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def wrong(self, where: str, field: str, message: str, code: str = "INVALID_DOCUMENT") -> None:
        self.violations.append(violation(code, where, f"'{field}' {message}"))


class _Fields:
    """The fields of one object; each wrong one is noted and read as its default."""

    def __init__(self, reader: _Reader, value: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
        self._reader = reader
        self._value = value
        self._where = where
        for key in value:
            if key not in known:
                reader.wrong(where, key, f"is no field here{suggestion(key, known)}", "UNKNOWN_FIELD")

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if value is None or isinstance(value, str):
            return value or ""
        self._reader.wrong(self._where, name, "must be a text")
        return ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value.get(name)
        if isinstance(value, str):
            return (value,)
        if value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            return tuple(value or ())
        self._reader.wrong(self._where, name, "must be a list of texts")
        return ()

    def count(self, name: str) -> int | None:
        value = self._value.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self._reader.wrong(self._where, name, "must be an integer")
        return None

    def choice(self, name: str, kind: type[ChoiceT], default: ChoiceT) -> ChoiceT:
        chosen = self.optional_choice(name, kind)
        return default if chosen is None else chosen

    def optional_choice(self, name: str, kind: type[ChoiceT]) -> ChoiceT | None:
        value = self._value.get(name)
        if value is None:
            return None
        try:
            return kind(str(value).lower())
        except ValueError:
            words = ", ".join(member.value for member in kind)
            self._reader.wrong(self._where, name, f"must be one of {words}")
            return None

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self._value.get(name)
        if value is None or isinstance(value, dict):
            return value
        self._reader.wrong(self._where, name, "must be an object")
        return None

    def object(self, name: str, known: tuple[str, ...]) -> _Fields | None:
        value = self.mapping(name)
        return None if value is None else _Fields(self._reader, value, f"{self._where}, {name}", known)


_ACTION_KEYS: Final = (
    "name",
    "tool",
    "impl",
    "dependencies",
    "args",
    "prompt",
    "guard",
    "context_scope",
    "granularity",
    "reduce",
    "versions",
    "on_multiple",
    "on_empty",
    "on_failed_branch",
    "on_failure",
    "timeout_seconds",
    "metadata",
    *_METADATA,
)


def _action(reader: _Reader, value: Any, index: int) -> Action | None:
    if not isinstance(value, dict):
        reader.wrong("pipeline", f"actions[{index}]", "must be an object")
        return None
    named = value.get("name")
    where = f"action {named}" if isinstance(named, str) and named else f"action {index + 1}"
    fields = _Fields(reader, value, where, _ACTION_KEYS)
    tool, implementation = fields.text("tool"), fields.text("impl")
    if tool and implementation and tool != implementation:
        reader.wrong(where, "impl", "names another tool than 'tool'; say one of them")
    return Action(
        name=fields.text("name"),
        tool=tool or implementation,
        dependencies=fields.texts("dependencies"),
        arguments=fields.mapping("args"),
        prompt=fields.text("prompt"),
        guard=_guard(reader, fields, where),
        context_scope=_context_scope(fields, value),
        granularity=fields.choice("granularity", Granularity, Granularity.RECORD),
        reduce=_reduce(reader, fields, where),
        versions=_versions(reader, fields, where),
        on_multiple=fields.optional_choice("on_multiple", OnMultiple),
        on_empty=fields.choice("on_empty", OnEmpty, OnEmpty.FAIL),
        on_failed_branch=fields.choice("on_failed_branch", OnFailedBranch, OnFailedBranch.BLOCK),
        on_failure=fields.choice("on_failure", OnFailure, OnFailure.STOP),
        timeout_us=_timeout(reader, value.get("timeout_seconds"), where),
        metadata={
            **(fields.mapping("metadata") or {}),
            **{key: text for key in _METADATA if (text := fields.text(key))},
        },
    )


def _guard(reader: _Reader, fields: _Fields, where: str) -> Guard | None:
    guard = fields.object("guard", ("condition", "on_false"))
    if guard is None:
        return None
    condition = guard.text("condition")
    if not condition:
        reader.wrong(f"{where}, guard", "condition", "is required")
    return Guard(condition, guard.choice("on_false", OnFalse, OnFalse.FILTER))


def _context_scope(fields: _Fields, value: Mapping[str, Any]) -> ContextScope:
    scope = fields.object("context_scope", ("observe", "passthrough", "drop"))
    if scope is None:
        return ContextScope()
    has_observe = value["context_scope"].get("observe") is not None
    return ContextScope(
        scope.texts("observe") if has_observe else None, scope.texts("passthrough"), scope.texts("drop")
    )


def _reduce(reader: _Reader, fields: _Fields, where: str) -> Reduce | None:
    reduce = fields.object("reduce", ("by",))
    if reduce is None:
        return None
    by = reduce.text("by")
    if not by:
        reader.wrong(f"{where}, reduce", "by", "must be root or namespace.field")
    return Reduce(by or "root")


def _versions(reader: _Reader, fields: _Fields, where: str) -> Versions | None:
    raw = fields.mapping("versions")
    versions = fields.object("versions", ("param", "range", "mode"))
    if versions is None or raw is None:
        return None
    span = raw.get("range")
    if (
        not isinstance(span, list)
        or len(span) != 2
        or any(not isinstance(end, int) or isinstance(end, bool) for end in span)
    ):
        reader.wrong(f"{where}, versions", "range", "must be two integers, as in [1, 3]")
        return None
    mode = versions.choice("mode", VersionMode, VersionMode.PARALLEL)
    return Versions(versions.text("param") or "i", span[0], span[1], mode)


def _timeout(reader: _Reader, value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 7 * 86_400:
        reader.wrong(where, "timeout_seconds", "must be a number of seconds above 0, at most a week")
        return None
    return int(value * 1_000_000)


def _action_document(action: Action) -> dict[str, Any]:
    document: dict[str, Any] = {"name": action.name}
    if action.tool:
        document["tool"] = action.tool
    if action.dependencies:
        document["dependencies"] = list(action.dependencies)
    if action.arguments is not None:
        document["args"] = dict(action.arguments)
    if action.prompt:
        document["prompt"] = action.prompt
    if action.guard is not None:
        document["guard"] = {"condition": action.guard.condition, "on_false": action.guard.on_false.value}
    if scope := _scope_document(action.context_scope):
        document["context_scope"] = scope
    if action.reduce is not None:
        document["reduce"] = {"by": action.reduce.by}
    if action.versions is not None:
        versions = action.versions
        document["versions"] = {
            "param": versions.param,
            "range": [versions.first, versions.last],
            "mode": versions.mode.value,
        }
    for key, value, default in (
        ("granularity", action.granularity, Granularity.RECORD),
        ("on_multiple", action.on_multiple, None),
        ("on_empty", action.on_empty, OnEmpty.FAIL),
        ("on_failed_branch", action.on_failed_branch, OnFailedBranch.BLOCK),
        ("on_failure", action.on_failure, OnFailure.STOP),
    ):
        if value is not None and value is not default:
            document[key] = value.value
    if action.timeout_us is not None:
        document["timeout_seconds"] = action.timeout_us / 1_000_000
    if action.metadata:
        document["metadata"] = dict(action.metadata)
    return document


def _scope_document(scope: ContextScope) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if scope.observe is not None:
        written["observe"] = list(scope.observe)
    if scope.passthrough:
        written["passthrough"] = list(scope.passthrough)
    if scope.drop:
        written["drop"] = list(scope.drop)
    return written

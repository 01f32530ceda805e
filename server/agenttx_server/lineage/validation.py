"""Checking a pipeline whole, before anything runs: every violation, in the order of the actions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from agenttx_server.engine.json_values import ValueRefused, canonical
from agenttx_server.expressions import ExpressionInvalid
from agenttx_server.lineage import limits
from agenttx_server.lineage.definition import SOURCE, Action, Granularity, PipelineDefinition
from agenttx_server.lineage.expansion import expand, version_names
from agenttx_server.lineage.guards import compile_guard
from agenttx_server.lineage.prompts import Prompt, PromptInvalid
from agenttx_server.lineage.templates import references_in
from agenttx_server.lineage.topology import Topology, cycle_in
from agenttx_server.lineage.violations import Violation, suggestion, violation, warning

__all__ = ["RESERVED", "KnowsTool", "check_pipeline"]

KnowsTool = Callable[[str], bool | None]
"""Whether there is a tool of this name now; None: nobody can say."""

ACTION_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIELD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\.(\*|[A-Za-z0-9_-]+)")

RESERVED: Final = frozenset(
    "source version workflow pipeline seed prompt schema context_scope action "
    # CEL's words and types.
    "in as break const continue else for function if import let loop package namespace return var void while true "
    "false null int uint string bytes bool double list map type dyn null_type".split()
)


def check_pipeline(
    definition: PipelineDefinition, knows_tool: KnowsTool | None = None
) -> tuple[Violation, ...]:
    """Check a definition; errors first, then warnings. Pure: the same definition gives the same answer."""
    found: list[Violation] = list(_names(definition))
    found += _bounds(definition)
    if len(definition.actions) <= limits.MAX_ACTIONS:
        found += _shape(definition)
    if knows_tool is not None:
        for action in definition.actions:
            if action.name and knows_tool(action.tool_name) is False:
                found.append(
                    warning(
                        "UNKNOWN_TOOL",
                        f"action {action.name}",
                        f"no tool '{action.tool_name}' is here now; a worker may bring it",
                    )
                )
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda item: item.is_warning))


def _names(definition: PipelineDefinition) -> Iterator[Violation]:
    name = definition.name
    if not name.strip() or len(name) > limits.MAX_NAME_LENGTH or not name.isprintable() or "/" in name:
        yield violation(
            "INVALID_NAME",
            "pipeline",
            f"a pipeline's name has 1 to {limits.MAX_NAME_LENGTH} printable characters",
        )
    for action in definition.actions:
        where = f"action {action.name}"
        if action.name in RESERVED:
            yield violation("RESERVED_NAME", where, f"'{action.name}' is a reserved name")
        elif not ACTION_NAME.fullmatch(action.name) or len(action.name) > limits.MAX_NAME_LENGTH:
            yield violation(
                "INVALID_NAME",
                where,
                f"'{action.name[:60]}': an action's name is letters, digits and _, and begins with no digit",
            )
        if len(action.tool_name) > limits.MAX_NAME_LENGTH:
            yield violation("INVALID_NAME", where, "the tool's name is too long")
    written = Counter(action.name for action in definition.actions)
    for name, count in written.items():
        if count > 1:
            yield violation("DUPLICATE_NAME", f"action {name}", f"{count} actions are named '{name}'")
    if any(action.versions is not None for action in definition.actions):
        made = Counter(name for action in definition.actions for name in version_names(action))
        for name, count in made.items():
            if count > 1 and written[name] <= 1:
                yield violation(
                    "DUPLICATE_NAME", f"action {name}", f"'{name}' is also the name of a version of an action"
                )


def _bounds(definition: PipelineDefinition) -> Iterator[Violation]:
    if not definition.actions:
        yield violation("NO_ACTIONS", "pipeline", "a pipeline has at least one action")
    if len(definition.actions) > limits.MAX_ACTIONS or len(expand(definition.actions)) > limits.MAX_ACTIONS:
        yield violation(
            "TOO_LARGE", "pipeline", f"a pipeline has at most {limits.MAX_ACTIONS} actions, versions included"
        )
    most = definition.max_concurrency
    if most is not None and not 1 <= most <= limits.MAX_CONCURRENCY:
        yield violation("TOO_LARGE", "pipeline", f"max_concurrency is from 1 to {limits.MAX_CONCURRENCY}")
    for action in definition.actions:
        where = f"action {action.name}"
        versions = action.versions
        if versions is not None:
            if not 0 <= versions.last - versions.first < limits.MAX_VERSIONS or versions.first < 0:
                yield violation(
                    "INVALID_VERSIONS",
                    f"{where}, versions",
                    f"range is [first, last] from 0, with at most {limits.MAX_VERSIONS} versions",
                )
            if not ACTION_NAME.fullmatch(versions.param):
                yield violation("INVALID_VERSIONS", f"{where}, versions", "param is letters, digits and _")
        try:
            canonical(dict(action.arguments or {}))
            canonical(dict(action.metadata))
        except ValueRefused as refused:
            yield violation("INVALID_DOCUMENT", f"{where}, args", str(refused))


def _shape(definition: PipelineDefinition) -> Iterator[Violation]:
    names = {action.name for action in definition.actions}
    names |= {name for action in definition.actions for name in version_names(action)}
    is_sound = True
    for action in definition.actions:
        for item in _dependencies(action, names):
            is_sound = False
            yield item
    actions = expand(definition.actions)
    cycle = cycle_in(actions)
    if cycle:
        is_sound = False
        yield violation(
            "CYCLE", f"action {cycle[0]}", f"the actions depend on one another: {' -> '.join(cycle[:20])}"
        )
    counts = Counter(action.name for action in actions)
    if not is_sound or len(counts) < len(actions):
        # What is upstream can't be said: names are not judged, all else is.
        for action in actions:
            yield from _clauses(action, None, names)
        return
    topology = Topology(actions)
    versions = {action.base: () for action in actions if action.base}
    for action in actions:
        yield from _clauses(action, topology, names | versions.keys())
        yield from _merge(action, topology)


def _dependencies(action: Action, names: set[str]) -> Iterator[Violation]:
    where = f"action {action.name}, dependencies"
    if len(set(action.dependencies)) < len(action.dependencies):
        yield violation("DUPLICATE_DEPENDENCY", where, f"'{action.name}' names a dependency twice")
    if len(action.dependencies) > limits.MAX_DEPENDENCIES:
        yield violation("TOO_LARGE", where, f"an action has at most {limits.MAX_DEPENDENCIES} dependencies")
    for name in action.dependencies[: limits.MAX_DEPENDENCIES]:
        if name == action.name:
            yield violation("SELF_DEPENDENCY", where, f"'{name}' depends on itself")
        elif name != SOURCE and name not in names:
            yield violation(
                "UNKNOWN_ACTION", where, f"there is no action '{name[:60]}'{suggestion(name, names)}"
            )


def _clauses(action: Action, topology: Topology | None, names: set[str]) -> Iterator[Violation]:
    where = f"action {action.name}"
    readable = None if topology is None else topology.upstream[action.name] | {SOURCE}
    scope = action.context_scope
    for clause, fields in (
        ("observe", scope.observe or ()),
        ("passthrough", scope.passthrough),
        ("drop", scope.drop),
    ):
        for field in fields:
            match = _FIELD.fullmatch(field)
            if match is None:
                yield violation(
                    "INVALID_FIELD",
                    f"{where}, context_scope",
                    f"{clause}: '{field[:60]}' is neither namespace.field nor namespace.*",
                )
            else:
                yield from _read(match[1], f"{where}, context_scope", action, readable, names)
    for path in references_in(dict(action.arguments or {})):
        if path[0] == "version":
            versions = action.versions
            if versions is None or path[1:] != (versions.param,):
                yield violation(
                    "UNKNOWN_ACTION",
                    f"{where}, args",
                    f"'${{{'.'.join(path)[:60]}}}' is no parameter of its versions",
                )
        else:
            yield from _read(path[0], f"{where}, args", action, readable, names)
    yield from _prompt(action, readable, names)
    yield from _guard(action, readable, names)
    yield from _reduce(action, readable, names)
    if action.granularity is Granularity.FILE and action.prompt:
        yield violation(
            "FILE_WITH_PROMPT", f"{where}, prompt", "a FILE action gets many records; a prompt is of one"
        )
    if action.granularity is Granularity.FILE and action.arguments is not None:
        yield violation(
            "FILE_WITH_ARGS", f"{where}, args", "a FILE action gets its records; it has no args of its own"
        )


def _read(
    name: str, where: str, action: Action, readable: frozenset[str] | None, names: set[str]
) -> Iterator[Violation]:
    if readable is None or name in readable:
        return
    if name == action.name:
        yield violation("NOT_UPSTREAM", where, f"'{name}' reads its own output, which is not there yet")
    elif name in names:
        versions = sorted(item for item in readable if re.fullmatch(re.escape(name) + r"_\d+", item))
        if versions:
            yield violation("NOT_UPSTREAM", where, f"'{name}' has versions; name one, as in '{versions[0]}'")
        else:
            yield violation(
                "NOT_UPSTREAM",
                where,
                f"'{name}' is not upstream of '{action.name}' through dependencies: it runs beside or after it; add "
                f"'{name}' to the dependencies of '{action.name}', or depend on an action below '{name}'",
            )
    else:
        known = readable | names
        yield violation("UNKNOWN_NAME", where, f"there is no action '{name[:60]}'{suggestion(name, known)}")


def _prompt(action: Action, readable: frozenset[str] | None, names: set[str]) -> Iterator[Violation]:
    if not action.prompt:
        return
    where = f"action {action.name}, prompt"
    try:
        prompt = Prompt(action.prompt)
    except PromptInvalid as invalid:
        yield violation("PROMPT_INVALID", where, invalid.message)
        return
    for name in sorted(prompt.namespaces):
        if name == "version" and action.versions is not None:
            continue
        yield from _read(name, where, action, readable, names)


def _guard(action: Action, readable: frozenset[str] | None, names: set[str]) -> Iterator[Violation]:
    if action.guard is None or not action.guard.condition:
        return
    where = f"action {action.name}, guard"
    # Declared: all that is known, so that a name that is not upstream is told so and not called unknown.
    declared = {name for name in names | {SOURCE} if name not in RESERVED or name == SOURCE}
    declared = {name for name in declared if ACTION_NAME.fullmatch(name)}
    try:
        condition = compile_guard(action.guard.condition, declared)
    except ExpressionInvalid as invalid:
        yield violation("GUARD_INVALID", where, f"'{action.guard.condition[:120]}': {invalid}")
        return
    for name in sorted(condition.variables):
        yield from _read(name, where, action, readable, names)


def _reduce(action: Action, readable: frozenset[str] | None, names: set[str]) -> Iterator[Violation]:
    if action.reduce is None:
        return
    where = f"action {action.name}, reduce"
    if action.granularity is Granularity.FILE:
        yield violation("REDUCE_NOT_APPLICABLE", where, "a FILE action gets all records already")
    if action.on_multiple is not None:
        yield violation(
            "REDUCE_NOT_APPLICABLE", where, "on_multiple is for merges, reduce takes records singly"
        )
    if action.prompt or action.arguments is not None:
        yield violation("REDUCE_NOT_APPLICABLE", where, "a group has no args or prompt of one record")
    if action.reduce.is_by_root:
        return
    match = _FIELD.fullmatch(action.reduce.by)
    if match is None or match[2] == "*":
        yield violation(
            "INVALID_FIELD", where, f"'{action.reduce.by[:60]}' is neither root nor namespace.field"
        )
    else:
        yield from _read(match[1], where, action, readable, names)


def _merge(action: Action, topology: Topology) -> Iterator[Violation]:
    if (
        action.on_multiple is not None
        and len(topology.dependencies[action.name]) < 2
        and action.reduce is None
    ):
        yield violation(
            "ON_MULTIPLE_NOT_APPLICABLE",
            f"action {action.name}, on_multiple",
            "it says how branches are merged, and there is one dependency only",
        )

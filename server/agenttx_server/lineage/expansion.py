"""Versions made into actions: ``x`` with ``range: [1, 3]`` is x_1, x_2, x_3, and who depends on x depends on all."""

from __future__ import annotations

from dataclasses import replace

from agenttx_server.lineage.definition import Action, VersionMode
from agenttx_server.lineage.limits import MAX_VERSIONS

__all__ = ["expand", "version_names"]


def version_names(action: Action) -> tuple[str, ...]:
    """The names of an action's versions; its own if it has none or too many."""
    versions = action.versions
    if versions is None or not 0 <= versions.last - versions.first < MAX_VERSIONS:
        return (action.name,)
    return tuple(f"{action.name}_{number}" for number in range(versions.first, versions.last + 1))


def expand(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the actions that run, in the order of their writing."""
    names = {action.name: version_names(action) for action in actions}
    expanded: list[Action] = []
    for action in actions:
        dependencies = tuple(
            dict.fromkeys(name for named in action.dependencies for name in names.get(named, (named,)))
        )
        versions = action.versions
        if versions is None:
            expanded.append(replace(action, dependencies=dependencies))
            continue
        before = ""
        for index, name in enumerate(names[action.name]):
            expanded.append(
                replace(
                    action,
                    name=name,
                    dependencies=dependencies,
                    base=action.name,
                    version=versions.first + index,
                    after=before if versions.mode is VersionMode.SEQUENTIAL else "",
                )
            )
            before = name
    return tuple(expanded)

"""Tools of installed distributions: the entry-point group ``agenttx.tools``.

    [project.entry-points."agenttx.tools"]
    weather = "weather_tools:TOOLS"

Nothing of it is imported, let alone served, unless a setting names it: an installed package must not
give agents new powers by being installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata

from agenttx_server.tools.loading import ToolLoadError, load_object
from agenttx_server.tools.tool_sources import ToolSource

__all__ = ["ALL", "GROUP", "installed_names", "load_entry_points"]

GROUP = "agenttx.tools"
# As a setting: every entry point of the group.
ALL = "all"

_RUNS_OF_SEPARATORS = re.compile(r"[-_.]+")


def installed_names() -> list[str]:
    """Return the entry points that could be served, each with its distribution, in order."""
    return [_shown(found) for found in _installed()]


def load_entry_points(wanted: Sequence[str]) -> list[ToolSource]:
    """Import and return the tools of the entry points that are asked for.

    Args:
        wanted: names of entry points or of distributions, or ``all``.

    Raises:
        ToolLoadError: a name that nothing installed has, or an entry point that can't be used; one line
            names the distribution.
    """
    installed = _installed()
    chosen: dict[metadata.EntryPoint, None] = {}
    for name in wanted:
        chosen.update(dict.fromkeys(installed if name == ALL else _matching(installed, name)))
    return [
        ToolSource(_shown(found), load_object(found.value, f"--entry-point-tools: {_shown(found)}"))
        for found in chosen
    ]


def _matching(installed: Sequence[metadata.EntryPoint], name: str) -> list[metadata.EntryPoint]:
    of_distribution = [found for found in installed if _normalized(_distribution(found)) == _normalized(name)]
    if of_distribution:
        return of_distribution
    found = [found for found in installed if found.name == name]
    if len(found) > 1:
        raise ToolLoadError(
            f"--entry-point-tools {name!r}: several have that name: {', '.join(map(_shown, found))}; "
            "name the distribution instead"
        )
    if not found:
        known = ", ".join(map(_shown, installed)) or "none"
        raise ToolLoadError(
            f"--entry-point-tools {name!r}: nothing installed offers tools under it; installed: {known}"
        )
    return found


def _installed() -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=GROUP), key=lambda found: (_distribution(found), found.name))


def _distribution(found: metadata.EntryPoint) -> str:
    return found.dist.name if found.dist is not None else "?"


def _shown(found: metadata.EntryPoint) -> str:
    version = f" {found.dist.version}" if found.dist is not None else ""
    return f"{found.name!r} of {_distribution(found)}{version}"


def _normalized(name: str) -> str:
    """Return a distribution's name in the form in which names are compared (PyPA, name normalization)."""
    return _RUNS_OF_SEPARATORS.sub("-", name).lower()

"""The reducers that a server has, by name and version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from agenttx_server.graphs.reducers.arrays import ARRAY_REDUCERS
from agenttx_server.graphs.reducers.messages import MESSAGES_REDUCER
from agenttx_server.graphs.reducers.reduction import Reducer
from agenttx_server.graphs.reducers.scalars import SCALAR_REDUCERS

__all__ = ["BUILTIN_REDUCERS", "ReducerRegistry"]

BUILTIN_REDUCERS: Final[Mapping[str, Reducer]] = {
    reducer.name: reducer for reducer in (*SCALAR_REDUCERS, *ARRAY_REDUCERS, MESSAGES_REDUCER)
}


class ReducerRegistry:
    """Built-in reducers and a deployment's own."""

    def __init__(self, custom: Iterable[Reducer] = ()) -> None:
        """Take custom reducers; of one name the last given is the newest version.

        Raises:
            ValueError: a name of a built-in one, or a name and version twice.
        """
        self._by_version: dict[tuple[str, str], Reducer] = {
            (name, ""): reducer for name, reducer in BUILTIN_REDUCERS.items()
        }
        self._newest: dict[str, Reducer] = dict(BUILTIN_REDUCERS)
        for reducer in custom:
            if reducer.name in BUILTIN_REDUCERS:
                raise ValueError(f"reducer {reducer.name} is built in; give yours another name")
            if not reducer.name or not reducer.version:
                raise ValueError("a reducer has a name and a version")
            if (reducer.name, reducer.version) in self._by_version:
                raise ValueError(f"reducer {reducer.name} {reducer.version} is given twice")
            self._by_version[reducer.name, reducer.version] = reducer
            self._newest[reducer.name] = reducer

    def find(self, name: str, version: str = "") -> Reducer | None:
        """The reducer of this name and version; without a version the newest; None if there is none."""
        return self._by_version.get((name, version)) if version else self._newest.get(name)

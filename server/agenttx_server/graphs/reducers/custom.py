"""Reducers of a deployment: pure Python functions in the server, by name and version.

    from agenttx_server.graphs.reducers import reducer

    @reducer("longest", version="1")
    def longest(current, update):
        return update if len(update) > len(current) else current

    agenttx serve --reducers my_package.my_module:longest

The first write of a channel is taken as it is. A changed function needs a new version: graphs are
pinned to the one that they were registered with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, ValueRefused, canonical, load
from agenttx_server.graphs.channel_types import CHANNEL_TYPES
from agenttx_server.graphs.reducers.reduction import Reduced, ReducerFailed, WriteContext

__all__ = ["CustomReducer", "reducer"]

Function = Callable[[JsonValue, JsonValue], JsonValue]


@dataclass(frozen=True, slots=True)
class CustomReducer:
    """A named function; called with copies, so that whatever it does to them changes nothing else."""

    name: str
    version: str
    function: Function
    types: frozenset[str] = CHANNEL_TYPES
    one_writer: bool = field(default=False, init=False)
    ephemeral: bool = field(default=False, init=False)
    untracked: bool = field(default=False, init=False)

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        if current is MISSING:
            return Reduced(update, None, update)
        try:
            result = self.function(copy.deepcopy(current), copy.deepcopy(update))
        except Exception as error:
            raise ReducerFailed(f"{type(error).__name__}: {error}"[:500]) from error
        try:
            # What comes back belongs to the state from here on, whatever the function keeps of it.
            return Reduced(load(canonical(result)), None, update)
        except ValueRefused as error:
            raise ReducerFailed(f"gave what is no JSON value: {error}") from None


def reducer(name: str, *, version: str) -> Callable[[Function], CustomReducer]:
    """Make a function a reducer."""

    def make(function: Function) -> CustomReducer:
        return CustomReducer(name, version, function)

    return make

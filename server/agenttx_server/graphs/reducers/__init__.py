"""How an update is combined with what a channel holds. Pure functions, by name and version."""

from agenttx_server.graphs.reducers.custom import CustomReducer, reducer
from agenttx_server.graphs.reducers.loading import ReducerLoadError, load_reducers
from agenttx_server.graphs.reducers.reduction import Mismatch, Reduced, Reducer, ReducerFailed
from agenttx_server.graphs.reducers.registry import BUILTIN_REDUCERS, ReducerRegistry

__all__ = [
    "BUILTIN_REDUCERS",
    "CustomReducer",
    "Mismatch",
    "Reduced",
    "Reducer",
    "ReducerFailed",
    "ReducerLoadError",
    "ReducerRegistry",
    "load_reducers",
    "reducer",
]

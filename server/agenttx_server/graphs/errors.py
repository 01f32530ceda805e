"""What goes wrong in a graph when it runs. Each is a value with a reason of error_reason.proto.

The tree::

    GraphError
    ├── DefinitionRefused     text or message that is no graph definition
    ├── InvalidNodeResult     INVALID_NODE_RESULT: what a node answered is no result
    ├── FoldError             UNKNOWN_CHANNEL, TYPE_MISMATCH, CONCURRENT_UPDATE, REDUCER_FAILED, STATE_TOO_LARGE
    └── RouteError            MISSING_ROUTE, UNKNOWN_TARGET, UNDECLARED_COMMAND, NO_PARENT_GRAPH, STARVED_JOIN

A fold or route error never starts a rollback: the run has failed, everything is kept, and the way on
is a retry, a discarded result or an edit.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DefinitionRefused", "FoldError", "GraphError", "InvalidNodeResult", "RouteError"]


class GraphError(Exception):
    """``reason`` names an ErrorReason, ``metadata`` are its strings, ``message`` is one line."""

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})


class DefinitionRefused(GraphError):
    """Not even a definition: ``where`` is the place in it, as in ``nodes[2].name``."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__("INVALID_REQUEST", f"{where}: {message}" if where else message)
        self.where = where


class InvalidNodeResult(GraphError):
    """A node answered something that is neither update, command, list of those, nor interrupt."""

    def __init__(self, message: str) -> None:
        super().__init__("INVALID_NODE_RESULT", message)


class FoldError(GraphError):
    """The results of a superstep can't be folded; the state is as it was."""


class RouteError(GraphError):
    """What comes next can't be said; nothing was written."""

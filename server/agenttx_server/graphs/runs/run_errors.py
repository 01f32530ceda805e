"""What an exception means for a run: it passes, and the run goes on by itself; or it is why the run has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agenttx_server.engine.errors import EngineError, NotFound, PreconditionFailed, Unavailable
from agenttx_server.engine.ports import ExtraRowsRefused, StaleRevision, StoreUnavailable, ToolFailure
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.runs.records import RunError, RunRecord
from agenttx_server.graphs.runs.requests import busy
from agenttx_server.graphs.runs.step_port import Unsettled

__all__ = ["busy_where_moved", "error_of", "is_draining", "is_fault", "passes"]

_MOST_TEXT = 240
_MOVED = ("OWNED_BY_RUN", "TRANSACTION_ENDED")


def passes(error: Exception) -> bool:
    """Whether what is durable may be found otherwise, or found at all, a little later."""
    return isinstance(error, StoreUnavailable | StaleRevision | ExtraRowsRefused | Unavailable)


def is_draining(error: Exception) -> bool:
    """Whether this server takes nothing up any more: another one goes on."""
    return isinstance(error, Unavailable) and error.reason == "DRAINING"


def is_fault(error: Exception) -> bool:
    """Whether an error that doesn't pass is the server's own, and not what a graph, a tool or another request made of a run."""
    return not isinstance(error, GraphError | EngineError | Unsettled | ToolFailure)


@contextmanager
def busy_where_moved(thread_id: str) -> Iterator[None]:
    """Have a request about a thread refused as THREAD_BUSY where another one moved its transaction, or ended it."""
    try:
        yield
    except (StaleRevision, ExtraRowsRefused, NotFound) as moved:
        raise busy(thread_id, "") from moved
    except PreconditionFailed as refused:
        if refused.reason not in _MOVED:
            raise
        raise busy(thread_id, "") from refused


def error_of(error: Exception, run: RunRecord) -> RunError:
    """Why the run has failed. Of a fault of the server it names the kind alone: the log has the rest."""
    metadata = {"run_id": run.run_id}
    match error:
        case GraphError() | EngineError():
            reason, message = error.reason, error.message
            metadata |= error.metadata
        case Unsettled():
            reason, message = error.reason, str(error)
        case ToolFailure():
            reason, message = "NODE_FAILED", " ".join(error.message.split())
        case _:
            reason, message = "INTERNAL_ERROR", f"a fault of the server ({type(error).__name__})"
            metadata["error_id"] = run.run_id
    return RunError(
        reason,
        message[:_MOST_TEXT],
        node=metadata.get("node", ""),
        task_id=metadata.get("task_id", ""),
        metadata=tuple(sorted(metadata.items())),
    )

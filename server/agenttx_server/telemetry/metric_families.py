"""Every metric there is: its name, kind, labels and meaning. The documentation's table is this list.

Names and labels are what dashboards and alert rules are written against: a change here is told in the changelog.
Labels are bounded: closed lists, names of the server's own methods, and tools and channels through
:class:`.bounded_labels.BoundedLabels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ALL_FAMILIES", "Family", "Kind"]


class Kind(StrEnum):
    """How a metric is to be read."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric under one name. Counters' names end in ``_total``; units are in the names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.COUNTER, help_, labels)


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.GAUGE, help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.HISTOGRAM, help_, labels)


# --- the server ------------------------------------------------------------------------------
BUILD_INFO = _gauge("agenttx_build_info", "Always 1; the version is its label.", "version")
SERVING = _gauge("agenttx_serving", "1 while calls are served, as the health service says; 0 while not.")
LOOP_LAG = _histogram(
    "agenttx_event_loop_lag_seconds",
    "How late the event loop woke a timer that was due: what every call waits beside its own work.",
)
QUEUE_DEPTH = _gauge(
    "agenttx_queue_depth",
    "What waits: write sets for a commit, reads for a reader thread, calls for a worker, blocking tools for a thread.",
    "queue",
)

# --- calls -----------------------------------------------------------------------------------
RPC_DURATION = _histogram(
    "agenttx_rpc_duration_seconds",
    "Calls by method and status code, and how long they took; a stream counts when it ends.",
    "method",
    "code",
)
RPCS_ACTIVE = _gauge("agenttx_rpcs_active", "Calls being served, open streams among them.", "method")
CALLS_IN_CLASS = _gauge(
    "agenttx_calls_in_class", "Calls being served of each class that has a bound.", "call_class"
)
CALLS_IN_CLASS_LIMIT = _gauge(
    "agenttx_calls_in_class_limit", "As many calls of the class as are served at once.", "call_class"
)

ALL_FAMILIES: tuple[Family, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Family)
)

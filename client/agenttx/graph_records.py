"""What the server tells of graphs, as records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

__all__ = [
    "BrokenThread",
    "GraphChange",
    "GraphChangeKind",
    "GraphDifference",
    "GraphExportFormat",
    "GraphFinding",
    "GraphValidation",
    "GraphVersion",
    "RegisteredGraph",
]


class GraphExportFormat(StrEnum):
    """How a graph is written."""

    UNSPECIFIED = "UNSPECIFIED"
    JSON = "JSON"
    MERMAID = "MERMAID"
    DOT = "DOT"


class GraphChangeKind(StrEnum):
    """How a part of a graph differs."""

    UNSPECIFIED = "UNSPECIFIED"
    ADDED = "ADDED"
    REMOVED = "REMOVED"
    CHANGED = "CHANGED"


@dataclass(frozen=True, slots=True)
class GraphFinding:
    """One thing that the compiler found.

    Attributes:
        code: Its name, such as ROUTE_TARGET_MISSING.
        where: Where: `node a`, `edge a -> b`, `channel log`, `graph`.
        message: One sentence that names what is wrong.
        is_error: Whether the graph is refused for it.
    """

    code: str
    where: str
    message: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class GraphValidation:
    """What the compiler makes of a graph: whether it is sound, all findings, and the version it would have."""

    valid: bool
    findings: tuple[GraphFinding, ...]
    version: str


@dataclass(frozen=True, slots=True)
class GraphVersion:
    """A registered version of a graph.

    Attributes:
        name: The graph's name.
        version: `v` and 64 hexadecimal digits.
        description: What it is for.
        nodes: How many nodes it has.
        channels: How many channels it has.
        registered_at: When it was registered first.
    """

    name: str
    version: str
    description: str
    nodes: int
    channels: int
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class RegisteredGraph:
    """A registered version, with what the compiler warned of.

    Attributes:
        graph: The version.
        findings: Warnings.
        existed: Whether it was registered before.
    """

    graph: GraphVersion
    findings: tuple[GraphFinding, ...]
    existed: bool


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One difference between two versions.

    Attributes:
        kind: How it differs.
        what: `node a`, `channel log`, `edge a -> b`, `join a, b -> c`, `conditional a`, `policy`.
        fields: The fields that differ, where it changed.
        reason: Why work pending under the first version may not go on under the second; empty if it may.
    """

    kind: GraphChangeKind
    what: str
    fields: tuple[str, ...]
    reason: str

    @property
    def breaking(self) -> bool:
        """Whether pending work may not go on."""
        return bool(self.reason)


@dataclass(frozen=True, slots=True)
class BrokenThread:
    """A thread that could not go on under another version of its graph.

    Attributes:
        thread_id: The thread.
        pending_nodes: The nodes that are pending on it and are gone.
        reason: Why it could not go on.
    """

    thread_id: str
    pending_nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """What differs between two versions.

    Attributes:
        from_version: The one compared from.
        to_version: The one compared with; empty for a definition that was sent.
        changes: The differences.
        breaking_nodes: Nodes that can't be gone on with where they are pending.
        broken_threads: Threads with an open transaction that could not go on, of up to 100 that were looked at.
        next_threads_token: Not empty: there are further threads, which `diff(..., threads_token=)` looks at.
    """

    from_version: str
    to_version: str
    changes: tuple[GraphChange, ...]
    breaking_nodes: tuple[str, ...]
    broken_threads: tuple[BrokenThread, ...] = ()
    next_threads_token: str = ""

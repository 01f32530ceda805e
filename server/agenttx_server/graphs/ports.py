"""What graphs need kept: the registered versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import MicrosecondsUtc, RecordedResponse

__all__ = ["GraphPage", "GraphRecord", "GraphStore", "RegisteredGraph"]


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A registered version.

    Attributes:
        name: the graph's.
        version: the whole one.
        description: the graph's.
        node_count: how many nodes it has.
        channel_count: how many channels it has.
        registered_at: when it was registered first.
        sequence: the server-wide number of its registration: of one name the highest is the newest. 0 before
            it is kept.
        definition: as canonical JSON, with findings.
    """

    name: str
    version: str
    description: str
    node_count: int
    channel_count: int
    registered_at: MicrosecondsUtc
    definition: str
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class RegisteredGraph:
    """What is kept after a registration, and whether it was before."""

    record: GraphRecord
    existed: bool


@dataclass(frozen=True, slots=True)
class GraphPage:
    """Some versions; ``next_cursor`` is empty on the last page. Definitions are left out of lists."""

    graphs: Sequence[GraphRecord]
    next_cursor: str


class GraphStore(Protocol):
    """Durable memory of graphs. Every method may raise StoreUnavailable."""

    async def register_graph(
        self, record: GraphRecord, response: RecordedResponse | None = None
    ) -> RegisteredGraph:
        """Keep a version, unless it is there; record the answer with it, in one commit.

        ``response``, a JSON object, is recorded with ``existed`` added as it turned out.

        Raises:
            DuplicateRequestId: an answer is recorded under this request_id. Nothing was written.
        """

    async def find_graph(self, name: str, version: str) -> Sequence[GraphRecord]:
        """The versions of a graph that begin so, at most two, with definitions; the newest for an empty version."""

    async def list_graphs(self, name: str, cursor: str, limit: int, space: str = "") -> GraphPage:
        """The versions of a graph, the newest first; or, for an empty name, the newest of each of a space, by name.

        Names of a space begin with it; in the empty one no name begins with ``@``.

        Raises:
            ValueError: the cursor was not given out by this listing.
        """

    async def find_response(self, scope: str, request_id: str) -> RecordedResponse | None:
        """The answer recorded under a request_id."""

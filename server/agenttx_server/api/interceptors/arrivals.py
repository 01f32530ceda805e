"""How many calls have come to the server that it has not come to.

gRPC takes calls off its connections on threads of its own and hands them to the event loop one by one, each a few turns of
the loop after the one before. Where there are more calls than that, they wait in gRPC: of several hundred agents most do,
while the server seems to have little in hand and its loop is in time. gRPC counts calls that came (channelz); what the chain
has seen of them it counts itself.
"""

from __future__ import annotations

import json
from typing import Any

import structlog

__all__ = ["Arrivals"]


class Arrivals:
    """Counts calls since the start. ``accepted`` are those that were handed to the chain, which counts them here."""

    def __init__(self) -> None:
        self.accepted = 0
        self._server_id: int | None = None
        self._known = _servers()

    def begin(self) -> None:
        """The server has been made since this was; nothing else was meanwhile."""
        made = _servers() - self._known
        if len(made) == 1:
            (self._server_id,) = made
        else:
            structlog.get_logger().warning("calls that wait in gRPC are not counted")

    def came(self) -> int:
        """Return how many calls have come, those that were accepted among them."""
        if self._server_id is None:
            return self.accepted
        found = json.loads(_channelz().channelz_get_server(self._server_id))
        return int(found["server"]["data"].get("callsStarted", 0))


def _channelz() -> Any:
    # What the package grpcio-channelz serves; that one turns it into messages first, for ten times the time.
    from grpc._cython import cygrpc  # type: ignore[attr-defined]

    return cygrpc


def _servers() -> frozenset[int]:
    try:
        found = json.loads(_channelz().channelz_get_servers(0))
        return frozenset(int(server["ref"]["serverId"]) for server in found.get("server", ()))
    except (ImportError, AttributeError, KeyError, ValueError):  # a release of gRPC that does it otherwise
        return frozenset()

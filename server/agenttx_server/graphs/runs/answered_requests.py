"""Requests that were answered: sent again they are answered by what became of them."""

from __future__ import annotations

from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import RequestRecord
from agenttx_server.graphs.runs.requests import RunRefused

__all__ = ["answered", "key_of"]


def key_of(request: RequestRecord | None) -> tuple[str, str] | None:
    """What the same request, sent twice at once, waits by; None for one that has no id."""
    return None if request is None else (request.principal, request.request_id)


async def answered(store: RunStore, request: RequestRecord | None) -> RequestRecord | None:
    """Return how a request was answered; None if it wasn't. Raises RunRefused: REQUEST_ID_REUSED."""
    if request is None:
        return None
    known = await store.find_request(request.principal, request.request_id)
    if known is None:
        return None
    if (known.method, known.fingerprint) != (request.method, request.fingerprint):
        raise RunRefused(
            "REQUEST_ID_REUSED",
            "the request_id was used for another request; use a new one for a new request",
            {
                "request_id": request.request_id,
                "recorded": known.fingerprint[:12],
                "received": request.fingerprint[:12],
            },
        )
    return known

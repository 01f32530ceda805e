"""The agent's tools: plain functions over the service, each with what takes it back.

The pattern of every booking: register the undo, then act, both under the call's idempotency key. The service does
nothing twice under one key, and cancelling what was never booked does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from agenttx.worker import AnyTool, BlockingToolCallContext, ToolFailure, UndoContext, tool
from trip_desk.service_client import ServiceRefused, request

Tell = Callable[[str], None]


def travel_tools(service: str, tell: Tell) -> list[AnyTool]:
    """Return the tools for a service at an address; ``tell`` is told of what is taken back."""

    @tool("travel.find_traveller", effects="read_only")
    def find_traveller(name: str, city: str | None = None) -> dict[str, Any]:
        """Find a traveller by name, and by the city they live in."""
        found = request("GET", f"{service}/travellers?{urlencode({'name': name})}")
        matching = [one for one in found if city in (None, one["city"])]
        if not matching:
            raise ToolFailure(
                "missing_record", f"No traveller {name} lives in {city}. Check the spelling.", ("name",)
            )
        return {"traveller_id": matching[0]["traveller_id"], "name": name, "city": matching[0]["city"]}

    def booking(kind: str) -> AnyTool:
        @tool(f"travel.book_{kind}", effects="compensatable", description=f"Book a {kind}.")
        def book(ctx: BlockingToolCallContext, traveller_id: str, cents: int) -> dict[str, Any]:
            ctx.register_undo(f"travel.cancel_{kind}", key=ctx.idempotency_key)
            wanted = {"kind": kind, "traveller_id": traveller_id, "cents": cents}
            return asked("PUT", f"{service}/bookings/{ctx.idempotency_key}", wanted)

        @book.undo(f"travel.cancel_{kind}")
        def cancel(ctx: UndoContext, key: str) -> None:
            try:
                request("DELETE", f"{service}/bookings/{key}")
            except ServiceRefused as refusal:
                tell(f"cancelling the {kind}: {refusal}; the server tries again")
                raise
            tell(f"cancelled the {kind} of step {ctx.step_id}")

        return book

    @tool("travel.pay", effects="idempotent")
    def pay(ctx: BlockingToolCallContext, traveller_id: str, cents: int) -> dict[str, Any]:
        """Charge the card that a traveller has on file."""
        return asked(
            "PUT", f"{service}/payments/{ctx.idempotency_key}", {"traveller_id": traveller_id, "cents": cents}
        )

    return [find_traveller, booking("flight"), booking("hotel"), booking("car"), pay]


def asked(method: str, url: str, body: Any) -> dict[str, Any]:
    """Ask the service; what it refuses is a failure whose key says which argument was at fault."""
    try:
        return dict(request(method, url, body))
    except ServiceRefused as refusal:
        if refusal.status >= 500:
            raise ToolFailure("http_server_error", str(refusal)) from None
        advice = "Pick the right traveller." if refusal.field == "traveller_id" else "Change the request."
        keys = (refusal.field,) if refusal.field else ()
        raise ToolFailure("invalid_value", f"{refusal.error}. {advice}", keys) from None

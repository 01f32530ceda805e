"""An agent that runs its own tools, as its framework's loop does, and reports them: a trip with two hotels.

The second hotel is full. What was booked until then has to be cancelled, newest first, and only the agent can do
that: the server says what, the agent does it and says so, and then goes on in another city.

    agenttx serve &
    python examples/reported_trip.py
"""

from __future__ import annotations

import sys
from typing import Any

import agenttx

ROOMS = {"Oslo": 1, "Bergen": 0, "Trondheim": 1}  # what the hotels have, outside of any transaction


def book_hotel(city: str) -> dict[str, Any]:
    """Book a room; the tool of the agent's own framework."""
    if not ROOMS[city]:
        raise ValueError(f"no rooms in city '{city}'")
    ROOMS[city] -= 1
    return {"ref": f"{city}-1", "city": city}


def cancel_hotel(ref: str) -> None:
    """Cancel a booking; a second time it changes nothing."""
    ROOMS[ref.partition("-")[0]] = 1


def book(tx: agenttx.Transaction, city: str) -> agenttx.StepOutcome:
    """Run the tool and report what came of it."""
    try:
        booking = book_hotel(city)
    except ValueError as error:
        return tx.report("hotel.book", {"city": city}, error=error, effects="compensatable")
    return tx.report(
        "hotel.book",
        {"city": city},
        output=booking,
        effects="compensatable",
        undo=[agenttx.undo("hotel.cancel", ref=booking["ref"])],
    )


def main(address: str | None = None) -> None:
    """Make the trip."""
    with agenttx.Client(address) as client, client.transaction(agent_id="traveller") as tx:
        book(tx, "Oslo")
        try:
            book(tx, "Bergen")
        except agenttx.StepRolledBack as failure:
            print(failure.outcome.hint)
            for undo in failure.outcome.pending_undo:
                print(f"to undo: {undo.action} {undo.arguments}")
            tx.perform_undo({"hotel.cancel": cancel_hotel})
        print(f"go on with step {tx.next_step_id}, rooms {ROOMS}")
        book(tx, "Trondheim")
    print(f"committed, rooms {ROOMS}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

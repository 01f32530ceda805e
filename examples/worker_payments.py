"""Your own functions under transaction protection: a payments service, its worker, and an agent that is put right.

    agenttx serve &
    python examples/worker_payments.py worker &
    python examples/worker_payments.py agent

The agent charges a customer, then ships to an address that doesn't exist. The server takes the charge
back through the worker before the agent is told what to fix.
"""

from __future__ import annotations

import sys

import agenttx
from agenttx.worker import ToolCallContext, ToolFailure, Worker, tool

ADDRESS = "127.0.0.1:50051"

CHARGES: dict[str, int] = {}  # a payments service, for the sake of the example


@tool("payments.charge", effects="compensatable")
async def charge(ctx: ToolCallContext, amount_cents: int, customer_id: str) -> dict[str, str]:
    """Charge a customer's card."""
    await ctx.register_undo("payments.refund", key=ctx.idempotency_key)
    CHARGES[ctx.idempotency_key] = amount_cents
    print(f"charged {customer_id} {amount_cents} cents", flush=True)
    return {"charge_id": ctx.idempotency_key}


@charge.undo("payments.refund")
async def refund(key: str) -> None:
    """Give the money back; nothing happens if that was done before."""
    if amount := CHARGES.pop(key, None):
        print(f"refunded {amount} cents", flush=True)


@tool("shipping.book", effects="transactional")
def book(ctx: object, city: str) -> dict[str, str]:
    """Book a shipment; a plain function runs on a thread."""
    if city == "Atlantis":
        raise ToolFailure(
            "invalid_value", "nothing is shipped to Atlantis. Ask for the address again", ("city",)
        )
    return {"shipment": f"to {city}"}


def agent(address: str) -> None:
    """Play an agent's part."""
    with agenttx.Client(address) as client, client.transaction(agent_id="shop") as transaction:
        for city in ("Atlantis", "Lisbon"):
            transaction.step("payments.charge", amount_cents=1999, customer_id="c-1")
            try:
                transaction.step("shipping.book", city=city)
            except agenttx.StepRolledBack as failed:
                print(failed.outcome.hint, flush=True)
                transaction.rewind(1)
        print("committed", flush=True)


def main() -> None:
    """Be the worker or the agent."""
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    address = sys.argv[2] if len(sys.argv) > 2 else ADDRESS
    if part == "agent":
        agent(address)
    elif part == "worker":
        print(f"hosting {charge.name} and {book.name} at {address}; Ctrl-C ends it", flush=True)
        Worker(address, tools=[charge, book]).run()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

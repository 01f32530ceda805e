"""A workflow that heals: a late failure undoes what an early, wrong choice caused, and the run finishes right.

    agenttx serve &
    python examples/self_healing_order.py

```mermaid
flowchart LR
    START([START]) --> choose --> reserve --> place --> END([END])
    place -. "customer 'ada-lovelace' is unknown" .-> choose
```

`choose` guesses a customer's key and guesses wrong, `reserve` reserves a seat, and only `place` finds out. The server cleans
the error to one line, follows the key in it to the superstep that wrote it, undoes all since (the reserved seat too), and
tells `choose` what to keep to. No model is asked how to recover.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from typing import Any

import agenttx
from agenttx import START, BlockingNodeContext, GraphBuilder, RunOutcome, ToolCall
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.worker import ToolCallContext, ToolFailure, UndoContext, tool

CUSTOMERS = {"c-17": "Ada Lovelace"}
SEATS: dict[str, str] = {}
"""What the reservation service has: seats by the keys of their reservations."""
LOG: list[str] = []


@tool("order.reserve", effects="compensatable")
async def reserve(ctx: ToolCallContext, seat: str) -> dict[str, str]:
    """Reserve a seat."""
    await ctx.register_undo("order.release", key=ctx.idempotency_key)
    SEATS[ctx.idempotency_key] = seat
    LOG.append(f"reserved {seat}")
    return {"seat": seat}


@reserve.undo("order.release")
def release(ctx: UndoContext, key: str) -> None:
    """Give a seat back."""
    LOG.append(f"released {SEATS.pop(key)}")


@tool("order.place", effects="transactional")
async def place(ctx: ToolCallContext, customer: str, seat: str) -> dict[str, str]:
    """Place the order."""
    if customer not in CUSTOMERS:
        raise ToolFailure(
            "foreign_key_violation", f"customer '{customer}' is unknown; keys look like c-17", ("customer",)
        )
    await ctx.stage_effect("mail", {"to": CUSTOMERS[customer], "text": f"You have seat {seat}."})
    LOG.append(f"placed the order of {customer}")
    return {"order": f"{customer}/{seat}"}


def choose(state: Mapping[str, Any], ctx: BlockingNodeContext) -> dict[str, str]:
    """Choose the customer's key; where a model would be asked, with the constraints in its prompt."""
    knows_better = any("customer" in line for line in ctx.constraints)
    chosen = "c-17" if knows_better else state["name"].lower().replace(" ", "-")
    LOG.append(f"chose {chosen}")
    return {"customer": chosen}


GRAPH = (
    GraphBuilder("self-healing-order", "Books a seat for a customer")
    .policy(on_failure="ROLLBACK")
    .channel("name")
    .channel("customer")
    .channel("seat")
    .channel("order")
    .node("choose", choose)
    .node("reserve", ToolCall("order.reserve", {"seat": "12A"}, output={"seat": "${result.seat}"}))
    .node(
        "place",
        ToolCall(
            "order.place",
            {"customer": "${state.customer}", "seat": "${state.seat}"},
            output={"order": "${result.order}"},
        ),
    )
    .edge(START, "choose")
    .edge("choose", "reserve")
    .edge("reserve", "place")
)


def main(address: str = "127.0.0.1:50051") -> RunOutcome:
    """Run the workflow; return how it ended."""
    with InProcessWorker([reserve, place], address), agenttx.Client(address) as client:
        graph = client.graphs.register(GRAPH)
        outcome = graph.run({"name": "Ada Lovelace"}, thread=f"order-{uuid.uuid4()}")
    for line in LOG:
        print(line)
    print(f"{outcome.status}: {outcome.state.get('order')}; seats taken: {sorted(SEATS.values())}")
    return outcome


if __name__ == "__main__":
    main(*sys.argv[1:])

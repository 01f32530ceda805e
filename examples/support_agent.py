"""A support agent as a graph: it finds the customer's order, asks a person before it refunds, and tells the customer.

    agenttx serve &
    python examples/support_agent.py                  # asks you
    python examples/support_agent.py 127.0.0.1:50051 yes

```mermaid
flowchart LR
    START([START]) --> look
    look -- refund --> pay -. goto .-> answer --> END([END])
    look -- answer --> answer
```

Every call of a tool is a step: a run that waits for the person's answer for days, or whose process is killed in the middle,
refunds once. Here the process that asked is gone by the time the answer comes, and the order is not quoted again.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from typing import Any

import agenttx
from agenttx import END, START, BlockingNodeContext, Command, GraphBuilder, RunOutcome
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.worker import ToolCallContext, UndoContext, tool

ORDERS: dict[str, dict[str, Any]] = {
    "ada": {"order": "o-7", "cents": 4200, "late_days": 9},
    "bob": {"order": "o-8", "cents": 1900, "late_days": 0},
}
REFUNDS: dict[str, int] = {}
"""What the payment service has: refunds by their keys."""

LOG: list[str] = []
"""What the tools did, in order."""


@tool("support.find_order", effects="read_only")
def find_order(customer: str) -> dict[str, Any]:
    """Find a customer's last order."""
    LOG.append(f"found the order of {customer}")
    return ORDERS[customer]


@tool("support.quote", effects="read_only")
def quote(order: str, cents: int) -> int:
    """Say what the payment service would pay back, without its fee."""
    LOG.append(f"quoted {order}")
    return cents - 100


@tool("support.refund", effects="compensatable")
async def refund(ctx: ToolCallContext, order: str, cents: int) -> dict[str, Any]:
    """Pay back an order."""
    await ctx.register_undo("support.take_back", key=ctx.idempotency_key)
    REFUNDS[ctx.idempotency_key] = cents
    LOG.append(f"refunded {order}: {cents}")
    return {"order": order, "refunded_cents": cents}


@refund.undo("support.take_back")
def take_back(ctx: UndoContext, key: str) -> None:
    """Take a refund back."""
    REFUNDS.pop(key, None)


@tool("support.write", effects="transactional")
async def write(ctx: ToolCallContext, customer: str, text: str) -> None:
    """Write to the customer, once the run has completed."""
    await ctx.stage_effect("mail", {"to": customer, "text": text})
    LOG.append(f"wrote to {customer}: {text}")


def look(state: Mapping[str, Any], ctx: BlockingNodeContext) -> dict[str, Any]:
    """Find the order."""
    return {"order": ctx.step("support.find_order", {"customer": state["customer"]})}


def is_late(state: Mapping[str, Any]) -> str:
    """Decide whether the order is a case for a refund; a model may do that."""
    return "refund" if state["order"]["late_days"] > 7 else "answer"


def pay(state: Mapping[str, Any], ctx: BlockingNodeContext) -> Command:
    """Ask a person, then refund."""
    order = state["order"]["order"]
    cents = ctx.step("support.quote", {"order": order, "cents": state["order"]["cents"]})
    if not ctx.interrupt({"refund": order, "cents": cents}):
        return Command(update={"log": ["refund refused"]}, goto="answer")
    paid = ctx.step("support.refund", {"order": order, "cents": cents})
    return Command(update={"log": [f"refunded {paid['refunded_cents']}"]}, goto="answer")


def answer(state: Mapping[str, Any], ctx: BlockingNodeContext) -> dict[str, Any]:
    """Tell the customer."""
    text = "; ".join(state["log"]) or "your order is on its way"
    ctx.step("support.write", {"customer": state["customer"], "text": text})
    return {"log": ["answered"]}


TOOLS = [find_order, quote, refund, write]
SUPPORT = (
    GraphBuilder("support", "Answers a customer; a person decides on refunds.")
    .channel("customer", type="string")
    .channel("order", type="object")
    .channel("log", reducer="append", default=[])
    .node("look", look, retry=3)
    .node("pay", pay, destinations=["answer"])
    .node("answer", answer)
    .edge(START, "look")
    .conditional("look", is_late, {"refund": "pay", "answer": "answer"})
    .edge("answer", END)
)


def serve(address: str, customer: str, thread: str) -> RunOutcome:
    """Answer a customer, up to what a person has to decide."""
    with InProcessWorker(TOOLS, address), agenttx.Client(address) as client:
        return client.graphs.register(SUPPORT).run({"customer": customer}, thread=thread)


def decide(address: str, thread: str, allowed: bool) -> RunOutcome:
    """Go on with what a person decided, in whichever process that is."""
    with InProcessWorker(TOOLS, address), agenttx.Client(address) as client:
        return client.graphs.register(SUPPORT).resume(thread, allowed)


def main(address: str = "127.0.0.1:50051", decision: str = "") -> list[RunOutcome]:
    """Answer two customers; ask a person about the one who gets money back. Return how both runs ended."""
    plain = serve(address, "bob", f"bob-{uuid.uuid4()}")
    thread = f"ada-{uuid.uuid4()}"
    asked = serve(address, "ada", thread)
    question = asked.interrupts[0].payload
    LOG.append(f"{asked.status}: refund {question['cents']} for {question['refund']}?")
    for line in LOG:
        print(line)
    LOG.clear()
    try:
        given = decision or input("yes or no? ")
    except EOFError:
        sys.exit(f"nobody answers here: give the decision as an argument, {sys.argv[0]} {address} yes")
    done = decide(address, thread, given.strip().lower() in ("y", "yes"))
    for line in LOG:
        print(line)
    print(f"{done.status}: {', '.join(done.state['log'])}; refunds: {list(REFUNDS.values())}")
    return [plain, done]


if __name__ == "__main__":
    main(*sys.argv[1:])

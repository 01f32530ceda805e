"""A trip is booked for the wrong person, and found out when it is to be paid: `python examples/travel_booking.py`.

The script starts a travel company's HTTP service and an AgentTx server, each a process of its own, and offers tools over the
service from a worker. The agent asks for "J. Meyer" and is given the wrong one of two. Nothing complains: the flight, the
hotel and the car are booked. Only the payment fails. Watch the server trace it to the first step and cancel the car, the
hotel and the flight, although the service refuses one cancellation at first; then the agent asks for the right person.
At the end the service's own ledger is compared with what should be left. The exit code is 0 only if it agrees.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from order_desk.server import running_server
from trip_desk.service_client import request, running_service
from trip_desk.tools import travel_tools

import agenttx
from agenttx import Step
from agenttx.integrations.in_process_worker import InProcessWorker

PRICES = {"flight": 42_000, "hotel": 31_000, "car": 9_900}


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="agenttx-travel-") as folder,
        running_service() as service,
        running_server(Path(folder)) as address,
        InProcessWorker(travel_tools(service, tell=lambda text: say(f"        ↩ {text}")), address),
        agenttx.Client(address) as client,
    ):
        say("The service is told to fail once when a hotel is cancelled.\n")
        request("POST", f"{service}/cue", {"method": "DELETE", "kind": "hotel", "status": 503})
        with client.transaction(agent_id="trips") as transaction:
            book_trip(transaction)
        say("\nCommitted. The service's ledger:\n")
        return check(request("GET", f"{service}/ledger"))


def book_trip(transaction: agenttx.Transaction) -> None:
    """Be the agent: run the next step, and after a failure go on where the server says, heeding what it says."""
    done: dict[int, agenttx.StepOutcome] = {}
    while (step := next_step(transaction, done)) is not None:
        outcome = transaction.run_step(step)
        say(f"{outcome.step_id} {'✓' if outcome.succeeded else '✗'} {step.tool:22} {shown(outcome)}")
        if outcome.succeeded:
            done[outcome.step_id] = outcome
            continue
        assert outcome.decision is not None
        path = " ← ".join(f"step {element.step_id}" for element in outcome.decision.path)
        say(f"        {outcome.decision.strategy}: the value came from there: {path}")
        say(f"        Everything since is undone, newest first. Go on at step {outcome.next_step_id}.\n")
        done = {number: kept for number, kept in done.items() if number < outcome.next_step_id}


def next_step(transaction: agenttx.Transaction, done: dict[int, agenttx.StepOutcome]) -> Step | None:
    """Return the next call; where a real agent asks a model, this one has a script."""
    number = transaction.next_step_id
    if number == 1:
        who = {"name": "J. Meyer"}
        # The model heeds the hint: it looks more closely at who is travelling.
        if any("right traveller" in constraint for constraint in transaction.constraints):
            who["city"] = "Lisbon"
        return Step("travel.find_traveller", who)
    traveller = done[1].ref("traveller_id")
    kinds = list(PRICES)
    if number <= 1 + len(kinds):
        kind = kinds[number - 2]
        return Step(f"travel.book_{kind}", {"traveller_id": traveller, "cents": PRICES[kind]})
    if number == 2 + len(kinds):
        return Step("travel.pay", {"traveller_id": traveller, "cents": sum(PRICES.values())})
    return None


def check(ledger: list[dict[str, object]]) -> int:
    """Print the ledger; return 0 if what stands is one trip, paid, and nothing else."""
    for entry in ledger:
        say(f"  {entry['what']:16} {cents(entry) / 100:>9.2f}")
    balance = sum(cents(entry) for entry in ledger)
    booked = sum(str(entry["what"]).endswith("booked") for entry in ledger)
    refunded = sum(str(entry["what"]).endswith("refunded") for entry in ledger)
    is_right = (balance, booked, refunded) == (0, 2 * len(PRICES), len(PRICES))
    say(f"  {'balance':16} {balance / 100:>9.2f}")
    say(
        "\nThe books balance: one trip, booked and paid; the wrong one is refunded."
        if is_right
        else "\nThe books are wrong."
    )
    return 0 if is_right else 1


def cents(entry: dict[str, object]) -> int:
    return int(str(entry["cents"]))


def shown(outcome: agenttx.StepOutcome) -> str:
    if not outcome.succeeded:
        return outcome.hint
    output = dict(outcome.output)
    return ", ".join(str(output[name]) for name in ("traveller_id", "city", "cents") if name in output)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

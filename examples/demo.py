"""An agent picks the wrong customer early, finds out late, and is put right: `make demo`.

The script starts a real server in a temporary folder and plays one task over gRPC: register a
customer, choose whom an order is for, write files, stage a mail, book the order, send the invoice.
The choice in step 3 is wrong, and only step 10 fails of it. Watch the server trace the failure to
step 3, undo everything since, on disk and in the outbox too, and tell the agent in one line what to
fix. The exit code is 0 only if every fact that is checked on the way holds.

Read it from `work` on; the agent is in order_desk/model.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from order_desk.facts import Facts, check_committed, check_jump, check_undone
from order_desk.model import ScriptedModel
from order_desk.narration import Narrator
from order_desk.server import ServerDidNotStart, draw_graph, running_server
from order_desk.surroundings import look_around

import agenttx

MOST_STEPS = 50  # far more than the task needs: a model that learns nothing must not run for ever


def main() -> int:
    facts, narrator = Facts(), Narrator()
    try:
        with tempfile.TemporaryDirectory(prefix="agenttx-demo-") as folder:
            play(Path(folder), facts, narrator)
    except (ServerDidNotStart, agenttx.AgentTxError, subprocess.CalledProcessError) as failure:
        narrator.failed(failure)
        return 1
    except KeyboardInterrupt:
        return 130
    narrator.facts(facts)
    return 0 if facts.all_hold else 1


def play(folder: Path, facts: Facts, narrator: Narrator) -> None:
    """Start a server, have the agent do its task in a transaction, commit, and look at the result."""
    with running_server(folder) as address, agenttx.Client(address) as client:
        narrator.opening(address, folder)
        transaction = client.transaction(agent_id="order-desk", metadata={"order": "ord_9001"}).begin()
        work(client, transaction, folder, facts, narrator)
        commit = transaction.commit()
        narrator.committed(commit)
        check_committed(facts, client, commit, look_around(client, transaction.transaction_id, folder))
        narrator.graph_follows()
        draw_graph(address, transaction.transaction_id, cause=("10", "customer_id"))


def work(
    client: agenttx.Client,
    transaction: agenttx.Transaction,
    folder: Path,
    facts: Facts,
    narrator: Narrator,
) -> None:
    """Be the agent's loop: propose a step, run it, and after a failure go on where the server says."""
    model = ScriptedModel()
    for _ in range(MOST_STEPS):
        step = model.next_step(transaction.next_step_id, transaction.constraints)
        if step is None:
            return
        before = look_around(client, transaction.transaction_id, folder)
        outcome = transaction.run_step(step)
        narrator.step(step, outcome)
        if outcome.succeeded:
            model.remember(outcome)
        else:
            after = look_around(client, transaction.transaction_id, folder)
            narrator.undone(before, after)
            check_jump(facts, outcome)
            check_undone(facts, before, after)
            model.forget_from(outcome.next_step_id)
            narrator.goes_on(outcome.next_step_id)
    raise agenttx.AgentTxError(f"the agent did not finish its task in {MOST_STEPS} steps")


if __name__ == "__main__":
    sys.exit(main())

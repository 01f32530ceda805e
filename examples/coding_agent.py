"""A coding agent breaks one file and hears of it three edits later: `python examples/coding_agent.py`.

The script starts an AgentTx server whose sandbox holds a small project, and a worker that can run its tests. The agent
(a loop of its own over function calls, with a scripted model) rewrites `money.py` without having read it, edits two more files, and only then
runs the tests. One fails, 1998 != 1999. Watch the server trace it to the edit of `money.py`: that file and the
two since are as they were, on disk, the undone calls are out of the model's conversation, and one message tells it what to
correct. The exit code is 0 only if the files are right at the end.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from coding_task.model import TASK, next_message
from coding_task.project import changed_files, lay_out
from coding_task.test_runner import test_runner
from order_desk.server import running_server

import agenttx
from agenttx.integrations.function_calling import FunctionCalls, Turn, function_names
from agenttx.integrations.in_process_worker import InProcessWorker


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="agenttx-coding-") as folder:
        sandbox = Path(folder, "sandbox")
        lay_out(sandbox)
        with (
            running_server(Path(folder)) as address,
            InProcessWorker([test_runner(sandbox)], address),
            agenttx.Client(address) as client,
            client.transaction(agent_id="coder") as transaction,
        ):
            say(f"The task: {TASK}\n")
            work(transaction, function_names(client.tools()), sandbox)
        changed = changed_files(sandbox)
    say(f"\nCommitted. Changed on disk: {', '.join(changed)}.")
    is_right = (
        list(changed) == ["CHANGES.md", "shop/cart.py", "shop/money.py"]
        and "Decimal" in changed["shop/money.py"]
    )
    return 0 if is_right else 1


def work(transaction: agenttx.Transaction, names: dict[str, str], sandbox: Path) -> None:
    """Be the agent's loop: ask the model, run its calls as steps, bring the conversation up to date."""
    calls = FunctionCalls(transaction, names=names)
    history: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    while True:
        history.append(next_message(history))
        before = len(history)
        turn = calls.run(history)
        if turn.is_final:
            say(f"model   {history[-1]['content']}")
            return
        turn.apply(history)
        narrate(turn)
        if turn.is_rolled_back:
            say(f"        on disk, changed since the start: {', '.join(changed_files(sandbox)) or 'nothing'}")
            say(
                f"        the conversation had {before} messages, and has {len(history)}; the last one says:\n"
            )
            say("\n".join(f"        | {line}" for line in history[-1]["content"].splitlines()) + "\n")


def narrate(turn: Turn) -> None:
    for outcome in turn.outcomes:
        if outcome is None:
            continue
        mark = "✓" if outcome.succeeded else "✗"
        told = str(outcome.get("path") or outcome.get("result")) if outcome.succeeded else outcome.hint
        say(f"step {outcome.step_id}  {mark} {outcome.tool_name:10} {told}")
        if outcome.decision is not None:
            say(
                f"        {outcome.decision.strategy}: steps {outcome.next_step_id} to {outcome.step_id} are undone"
            )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The task of coding_agent.py by MCP: `python examples/coding_agent_mcp.py`.

The agent knows only the Model Context Protocol, as Claude and other clients do. It starts `agenttx mcp` and is offered
begin_transaction, run_step, commit_transaction and so on; no library of ours is in its loop. What a failed step answers is
written for a model: what happened, what is undone, and what to call next, exactly. The scripted model does that. The exit
code is 0 only if the files are right at the end.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from coding_task.model import TASK, plan
from coding_task.project import changed_files, lay_out
from coding_task.test_runner import test_runner
from mcp import Client, StdioServerParameters
from order_desk.server import AGENTTX, environment, running_server

from agenttx.integrations.in_process_worker import InProcessWorker


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="agenttx-coding-") as folder:
        sandbox = Path(folder, "sandbox")
        lay_out(sandbox)
        with (
            running_server(Path(folder)) as address,
            InProcessWorker([test_runner(sandbox)], address),
        ):
            say(f"The task: {TASK}\n")
            asyncio.run(work(address, sandbox))
        changed = changed_files(sandbox)
    say(f"\nChanged on disk: {', '.join(changed)}.")
    is_right = (
        list(changed) == ["CHANGES.md", "shop/cart.py", "shop/money.py"]
        and "Decimal" in changed["shop/money.py"]
    )
    return 0 if is_right else 1


async def work(address: str, sandbox: Path) -> None:
    """Be the client and its model: call a tool, read the answer, call what is next."""
    command = StdioServerParameters(command=AGENTTX, args=["mcp", "--address", address], env=environment())
    async with Client(command) as client:
        answer, _ = await call(client, "begin_transaction", task="discounts")
        transaction_id, told = answer["transaction_id"], ""
        while answer["next_step"] <= len(calls := [each for turn in plan(told) for each in turn]):
            name, arguments = calls[answer["next_step"] - 1]
            tool = name.replace("_", ".")
            step = {"transaction_id": transaction_id, "step": answer["next_step"], "tool": tool}
            answer, text = await call(client, "run_step", **step, arguments=arguments)
            say(f"step {step['step']}  {'✓' if answer['status'] == 'SUCCESS' else '✗'} {tool}")
            if answer["status"] != "SUCCESS":
                told += text
                say("\n        the model reads:\n")
                say("\n".join(f"        | {shortened(line)}" for line in text.splitlines()) + "\n")
                say(
                    f"        on disk, changed since the start: {', '.join(changed_files(sandbox)) or 'nothing'}\n"
                )
        _, text = await call(client, "commit_transaction", transaction_id=transaction_id)
        say(f"\n{text.splitlines()[0]}")


async def call(client: Client, tool: str, /, **arguments: Any) -> tuple[dict[str, Any], str]:
    """Call an MCP tool; return its answer's fields and its text."""
    result = await client.call_tool(tool, arguments)
    fields = result.structured_content or {}
    return fields, "\n".join(block.text for block in result.content if block.type == "text")


def shortened(line: str) -> str:
    return line if len(line) <= 160 else f"{line[:159]}…"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

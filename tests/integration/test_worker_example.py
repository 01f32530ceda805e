"""The example of a worker does what it says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.support.running_server import PYTHONPATH, running_server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "worker_payments.py"


async def test_the_charge_is_taken_back_through_the_worker():
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    async with running_server() as server:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLE, "worker", server.address, stdout=subprocess.PIPE, env=environment
        )
        try:
            async with asyncio.timeout(30):
                while server.server.coordinator.describe_tools("anonymous")[-1].name != "shipping.book":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            agent = await asyncio.create_subprocess_exec(
                sys.executable, EXAMPLE, "agent", server.address, stdout=subprocess.PIPE, env=environment
            )
            told, _ = await agent.communicate()
        finally:
            worker.terminate()
        printed, _ = await worker.communicate()

    assert told.decode().splitlines() == [
        "Hint: nothing is shipped to Atlantis. Ask for the address again.",
        "committed",
    ]
    assert printed.decode().splitlines() == [
        f"hosting payments.charge and shipping.book at {server.address}; Ctrl-C ends it",
        "charged c-1 1999 cents",
        "refunded 1999 cents",
        "charged c-1 1999 cents",
    ]
    assert worker.returncode == 0

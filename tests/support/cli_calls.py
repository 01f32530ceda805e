"""Calling the command line, in this process or as one of its own, and a transaction for it to look at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agenttx import Client, Transaction
from agenttx_server.command_line import main

AGENTTX = str(Path(sys.executable).with_name("agenttx"))
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as one JSON value."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """What it printed, as a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """The command line in this process, at one server."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        """Run a command that talks to the server."""
        self._capsys.readouterr()
        with patch.dict(os.environ, environment(), clear=True):
            code = main([*arguments, "--address", self.address])
        written = self._capsys.readouterr()
        return Outcome(code, written.out, written.err)


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the installed command as a process of its own, whatever whoever runs the tests has set."""
    with _heeding_interrupts():
        return subprocess.Popen(
            [AGENTTX, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment() | variables,
        )


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Start processes that heed SIGINT, also where these tests run in a shell's background and ignore it.

    Not by ``preexec_fn``: that forks this process, whose gRPC threads don't survive it.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def environment() -> dict[str, str]:
    """Return the variables of this process but those that would change what the command does or how wide it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTTX_", "COLUMNS"))}
    return kept | {"PYTHONPATH": str(REPOSITORY)}


def run_to_end(*arguments: str, seconds: float = 60, **variables: str) -> Outcome:
    """Run the installed command to its end."""
    process = start(*arguments, **variables)
    out, err = process.communicate(timeout=seconds)
    return Outcome(process.returncode, out, err)


def jump_back(client: Client, agent_id: str = "order-desk") -> Transaction:
    """Play a transaction that fails in step 5, goes back to step 2 and is at step 3 again, still open.

    Step 1 inserts customer c-1, step 2 chooses a customer (c-9 at first), step 3 passes the choice on, step 4 stages a
    mail, step 5 inserts an order.
    """
    transaction = client.transaction(agent_id=agent_id, metadata={"order": "o-1"}).begin()
    customer = transaction.step(
        "record.insert", table="customers", record={"id": f"c-1-{transaction.transaction_id}"}
    )
    choice = transaction.step("kv.put", key="choice", value={"customer_id": "c-9"}, raw_context="a guess")
    draft = transaction.step("kv.put", key="draft", value={"customer_id": choice.ref("value.customer_id")})
    transaction.step("effect.stage", channel="mail", payload={"customer_id": draft.ref("value.customer_id")})
    failed = transaction.try_step(
        "record.insert",
        table="orders",
        record={"id": "o-1", "customer_id": draft.ref("value.customer_id")},
        references={"customer_id": "customers"},
    )
    assert failed.next_step_id == 2
    transaction.step(
        "kv.put", key="choice", value={"customer_id": customer.ref("id")}, raw_context="the customer"
    )
    return transaction

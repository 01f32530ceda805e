"""A step that waits until a test lets it go, and what health says meanwhile; for tests with servers as processes.

The server is started with the tools of `tests.support.life_tools`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.sample_tools import POLL_SECONDS, read_log

import agenttx
from agenttx import RetryPolicy

__all__ = ["ONCE", "Held", "until", "watched"]

ONCE = RetryPolicy(max_attempts=1)


class Held:
    """A step that waits at a gate, and the call that waits for it."""

    def __init__(self, address: str, folder: Path, effects: str, retry: RetryPolicy = ONCE) -> None:
        self.log = str(folder / "log")
        self.gate = folder / "gate"
        self.client = agenttx.Client(address, retry=retry)
        self.transaction = self.client.transaction(agent_id="life").begin()
        self.transaction_id = self.transaction.transaction_id
        self.arguments = {"log": self.log, "entry": "room", "gate": str(self.gate)}
        self.tool = f"life.{effects}"
        self.answer: Any = None
        self._thread = threading.Thread(target=self._call)
        self._thread.start()
        # Recorded as running, which precedes the tool or follows it; and at its gate.
        until(lambda: self.client.get_transaction(self.transaction_id).status == "EXECUTING")
        until(lambda: read_log(self.log))

    def _call(self) -> None:
        try:
            self.answer = self.transaction.call(self.tool, self.arguments, request_id="once")
        except agenttx.AgentTxError as error:
            self.answer = error

    @property
    def process_id(self) -> int:
        """The process that runs the tool."""
        return int(Path(f"{self.log}.process").read_text())

    def joined(self) -> Any:
        """Return the step's answer, or the error that its caller got."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.client.close()
        return self.answer

    def again(self, client: agenttx.Client) -> agenttx.StepOutcome:
        """Send the same request once more, as an agent does that lost its answer."""
        return client.resume(self.transaction_id).call(
            self.tool, self.arguments, request_id="once", step_id=1
        )


def until(condition: Callable[[], Any]) -> None:
    """Return once something is so that another process brings about."""
    for _ in range(int(60 / POLL_SECONDS)):
        if condition():
            return
        threading.Event().wait(POLL_SECONDS)
    raise AssertionError("it never came to that")


@contextmanager
def watched(address: str, service: str) -> Iterator[list[int]]:
    """What the health service says of one service, from now on, in order."""
    told: list[int] = []
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))

        def follow() -> None:
            try:
                for answer in watch:
                    told.append(answer.status)
            except grpc.RpcError:
                return  # the server has ended

        following = threading.Thread(target=follow)
        following.start()
        until(lambda: told)
        yield told
        watch.cancel()
        following.join()

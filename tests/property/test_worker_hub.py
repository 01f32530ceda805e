"""Workers that come, go, fall silent and answer in any order: no call is lost, doubled, or given to who can't take it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_tool_context import FakeTransaction
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.ports import NotCalled, OutcomeUnknown, ToolFailure
from agenttx_server.engine.records import EffectClass, ToolDescription, ToolLocation
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.tools.worker_connection import WorkerConnection
from agenttx_server.worker_messages import (
    CancelCall,
    Failure,
    Offer,
    OfferedTool,
    Succeeded,
    ToolCall,
    Unknown,
)

NAMES = ("a", "b")
CLASSES = {"a": EffectClass.READ_ONLY, "b": EffectClass.IRREVERSIBLE}

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 3)),
        st.tuples(st.just("call"), st.sampled_from(NAMES)),
        st.tuples(
            st.sampled_from(["succeed", "fail", "doubt", "answer twice", "close", "goodbye", "speak"]),
            st.integers(0, 20),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 10.0, 20.0])),
    ),
    max_size=60,
)


class Peer:
    """A worker: what it has been given and has not answered, held to what it declared."""

    def __init__(self, hub: RemoteWorkers, names: set[str], concurrency: int) -> None:
        self.open: dict[int, ToolCall] = {}
        self.taken: list[tuple[int, int]] = []
        self.names = names
        self.concurrency = concurrency
        self.is_leaving = False
        tools = tuple(
            OfferedTool(ToolDescription(name, "", "{}", CLASSES[name], ToolLocation.WORKER), 0)
            for name in sorted(names)
        )
        self.link: WorkerConnection | None = None
        self.link = hub.connect(Offer("w", "", tools, (), concurrency), self.told)

    def told(self, command: Any) -> None:
        if isinstance(command, CancelCall):
            return
        assert isinstance(command, ToolCall)
        assert not self.is_leaving
        assert self.link is None or not self.link.is_closed
        assert command.tool_name in self.names
        assert command.call_id not in self.open
        self.open[command.call_id] = command
        self.taken.append((command.step_id, command.call_id))
        assert len(self.open) <= self.concurrency

    def answer(self, outcome: Any, *, times: int = 1) -> None:
        if not self.open or self.link is None:
            return
        call_id = min(self.open)
        del self.open[call_id]
        for _ in range(times):
            self.link.finished(call_id, outcome)


async def _play(moves: list[Any]) -> None:
    hub = RemoteWorkers(WorkerSettings(max_waiting=8))
    for name in NAMES:  # both are known, and nobody offers them
        Peer(hub, {name}, 1).link.close("gone")  # type: ignore[union-attr]
    peers: list[Peer] = []
    calls: list[asyncio.Task[Any]] = []
    transaction = FakeTransaction()
    for kind, *details in moves:
        if kind == "connect":
            peers.append(Peer(hub, *details))
        elif kind == "call":
            calls.append(asyncio.create_task(hub.run(details[0], {}, transaction.context())))
        elif kind == "wait":
            await asyncio.sleep(details[0])
        elif kind == "cancel":
            if calls:
                calls[details[0] % len(calls)].cancel()
        elif peers:
            _move(kind, peers[details[0] % len(peers)])
        for _ in range(5):
            await asyncio.sleep(0)
    for peer in peers:
        assert peer.link is not None
        peer.link.close("the end")
    await asyncio.sleep(60)

    assert all(call.done() for call in calls)
    for call in calls:
        if not call.cancelled() and call.exception() is not None:
            assert isinstance(call.exception(), (NotCalled, OutcomeUnknown, ToolFailure))
    given_to = Counter(step_id for peer in peers for step_id, _ in peer.taken)
    assert set(given_to.values()) <= {1}, "a call went to two workers"
    assert hub.describe_all() == ()


def _move(kind: str, peer: Peer) -> None:
    link = peer.link
    assert link is not None
    match kind:
        case "succeed":
            peer.answer(Succeeded("1"))
        case "fail":
            peer.answer(Failure("conflict", "no"))
        case "doubt":
            peer.answer(Unknown("?"))
        case "answer twice":
            peer.answer(Succeeded("1"), times=2)
        case "close":
            link.close("the connection broke")
        case "goodbye":
            peer.is_leaving = True
            link.says_goodbye()
        case "speak":
            link.heard()


@given(moves=MOVES)
def test_every_call_ends_once_and_goes_to_one_worker_that_can_take_it(moves: list[Any]) -> None:
    run_in_virtual_time(_play(moves))

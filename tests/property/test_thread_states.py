"""Random sequences of the state API against a model that keeps every state whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_definitions import APP
from tests.support.graph_runs import GraphRuns, logs
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.graphs.runs.position import position_at
from agenttx_server.graphs.runs.records import CheckpointRecord, RunStatus
from agenttx_server.graphs.runs.requests import CopyRequest, ForkRequest, StateUpdate

AFTER = {"": ["a"], "a": ["b"], "b": ["c"], "c": []}
"""What comes after each node of the graph START -> a -> b -> c; each appends its name to ``log``."""

Boundary = tuple[tuple[str, ...], tuple[str, ...]]
"""The log, and the nodes that come next."""


@dataclass
class Thread:
    """A thread as the model knows it: all its boundaries by number, and where its head is."""

    boundaries: dict[int, Boundary] = field(default_factory=dict)
    head: int = -1
    next_number: int = 0
    is_open: bool = False

    def add(self, log: tuple[str, ...], after: tuple[str, ...]) -> None:
        self.boundaries[self.next_number] = (log, after)
        self.head = self.next_number
        self.next_number += 1

    def run(self) -> None:
        """Run on to the end."""
        log, after = self.boundaries[self.head]
        while after:
            log = (*log, *after)
            after = tuple(AFTER[after[0]])
            self.add(log, after)
        self.is_open = False


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["input", "reset", "edit", "as_node", "edit_at", "replay", "go_on", "fork", "copy", "prune"]
        ),
        st.integers(0, 99),
        st.sampled_from(["a", "b", "c"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(actions)
def test_what_a_thread_holds_is_what_was_done_to_it(steps: list[tuple[str, int, str, bool]]) -> None:
    run_in_virtual_time(_scenario(steps))


async def _scenario(steps: list[tuple[str, int, str, bool]]) -> None:
    runs = GraphRuns("START->a, a->b, b->c", {name: logs(name) for name in "abc"}, channels=APP)
    await runs.start({"log": ["0"]})
    model = Thread()
    model.add(("0",), ("a",))
    model.run()
    threads = {"t": model}
    for number, (action, at, node, other) in enumerate(steps):
        names = sorted(threads)
        name = names[at % len(names)] if other else "t"
        await _act(runs, threads, name, action, at, node, f"s{number}")
        for thread, known in threads.items():
            await _compare(runs, thread, known)


async def _act(
    runs: GraphRuns, threads: dict[str, Thread], name: str, action: str, at: int, node: str, word: str
) -> None:
    model = threads[name]
    numbers = sorted(model.boundaries)
    chosen = numbers[at % len(numbers)]
    log, after = model.boundaries[model.head]
    match action:
        case "input" | "reset":
            await runs.start({"log": [word]}, name, reset=action == "reset")
            model.add((word,) if action == "reset" else (*log, word), ("a",))
            model.run()
        case "edit":
            await runs.update(StateUpdate(update={"log": [word]}), thread=name)
            model.add((*log, word), after)
            model.is_open |= bool(after)
        case "as_node":
            await runs.update(StateUpdate(node, {"log": [word]}), thread=name)
            left = [item for item in after if item != node]
            model.add((*log, word), tuple(dict.fromkeys([*left, *AFTER[node]])))
            model.is_open |= bool(model.boundaries[model.head][1])
        case "edit_at":
            await runs.update(
                StateUpdate(update={"log": [word]}), thread=name, checkpoint_id=await _id(runs, name, chosen)
            )
            log, after = model.boundaries[chosen]
            model.add((*log, word), after)
            model.is_open = bool(after)
        case "replay":
            outcome = await runs.start(thread=name, at=await _id(runs, name, chosen))
            assert outcome.run.status is RunStatus.COMPLETED
            model.add(*model.boundaries[chosen])
            model.run()
        case "go_on" if model.is_open and await _is_open(runs, name):
            await runs.retry(name)
            model.run()
        case "fork":
            await runs.runs.copies.fork(ForkRequest(name, await _id(runs, name, chosen), word))
            threads[word] = made = Thread()
            made.add(*model.boundaries[chosen])
            made.is_open = bool(made.boundaries[0][1])
        case "copy":
            await runs.runs.copies.copy(CopyRequest(name, word))
            threads[word] = Thread(dict(model.boundaries), model.head, model.next_number, model.is_open)
        case "prune":
            await runs.runs.removal.prune(name, 1 + at % 3)
            kept = {item.number for item in await runs.checkpoints(name)}
            assert model.head in kept
            model.boundaries = {key: value for key, value in model.boundaries.items() if key in kept}


async def _is_open(runs: GraphRuns, name: str) -> bool:
    thread = await runs.store.load_thread(name)
    assert thread is not None
    return bool(thread.transaction_id)


async def _id(runs: GraphRuns, name: str, number: int) -> str:
    found = await runs.store.load_checkpoint(name, number)
    assert found is not None
    return found.checkpoint_id


async def _compare(runs: GraphRuns, name: str, known: Thread) -> None:
    thread = await runs.store.load_thread(name)
    assert thread is not None
    assert thread.head == known.head
    kept: list[CheckpointRecord] = await runs.checkpoints(name)
    assert {item.number: await _boundary(runs, item) for item in kept} == known.boundaries


async def _boundary(runs: GraphRuns, item: CheckpointRecord) -> Boundary:
    position = await position_at(runs.store, item)
    log: Any = position.state["log"]
    return tuple(log), tuple(activation.node for activation in position.work.activations)

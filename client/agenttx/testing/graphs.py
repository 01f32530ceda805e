"""Tests of your own graphs: stand-ins for nodes, one node run by itself, and what a run is expected to have done.

    from agenttx.testing.graphs import interrupting, run_node, scripted, snapshot

    async def test_the_agent_asks_before_it_refunds():
        asked = await run_node(agent, {"customer": "c-1"}, steps={"orders.find": lambda given: {"order": "o-7"}})
        assert asked.question == {"refund": "o-7"}
        done = await run_node(agent, {"customer": "c-1"}, answers=[True], journal=asked.steps)
        assert done.result["__command__"]["goto"] == ["notify"]

`snapshot` writes a graph or the outcome of a run as JSON that is the same each time: ids and times are left out.

Needs pydantic: ``pip install 'agenttx[worker]'``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from agenttx.graph import GraphBuilder
from agenttx.graph_results import result_as_json
from agenttx.hosting.graph_functions import GraphFunction
from agenttx.node_context import NodeContext, NodeInterrupted, NodeState, Told
from agenttx.testing.tool_run import MadeStep, MemoryPort, StandIn, ToolRun
from agenttx.tools.blocking_pool import BlockingPool
from agenttx.values import decode_json, encode_json

__all__ = [
    "Asked",
    "NodeRun",
    "ScriptedNode",
    "assert_history",
    "assert_visited",
    "failing",
    "interrupting",
    "run_node",
    "scripted",
    "snapshot",
]

_ABSENT: Final = object()
_THREADS = 4


# --- stand-ins for nodes -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """In a script: the node asks this.

    Attributes:
        payload: What it asks.
        then: What it returns once it is answered: a function of the answer, or the name of the channel that gets it.
    """

    payload: Any
    then: Callable[[Any], Any] | str


class ScriptedNode:
    """A node that does what its script says, an entry each time that it is run to an end.

    Attributes:
        states: The states that it was given, an entry each time that it was started.
        args: The arguments that it was sent; None where it was not sent.
    """

    def __init__(self, script: Sequence[Any]) -> None:
        self.states: list[dict[str, Any]] = []
        self.args: list[Any] = []
        self._script = list(script)
        self._next = 0

    @property
    def runs(self) -> int:
        """How often it was started."""
        return len(self.states)

    async def __call__(self, state: Mapping[str, Any], ctx: Any) -> Any:
        """Act the next entry; the last one again and again."""
        self.states.append(dict(state))
        self.args.append(ctx.arg)
        entry = self._script[min(self._next, len(self._script) - 1)]
        if isinstance(entry, Asked):
            answer = await ctx.interrupt(entry.payload)
            entry = {entry.then: answer} if isinstance(entry.then, str) else entry.then(answer)
        self._next += 1
        if isinstance(entry, BaseException):
            raise entry
        return entry(state) if callable(entry) else entry


def scripted(*script: Any) -> ScriptedNode:
    """Return a node that acts a script: results to return, functions of the state, exceptions to raise, `Asked`."""
    if not script:
        raise ValueError("a script has at least one entry; None is a node that writes nothing")
    return ScriptedNode(script)


def failing(error: BaseException, then: Any = None, *, times: int = 1) -> ScriptedNode:
    """Return a node that raises an error so many times, and returns ``then`` afterwards."""
    return ScriptedNode([error] * times + [then])


def interrupting(payload: Any, then: Callable[[Any], Any] | str) -> ScriptedNode:
    """Return a node that asks, and returns ``then`` of the answer, or an update of the channel that it names."""
    return ScriptedNode([Asked(payload, then)])


# --- one node by itself ------------------------------------------------------------------


@dataclass
class NodeRun:
    """What one run of a node did.

    Attributes:
        result: What it returned, in the JSON form that the server reads; None if it raised or asked.
        question: What it asked and has no answer for; None if it didn't.
        is_waiting: Whether it asked so.
        reads: The channels that it looked at.
        steps: The calls that it made with `ctx.step`; given to `run_node` as `journal` they are answered again.
        events: What it told with `ctx.emit`, names and data.
        error: What it raised, if `run_node` was told to keep that.
    """

    result: Any = None
    question: Any = None
    is_waiting: bool = False
    reads: tuple[str, ...] = ()
    steps: list[MadeStep] = field(default_factory=list)
    events: list[tuple[str, Any]] = field(default_factory=list)
    error: Exception | None = None


class _Port(MemoryPort):
    """Implements :class:`agenttx.node_context.NodePort` in memory."""

    def __init__(
        self,
        node: NodeRun,
        answers: Sequence[Any],
        seconds: float,
        steps: Mapping[str, StandIn],
        journal: Any,
    ) -> None:
        facts = {
            "transaction_id": "transaction-1",
            "agent_id": "graph-run",
            "step_id": 1,
            "attempt": 1,
            "idempotency_key": "key-1",
        }
        self.tool_run = ToolRun(steps=node.steps)
        super().__init__(self.tool_run, facts, seconds, steps, journal)
        self._node = node
        self._answers = [encode_json(answer) for answer in answers]

    async def interrupt(self, payload: str) -> str | None:
        if self._answers:
            return self._answers.pop(0)
        self._node.is_waiting, self._node.question = True, decode_json(payload)
        self.close()
        return None

    def emit(self, name: str, data: str) -> None:
        self._node.events.append((name, decode_json(data)))


async def run_node(
    function: Callable[..., Any],
    state: Mapping[str, Any] | None = None,
    *,
    arg: Any = _ABSENT,
    constraints: Sequence[str] = (),
    remaining_steps: int = 50,
    answers: Sequence[Any] = (),
    steps: Mapping[str, StandIn] | None = None,
    journal: Sequence[MadeStep] = (),
    seconds: float = 30.0,
    keep_error: bool = False,
) -> NodeRun:
    """Run a node's function as a worker would, without a server.

    Args:
        function: The function: of the state and `ctx`, of the state, or of nothing.
        state: The channels that it sees.
        arg: What it was sent with.
        constraints: What its run has learned.
        remaining_steps: Supersteps that are left.
        answers: Answers to its questions, in their order; where they end it waits.
        steps: What `ctx.step` finds, by name: tools, or functions of the arguments that return an output.
        journal: The calls of a run before, which are answered from there.
        seconds: Its deadline.
        keep_error: Return what it raised in `error` instead of raising it.

    Raises:
        TimeoutError: it ran past its deadline.
        InvalidValue: its result is not plain JSON.
    """
    node = NodeRun()
    told: dict[str, Any] = {"constraints": list(constraints), "remaining_steps": remaining_steps}
    if arg is not _ABSENT:
        told["arg"] = arg
    seen = NodeState(decode_json(encode_json(dict(state or {}))))
    port = _Port(node, answers, seconds, steps or {}, journal)
    context = NodeContext(port, Told(told), lambda fraction, message: None)
    pool = BlockingPool(_THREADS, "agenttx-testing")
    try:
        async with asyncio.timeout(seconds):
            result = await GraphFunction(_name_of(function), function).run(seen, context, pool)
        node.result = decode_json(encode_json(result_as_json(result)))
    except NodeInterrupted:
        pass
    except Exception as error:
        if not keep_error:
            raise
        node.error = error
    finally:
        port.close()
        node.reads = seen.reads
    return node


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# --- what came of a run ------------------------------------------------------------------


def assert_visited(run: Any, nodes: Sequence[str]) -> None:
    """Assert that an outcome's invocation ran these nodes, in this order."""
    visited = list(_visited(run))
    assert visited == list(nodes), f"visited {visited}, not {list(nodes)}"


def assert_history(checkpoints: Sequence[Any], values: Sequence[Mapping[str, Any]]) -> None:
    """Assert what checkpoints hold, the newest first: of each at least these channels with these values."""
    found = [_state(checkpoint) for checkpoint in checkpoints]
    shown = [
        {channel: state.get(channel) for channel in expected}
        for state, expected in zip(found, values, strict=False)
    ]
    assert len(found) == len(values), f"{len(found)} checkpoints, not {len(values)}: {found}"
    assert shown == [dict(expected) for expected in values], f"history {shown}, not {list(values)}"


def snapshot(subject: Any) -> str:
    """Return a graph (a builder) or the outcome of a run as JSON text that is the same each time.

    Of a run it has status, state, visited nodes, supersteps, questions, next nodes and the error; no ids and no times.
    """
    value = _graph_value(subject) if isinstance(subject, GraphBuilder) else _run_value(subject)
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _graph_value(graph: GraphBuilder) -> Any:
    value = MessageToDict(graph.definition(), preserving_proto_field_name=True)
    for part in ("nodes", "channels"):
        value[part] = sorted(value.get(part, ()), key=lambda item: str(item["name"]))
    value["conditional_edges"] = sorted(
        value.get("conditional_edges", ()), key=lambda edge: str(edge["source"])
    )
    return value


def _run_value(run: Any) -> Any:
    error = getattr(run, "error", None)
    return {
        "status": str(run.status),
        "state": _state(run),
        "visited": list(_visited(run)),
        "supersteps": run.supersteps,
        "next": list(run.next_nodes),
        "interrupts": [{"node": item.node, "payload": item.payload} for item in run.interrupts],
        "error": None
        if error is None
        else {"reason": str(error.reason), "node": error.node, "message": error.message},
    }


def _visited(run: Any) -> Sequence[str]:
    nodes: Sequence[str] = run.visited_nodes
    return nodes


def _state(record: Any) -> Mapping[str, Any]:
    state: Mapping[str, Any] = record.state
    return state

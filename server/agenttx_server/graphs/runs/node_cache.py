"""Answers of nodes that other runs take in place of calling the node (CachePolicy).

An answer is found by all that its node is told to depend on: who runs it, the graph's version, the node, the values of
its key channels, its Send's argument, and the constraints, so that a run that was healed asks anew. It is kept once its
run commits, and only where the node and all that it called read only, and nobody was asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import Clock, ToolContext
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import CachedAnswer, RunRecord, TaskRecord, TaskState
from agenttx_server.graphs.runs.step_port import FunctionReport, StepMember

__all__ = ["MOST_ANSWERS", "NodeCache", "answered_by", "answers_to_keep", "purging"]

MOST_ANSWERS: Final = 100_000
"""How many answers are kept in all; the oldest go first."""

_PURGED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class NodeCache:
    """The answers that the tasks of one superstep may take. ``state`` is what its nodes see."""

    store: RunStore
    clock: Clock
    graph: CompiledGraph
    run: RunRecord
    state: Mapping[str, JsonValue]
    constraints: tuple[str, ...]

    async def looked_up(
        self, task: TaskRecord, member: StepMember, *, was_asked: bool
    ) -> tuple[TaskRecord, StepMember]:
        """Return a task and its step: as they are, or answered by what is kept. Raises StoreUnavailable.

        ``was_asked``: whether somebody answered what its node asked, on which what it gives then depends.
        """
        if self.graph.nodes[task.node].cache is None:
            return task, member
        if task.attempts or task.adopts is not None or was_asked:
            # It has done, or asked, something of its own: it goes on with that.
            return replace(task, cache_key="", is_cached=False), member
        key = self._key(task)
        kept = await self.store.find_cached(key, self.clock.now())
        task = replace(task, cache_key=key, is_cached=kept is not None)
        return task, member if kept is None else answered_by(member, kept.answer)

    def _key(self, task: TaskRecord) -> str:
        policy = self.graph.nodes[task.node].cache
        assert policy is not None, "asked for nodes with a policy alone"
        seen: dict[str, JsonValue] = {
            name: self.state[name] for name in policy.key_channels if name in self.state
        }
        arg: list[JsonValue] = [] if task.arg is None else [load(task.arg)]
        told: JsonValue = [
            self.run.principal, self.graph.name, self.graph.version, task.node, seen, arg, list(self.constraints)
        ]  # fmt: skip
        return hashlib.sha256(canonical(told).encode()).hexdigest()


def answered_by(member: StepMember, answer: str) -> StepMember:
    """The same step, in its place among the others, which gives an answer and calls nobody."""

    async def answers(arguments: Any, context: ToolContext) -> Any:
        return load(answer)

    return replace(member, function=answers, report=FunctionReport(), learned=None, ready=_at_once)


def _at_once() -> Awaitable[None] | None:
    return None


async def answers_to_keep(
    store: RunStore, graph: CompiledGraph, run: RunRecord, tasks: Sequence[TaskRecord], now: int
) -> Sequence[CachedAnswer]:
    """What is kept when a run commits: of its tasks in checkpoints, and of those of its last superstep, ``tasks``."""
    policies = {node.name: node.cache for node in graph.definition.nodes if node.cache is not None}
    if not policies:
        return ()
    found: dict[str, CachedAnswer] = {}
    finished = [task for task in tasks if task.state is TaskState.FINISHED]
    for task in (*await store.list_cacheable(run.run_id), *finished):
        policy = policies.get(task.node)
        if policy is None or task.answer is None or not task.is_to_be_kept:
            continue
        ends = None if policy.ttl_us is None else now + policy.ttl_us
        found[task.cache_key] = CachedAnswer(
            task.cache_key, run.thread_id, graph.name, task.node, task.answer, now, ends
        )
    return tuple(found.values())


def purging(store: RunStore, clock: Clock) -> Callable[[], Awaitable[int]]:
    """Return what deletes expired answers and the oldest beyond MOST_ANSWERS; it raises StoreUnavailable."""

    async def purge_all() -> int:
        total = 0
        while gone := await store.purge_cached(clock.now(), MOST_ANSWERS, _PURGED_AT_ONCE):
            total += gone
        return total

    return purge_all

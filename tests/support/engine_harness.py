"""A coordinator over a store, with tools and a sink that a test controls, in virtual time.

    @virtual_time
    async def test_something() -> None:
        engine = Engine()
        await engine.begin()
        answer = await engine.step(1, "note", {"put": {"kv/a": 1}})

Calls take a transaction from ``transaction_id=``, else the one begun last. :meth:`Engine.crash` kills
the server and starts the next one over the same database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.support.memory_store import Gate, MemoryDatabase, MemoryStore
from tests.support.scripted_tools import ScriptedTools
from tests.support.virtual_time import current_loop, idle

from agenttx_server.engine import hints
from agenttx_server.engine.change_observer import ChangeObserver
from agenttx_server.engine.dependency_graph import GraphSnapshot
from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import ApprovalPolicy, TransactionStore, WriteSet
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    AttemptState,
    EffectClass,
    EffectRecord,
    EventType,
    MicrosecondsUtc,
    ServerId,
    TransactionId,
    TransactionRecord,
    UndoRecord,
    UndoResolution,
)
from agenttx_server.engine.requests import (
    AcknowledgeUndoRequest,
    AgentUndo,
    ApprovalView,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    CompensationAnswer,
    CompensationState,
    DecideApprovalRequest,
    GroupRequest,
    PolicyOverride,
    ResolveCompensationRequest,
    RetryCompensationRequest,
    RewindAnswer,
    RewindRequest,
    RollbackRequest,
    StepAnswer,
    StepCall,
    StepReport,
    StepRequest,
    TransactionView,
)
from agenttx_server.engine.run_owner import RunOwner
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = [
    "Aggregate",
    "Engine",
    "FakeClock",
    "RecordingSink",
    "SequentialIds",
    "aggregate_of",
    "call",
    "outcome_of",
    "reasons_of",
    "same_answer",
    "sqlite_engine",
    "summary_of",
]

_START = 1_700_000_000_000_000


class FakeClock:
    """The running loop's time; sleeping in virtual time takes none."""

    def now(self) -> MicrosecondsUtc:
        return MicrosecondsUtc(_START + round(self.monotonic() * 1_000_000))

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SequentialIds:
    """Ids in order, and jitter without chance."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._last = 0

    def new_id(self) -> str:
        self._last += 1
        return f"{self._prefix}-{self._last:06d}"

    def random(self) -> float:
        return 0.5


class RecordingSink:
    """Takes effects out, or fails, or waits, by channel."""

    def __init__(self) -> None:
        self.delivered: list[EffectRecord] = []
        self.tried: list[EffectRecord] = []
        self.tried_at: list[float] = []
        self.failing: dict[str, Exception] = {}
        self.outcomes: dict[str, list[Exception | None]] = {}
        self.gates: dict[str, Gate] = {}

    def fail(self, channel: str, error: Exception | None) -> None:
        """Have deliveries to a channel fail; None mends it."""
        if error is None:
            self.failing.pop(channel, None)
        else:
            self.failing[channel] = error

    def next(self, channel: str, *outcomes: Exception | None) -> None:
        """Say what becomes of the next deliveries to a channel, one after another; None: it succeeds."""
        self.outcomes.setdefault(channel, []).extend(outcomes)

    def hold(self, channel: str) -> Gate:
        """Have deliveries to a channel wait."""
        return self.gates.setdefault(channel, Gate())

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        self.tried.append(effect)
        self.tried_at.append(asyncio.get_running_loop().time())
        if effect.channel in self.gates:
            await self.gates[effect.channel].wait()
        outcome = self.failing.get(effect.channel)
        if self.outcomes.get(effect.channel):
            outcome = self.outcomes[effect.channel].pop(0)
        if outcome is not None:
            raise outcome
        self.delivered.append(effect)

    def payloads(self, channel: str | None = None) -> list[Any]:
        """What was delivered, in order."""
        return [json.loads(effect.payload) for effect in self.delivered if channel in (None, effect.channel)]


def call(
    tool_name: str,
    arguments: Any = None,
    request_id: str = "",
    *,
    raw_context: str = "",
    timeout: float | None = None,
    text: str | None = None,
    output_limit: int | None = None,
) -> StepCall:
    """A tool call; ``text`` sends arguments as written, ``timeout`` is in seconds."""
    return StepCall(
        tool_name,
        text if text is not None else json.dumps({} if arguments is None else arguments),
        raw_context,
        request_id,
        None if timeout is None else round(timeout * 1_000_000),
        output_limit,
    )


def same_answer(first: StepAnswer, again: StepAnswer) -> bool:
    """Whether a replay equals the first answer in every field but those that say that it is one."""
    return replace(again, replayed=first.replayed, rewound=first.rewound) == first


@dataclass(frozen=True)
class Aggregate:
    """All that a transaction in memory knows, comparable (I7)."""

    record: TransactionRecord
    graph: GraphSnapshot
    steps: dict[int, tuple[Any, ...]]
    undo: dict[int, UndoRecord]
    approvals: dict[int, ApprovalRecord]
    attempt_counts: dict[int, int]
    request_ids: set[str]


def aggregate_of(transaction: Transaction) -> Aggregate:
    """What a transaction in memory knows.

    Left out: which outputs it keeps, and the inputs of failed steps, which nothing reads any more.
    """
    failed = {step for step, live in transaction.steps.items() if live.state is AttemptState.FAILED}
    graph = transaction.graph.snapshot()
    graph = replace(graph, open_inputs=tuple(item for item in graph.open_inputs if item[0] not in failed))
    return Aggregate(
        record=transaction.record,
        graph=graph,
        steps={
            step: (
                live.attempt,
                live.tool_name,
                live.effect_class,
                live.state,
                live.group_first,
                live.group_size,
            )
            for step, live in transaction.steps.items()
        },
        undo=dict(transaction.undo),
        approvals=dict(transaction.approvals),
        attempt_counts=dict(transaction.attempt_counts),
        request_ids=set(transaction.request_ids),
    )


class Engine:
    """A server without its edges. Those of one ``database`` that ``is_shared`` have names of their own."""

    def __init__(
        self,
        *,
        settings: EngineSettings | None = None,
        limits: Limits | None = None,
        store: TransactionStore | None = None,
        database: MemoryDatabase | None = None,
        is_shared: bool = False,
        name: str = "server",
        approval_policy: ApprovalPolicy | None = None,
        run_owner: RunOwner | None = None,
        observer: ChangeObserver | None = None,
        extra_tables: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._run_owner = run_owner
        self._observer = observer
        self._extra_tables = extra_tables
        self.timeline: list[str] = []
        self.tools = ScriptedTools(self.timeline)
        self.sink = RecordingSink()
        self.ids = SequentialIds(f"{name}-id" if is_shared else "id")
        self.clock = FakeClock()
        self.settings = settings or EngineSettings()
        self.limits = limits or Limits()
        self.approval_policy = approval_policy
        self.transaction_id = TransactionId("")
        self._given = store
        self._name = name
        self._lives = 0
        self.memory = MemoryStore(database, self._note_write, is_shared=is_shared, extra_tables=extra_tables)
        self.coordinator = self._start()

    def _start(self) -> TransactionCoordinator:
        self._lives += 1
        return TransactionCoordinator(
            EngineServices(
                store=self._given or self.memory,
                tools=self.tools,
                sink=self.sink,
                clock=self.clock,
                ids=self.ids,
                clean=hints.clean,
                server_id=ServerId(f"{self._name}-{self._lives}"),
                limits=self.limits,
                settings=self.settings,
                approval_policy=self.approval_policy,
                run_owner=self._run_owner,
                observer=self._observer,
            )
        )

    @property
    def store(self) -> TransactionStore:
        """The store that the server works with."""
        return self._given or self.memory

    def _note_write(self, number: int, write_set: WriteSet) -> None:
        self.timeline.append(f"write {summary_of(write_set)}")

    async def crash(self) -> None:
        """Kill the server at this very moment, and start the next one over what is durable.

        Over a given store what was handed to it is still written.
        """
        self.memory.kill()
        running = self.coordinator._tasks._running
        self.tools.kill()
        while running:  # what waited for its turn gets it now, and ends too
            for task in list(running):
                task.cancel()
            await idle()
        self.memory = MemoryStore(
            self.memory.database,
            self._note_write,
            is_shared=self.memory.is_shared,
            extra_tables=self._extra_tables,
        )
        self.coordinator = self._start()

    def restart(self) -> None:
        """Start another server over the same store, with nothing in memory."""
        self.coordinator = self._start()

    # --- changes ------------------------------------------------------------------------

    async def begin(self, agent_id: str = "agent", **fields: Any) -> TransactionId:
        """Begin a transaction; policy fields may be given flat."""
        names = (
            "max_local_depth",
            "max_global_resets",
            "replay_budget_factor",
            "rejected_calls",
            "on_undo_failure",
            "on_conflict",
        )
        policy = PolicyOverride(**{name: fields.pop(name) for name in names if name in fields})
        answer = await self.coordinator.begin(BeginRequest(agent_id, policy=policy, **fields))
        self.transaction_id = answer.transaction_id
        return answer.transaction_id

    async def step(
        self,
        step_id: int,
        tool_name: str,
        arguments: Any = None,
        request_id: str = "",
        *,
        generation: int | None = None,
        transaction_id: TransactionId | None = None,
        **fields: Any,
    ) -> StepAnswer:
        """Execute a plain step."""
        return await self.coordinator.execute_step(
            StepRequest(
                transaction_id or self.transaction_id,
                step_id,
                call(tool_name, arguments, request_id, **fields),
                generation,
            )
        )

    async def report(
        self,
        step_id: int,
        tool_name: str,
        arguments: Any = None,
        request_id: str = "",
        *,
        output: Any = None,
        error: str | None = None,
        effect_class: EffectClass | None = EffectClass.READ_ONLY,
        undo: Sequence[tuple[str, Any]] = (),
        generation: int | None = None,
        transaction_id: TransactionId | None = None,
        **fields: Any,
    ) -> StepAnswer:
        """Report a step that the agent ran itself; ``undo`` are (action, arguments)."""
        report = StepReport(
            effect_class,
            None if error is not None else json.dumps(output),
            error or "",
            tuple(AgentUndo(action, json.dumps(given)) for action, given in undo),
        )
        return await self.coordinator.report_step(
            StepRequest(
                transaction_id or self.transaction_id,
                step_id,
                replace(call(tool_name, arguments, request_id, **fields), report=report),
                generation,
            )
        )

    async def acknowledge(
        self,
        sequence: int | str,
        error: str = "",
        request_id: str = "",
        *,
        transaction_id: TransactionId | None = None,
    ) -> CompensationAnswer:
        """AcknowledgeUndo."""
        return await self.coordinator.acknowledge_undo(
            AcknowledgeUndoRequest(transaction_id or self.transaction_id, str(sequence), error, request_id)
        )

    async def group(
        self,
        step_id: int,
        *calls: StepCall,
        generation: int | None = None,
        transaction_id: TransactionId | None = None,
    ) -> tuple[StepAnswer, ...]:
        """Execute a group."""
        return await self.coordinator.execute_group(
            GroupRequest(transaction_id or self.transaction_id, step_id, calls, generation)
        )

    async def rewind(
        self, to_step: int, *, transaction_id: TransactionId | None = None, **fields: Any
    ) -> RewindAnswer:
        """Rewind."""
        return await self.coordinator.rewind(
            RewindRequest(transaction_id or self.transaction_id, to_step, **fields)
        )

    async def rollback(
        self, to_step: int | None = None, *, transaction_id: TransactionId | None = None, **fields: Any
    ) -> RewindAnswer:
        """Abort, or rewind."""
        return await self.coordinator.rollback(
            RollbackRequest(transaction_id or self.transaction_id, to_step, **fields)
        )

    async def retry_undo(
        self, sequence: int | str, request_id: str = "", *, transaction_id: TransactionId | None = None
    ) -> CompensationAnswer:
        """RetryCompensation."""
        return await self.coordinator.retry_compensation(
            RetryCompensationRequest(transaction_id or self.transaction_id, str(sequence), request_id)
        )

    async def resolve_undo(
        self,
        sequence: int | str,
        resolution: UndoResolution = UndoResolution.UNDONE,
        note: str = "",
        request_id: str = "",
        *,
        transaction_id: TransactionId | None = None,
    ) -> CompensationAnswer:
        """ResolveCompensation."""
        return await self.coordinator.resolve_compensation(
            ResolveCompensationRequest(
                transaction_id or self.transaction_id, str(sequence), resolution, note, request_id
            )
        )

    async def approve(self, approval_id: int | str = 1, by: str = "ann", **fields: Any) -> ApprovalView:
        """Approve."""
        return await self._decide(ApprovalState.APPROVED, approval_id, by, **fields)

    async def reject(self, approval_id: int | str = 1, by: str = "ann", **fields: Any) -> ApprovalView:
        """Reject."""
        return await self._decide(ApprovalState.REJECTED, approval_id, by, **fields)

    async def _decide(
        self,
        decision: ApprovalState,
        approval_id: int | str,
        by: str,
        *,
        transaction_id: TransactionId | None = None,
        **fields: Any,
    ) -> ApprovalView:
        return await self.coordinator.decide_approval(
            DecideApprovalRequest(
                transaction_id or self.transaction_id, str(approval_id), decision, by, by, **fields
            )
        )

    async def approvals(self, *states: ApprovalState) -> list[ApprovalRecord]:
        """The transaction's approvals, of all states unless some are given."""
        page = await self.coordinator.list_approvals(
            "anonymous", self.transaction_id, frozenset(states or ApprovalState), "", 1000
        )
        return [view.approval for view in page.approvals]

    async def commit(
        self, request_id: str = "", *, transaction_id: TransactionId | None = None
    ) -> CommitAnswer:
        """Commit."""
        return await self.coordinator.commit(CommitRequest(transaction_id or self.transaction_id, request_id))

    # --- what stands --------------------------------------------------------------------

    async def undo_states(self, *states: CompensationState) -> list[tuple[int, CompensationState]]:
        """Sequence and state of the transaction's undo actions, newest first; of all states unless some are given."""
        page = await self.coordinator.list_compensations(
            "anonymous", self.transaction_id, frozenset(states or CompensationState), "", 1000
        )
        return [(undo.sequence, state) for _, undo, state in page.undo]

    async def view(self, transaction_id: TransactionId | None = None) -> TransactionView:
        """The transaction as a reader sees it."""
        return await self.coordinator.get("anonymous", transaction_id or self.transaction_id)

    async def record(self, transaction_id: TransactionId | None = None) -> TransactionRecord:
        """The head as it is durable."""
        record = await self.store.load_record(transaction_id or self.transaction_id)
        assert record is not None
        return record

    async def attempts(self, transaction_id: TransactionId | None = None) -> list[AttemptRecord]:
        """The whole history."""
        page = await self.store.list_attempts(transaction_id or self.transaction_id, "", 100_000, 1 << 40)
        return list(page.attempts)

    async def live_attempts(self, transaction_id: TransactionId | None = None) -> list[AttemptRecord]:
        """What is in force."""
        page = await self.store.list_attempts(
            transaction_id or self.transaction_id, "", 100_000, 1 << 40, include_rewound=False
        )
        return list(page.attempts)

    async def state(self, *keys: str, transaction_id: TransactionId | None = None) -> dict[str, Any]:
        """Keys as the transaction's next step sees them."""
        found = {}
        for key in keys:
            view = await self.store.read_state(transaction_id or self.transaction_id, key, 1_000_000)
            found[key] = None if view.value is None else json.loads(view.value)
        return found

    async def committed(self, key: str) -> Any:
        """A key of committed state."""
        value = (await self.store.read_committed(key)).value
        return None if value is None else json.loads(value)

    async def staged(self, transaction_id: TransactionId | None = None) -> list[tuple[str, Any]]:
        """Channel and payload of the effects that are kept, in order."""
        effects = await self.store.list_effects(transaction_id or self.transaction_id, frozenset())
        return [(effect.channel, json.loads(effect.payload)) for effect in effects]

    async def effect_states(self) -> list[str]:
        """The states of the effects that are kept, in order."""
        return [effect.state for effect in await self.store.list_effects(self.transaction_id, frozenset())]

    async def events(self, transaction_id: TransactionId | None = None) -> list[EventType]:
        """The types of all events, in order."""
        found = await self.store.list_events(transaction_id or self.transaction_id, 1, 1_000_000)
        return [event.type for event in found]

    def cached(self, transaction_id: TransactionId | None = None) -> Transaction | None:
        """The transaction in the server's memory, None if it has none."""
        entry = self.coordinator._cache.peek(transaction_id or self.transaction_id)
        return None if entry is None else entry.transaction

    async def rebuilt(self, transaction_id: TransactionId | None = None) -> Transaction:
        """The transaction as another server would read it."""
        stored = await self.store.load(transaction_id or self.transaction_id)
        assert stored is not None
        return Transaction.rebuild(stored)

    async def assert_memory_equals_store(self, transaction_id: TransactionId | None = None) -> None:
        """I7, if the server has the transaction in memory."""
        cached = self.cached(transaction_id)
        if cached is not None:
            assert aggregate_of(cached) == aggregate_of(await self.rebuilt(transaction_id))

    def writes_since(self, mark: int) -> list[str]:
        """The store's writes in the timeline since a mark (its length then)."""
        return [line for line in self.timeline[mark:] if line.startswith("write ")]

    @property
    def tasks_running(self) -> int:
        """The server's own tasks that have not ended."""
        return self.coordinator.running_tasks


def summary_of(write_set: WriteSet) -> str:
    """What a write makes durable, in a few words."""
    words = [
        f"{attempt.step_id}.{attempt.attempt}={attempt.state}{'!' if attempt.response else ''}"
        for attempt in write_set.attempts
    ]
    words += [f"undo{undo.sequence}={undo.state}" for undo in write_set.undo]
    if write_set.rewind_from is not None:
        words.append(f"rewind>={write_set.rewind_from}")
    if write_set.publish:
        words.append("publish")
    words += [f"answer {response.method}" for response in write_set.responses]
    words += [f"effect{effect.sequence}={effect.state}" for effect in write_set.effects]
    return " ".join([*words, f"-> {write_set.transaction.status}"])


# --- over the real store ------------------------------------------------------------------


@dataclass
class _OutsideTime:
    """A store whose calls are answered by threads: virtual time stands still meanwhile."""

    store: Any
    calls: dict[str, Callable[..., Awaitable[Any]]] = field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        return bool(self.store.is_shared)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.store, name)

        async def wait(*arguments: Any, **named: Any) -> Any:
            with current_loop().waiting_for_a_thread():
                return await method(*arguments, **named)

        self.calls[name] = wait
        setattr(self, name, wait)
        return wait


@asynccontextmanager
async def sqlite_engine(folder: Path, **fields: Any) -> AsyncIterator[Engine]:
    """An engine over the store on SQLite, in a folder."""
    from agenttx_server.store import open_store

    with current_loop().waiting_for_a_thread():
        context = open_store(f"sqlite:///{folder / 'agenttx.db'}")
        store = await context.__aenter__()
    try:
        yield Engine(store=cast("TransactionStore", _OutsideTime(store)), **fields)
    finally:
        with current_loop().waiting_for_a_thread():
            await context.__aexit__(None, None, None)


def reasons_of(results: Sequence[Any]) -> list[str]:
    """The reasons of those results that are refusals."""
    return [result.reason for result in results if isinstance(result, EngineError)]


async def outcome_of(work: Awaitable[Any]) -> Any:
    """What a call answers, or the refusal that it raises."""
    try:
        return await work
    except EngineError as error:
        return error

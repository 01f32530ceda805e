"""Clients: random programs over transactions that they share, sent again until they are answered, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.calls import CallMaker
from tests.simulation.servers import Cluster, ConnectionLost
from tests.simulation.world import World

from agenttx_server.engine.errors import CommitConflict, EngineError, NotFound, Unavailable
from agenttx_server.engine.records import (
    AttemptState,
    CrashPolicy,
    Isolation,
    OnConflict,
    OnUndoFailure,
    RejectedCalls,
    StepResolution,
    TransactionId,
    UndoResolution,
)
from agenttx_server.engine.requests import (
    BeginRequest,
    CancelStepRequest,
    CommitRequest,
    CompensationAnswer,
    GroupRequest,
    PolicyOverride,
    ResolveCompensationRequest,
    ResolveStepAnswer,
    ResolveStepRequest,
    RetryCompensationRequest,
    RewindAnswer,
    RewindRequest,
    RollbackRequest,
    StepAnswer,
    StepStatus,
    TransactionView,
    compensation_id,
)
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = ["Client", "Known", "Notebook", "Sent", "is_final"]

_GIVEN_UP = object()


@dataclass(slots=True)
class Known:
    """What clients know of a transaction; another's act may have made it old."""

    transaction_id: TransactionId
    next_step: int = 1
    generation: int = 1


@dataclass(slots=True)
class Sent:
    """A request with all that it was answered, oldest first; ``name`` tells the request in words."""

    name: str
    method: str
    request: Any
    answers: list[Any] = field(default_factory=list)


class Notebook:
    """What all clients share: the transactions, and the requests with their answers."""

    def __init__(self) -> None:
        self.known: dict[TransactionId, Known] = {}
        self.begins: list[Sent] = []
        self.sent: list[Sent] = []


def is_final(answer: Any) -> bool:
    """Whether an answer must never change."""
    if isinstance(answer, tuple):
        return all(_is_final_step(item) for item in answer)
    if isinstance(answer, RewindAnswer):
        return not answer.rollback_incomplete and answer.preview is None
    if isinstance(answer, ResolveStepAnswer):
        return answer.result is not None and _is_final_step(answer.result)
    if isinstance(answer, CompensationAnswer):
        return not answer.rollback_incomplete
    if isinstance(answer, CommitConflict):
        return "rollback_incomplete" not in answer.metadata
    return not isinstance(answer, Exception)


def _is_final_step(answer: StepAnswer) -> bool:
    return answer.status is not StepStatus.IN_DOUBT and not answer.rollback_incomplete


class Client:
    """One client: ``operations`` acts, each on a transaction of its choice."""

    def __init__(self, number: int, cluster: Cluster, notebook: Notebook, random: Random) -> None:
        self._name = f"client{number}"
        self._cluster = cluster
        self._world: World = cluster.world
        self._notebook = notebook
        self.random = random
        self._calls = CallMaker(random, cluster.world, cluster.plan.trouble, f"c{number}")
        self._prefix = f"c{number}"
        self._strays: set[asyncio.Task[Any]] = set()

    # --- the program ------------------------------------------------------------------------

    async def play(self, operations: int) -> None:
        """Act so often, then go away."""
        plan = self._cluster.plan
        for _ in range(operations):
            open_ones = list(self._notebook.known.values())
            if (len(open_ones) < plan.transactions and self.random.random() < 0.6) or not open_ones:
                await self._begin()
                continue
            known = self.random.choice(open_ones)
            if self.random.random() < 0.15:
                await asyncio.sleep(self.random.choice((0.01, 0.3, 2.0)))
            await self._act(known)
        for stray in list(self._strays):
            await asyncio.wait((stray,))

    async def _act(self, known: Known) -> None:
        acts: tuple[tuple[int, Callable[[Known], Awaitable[None]]], ...] = (
            (42, self._step),
            (14, self._group),
            (9, self._rewind),
            (2, self._dry_run),
            (3, self._abort),
            (9, self._commit),
            (7, self._cancel),
            (8, self._again),
            (6, self._see_to_trouble),
        )
        drawn = self.random.randrange(sum(weight for weight, _ in acts))
        for weight, act in acts:
            drawn -= weight
            if drawn < 0:
                await act(known)
                return

    async def _begin(self) -> None:
        random = self.random
        request_id = self.new_name("b")
        request = BeginRequest(
            "agent",
            request_id=request_id,
            policy=PolicyOverride(
                max_local_depth=random.choice((0, 1, 2)),
                max_global_resets=random.choice((0, 1, 2)),
                on_undo_failure=random.choice(
                    (OnUndoFailure.HOLD, OnUndoFailure.HOLD, OnUndoFailure.CONTINUE)
                ),
                rejected_calls=random.choice(tuple(RejectedCalls)),
                on_conflict=random.choice(tuple(OnConflict)),
            ),
            isolation=random.choice((Isolation.READ_COMMITTED, Isolation.SERIALIZABLE)),
            crash_policy=random.choice((CrashPolicy.RESUME, CrashPolicy.RESUME, CrashPolicy.ABORT)),
        )
        sent = Sent(request_id, "begin", request)
        self._notebook.begins.append(sent)
        answer = await self.settled(sent)
        if answer is not _GIVEN_UP and not isinstance(answer, EngineError):
            self._notebook.known.setdefault(answer.transaction_id, Known(answer.transaction_id))

    async def _step(self, known: Known) -> None:
        await self._execute(known, 1)

    async def _group(self, known: Known) -> None:
        await self._execute(known, self.random.choice((2, 2, 3)))

    async def _execute(self, known: Known, size: int) -> None:
        first = known.next_step
        calls = [self._calls.call(first + offset, in_group=size > 1) for offset in range(size)]
        if self.random.random() < 0.2:
            calls[0] = replace(calls[0], timeout_us=self.random.choice((400_000, 1_200_000)))
        request = GroupRequest(known.transaction_id, first, tuple(calls), known.generation)
        answer = await self.tell(Sent(calls[0].request_id, "execute_group", request))
        if isinstance(answer, tuple) and answer[-1].status is not StepStatus.IN_DOUBT:
            known.next_step = answer[-1].next_step_id or 1
            known.generation = answer[-1].generation
        else:
            await self._catch_up(known, answer)

    async def _rewind(self, known: Known) -> None:
        random = self.random
        to_step = random.randint(1, known.next_step)
        accept = random.random() < 0.5
        request_id = self.new_name("w")
        request: Any
        if random.random() < 0.2:
            request = RollbackRequest(
                known.transaction_id, to_step, "why", accept_irreversible=accept, request_id=request_id
            )
            sent = Sent(request_id, "rollback", request)
        else:
            generation = known.generation if random.random() < 0.7 else None
            request = RewindRequest(
                known.transaction_id,
                to_step,
                "why",
                accept_irreversible=accept,
                request_id=request_id,
                generation=generation,
            )
            sent = Sent(request_id, "rewind", request)
        await self._catch_up(known, await self.tell(sent))

    async def _dry_run(self, known: Known) -> None:
        to_step = self.random.randint(1, known.next_step)
        request = RewindRequest(known.transaction_id, to_step, dry_run=True, accept_irreversible=True)
        await self.tell(Sent("dry run", "rewind", request), keep=False)

    async def _abort(self, known: Known) -> None:
        accept = self.random.random() < 0.7
        request_id = self.new_name("x")
        request = RollbackRequest(
            known.transaction_id, reason="why", accept_irreversible=accept, request_id=request_id
        )
        await self._catch_up(known, await self.tell(Sent(request_id, "rollback", request)))

    async def _commit(self, known: Known) -> None:
        request_id = self.new_name("k")
        answer = await self.tell(Sent(request_id, "commit", CommitRequest(known.transaction_id, request_id)))
        await self._catch_up(known, answer)

    async def _cancel(self, known: Known) -> None:
        """Stop a step that runs, one's own perhaps: it is sent first, and not waited for."""
        random = self.random
        if random.random() < 0.6:
            self._stray(self._execute(known, random.choice((1, 1, 2))))
            await asyncio.sleep(random.choice((0.0, 0.1, 0.6)))
        request_id = self.new_name("z")
        step_id = known.next_step + random.choice((0, 0, 0, 1))
        request = CancelStepRequest(known.transaction_id, step_id, "why", request_id, known.generation)
        await self._catch_up(known, await self.tell(Sent(request_id, "cancel_step", request)))

    async def _again(self, known: Known) -> None:
        """An old request comes once more."""
        if self._notebook.sent:
            await self.settled(self.random.choice(self._notebook.sent))

    async def _see_to_trouble(self, known: Known) -> None:
        view = await self.view(known.transaction_id)
        if view is not None:
            await self.see_to(view)

    def _stray(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)

    # --- what a person does -------------------------------------------------------------------

    async def see_to(self, view: TransactionView) -> bool:
        """Settle what is in doubt and what undo failed, by how the world is; return whether there was any."""
        acted = False
        record = view.record
        for step in view.unsettled:
            if step.state is AttemptState.IN_DOUBT and not record.status.is_terminal:
                acted |= await self._resolve(view, step.step_id, step.attempt)
        for undo in view.undo_failed:
            number = compensation_id(undo)
            request_id = self.new_name("u")
            chance = self.random.random()
            if chance < 0.5 and undo.undo_name:
                request: Any = RetryCompensationRequest(record.transaction_id, number, request_id)
                await self.tell(Sent(request_id, "retry_compensation", request))
            else:
                resolution = UndoResolution.KEPT
                if chance < 0.75 and self._is_at_rest(record.transaction_id, undo.step_id):
                    self._undo_by_hand(record.transaction_id, undo.step_id, undo.attempt)
                    resolution = UndoResolution.UNDONE
                request = ResolveCompensationRequest(
                    record.transaction_id, number, resolution, "looked", request_id
                )
                await self.tell(Sent(request_id, "resolve_compensation", request))
            acted = True
        return acted

    def _is_at_rest(self, transaction_id: TransactionId, step_id: int) -> bool:
        processes = [server.process for server in self._cluster.servers]
        return not (
            self._world.is_running(transaction_id, step_id)
            or any(process.is_paused or process.is_dead for process in processes)
        )

    def _undo_by_hand(self, transaction_id: TransactionId, step_id: int, attempt: int) -> None:
        standing = self._world.standing
        for (name, key), runs in list(standing.items()):
            if any(
                (run.transaction_id, run.step_id, run.attempt) == (transaction_id, step_id, attempt)
                for run in runs
            ):
                self._world.undo(name, key)
                self._world.note("byhand", self._name, transaction_id, step_id, attempt, name, key)

    async def _resolve(self, view: TransactionView, step_id: int, attempt: int) -> bool:
        record, world = view.record, self._world
        if not self._is_at_rest(record.transaction_id, step_id):
            return False
        happened = world.happened(record.transaction_id, step_id, attempt)
        resolution = StepResolution.SUCCEEDED if happened else StepResolution.FAILED
        if not happened and self.random.random() < 0.4:
            resolution = StepResolution.RETRY
        request_id = self.new_name("v")
        request = ResolveStepRequest(
            record.transaction_id,
            step_id,
            resolution,
            output_json='{"id": "found"}' if happened else "",
            error="" if happened else "it did not happen",
            request_id=request_id,
            generation=record.generation,
        )
        if resolution is StepResolution.RETRY:
            for run in world.runs:
                if (run.transaction_id, run.step_id, run.attempt) == (
                    record.transaction_id,
                    step_id,
                    attempt,
                ):
                    run.call.retries_allowed += 1
                    break
        world.note("resolve", self._name, record.transaction_id, step_id, attempt, text=resolution)
        await self.tell(Sent(request_id, "resolve_step", request))
        return True

    # --- sending --------------------------------------------------------------------------------

    async def tell(self, sent: Sent, *, keep: bool = True) -> Any:
        if keep:
            self._notebook.sent.append(sent)
        return await self.settled(sent)

    async def settled(self, sent: Sent) -> Any:
        """Send until there is an answer; now and then twice at once, or given up."""
        random, weather = self.random, self._cluster.weather
        tries = 0
        while True:
            if weather.network_faults and random.random() < weather.network_faults:
                self._stray(self._late(sent, random.choice((0.0, 0.1, 3.0))))
            answer = await self._once(sent)
            if answer is not None:
                return answer
            tries += 1
            if not self._cluster.is_calm and tries > 3 and random.random() < 0.3:
                self._world.note("gives up", self._name, text=sent.name)
                return _GIVEN_UP
            if tries > 60:
                raise AssertionError(f"{sent.method} {sent.name} is never answered")
            await asyncio.sleep(random.choice((0.01, 0.3, 1.0)))

    async def _late(self, sent: Sent, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._once(sent)

    async def _once(self, sent: Sent) -> Any:
        """Send once; None where it has to be sent again."""
        random = self.random
        number = random.randrange(len(self._cluster.servers))
        patience = random.choice((0.5, 5.0, 20.0))
        self._world.note(
            "send", self._name, text=f"{sent.method} {sent.name} to {'ABC'[number]} {_brief(sent.request)}"
        )

        def make(coordinator: TransactionCoordinator) -> Awaitable[Any]:
            method: Callable[[Any], Awaitable[Any]] = getattr(coordinator, sent.method)
            return method(sent.request)

        try:
            answer = await self._cluster.call(number, make, patience, hangs_up=random.random() < 0.7)
        except (ConnectionLost, Unavailable) as error:
            self._world.note("no answer", self._name, text=f"{sent.name}: {error}")
            return None
        except EngineError as refused:
            answer = refused
        self._world.note("answer", self._name, text=f"{sent.name}: {_brief(answer)}")
        sent.answers.append(answer)
        return answer

    def new_name(self, prefix: str) -> str:
        """Return a name that no request has."""
        return self._calls.new_name(f"{self._prefix}{prefix}")

    async def view(self, transaction_id: TransactionId) -> TransactionView | None:
        number = self.random.randrange(len(self._cluster.servers))
        try:
            return await self._cluster.call(
                number,
                lambda coordinator: coordinator.get("anonymous", transaction_id),
                5.0,
                hangs_up=True,
            )
        except (ConnectionLost, Unavailable):
            return None
        except NotFound as error:
            raise AssertionError(f"{transaction_id} is gone") from error

    async def _catch_up(self, known: Known, answer: Any) -> None:
        """Learn how a transaction stands."""
        view = await self.view(known.transaction_id)
        if view is None:
            return
        record = view.record
        known.next_step = max(record.next_step_id, 1)
        known.generation = record.generation
        if record.status.is_terminal:
            self._notebook.known.pop(known.transaction_id, None)


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_brief(item) for item in value) + ")"
    if isinstance(value, GroupRequest):
        calls = " | ".join(f"{call.tool_name} {call.arguments_json}" for call in value.calls)
        return f"{value.transaction_id} step {value.step_id} gen {value.generation}: {calls}"
    if isinstance(value, StepAnswer):
        return (
            f"{value.status} attempt {value.attempt} next {value.next_step_id} gen {value.generation}"
            f"{' replayed' if value.replayed else ''}{' rewound' if value.rewound else ''}"
            f"{' incomplete' if value.rollback_incomplete else ''}"
        )
    if isinstance(value, EngineError):
        return f"{type(value).__name__} {value.reason} {value.message}"
    return repr(value)

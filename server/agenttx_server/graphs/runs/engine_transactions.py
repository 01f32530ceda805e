"""The transactions of runs on the engine: held groups behind :class:`.step_port.RunTransactions`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from agenttx_server.engine import errors
from agenttx_server.engine.held_groups import Closed, HeldTurn
from agenttx_server.engine.held_run import HeldEdge, HeldMember, MemberOutcome
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.engine.records import AttemptState, ServerId, TransactionId
from agenttx_server.engine.requests import BeginRequest
from agenttx_server.engine.state_copying import copy_writes
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.runs.step_port import (
    CommitConflict,
    Decided,
    OutcomeState,
    RowsFor,
    StepEdge,
    StepMember,
    StepOutcome,
    Turn,
    Undone,
    Unsettled,
)

__all__ = ["EngineTransactions"]

_AGENT = "graph-run"


class EngineTransactions:
    """Begins transactions that runs own, and takes turns at them."""

    def __init__(
        self, coordinator: TransactionCoordinator, check_stored: Callable[[str], None] = lambda owner: None
    ) -> None:
        self._coordinator = coordinator
        self._check_stored = check_stored

    def check_stored(self, owner: str) -> None:
        self._check_stored(owner)

    async def begin(
        self,
        run_id: str,
        principal: str,
        rows: Callable[[str], Sequence[ExtraRows]],
        opens: Sequence[StepMember] = (),
    ) -> str:
        # A run waits for as long as it is asked to: no idle timeout ends its transaction.
        request = BeginRequest(_AGENT, principal, run_id=run_id, idle_timeout_us=0)
        members = [_held(member) for member in opens]
        return (await self._coordinator.begin_run(request, rows, members)).transaction_id

    def can_open_with(self, owner: str, members: Sequence[StepMember]) -> bool:
        return self._coordinator.can_open_with(owner, [_held(member) for member in members])

    async def is_open(self, transaction_id: str) -> bool:
        return await self._coordinator.is_open(TransactionId(transaction_id))

    async def answers(self, transaction_id: str, step_id: int) -> Mapping[str, str]:
        return await self._coordinator.answers_in_journal(TransactionId(transaction_id), step_id)

    @asynccontextmanager
    async def turn(self, transaction_id: str, run_id: str, server_id: str = "") -> AsyncIterator[Turn]:
        held_under = ServerId(server_id) if server_id else None
        async with self._coordinator.held_turn(TransactionId(transaction_id), run_id, held_under) as turn:
            yield _EngineTurn(turn, self._check_stored)


class _EngineTurn:
    def __init__(self, turn: HeldTurn, check_stored: Callable[[str], None]) -> None:
        self._turn = turn
        self._check_stored = check_stored

    @property
    def is_open(self) -> bool:
        return self._turn.is_open

    @property
    def steps(self) -> range:
        return self._turn.steps

    @property
    def constraints(self) -> tuple[str, ...]:
        return tuple(item.text for item in self._turn.record.constraints)

    @property
    def obstacle(self) -> Unsettled | None:
        record = self._turn.record
        if record.status.is_terminal:
            return Unsettled("TRANSACTION_ENDED", f"the run's transaction is {record.status}")
        if record.pending_rewind is not None:
            return Unsettled(
                "ROLLBACK_INCOMPLETE", "undo that failed, or is the agent's to do, holds the run"
            )
        return None

    def is_in_doubt(self, step_id: int) -> bool:
        member = self._turn.member(step_id)
        return member is not None and member.state is AttemptState.IN_DOUBT

    async def output(self, step_id: int) -> str:
        attempt = await self._turn.attempt(step_id)
        return "null" if attempt is None or attempt.output is None else attempt.output

    def is_done(self, step_id: int) -> bool:
        member = self._turn.member(step_id)
        return member is not None and member.state is AttemptState.COMPLETED

    async def open(self, members: Sequence[StepMember], extra: Sequence[ExtraRows]) -> None:
        self._check_stored(self._turn.record.principal)
        await self._turn.open([_held(member) for member in members], extra)

    async def extend(self, members: Sequence[StepMember], extra: Sequence[ExtraRows]) -> None:
        await self._turn.extend([_held(member) for member in members], extra)

    async def give_up(self, step_id: int, *, leave_out: bool) -> None:
        with _unsettled():
            if not await self._turn.give_up(step_id, leave_out=leave_out):
                raise Unsettled("ROLLBACK_INCOMPLETE", "an undo action failed, and holds the run")

    async def settle_conflicts(self) -> Sequence[int]:
        with _unsettled():
            return await self._turn.settle_conflicts()

    async def close_early(self, extra: Sequence[ExtraRows], *, commit: bool = False) -> None:
        try:
            verdict = await self._turn.close(extra, early=True, commit=commit)
        except errors.CommitConflict as conflict:
            raise CommitConflict(conflict.metadata.get("key", "")) from conflict
        if not isinstance(verdict, Closed):
            raise Unsettled("ROLLBACK_INCOMPLETE", "an undo action failed, and holds the run")

    def give(self, step_id: int, member: StepMember) -> None:
        self._turn.give(step_id, _held(member))

    async def undo_failed(self, step_id: int, held: Callable[[Unsettled], Sequence[ExtraRows]]) -> bool:
        try:
            await self._turn.undo_failed(step_id)
        except errors.PreconditionFailed as refused:
            await self._turn.write(held(Unsettled(refused.reason, refused.message)))
            return False
        return True

    async def run(
        self, step_id: int, extra: RowsFor, *, keeps: Callable[[], bool] = lambda: False
    ) -> StepOutcome:
        with _unsettled():
            found = await self._turn.run(step_id, lambda outcome: extra(_outcome(outcome)), keeps=keeps)
        return _outcome(found)

    def cancel(self, step_id: int, why: str) -> None:
        self._turn.cancel(step_id, why)

    def takes(self, members: Sequence[StepMember]) -> bool:
        try:
            self._check_stored(self._turn.record.principal)
        except errors.LimitExceeded:
            return False  # the next group is refused when it is opened by itself
        return self._turn.takes([_held(member) for member in members])

    async def close(
        self,
        extra: Sequence[ExtraRows],
        *,
        commit: bool,
        opens: Sequence[StepMember] = (),
        waits: bool = True,
    ) -> Sequence[int]:
        following = [_held(member) for member in opens]
        try:
            verdict = await self._turn.close(extra, commit=commit, opens=following, waits=waits)
        except errors.CommitConflict as conflict:
            raise CommitConflict(conflict.metadata.get("key", "")) from conflict
        if isinstance(verdict, Closed):
            return ()
        if verdict.held is not None:
            raise Unsettled("ROLLBACK_INCOMPLETE", "an undo action failed, and holds the run")
        if verdict.failed:
            raise Unsettled("IRREVERSIBLE_STEP", f"step {verdict.failed[0]} conflicts and can't be undone")
        return verdict.losers

    async def settled(self) -> None:
        await self._turn.settled()

    async def let_go(self, step_id: int, extra: Sequence[ExtraRows]) -> bool:
        return await self._turn.let_go(step_id, extra)

    async def decide(self) -> Decided:
        result = await self._turn.decide()
        return Decided(result.pending.strategy.value, result.incomplete)

    async def rewind(
        self, to_step: int, reason: str, *, accept_irreversible: bool = False, dry_run: bool = False
    ) -> Undone:
        steps = sum(self._turn.member(step) is not None for step in range(to_step, self._turn.steps.stop))
        answer = await self._turn.rewind(
            to_step, reason, accept_irreversible=accept_irreversible, dry_run=dry_run
        )
        if answer.preview is not None:
            return Undone(steps, len(answer.preview.undo))
        return Undone(steps, answer.compensations_run, answer.rollback_incomplete)

    async def hand_over(self, run_id: str, extra: Sequence[ExtraRows]) -> None:
        await self._turn.hand_over(run_id, extra)

    async def copy_writes(self, transaction_id: str, last_step: int, extra: Sequence[ExtraRows]) -> None:
        await copy_writes(self._turn, TransactionId(transaction_id), last_step, extra)

    async def write(self, extra: Sequence[ExtraRows]) -> None:
        await self._turn.write(extra)

    async def commit(self, extra: Sequence[ExtraRows]) -> None:
        try:
            await self._turn.commit(extra)
        except errors.CommitConflict as conflict:
            raise CommitConflict(conflict.metadata.get("key", "")) from conflict

    async def roll_back(self, reason: str, *, accept_irreversible: bool = False) -> None:
        await self._turn.roll_back(reason, accept_irreversible=accept_irreversible)


def _held(member: StepMember) -> HeldMember:
    learned = member.learned
    return HeldMember(
        member.name,
        member.arguments,
        _held_edges(member.edges),
        member.function,
        member.timeout_us,
        member.adopts,
        None if learned is None else lambda: _held_edges(learned()),
    )


def _held_edges(edges: Sequence[StepEdge]) -> tuple[HeldEdge, ...]:
    return tuple(HeldEdge(edge.from_step, edge.source_key, edge.target_key) for edge in edges)


@contextmanager
def _unsettled() -> Iterator[None]:
    try:
        yield
    except errors.PreconditionFailed as refused:
        raise Unsettled(refused.reason, refused.message) from refused


def _outcome(outcome: MemberOutcome) -> StepOutcome:
    return StepOutcome(
        outcome.step_id,
        OutcomeState(outcome.state.value),
        outcome.output,
        outcome.hint.text if outcome.hint else "",
        outcome.hint.category.value if outcome.hint else "",
        outcome.payload,
        outcome.only_read,
    )

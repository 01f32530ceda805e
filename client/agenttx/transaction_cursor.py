"""Where a transaction stands, and every move of it, as operations for either client.

The cursor holds what the next request must say (position, generation) and what is owed: a step that was sent and whose
outcome isn't known, a rollback that no step has followed. Its methods are operations (see `operation`): they say what
to send and read what came back, and leave waiting, retrying and threads to the connection that drives them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

import grpc

from agenttx import message_conversion as conversion
from agenttx.errors import (
    AgentTxError,
    Cancelled,
    CommitConflict,
    ConnectionFailed,
    DeadlineExceeded,
    InternalError,
    RollbackUnanswered,
    RpcError,
    StepAwaitingApproval,
    StepExecuting,
    StepInDoubt,
    StepRolledBack,
    StepUnsettled,
    StreamOpen,
    TransactionAborted,
    TransactionEnded,
    Unavailable,
)
from agenttx.methods import (
    BEGIN_TRANSACTION,
    COMMIT_TRANSACTION,
    EXECUTE_STEP,
    EXECUTE_STEP_GROUP,
    GET_TRANSACTION,
    LIST_STEPS,
    REPORT_STEP,
    REWIND,
    ROLLBACK_TRANSACTION,
)
from agenttx.operation import Operation, invoke
from agenttx.records import (
    CommitResult,
    CompensationResult,
    RewindResult,
    RollbackResult,
    StepOutcome,
    StepStatus,
    TransactionInfo,
    TransactionStatus,
)
from agenttx.sendable_text import sends_text
from agenttx.step import Step
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, encode_arguments

__all__ = ["TransactionCursor", "new_request_id", "raise_unless_succeeded"]

_UNKNOWN_OUTCOME = (Unavailable, DeadlineExceeded, Cancelled, InternalError)
"""After these a step that was sent may run, or have run."""

_HASTY_ROLLBACK_SECONDS = 5.0
"""Time for the rollback when a block is left by Ctrl-C or a cancellation (somebody is waiting to get out), or because
the server didn't answer (it has had its time). An open transaction that is left behind ends when it has been idle."""


class _OpenStream:
    """Marks the block of one stream."""

    is_open = True


# A variable of the context and not the thread or task itself: tasks started inside the block would wait for it while it
# waits for them.
_STREAMS: ContextVar[tuple[_OpenStream, ...]] = ContextVar("agenttx_streams", default=())


@dataclass(frozen=True, slots=True)
class SentSteps:
    """Steps that were sent: alone (`request`), as a group (`group`) or, run by the agent, as a `report`."""

    first_step: int
    steps: tuple[Step, ...]
    request: pb.ExecuteStepRequest | None = None
    group: pb.ExecuteStepGroupRequest | None = None
    report: pb.ReportStepRequest | None = None

    @property
    def extra_seconds(self) -> float:
        """The longest time that one of them was given."""
        return max((conversion.seconds(step.step_timeout or 0) for step in self.steps), default=0.0)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The request_id of each."""
        return tuple(self.member(index)[1] for index in range(len(self.steps)))

    def member(self, index: int) -> tuple[str, str]:
        """Return the tool and the request_id of one of them."""
        alone = self.request or self.report
        if alone is not None:
            return alone.tool_name, alone.request_id
        assert self.group is not None
        return self.group.members[index].tool_name, self.group.members[index].request_id


class TransactionCursor:
    """One transaction as its holder sees it. Not safe for use by two operations at once: the holder takes turns."""

    def __init__(self, begin: pb.BeginTransactionRequest | None = None, transaction_id: str = "") -> None:
        """Begin anew with a request, or take up an open transaction by its id; on the first operation."""
        self._begin = begin
        self._known = False
        self._is_behind = False  # moved by a call whose answer doesn't say all of it
        self.transaction_id = transaction_id
        self.next_step_id = 0
        self.generation = 0
        self.ended = False
        self.constraints: tuple[str, ...] = ()
        self.last_failure: StepOutcome | None = None
        self.unsettled: tuple[SentSteps, ...] = ()
        self.rollback_unanswered = False
        self._conflict: CommitConflict | None = None  # that caused the unanswered rollback
        self._stream: _OpenStream | None = None
        self._commit_request_id = ""
        self._rollback_request_ids: dict[bool, str] = {}  # by accept_irreversible: it makes another request

    def open(self) -> Operation[None]:
        """Begin or take up the transaction, unless that was done."""
        if self._known:
            if self._is_behind and not self.ended:
                yield from self.refresh()
            return
        if self._begin is None:
            info = yield from self.refresh()
            if self.ended:
                raise TransactionEnded(
                    f"transaction {info.transaction_id} has ended as {info.status}; it can only be read",
                    code=grpc.StatusCode.FAILED_PRECONDITION,
                    reason="TRANSACTION_ENDED",
                    metadata={"status": info.status.value, "abort_reason": info.abort_reason},
                )
            return
        answer = yield from invoke(BEGIN_TRANSACTION, self._begin)
        self.transaction_id = answer.transaction_id
        self.next_step_id = answer.next_step_id
        self.generation = answer.generation
        self._known = True

    def refresh(self) -> Operation[TransactionInfo]:
        """Read the transaction and go on from where it stands now."""
        request = pb.GetTransactionRequest(transaction_id=self.transaction_id)
        info = conversion.transaction_info((yield from invoke(GET_TRANSACTION, request)))
        self.next_step_id = info.next_step_id
        self.generation = info.generation
        self.constraints = info.constraints
        self.ended = info.status.is_terminal
        self._known = True
        self._is_behind = False
        return info

    @property
    def running_step(self) -> int:
        """The step that was sent and not answered, else the one that is next; 0 where neither is known."""
        return self.unsettled[0].first_step if self.unsettled else self.next_step_id

    def fall_behind(self) -> None:
        """Take note that the transaction moved: before the next call it is read again. Any thread may say so."""
        self._is_behind = True

    def catch_up(self) -> Operation[None]:
        """Go on from where the transaction stands after somebody's word moved it, now or before the next call."""
        try:
            if self.unsettled:
                yield from self.settle()
            else:
                yield from self.refresh()
        except RpcError:
            self._is_behind = True

    def step(self, step: Step, *, step_id: int | None = None) -> Operation[StepOutcome]:
        """Run one step, at the position that is next or, to repeat an earlier request, at the one it was sent for."""
        arguments_json = encode_arguments(step.arguments)
        yield from self.open()
        self.require_settled()
        sent = self.sent_step(step, arguments_json, step_id=step_id)
        return (yield from self._send(sent))[0]

    def report(
        self, step: Step, request: pb.ReportStepRequest, *, step_id: int | None = None
    ) -> Operation[StepOutcome]:
        """Report a step that the agent ran itself; the request lacks only where it stands."""
        yield from self.open()
        self.require_settled()
        request.transaction_id = self.transaction_id
        request.step_id = self.next_step_id if step_id is None else count("step_id", step_id)
        request.generation = self.generation
        return (yield from self._send(SentSteps(request.step_id, (step,), report=request)))[0]

    def acknowledged(self, result: CompensationResult) -> None:
        """Go on from where an undo that the agent acknowledged leaves the transaction."""
        self.next_step_id = result.next_step_id
        self.generation = max(self.generation, result.generation)
        self.ended = result.next_step_id == 0 and not result.rollback_incomplete

    def group(self, steps: Sequence[Step]) -> Operation[tuple[StepOutcome, ...]]:
        """Run several steps side by side."""
        if not steps:
            raise ValueError("a group has at least one step")
        members = [
            pb.GroupMember(
                tool_name=step.tool,
                arguments_json=encode_arguments(step.arguments),
                raw_context=step.raw_context,
                request_id=step.request_id or new_request_id(),
                timeout=conversion.duration("step_timeout", step.step_timeout),
            )
            for step in steps
        ]
        yield from self.open()
        self.require_settled()
        request = pb.ExecuteStepGroupRequest(
            transaction_id=self.transaction_id,
            step_id=self.next_step_id,
            generation=self.generation,
            members=members,
        )
        outcomes = yield from self._send(SentSteps(self.next_step_id, tuple(steps), group=request))
        return tuple((yield from self._with_omitted_outputs(outcomes)))

    def settle(self) -> Operation[tuple[StepOutcome, ...]]:
        """Ask again for the outcome of the steps that were sent last; empty where nothing is owed."""
        outcomes: list[StepOutcome] = []
        for sent in self.unsettled:
            outcomes += yield from self._send(sent)
            if outcomes[-1].status is not StepStatus.SUCCESS:
                break  # What was sent after it never ran.
        return tuple(outcomes)

    def commit(self) -> Operation[CommitResult]:
        """Publish the transaction's state and release its effects."""
        yield from self.open()
        self.require_settled()
        self._commit_request_id = self._commit_request_id or new_request_id()
        request = pb.CommitTransactionRequest(
            transaction_id=self.transaction_id, request_id=self._commit_request_id
        )
        try:
            answer = yield from invoke(COMMIT_TRANSACTION, request)
        except CommitConflict as conflict:
            self._commit_request_id = ""
            self.ended = conflict.next_step_id == 0 and not conflict.rollback_incomplete
            if not self.ended:
                self.rollback_unanswered = True
                self._conflict = conflict
                self.next_step_id = conflict.next_step_id
                # For the generation. The conflict is what the caller must hear of, also where this fails.
                yield from self.catch_up()
            raise
        except TransactionEnded:
            self.ended = True
            raise
        self.ended = True
        return conversion.commit_result(answer)

    def rollback(
        self, reason: str = "", *, accept_irreversible: bool = False, limit_seconds: float | None = None
    ) -> Operation[RollbackResult]:
        """Undo everything and end the transaction."""
        yield from self.open()
        request = pb.RollbackTransactionRequest(
            transaction_id=self.transaction_id,
            reason=reason,
            request_id=self._rollback_request_ids.setdefault(accept_irreversible, new_request_id()),
            accept_irreversible=accept_irreversible,
        )
        try:
            answer = yield from invoke(ROLLBACK_TRANSACTION, request, limit_seconds=limit_seconds)
        except TransactionEnded:
            self.ended = True
            raise
        self.ended = not answer.rollback_incomplete
        self.unsettled = ()
        self.rollback_unanswered = False
        return conversion.rollback_result(answer)

    def rewind(
        self, to_step: int, *, reason: str = "", dry_run: bool = False, accept_irreversible: bool = False
    ) -> Operation[RewindResult]:
        """Go back to just before a step, or only say what that would undo."""
        to_step = count("to_step", to_step)
        yield from self.open()
        request = pb.RewindRequest(
            transaction_id=self.transaction_id,
            to_step=to_step,
            reason=reason,
            dry_run=dry_run,
            accept_irreversible=accept_irreversible,
            request_id=new_request_id(),
            generation=self.generation,
        )
        result = conversion.rewind_result((yield from invoke(REWIND, request)))
        if not dry_run:
            self.next_step_id = result.next_step_id
            self.generation = result.generation
            self.unsettled = ()
            self.rollback_unanswered = False
        return result

    def leave_block(self, error: BaseException | None) -> Operation[None]:
        """End the transaction as its block ended: commit, or roll back after an error."""
        if self.ended or not self._known:
            return
        if error is None:
            if self.unsettled or self.rollback_unanswered:
                refusal = self._refusal_to_commit()
                yield from self._roll_back_for(refusal)
                raise refusal
            yield from self.commit()
        elif not isinstance(error, StepInDoubt | StepAwaitingApproval):
            yield from self._roll_back_for(error)

    def enter_stream(self) -> None:
        """Take note that a stream's block begins here."""
        self._stream = _OpenStream()
        _STREAMS.set((*(stream for stream in _STREAMS.get() if stream.is_open), self._stream))

    def leave_stream(self) -> None:
        """Take note that the stream's block has ended."""
        if self._stream is not None:
            self._stream.is_open = False
            self._stream = None

    def refuse_inside_stream(self) -> None:
        """Refuse a call from inside a stream's block: it would wait for itself, or move what is under way."""
        if self._stream is not None and self._stream in _STREAMS.get():
            raise StreamOpen(
                f"a stream of transaction {self.transaction_id} is open here: send steps over it, or leave its block first"
            )

    @sends_text
    def sent_step(self, step: Step, arguments_json: str, *, step_id: int | None = None) -> SentSteps:
        """Return a step as it is sent, at the position that is next unless another is given."""
        step_id = self.next_step_id if step_id is None else count("step_id", step_id)
        request = pb.ExecuteStepRequest(
            transaction_id=self.transaction_id,
            step_id=step_id,
            generation=self.generation,
            tool_name=step.tool,
            arguments_json=arguments_json,
            raw_context=step.raw_context,
            request_id=step.request_id or new_request_id(),
            timeout=conversion.duration("step_timeout", step.step_timeout),
        )
        return SentSteps(step_id, (step,), request=request)

    def outcomes_of(
        self, sent: SentSteps, messages: Sequence[pb.ExecuteStepResponse]
    ) -> tuple[StepOutcome, ...]:
        """Read the answers to steps that were sent, and go on from there."""
        outcomes = []
        for index, message in enumerate(messages):
            tool_name, request_id = sent.member(index)
            outcomes.append(
                conversion.step_outcome(
                    message,
                    transaction_id=self.transaction_id,
                    step_id=sent.first_step + index,
                    tool_name=tool_name,
                    request_id=request_id,
                )
            )
        self._move(sent, outcomes)
        return tuple(outcomes)

    def _send(self, sent: SentSteps) -> Operation[tuple[StepOutcome, ...]]:
        """Send steps and read their answers; an answer that doesn't come leaves them unsettled."""
        messages: Sequence[pb.ExecuteStepResponse]
        owed = self.unsettled
        if not owed:
            self.unsettled = (sent,)
        try:
            if sent.request is not None:
                request = sent.request
                messages = [(yield from invoke(EXECUTE_STEP, request, extra_seconds=sent.extra_seconds))]
            elif sent.report is not None:
                messages = [(yield from invoke(REPORT_STEP, sent.report)).result]
            else:
                assert sent.group is not None
                answer = yield from invoke(EXECUTE_STEP_GROUP, sent.group, extra_seconds=sent.extra_seconds)
                messages = answer.responses
        except ConnectionFailed:
            self.unsettled = owed  # Nothing was sent.
            raise
        except RpcError as error:
            self.refused(sent, error)
            raise
        outcomes = self.outcomes_of(sent, messages)
        if any(outcome.replayed and outcome.rewound for outcome in outcomes):
            # Rewound by somebody else since it was recorded: the answer's position is history.
            yield from self.refresh()
        return outcomes

    def refused(self, sent: SentSteps, error: RpcError) -> None:
        """Take note of the error that steps were answered with; unless it leaves their outcome open, nothing is owed."""
        if isinstance(error, TransactionEnded):
            self.ended = True
        is_theirs = isinstance(error, StepExecuting) and error.metadata.get("request_id") in sent.request_ids
        if not (is_theirs or isinstance(error, _UNKNOWN_OUTCOME)):
            self.unsettled = ()

    def _move(self, sent: SentSteps, outcomes: Sequence[StepOutcome]) -> None:
        statuses = {outcome.status for outcome in outcomes}
        waiting = statuses & {StepStatus.IN_DOUBT, StepStatus.AWAITING_APPROVAL}
        if waiting:
            # The same request gets the result once a person has decided, so it stays owed.
            self.unsettled = (sent,)
        elif statuses == {StepStatus.SUCCESS}:
            self.unsettled = tuple(owed for owed in self.unsettled if owed is not sent)
        else:
            self.unsettled = ()
        newest = max(outcomes, key=lambda outcome: outcome.generation)
        is_history = newest.replayed and sent.first_step < self.next_step_id
        if newest.generation < self.generation or (is_history and newest.generation == self.generation):
            return  # A recorded answer from before where the transaction stands now.
        failed = [outcome for outcome in outcomes if outcome.status in _FAILURES]
        # A group's success moves on by all of it: its last answer says where to.
        decisive = failed[0] if failed else outcomes[-1]
        self.generation = newest.generation
        self.next_step_id = decisive.next_step_id
        self.constraints = decisive.constraints or self.constraints
        self.rollback_unanswered = decisive.status is StepStatus.ROLLBACK_TRIGGERED
        self._conflict = None
        if failed:
            self.last_failure = decisive
        if decisive.status is StepStatus.FAILED:
            self.ended = not decisive.rollback_incomplete

    def _with_omitted_outputs(self, outcomes: Sequence[StepOutcome]) -> Operation[list[StepOutcome]]:
        """Read the outputs that a group's answer left out for their size."""
        complete = []
        for outcome in outcomes:
            if outcome.output_omitted and not outcome.rewound:
                request = pb.ListStepsRequest(
                    transaction_id=self.transaction_id, step_id=outcome.step_id, include_rewound=False
                )
                page = yield from invoke(LIST_STEPS, request)
                for attempt in page.attempts:
                    if attempt.attempt == outcome.attempt and not attempt.sub_step:
                        output = conversion.step_attempt(attempt).output
                        outcome = replace(outcome, output=output, output_omitted=False)
            complete.append(outcome)
        return complete

    def _roll_back_for(self, error: BaseException) -> Operation[None]:
        """Roll back because of an error that matters more than the rollback's own."""
        in_haste = not isinstance(error, Exception) or isinstance(error, Unavailable | DeadlineExceeded)
        try:
            result = yield from self.rollback(
                f"the client's block ended with {type(error).__name__}",
                limit_seconds=_HASTY_ROLLBACK_SECONDS if in_haste else None,
            )
            if result.pending_undo:
                error.add_note(
                    f"transaction {self.transaction_id} is rolled back once you have undone what pending_undo() names"
                )
        except TransactionEnded as ended:
            if ended.status == TransactionStatus.COMMITTED:
                # A commit whose answer was lost: whoever handles the error has to know.
                error.add_note(f"transaction {self.transaction_id} had been committed all the same")
        except AgentTxError as failure:
            error.add_note(f"rolling transaction {self.transaction_id} back failed too: {failure}")

    def require_settled(self) -> None:
        """Refuse to go on while the outcome of a step that was sent isn't known."""
        if self.unsettled:
            raise self._unsettled_error(
                "settle() it; where it is in doubt resolve_step() it first; or rewind or roll back, then with "
                "accept_irreversible"
            )

    def _refusal_to_commit(self) -> AgentTxError:
        if self.unsettled:
            return self._unsettled_error("so the transaction was not committed")
        if self._conflict is not None:
            cause = f"the commit met a conflict over {self._conflict.key}"
        else:
            assert self.last_failure is not None
            cause = f"step {self.last_failure.step_id} failed ({self.last_failure.hint})"
        return RollbackUnanswered(
            f"{cause} and no step followed the rollback, so the transaction was not committed; call commit() where "
            "the rest is enough"
        )

    def _unsettled_error(self, advice: str) -> StepUnsettled:
        sent = self.unsettled[0]
        tool_name, _ = sent.member(0)
        return StepUnsettled(
            f"the outcome of step {sent.first_step} ({tool_name}) isn't known yet: {advice}",
            step_id=sent.first_step,
            tool_name=tool_name,
        )


_FAILURES = (StepStatus.ROLLBACK_TRIGGERED, StepStatus.FAILED)


def raise_unless_succeeded(outcomes: Sequence[StepOutcome]) -> None:
    """Raise what the answers to a step or a group mean.

    Raises:
        StepRolledBack: one failed and the transaction was rewound.
        TransactionAborted: one failed and the transaction was ended.
        StepInDoubt: whether one took effect is unknown.
        StepAwaitingApproval: one waits for a person.
    """
    whole = tuple(outcomes)
    for outcome in whole:
        name = f"step {outcome.step_id} ({outcome.tool_name})"
        match outcome.status:
            case StepStatus.ROLLBACK_TRIGGERED:
                raise StepRolledBack(
                    f"{name} failed: {outcome.hint} [{outcome.strategy}, next step {outcome.next_step_id}]",
                    outcome=outcome,
                    outcomes=whole,
                )
            case StepStatus.FAILED:
                raise TransactionAborted(
                    f"{name} failed: {outcome.hint} [transaction aborted: {outcome.abort_reason}]",
                    outcome=outcome,
                    outcomes=whole,
                )
    for outcome in whole:
        name = f"step {outcome.step_id} ({outcome.tool_name})"
        match outcome.status:
            case StepStatus.IN_DOUBT:
                raise StepInDoubt.of(outcome)
            case StepStatus.AWAITING_APPROVAL:
                raise StepAwaitingApproval(f"{name} waits for approval", outcome=outcome, outcomes=whole)


def new_request_id() -> str:
    """Return an id for a changing call that was never used before."""
    return str(uuid.uuid4())

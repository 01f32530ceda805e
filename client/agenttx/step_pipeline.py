"""The steps that are under way on one stream, in order: what both step streams share.

Steps may be sent ahead: as long as all succeed, each next position is known. The first answer that isn't a success
makes the server refuse the rest of what was sent, so nothing runs in the wrong place; those are skipped, and the next
step goes where the cursor says.
"""

from __future__ import annotations

from collections import deque

from agenttx.errors import AgentTxError, RpcError, StaleGeneration, StepSkipped, TransactionEnded, WrongStep
from agenttx.records import StepOutcome, StepStatus
from agenttx.retry_policy import is_retryable
from agenttx.rich_errors import from_step_error
from agenttx.step import Step
from agenttx.transaction_cursor import SentSteps, TransactionCursor, raise_unless_succeeded
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import encode_arguments

__all__ = ["MAX_AHEAD", "PendingStep", "StepPipeline"]

MAX_AHEAD = 64
"""Most steps under way at once: enough to hide the network, few enough to bound memory and what a failure skips."""


class PendingStep:
    """A step that was sent and whose answer may not be there yet."""

    def __init__(self, sent: SentSteps) -> None:
        self.sent = sent
        self.outcome: StepOutcome | None = None
        self.error: AgentTxError | None = None
        self.seen = False

    @property
    def step_id(self) -> int:
        """The position it was sent for."""
        return self.sent.first_step

    @property
    def answered(self) -> bool:
        """Whether its answer is there."""
        return self.outcome is not None or self.error is not None

    def request(self) -> pb.ExecuteStepsRequest:
        """Return the step as the stream carries it."""
        return pb.ExecuteStepsRequest(step=self.sent.request)

    def taken(self) -> StepOutcome:
        """Return the outcome, or raise what it means; only once it is answered."""
        self.seen = True
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        raise_unless_succeeded((self.outcome,))
        return self.outcome


class StepPipeline:
    """Steps sent and not yet answered. Every answer goes to the oldest."""

    def __init__(self, cursor: TransactionCursor) -> None:
        self._cursor = cursor
        self.unanswered: deque[PendingStep] = deque()
        self._failures: list[PendingStep] = []
        self._failed_step: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether the oldest answer has to be read before another step is sent."""
        # After a failure nothing new is sent until the refusals of what was sent behind it have come in.
        return len(self.unanswered) >= MAX_AHEAD or (self._failed_step is not None and bool(self.unanswered))

    def add(self, step: Step) -> PendingStep:
        """Give a step its position and take it in."""
        arguments_json = encode_arguments(step.arguments)
        if not self.unanswered:
            self._cursor.require_settled()
            self._failed_step = None
        step_id = self._cursor.next_step_id + len(self.unanswered)
        sent = self._cursor.sent_step(step, arguments_json, step_id=step_id)
        pending = PendingStep(sent)
        self.unanswered.append(pending)
        self._cursor.unsettled = (*self._cursor.unsettled, sent)
        return pending

    def take(self, message: pb.ExecuteStepsResponse) -> RpcError | None:
        """Take the answer to the oldest step, or return its error where a retry may help."""
        if message.WhichOneof("result") == "error":
            error = from_step_error(message.error)
            if is_retryable(error):
                return error
            self.refuse(error)
            return None
        pending = self.unanswered.popleft()
        (pending.outcome,) = self._cursor.outcomes_of(pending.sent, [message.response])
        if pending.outcome.status is not StepStatus.SUCCESS:
            self._failed_step = pending.step_id
            self._failures.append(pending)
        return None

    def refuse(self, error: RpcError) -> None:
        """Settle the oldest step as refused."""
        pending = self.unanswered.popleft()
        if self._failed_step is not None and isinstance(
            error, WrongStep | StaleGeneration | TransactionEnded
        ):
            pending.error = StepSkipped(
                f"step {pending.step_id} was sent ahead and never ran: step {self._failed_step} didn't succeed",
                step_id=pending.step_id,
                failed_step_id=self._failed_step,
            )
            self._cursor.unsettled = tuple(
                owed for owed in self._cursor.unsettled if owed is not pending.sent
            )
            return
        pending.error = error
        self._failed_step = pending.step_id
        self._failures.append(pending)
        self._cursor.refused(pending.sent, error)

    def lose(self, error: AgentTxError) -> None:
        """Give up what is unanswered; the cursor still owes its outcomes."""
        self._failures += self.unanswered
        while self.unanswered:
            self.unanswered.popleft().error = error

    def raise_unseen(self) -> None:
        """Raise the first failure whose caller never asked for it."""
        for pending in self._failures:
            if not pending.seen:
                pending.taken()

"""What the SDK raises, one tree.

    AgentTxError
    ├── InvalidValue               an argument can't be sent exactly; nothing was sent (also a ValueError)
    ├── ConfigurationError         an address, token or TLS setting makes no sense (also a ValueError)
    ├── ClientClosed               the client was closed
    ├── StepUnsettled              an earlier step's outcome isn't known yet: `settle()` it first
    ├── StreamOpen                 a stream of the transaction is open: its other calls have to wait
    ├── StepSkipped                a step sent ahead on a stream never ran: one before it failed
    ├── RollbackUnanswered         a block was left normally after a rollback that no step followed
    ├── AmbiguousCall              whether a model's call is new can't be told; nothing was run (also a ValueError)
    ├── UndoMissing                the agent has to undo something for which no function was given
    ├── StepFailed                 a step's own outcome, in `outcome`
    │   ├── StepRolledBack         it failed and the transaction was rewound: go on at `next_step_id`
    │   ├── TransactionAborted     it failed and the transaction was ended
    │   └── StepAwaitingApproval   it waits for a person; the transaction stays open
    └── RpcError                   a call was refused or did not come through
        ├── InvalidArgument        INVALID_ARGUMENT     `violations`, one a bad field
        │   └── RequestIdReused                         a request_id met another request
        ├── NotFound               NOT_FOUND
        ├── PreconditionFailed     FAILED_PRECONDITION  the transaction's state forbids the call
        │   ├── WrongStep                               `expected_step` says which is next
        │   ├── TransactionEnded                        `status` says how
        │   ├── StaleGeneration                         the transaction was rewound meanwhile
        │   ├── StepInDoubt                             whether a step took effect is unknown
        │   ├── StepExecuting                           a step is still being settled
        │   ├── ApprovalPending                         a step waits for a person
        │   ├── ApprovalDecided                         somebody else was first to decide
        │   ├── RollbackIncomplete                      undo that failed, or is the agent's to do, holds a rewind
        │   ├── IrreversibleStep                        a rewind would pass `step_id`
        │   ├── NothingToResume                         a run has nothing to answer, or nothing to retry
        │   ├── InterruptPending                        a thread's run waits for an answer first
        │   └── GraphChanged                            a thread was begun with another version of its graph
        ├── Aborted                ABORTED
        │   ├── CommitConflict                          another commit changed `key`
        │   └── ThreadBusy                              another run is under way on the thread
        ├── LimitExceeded          RESOURCE_EXHAUSTED   a size limit or quota
        ├── Unauthenticated        UNAUTHENTICATED
        ├── PermissionDenied       PERMISSION_DENIED
        ├── OutOfRange             OUT_OF_RANGE
        ├── NotSupported           UNIMPLEMENTED
        ├── Unavailable            UNAVAILABLE          still so after the retries
        │   └── ConnectionFailed                        nothing answers at `address`
        ├── DeadlineExceeded       DEADLINE_EXCEEDED    still running when the time was up
        ├── Cancelled              CANCELLED
        └── InternalError          INTERNAL and the rest

The class of an RpcError follows from its reason by one table, else from its gRPC code; messages are never parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc

from agenttx.enumerations import ApprovalState

if TYPE_CHECKING:
    from agenttx.records import Approval, Decision, KeptEffect, PendingUndo, StepOutcome, Strategy

__all__ = [
    "CLASS_OF_CODE",
    "CLASS_OF_REASON",
    "Aborted",
    "AgentTxError",
    "AmbiguousCall",
    "ApprovalDecided",
    "ApprovalPending",
    "Cancelled",
    "ClientClosed",
    "CommitConflict",
    "ConfigurationError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "GraphChanged",
    "InternalError",
    "InterruptPending",
    "InvalidArgument",
    "InvalidValue",
    "IrreversibleStep",
    "LimitExceeded",
    "NotFound",
    "NotSupported",
    "NothingToResume",
    "OutOfRange",
    "PermissionDenied",
    "PreconditionFailed",
    "RequestIdReused",
    "RollbackIncomplete",
    "RollbackUnanswered",
    "RpcError",
    "StaleGeneration",
    "StepAwaitingApproval",
    "StepExecuting",
    "StepFailed",
    "StepInDoubt",
    "StepRolledBack",
    "StepSkipped",
    "StepUnsettled",
    "StreamOpen",
    "ThreadBusy",
    "TransactionAborted",
    "TransactionEnded",
    "Unauthenticated",
    "Unavailable",
    "UndoMissing",
    "Violation",
    "WrongStep",
]


class AgentTxError(Exception):
    """Anything the SDK raises on purpose."""


class InvalidValue(AgentTxError, ValueError):
    """An argument can't be sent exactly. Nothing was sent and the transaction is as it was.

    Attributes:
        path: Where the value is, as a reference would say it: `items.2.price`; empty for the whole.
        rule: Which rule it breaks: integer_range, not_finite, surrogate, not_json, too_deep, not_a_choice or
            duration_range.
    """

    def __init__(self, problem: str, *, path: str = "", rule: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.rule = rule


class ConfigurationError(AgentTxError, ValueError):
    """An address, a token or a TLS setting makes no sense; the message says what to change."""


class ClientClosed(AgentTxError):
    """The client was closed before or during the call."""


class StepUnsettled(AgentTxError):
    """An earlier step was sent and its outcome isn't known here.

    `settle()` asks for it again (the step never runs twice); `rewind()` and `rollback()` give it up.

    Attributes:
        step_id: The step.
        tool_name: Its tool.
    """

    def __init__(self, message: str, *, step_id: int = 0, tool_name: str = "") -> None:
        super().__init__(message)
        self.step_id = step_id
        self.tool_name = tool_name


class StreamOpen(AgentTxError):
    """A call that moves or reads a transaction was made inside a block of its `stream()`; nothing was sent."""


class StepSkipped(AgentTxError):
    """A step that was sent ahead on a stream never ran, because a step before it didn't succeed.

    Attributes:
        step_id: The position it was sent for.
        failed_step_id: The step that didn't succeed.
    """

    def __init__(self, message: str, *, step_id: int = 0, failed_step_id: int = 0) -> None:
        super().__init__(message)
        self.step_id = step_id
        self.failed_step_id = failed_step_id


class RollbackUnanswered(AgentTxError):
    """A transaction's block was left normally although no step followed its last rollback.

    Committing would have published half of the work, so the transaction was rolled back. Where half is meant, call
    `commit()` inside the block.
    """


class UndoMissing(AgentTxError):
    """The agent has to undo something for which `perform_undo` was given no function. Nothing more was undone.

    Attributes:
        pending: What is to be undone.
    """

    def __init__(self, message: str, *, pending: PendingUndo) -> None:
        super().__init__(message)
        self.pending = pending


class AmbiguousCall(AgentTxError, ValueError):
    """Whether a model's call is a new one or was sent before can't be told. Nothing was run.

    Its id and arguments are those of several calls of the transaction, and the history holds fewer of them: it was cut,
    under a provider that repeats its ids.
    """


class StepFailed(AgentTxError):
    """How a step ended, where it didn't succeed.

    Attributes:
        outcome: The answer in full.
        outcomes: The answers of the whole group, in step order; only this one for a step on its own.
    """

    def __init__(self, message: str, *, outcome: StepOutcome, outcomes: tuple[StepOutcome, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.outcome = outcome
        self.outcomes = outcomes or (outcome,)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_step_failed, (type(self), self.message, self.outcome, self.outcomes)

    @property
    def transaction_id(self) -> str:
        """The transaction."""
        return self.outcome.transaction_id

    @property
    def step_id(self) -> int:
        """The step that failed."""
        return self.outcome.step_id

    @property
    def tool_name(self) -> str:
        """Its tool."""
        return self.outcome.tool_name

    @property
    def hint(self) -> str:
        """One line that says what to fix."""
        return self.outcome.hint

    @property
    def category(self) -> str:
        """Category of the error, such as `foreign_key_violation`."""
        return self.outcome.error_category

    @property
    def strategy(self) -> Strategy:
        """How the failure was answered."""
        return self.outcome.strategy

    @property
    def decision(self) -> Decision | None:
        """The rollback decision, explained."""
        return self.outcome.decision

    @property
    def next_step_id(self) -> int:
        """The step to send next; 0 where the transaction ended."""
        return self.outcome.next_step_id

    @property
    def constraints(self) -> tuple[str, ...]:
        """The hints collected so far, oldest first: what the agent must keep to from now on."""
        return self.outcome.constraints

    @property
    def context_reset(self) -> bool:
        """Whether the agent should clear its own context and begin anew."""
        return self.outcome.context_reset

    @property
    def kept_effects(self) -> tuple[KeptEffect, ...]:
        """Effects that were not undone."""
        return self.outcome.kept_effects


class StepRolledBack(StepFailed):
    """A step failed and the transaction was rewound; it goes on at `next_step_id`."""


class TransactionAborted(StepFailed):
    """A step failed and the transaction was compensated and ended; `abort_reason` says which limit."""

    @property
    def abort_reason(self) -> str:
        """Why the transaction was ended."""
        return self.outcome.abort_reason


class StepAwaitingApproval(StepFailed):
    """A step waits for a person. The transaction stays open, also when this leaves its block.

    `Transaction.wait_for_approval` waits for the decision and has the step run; or send it again, with the same
    request_id, once it was made.
    """

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """What is waited for, by step; several for a group."""
        return tuple(outcome.approval for outcome in self.outcomes if outcome.approval is not None)


def _rebuild_step_failed(
    error_class: type[StepFailed], message: str, outcome: StepOutcome, outcomes: tuple[StepOutcome, ...]
) -> StepFailed:
    return error_class(message, outcome=outcome, outcomes=outcomes)


@dataclass(frozen=True, slots=True)
class Violation:
    """A request field (its proto name, dotted for nested ones) and what is wrong with it."""

    field: str
    description: str


class RpcError(AgentTxError):
    """A call was refused by the server, or did not come through.

    Attributes:
        code: The gRPC code.
        message: What the server, or the transport, said.
        reason: The UPPER_SNAKE reason; empty where the server didn't answer.
        metadata: Facts beside the reason.
        violations: What is wrong with the request, one a bad field.
        retry_after_seconds: When to try again, as the server said; None where a retry doesn't help.
        attempts: How many times the call was sent.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: tuple[Violation, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = violations
        self.retry_after_seconds = retry_after_seconds
        self.attempts = 1

    def __str__(self) -> str:
        # What is wrong with a graph is told with the code of each finding: the first one's is the reason.
        if self.reason and f"{self.reason}: " in self.message:
            return self.message
        return f"{self.reason or self.code.name}: {self.message}"

    def _number(self, key: str) -> int:
        """Return a metadata entry that is a number; 0 if it isn't there."""
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else 0


class InvalidArgument(RpcError):
    """The request breaks a rule whatever the transaction's state; `violations` lists all of them."""


class RequestIdReused(InvalidArgument):
    """A request_id came again with another request; nothing ran."""


class NotFound(RpcError):
    """No such transaction, step or key, or not yours."""


class PreconditionFailed(RpcError):
    """The transaction's state forbids the call; `reason` says how."""


class WrongStep(PreconditionFailed):
    """The step is not the one that is next: another holder of the transaction moved it. `refresh()` catches up."""

    @property
    def expected_step(self) -> int:
        """The step that is next; 0 if the server didn't say."""
        return self._number("expected_step")


class TransactionEnded(PreconditionFailed):
    """The transaction was committed, rolled back or aborted."""

    @property
    def status(self) -> str:
        """How it ended: COMMITTED, ROLLED_BACK or FAILED."""
        return self.metadata.get("status", "")

    @property
    def abort_reason(self) -> str:
        """Why it was aborted; empty if it wasn't."""
        return self.metadata.get("abort_reason", "")


class StaleGeneration(PreconditionFailed):
    """The transaction was rewound after this request was made up; nothing ran. `refresh()` catches up."""

    @property
    def current_generation(self) -> int:
        """The transaction's generation; 0 if the server didn't say."""
        return self._number("expected_generation")

    @property
    def expected_step(self) -> int:
        """The step that is next; 0 if the server didn't say."""
        return self._number("expected_step")


class StepInDoubt(PreconditionFailed):
    """Whether a step took effect is unknown, and it is not run again by itself.

    Somebody has to find out and say so with `resolve_step`: it SUCCEEDED (with its output), it FAILED (with the error),
    or RETRY, run the same call again. Without that only a rewind or rollback with `accept_irreversible=True` goes past
    it, and its effect may stay.

    Raised for a step that ended so (then `outcome` holds its answer) and for calls that this forbids. The transaction
    stays open, also when this leaves its block.

    Attributes:
        outcome: The step's answer; None where another call was refused.
    """

    outcome: StepOutcome | None = None

    @classmethod
    def of(cls, outcome: StepOutcome) -> StepInDoubt:
        """Return the error of a step that ended in doubt."""
        step, transaction = outcome.step_id, outcome.transaction_id
        doubt = cls(
            f"whether step {step} ({outcome.tool_name}) took effect is unknown [{outcome.hint}]: find out, then say so "
            f"with resolve_step({step}, 'SUCCEEDED', output=…), 'FAILED' or 'RETRY', or with `agenttx steps resolve "
            f"{transaction} {step} …`",
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason="STEP_IN_DOUBT",
            metadata={"step_id": str(step), "tool_name": outcome.tool_name},
        )
        doubt.outcome = outcome
        return doubt

    @property
    def step_id(self) -> int:
        """The step in doubt; 0 if the server didn't say."""
        return self._number("step_id")

    @property
    def tool_name(self) -> str:
        """Its tool; empty if the server didn't say."""
        return self.metadata.get("tool_name", "")

    @property
    def hint(self) -> str:
        """What is known of how it ended, in one line; empty where another call was refused."""
        return self.outcome.hint if self.outcome else ""


class StepExecuting(PreconditionFailed):
    """A step's recorded intent is still being settled; other requests for it have to wait."""


class ApprovalPending(PreconditionFailed):
    """A step waits for a person's decision, and the call would go past it."""

    @property
    def step_id(self) -> int:
        """The step that waits; 0 if the server didn't say."""
        return self._number("step_id")

    @property
    def approval_id(self) -> str:
        """What it waits for; empty if the server didn't say."""
        return self.metadata.get("approval_id", "")


class ApprovalDecided(PreconditionFailed):
    """Somebody else has decided on the approval, or it was withdrawn."""

    @property
    def approval_id(self) -> str:
        """The approval."""
        return self.metadata.get("approval_id", "")

    @property
    def state(self) -> ApprovalState:
        """How it stands: APPROVED, REJECTED or WITHDRAWN."""
        try:
            return ApprovalState(self.metadata.get("state", ""))
        except ValueError:
            return ApprovalState.UNSPECIFIED

    @property
    def decided_by(self) -> str:
        """Who decided; empty where it was withdrawn undecided."""
        return self.metadata.get("decided_by", "")

    @property
    def comment(self) -> str:
        """What they said, at most 500 characters of it."""
        return self.metadata.get("comment", "")


class RollbackIncomplete(PreconditionFailed):
    """Failed undo actions hold a rewind: rewind again, once their cause is gone."""


class IrreversibleStep(PreconditionFailed):
    """A rewind would pass a step that can't be undone; `accept_irreversible=True` does it anyway."""

    @property
    def step_id(self) -> int:
        """The step that can't be passed; 0 if the server didn't say."""
        return self._number("step_id")


class Aborted(RpcError):
    """The call lost against another one."""


class CommitConflict(Aborted):
    """Another transaction committed a key that this one had used.

    This one was compensated and ended; under the policy `on_conflict=REWIND` it was rewound to the first step that had
    used the key and goes on at `next_step_id`: run that step and those after it again, then commit again.
    """

    @property
    def key(self) -> str:
        """The key, as `namespace/key`."""
        return self.metadata.get("key", "")

    @property
    def next_step_id(self) -> int:
        """The step to send next; 0 where the transaction ended."""
        return self._number("next_step_id")

    @property
    def rollback_incomplete(self) -> bool:
        """Whether undo is left to do first: `Transaction.pending_undo` is the agent's part of it."""
        return self.metadata.get("rollback_incomplete") == "true"


class NothingToResume(PreconditionFailed):
    """A thread's run has no question to answer (`resume`), or nothing that a `retry` could go on with."""


class InterruptPending(PreconditionFailed):
    """A thread's run waits for an answer: `resume` it, or run with `discard_interrupts=True`."""


class GraphChanged(PreconditionFailed):
    """A thread was begun with another version of its graph: `allow_graph_change` says that it may go on."""


class ThreadBusy(Aborted):
    """Another run is under way on the thread: wait for it, or run with `queue=True`."""


class LimitExceeded(RpcError):
    """A size limit or a quota."""


class Unauthenticated(RpcError):
    """No credentials, or bad ones."""


class PermissionDenied(RpcError):
    """Not yours."""


class OutOfRange(RpcError):
    """A position that is no longer, or not yet, there."""


class NotSupported(RpcError):
    """The server doesn't serve this call."""


class Unavailable(RpcError):
    """The server could not answer, still so when the retries' time was up. What was sent may have taken effect."""


class ConnectionFailed(Unavailable):
    """Nothing answered at the address within the connect timeout; nothing was sent.

    Attributes:
        address: The address that was tried.
    """

    address: str = ""


class DeadlineExceeded(RpcError):
    """The time was up before the answer came. What was sent goes on at the server; `settle()` asks for its outcome."""


class Cancelled(RpcError):
    """The call was cancelled. What was sent may have taken effect."""


class InternalError(RpcError):
    """A fault of the server's, logged there."""


CLASS_OF_CODE: Final[Mapping[grpc.StatusCode, type[RpcError]]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
        grpc.StatusCode.NOT_FOUND: NotFound,
        grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
        grpc.StatusCode.ABORTED: Aborted,
        grpc.StatusCode.RESOURCE_EXHAUSTED: LimitExceeded,
        grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
        grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
        grpc.StatusCode.UNIMPLEMENTED: NotSupported,
        grpc.StatusCode.UNAVAILABLE: Unavailable,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
        grpc.StatusCode.CANCELLED: Cancelled,
    }
)
"""The class where the reason says nothing more; any other code is an InternalError."""

CLASS_OF_REASON: Final[Mapping[str, type[RpcError]]] = MappingProxyType(
    {
        "REQUEST_ID_REUSED": RequestIdReused,
        "STEP_OUT_OF_ORDER": WrongStep,
        "TRANSACTION_ENDED": TransactionEnded,
        "STALE_GENERATION": StaleGeneration,
        "STEP_IN_DOUBT": StepInDoubt,
        "STEP_EXECUTING": StepExecuting,
        "STEP_AWAITING_APPROVAL": ApprovalPending,
        "APPROVAL_DECIDED": ApprovalDecided,
        "ROLLBACK_INCOMPLETE": RollbackIncomplete,
        "IRREVERSIBLE_STEP": IrreversibleStep,
        "COMMIT_CONFLICT": CommitConflict,
        "NOTHING_TO_RESUME": NothingToResume,
        "INTERRUPT_PENDING": InterruptPending,
        "GRAPH_CHANGED": GraphChanged,
        "THREAD_BUSY": ThreadBusy,
    }
)
"""The class of the reasons that deserve one."""

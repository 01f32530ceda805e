"""What a server and its workers say to each other, free of gRPC: between the API's edge and the tools layer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from agenttx_server.engine.ports import UndoContext
from agenttx_server.engine.records import EffectRecord, ToolDescription, TransactionId

__all__ = [
    "Answer",
    "CancelCall",
    "Closed",
    "Command",
    "ContextAnswer",
    "ContextRequest",
    "Delete",
    "DeliverCall",
    "Done",
    "EffectId",
    "Entries",
    "Failure",
    "FunctionCall",
    "Get",
    "Interrupt",
    "LiveServer",
    "MakeStep",
    "Offer",
    "OfferedTool",
    "Outcome",
    "Output",
    "Put",
    "RegisterUndo",
    "Scan",
    "ServerDirectory",
    "StageEffect",
    "Succeeded",
    "ToolCall",
    "Touch",
    "UndoCall",
    "Unknown",
    "Value",
    "Waits",
    "WorkerHub",
    "WorkerLink",
]


# --- what a worker offers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool, and how many calls of it the worker takes at once."""

    description: ToolDescription
    concurrency: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Who a worker is, what it offers, and how many calls it takes at once in all."""

    worker_name: str
    sdk: str
    tools: tuple[OfferedTool, ...]
    channels: tuple[str, ...]
    concurrency: int
    functions: tuple[str, ...] = ()


# --- what a worker is told ---------------------------------------------------------------
# ``trace`` of a call: the trace context to pass on (trace_context.py), None where it is not traced.


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Run a tool."""

    call_id: int
    tool_name: str
    arguments: str
    transaction_id: TransactionId
    agent_id: str
    step_id: int
    attempt: int
    idempotency_key: str
    fence: int
    seconds_left: float
    metadata: str = ""
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Run a function of a graph; ``told`` is a JSON object. Step 0 for a router."""

    call_id: int
    function_name: str
    told: str
    seconds_left: float
    transaction_id: str = ""
    agent_id: str = ""
    step_id: int = 0
    attempt: int = 0
    idempotency_key: str = ""
    fence: int = 0
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class UndoCall:
    """Run an undo action."""

    call_id: int
    undo_name: str
    arguments: str
    context: UndoContext
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DeliverCall:
    """Deliver an effect."""

    call_id: int
    transaction_id: TransactionId
    effect: EffectRecord
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Stop a call: nobody waits for it. It is answered all the same."""

    call_id: int
    reason: str


# --- what became of a call ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """It succeeded; ``output`` is JSON text, empty for undo and deliveries. ``reads``: channels that a node read."""

    output: str = ""
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """It failed: structured if ``category`` is set, else ``raw_error`` is the error as it was raised."""

    category: str = ""
    message: str = ""
    keys: tuple[str, ...] = ()
    raw_error: str = ""
    permanent: bool = False
    retry_after_seconds: float | None = None
    not_called: bool = False
    failed_sub_step: int = 0
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """Whether its effect happened is not known."""

    why: str


Outcome: TypeAlias = Succeeded | Failure | Unknown


# --- what a tool's code asks while it runs -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key."""

    key: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Read keys with a prefix."""

    prefix: str
    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key."""

    key: str


@dataclass(frozen=True, slots=True)
class RegisterUndo:
    """Register an undo action."""

    undo_name: str
    arguments: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class StageEffect:
    """Stage an effect."""

    channel: str
    payload: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Touch:
    """Name an outside thing."""

    key: str
    writes: bool


@dataclass(frozen=True, slots=True)
class MakeStep:
    """Call a tool as a sub-step."""

    tool_name: str
    arguments: str
    timeout_us: int | None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask whoever resumes the run; ``payload`` is JSON text."""

    payload: str


ContextRequest: TypeAlias = (
    Get | Scan | Put | Delete | RegisterUndo | StageEffect | Touch | MakeStep | Interrupt
)


@dataclass(frozen=True, slots=True)
class Done:
    """It was carried out."""


@dataclass(frozen=True, slots=True)
class Value:
    """A key's value, None if it is absent."""

    value: str | None


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys and values; ``is_cut``: more stand behind the last one."""

    entries: Sequence[tuple[str, str]]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class EffectId:
    """The id of the effect that was staged."""

    effect_id: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The call is over."""

    why: str


@dataclass(frozen=True, slots=True)
class Output:
    """What a sub-step gave, or a question's answer, as JSON text."""

    output: str


@dataclass(frozen=True, slots=True)
class Waits:
    """A question was recorded; the function is to end."""


Answer: TypeAlias = Done | Value | Entries | EffectId | Output | Waits | Failure | Closed


@dataclass(frozen=True, slots=True)
class ContextAnswer:
    """The answer to one request."""

    request_id: int
    answer: Answer


Command: TypeAlias = ToolCall | FunctionCall | UndoCall | DeliverCall | CancelCall | ContextAnswer


# --- the servers that there are ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server that is alive; ``address`` is where it is reached, empty if it was not told."""

    server_id: str
    address: str


class ServerDirectory(Protocol):
    """The servers of this database."""

    @property
    def own_id(self) -> str:
        """This server."""

    @property
    def listed(self) -> Sequence[LiveServer]:
        """All that are alive, this one included."""

    def changes(self) -> AsyncIterator[Sequence[LiveServer]]:
        """Yield them after each change from now on."""


# --- the two sides ------------------------------------------------------------------------


class WorkerLink(Protocol):
    """The hub's end of one worker's connection: what the worker says is told to it."""

    def heard(self) -> None:
        """The worker is alive: something came from it."""

    def finished(self, call_id: int, outcome: Outcome) -> None:
        """A call ended. Late ones, and ones never made, are dropped."""

    def progressed(self, call_id: int, fraction: float, message: str) -> None:
        """A call tells how far it got."""

    def emitted(self, call_id: int, name: str, data: str) -> None:
        """A node tells whoever watches its run; ``data`` is JSON text."""

    def asked(self, call_id: int, request_id: int, request: ContextRequest) -> None:
        """A call's code asks something; a ContextAnswer follows."""

    def says_goodbye(self) -> None:
        """The worker takes no further calls, and wants to end once those it runs are answered."""

    async def over(self) -> str:
        """Wait until the hub has done with the worker; return why, empty if in order."""

    def close(self, why: str) -> None:
        """The connection is gone: what it runs is settled without it."""


class WorkerHub(Protocol):
    """Takes workers' connections."""

    @property
    def silence_limit_seconds(self) -> float:
        """How long a worker that runs calls may be silent."""

    @property
    def idle_silence_limit_seconds(self) -> float:
        """How long a worker that runs nothing may be silent."""

    def connect(self, offer: Offer, send: Callable[[Command], None]) -> WorkerLink:
        """Take a worker in. Raises PreconditionFailed (TOOL_CONFLICT)."""

"""What runs tools and undo, the context that they are given, and how they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import (
    Hint,
    HintCategory,
    ToolDescription,
    TransactionId,
)

__all__ = [
    "AdoptedStep",
    "ArgumentsRefused",
    "ContextClosed",
    "NotCalled",
    "OutcomeUnknown",
    "ReportedFailure",
    "RunnerLost",
    "StepFunction",
    "StepWaits",
    "SubStepCall",
    "SubStepFailed",
    "ToolContext",
    "ToolFailure",
    "ToolProgress",
    "ToolRunner",
    "UndoContext",
    "UndoUnavailable",
]


class ToolFailure(Exception):
    """A tool's structured error: it bypasses the hint rules.

    ``category`` is one of the hint categories, ``keys`` the offending fields.
    """

    def __init__(self, category: HintCategory | str, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.keys = tuple(keys)


class ArgumentsRefused(ToolFailure):
    """Arguments that the tool's schema refuses; the tool was never called."""


class NotCalled(ToolFailure):
    """The tool's code was not reached, by nobody's fault: no worker that has it was there, or all were busy."""


class RunnerLost(ToolFailure):
    """Whoever ran the tool is gone in the middle of it, and the tool has no effects outside."""


class ReportedFailure(Exception):
    """An error that was raised in another process; ``raw_error`` is its text, traceback included."""

    def __init__(self, raw_error: str) -> None:
        super().__init__(raw_error)
        self.raw_error = raw_error


class UndoUnavailable(Exception):
    """The undo action can't be run now, as nobody who has it is there; it was not tried."""


class SubStepFailed(ToolFailure):
    """A sub-step failed and was undone. Raised in the step that asked for it; let through, it is the step's failure."""

    def __init__(self, sub_step: int, hint: Hint) -> None:
        super().__init__(hint.category, hint.text, hint.keys)
        self.sub_step = sub_step
        self.hint = hint


StepFunction: TypeAlias = Callable[[Any, "ToolContext"], Awaitable[Any]]
"""Code of a layer above the engine that is run as a step or a sub-step: parsed arguments and a context in, a JSON-able
value out."""


@dataclass(frozen=True, slots=True)
class SubStepCall:
    """A call that a step's code makes: ``arguments`` is JSON text; ``timeout_us`` None is the tool's own.

    With ``function`` that is called, and ``tool_name`` only names it: it must do all that it does outside in
    sub-steps of its own. Calls of one ``scope`` are told apart by their order; branches that run side by side
    take a scope each. ``inner_scope`` is that of the calls made inside; None: one of its own, by its place.
    ``ordinal`` says which call of its scope it is, from 1, where that isn't the order: a failed one that is made again.
    """

    tool_name: str
    arguments: str
    timeout_us: int | None = None
    scope: str = ""
    inner_scope: str | None = None
    function: StepFunction | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class AdoptedStep:
    """A step that was withdrawn, of this transaction or of one before it, whose calls another one takes over."""

    transaction_id: TransactionId
    step_id: int


class StepWaits(Exception):
    """A member of a held group stops here: it is started again when what it waits for has come.

    ``payload`` is for the group's owner.
    """

    def __init__(self, payload: object = None) -> None:
        super().__init__("the step waits")
        self.payload = payload


class OutcomeUnknown(Exception):
    """The tool can't tell whether its effect happened."""


class ContextClosed(Exception):
    """The attempt's deadline passed or it was superseded: nothing more can be stored, staged or registered."""


class ToolContext(Protocol):
    """What a running tool may use; the engine implements it, one a call.

    Keys are ``namespace/key``. Values are canonical JSON text. After the deadline every
    method raises :class:`ContextClosed`.
    """

    @property
    def transaction_id(self) -> TransactionId: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def step_id(self) -> int: ...
    @property
    def sub_step(self) -> int:
        """The sub-step, from 1; 0 for the step itself."""

    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str:
        """The attempt's key, the same over retries and crashes."""

    @property
    def fence(self) -> int:
        """A number that grows with each takeover, for systems that can check it."""

    @property
    def metadata(self) -> str:
        """What the call says of itself beside its arguments, as a JSON object; empty for nothing."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""

    def check_begin(self) -> None:
        """Raise StoreUnavailable if the call may not begin any more, another server having taken its work over.

        The engine looks before it hands a call on; whoever keeps it waiting looks again, right before it leaves.
        """

    async def get(self, key: str) -> str | None:
        """Read a key: own writes first, then committed state."""

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        """Read present keys with a prefix, in key order."""

    async def put(self, key: str, value: str) -> None:
        """Write a key; visible to later steps once this step succeeded."""

    async def delete(self, key: str) -> None:
        """Remove a key (no error if it is absent)."""

    async def require_exists(self, key: str, error: str) -> None:
        """Have the commit check again that a key exists; ``error`` is reported if not."""

    async def require_none(self, prefix: str, error: str) -> None:
        """Have the commit check again that no key has a prefix."""

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        """Register an undo action, durable when this returns; call it before the effect."""

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        """Replace the arguments of the undo action of this name that was registered last; durable when it returns."""

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        """Stage an effect for delivery after commit; return its id."""

    async def touch(self, key: str, *, writes: bool) -> None:
        """Say which outside thing the tool is about to read, or to change; call it before it does.

        Of two members of a group that touch one key, one of them writing, the higher step
        fails with category conflict, whatever finished first. Keys are paths, ``file/a/b``:
        touching one touches all beneath it. Nothing is locked and nothing is published.
        """

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        """Call a tool as a sub-step of this step; return its output. ``arguments`` and output are JSON text.

        Durable when it returns: where this step is started again, the same call is answered from the journal.
        Raises SubStepFailed, its undo having run; ContextClosed where this step can't go on.
        """


def _may_begin() -> None:
    """Nobody may have taken the work over."""


@dataclass(frozen=True, slots=True)
class UndoContext:
    """What an undo action is told: whose effect it takes back and the key it always gets.

    ``check_begin`` is as :meth:`ToolContext.check_begin`; it and the ``owner`` of the transaction are told to nobody.
    """

    transaction_id: TransactionId
    agent_id: str
    step_id: int
    attempt: int
    idempotency_key: str
    check_begin: Callable[[], None] = field(default=_may_begin, compare=False, repr=False)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far a tool says it has come: part done from 0 to 1, None where it can't tell, and one line."""

    fraction: float | None
    message: str


class ToolRunner(Protocol):
    """Runs tools and undo actions by name."""

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description, None if there is no such tool."""

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return all tools by name."""

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        """Return a tool's description; wait for who offers it if nobody did so far."""

    async def was_offered(self, name: str) -> bool:
        """Whether a tool that nobody offers here now was offered lately, or is by who is connected to another server."""

    def check_arguments(self, name: str, arguments: Any) -> None:
        """Raise ArgumentsRefused if it is known here that a tool refuses arguments; they are left as they are."""

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool on parsed arguments; return a JSON-able value; raise what the tool raises.

        Raises ArgumentsRefused before the tool is called, and NotCalled where it can't be. Cancelling this coroutine asks the
        tool to stop; it ends only when the tool's code has ended.
        """

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool that is described as prompt, here and now; return and raise as :meth:`run` does.

        Raises RuntimeError if it waits for something after all. What it did is in the context, and may be thrown away.
        """

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> ToolProgress | None:
        """Return what a step's tool, which runs through this server, last said of how far it is; None if nothing."""

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action; it must be idempotent. Raises what the action raises, or UndoUnavailable."""

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        """Let go of what was kept for undoing this transaction (backups, claims)."""

"""The transaction of a run, as what runs graphs needs it: held groups of steps (docs/decisions/0020).

A turn has the transaction to itself. A superstep is a group: ``open`` numbers its steps, ``run`` runs one and is
durable when it returns, ``close`` ends the group in one commit with the rows of the boundary.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from enum import StrEnum
from typing import Protocol, TypeAlias

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import AdoptedStep, ExtraRows, StepFunction, ToolContext
from agenttx_server.graphs.runs.records import EmbeddedRun, InterruptRecord, RunError

__all__ = [
    "CommitConflict",
    "Decided",
    "FunctionReport",
    "InsideWaits",
    "NodeFunctions",
    "OutcomeState",
    "RowsFor",
    "RunTransactions",
    "StepEdge",
    "StepMember",
    "StepOutcome",
    "StepRunner",
    "StepTurn",
    "Turn",
    "Undone",
    "Unsettled",
]


class OutcomeState(StrEnum):
    """How one attempt of a step ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WAITING = "WAITING"
    IN_DOUBT = "IN_DOUBT"


class CommitConflict(Exception):
    """Another transaction published ``key`` first. The run's transaction has been rolled back."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was changed by another transaction")
        self.key = key


@dataclass(frozen=True, slots=True)
class Undone:
    """What a rewind undid: steps, and undo actions run. ``held``: undo that failed holds the rewind."""

    steps: int = 0
    compensations: int = 0
    held: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """What the rollback controller decided on a failure. ``held``: undo that failed holds the rewind."""

    strategy: str
    held: bool


class Unsettled(Exception):
    """The group can't be closed by running steps again. ``reason`` names an ErrorReason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StepEdge:
    """What a step takes, under ``target_key``, of what step ``from_step`` gave under ``source_key``."""

    from_step: int
    source_key: str
    target_key: str


@dataclass(slots=True)
class FunctionReport:
    """What a function's call told besides its answer, also where it failed.

    Attributes:
        reads: the channels that it read.
        events: its own events, name and JSON text, in order.
        was_unreached: whether nobody could run it: it was not called.
        fault: the ErrorReason of a failure that is the runtime's finding; "" for its own.
        edges: what the nodes of an embedded graph took from earlier steps.
        asked: what is asked inside an embedded graph and was not known before.
        error: why an embedded graph failed, if it did; one without a category is no failure of a node.
        is_stopped: whether an embedded graph stopped at a boundary as it was told to, and is to go on.
        child: the run of an embedded graph.
        broke: what kept an embedded graph from being run: no outcome of it.
        on_event: told of each of its own events as it comes; what is kept of them is ``events``.
    """

    reads: tuple[str, ...] = ()
    events: list[tuple[str, str]] = field(default_factory=list)
    fault: str = ""
    was_unreached: bool = False
    edges: list[StepEdge] = field(default_factory=list)
    asked: list[InterruptRecord] = field(default_factory=list)
    error: RunError | None = None
    is_stopped: bool = False
    child: EmbeddedRun | None = None
    broke: Exception | None = None
    on_event: Callable[[str, str], None] | None = None

    def clear(self) -> None:
        """Forget what the call before told."""
        self.reads, self.fault, self.was_unreached = (), "", False
        self.events, self.edges, self.asked = [], [], []
        self.error, self.is_stopped, self.child, self.broke = None, False, None, None


class InsideWaits:
    """What the step of an embedded graph waits with: what its nodes asked is told by its report."""


def _somebody_can() -> None:
    return


@dataclass(frozen=True, slots=True)
class StepMember:
    """A step of a group: a call of the tool ``name``, or of ``function``, which ``name`` then only names.

    A function must do all that it does outside in sub-steps: after a crash it is started again. ``adopts`` is the
    step of a group that was closed early whose calls it takes over. ``report`` is what its last call told besides its
    answer, ``learned`` the edges that follow from that, ``ready`` waits until somebody can run it; None: somebody can.
    """

    name: str
    arguments: str = "{}"
    edges: tuple[StepEdge, ...] = ()
    function: StepFunction | None = None
    timeout_us: int | None = None
    adopts: AdoptedStep | None = None
    report: FunctionReport | None = None
    learned: Callable[[], tuple[StepEdge, ...]] | None = None
    ready: Callable[[], Awaitable[None] | None] = _somebody_can


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """COMPLETED has ``output`` (JSON), FAILED ``hint`` and ``category``, WAITING what its code waits with.

    ``only_read``: it and all that it called changed nothing.
    """

    step_id: int
    state: OutcomeState
    output: str | None = None
    hint: str = ""
    category: str = ""
    payload: object = None
    only_read: bool = False


StepTurn: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Counts a step of an owner's; returns what waits until it may be run, None if that is now."""
RowsFor: TypeAlias = Callable[[StepOutcome], Sequence[ExtraRows]]


class StepRunner(Protocol):
    """Runs the steps of a superstep's tasks."""

    def give(self, step_id: int, member: StepMember) -> None:
        """Say what a step is, before it is run."""

    async def undo_failed(self, step_id: int, held: Callable[[Unsettled], Sequence[ExtraRows]]) -> bool:
        """Undo what a step's failed attempt did itself, before it is run again.

        False where undo failed: it isn't run again then, as the rows say that ``held`` gives for that.
        """

    async def run(
        self, step_id: int, extra: RowsFor, *, keeps: Callable[[], bool] = lambda: False
    ) -> StepOutcome:
        """Run a step that has not succeeded, once. The outcome is durable, with the rows, when this returns.

        Where ``keeps`` says so, asked behind ``extra``, a success may be left to what the turn writes next, without
        its rows: it is lost if the turn ends before. Raises Unsettled where a failed attempt of it can't be undone.
        """

    def cancel(self, step_id: int, why: str) -> None:
        """Stop a step that runs."""


class Turn(StepRunner, Protocol):
    """One turn at a run's transaction."""

    @property
    def is_open(self) -> bool:
        """Whether a group is open, perhaps from an earlier turn."""

    @property
    def steps(self) -> range:
        """The steps of the open group."""

    @property
    def constraints(self) -> tuple[str, ...]:
        """The hints that the transaction has learned."""

    @property
    def obstacle(self) -> Unsettled | None:
        """Why the transaction can't be gone on with, if so: it has ended, or undo that failed holds it."""

    def is_done(self, step_id: int) -> bool:
        """Whether a member of the open group has succeeded."""

    def is_in_doubt(self, step_id: int) -> bool:
        """Whether it isn't known what a member did: it can't be run until a person says so."""

    async def output(self, step_id: int) -> str:
        """What a member that has succeeded gave, as JSON."""

    async def open(self, members: Sequence[StepMember], extra: Sequence[ExtraRows]) -> None:
        """Open a group."""

    async def extend(self, members: Sequence[StepMember], extra: Sequence[ExtraRows]) -> None:
        """Add members to the open group, behind those that it has, while none runs."""

    async def give_up(self, step_id: int, *, leave_out: bool) -> None:
        """Undo a member that has succeeded: it is to be run again, or (``leave_out``) counts as ended.

        Raises Unsettled where it can't be undone.
        """

    async def let_go(self, step_id: int, extra: Sequence[ExtraRows]) -> bool:
        """Undo a failed member, which then counts as ended; False if undo that failed holds the group."""

    async def settle_conflicts(self) -> Sequence[int]:
        """Undo members that conflicted with lower ones, before the group is closed early; return them.

        Failed ones are undone too, as by :meth:`undo_failed`. Raises Unsettled.
        """

    async def close_early(self, extra: Sequence[ExtraRows], *, commit: bool = False) -> None:
        """Close the group while members have not succeeded; a later step may adopt what they called.

        With ``commit`` the transaction is committed, with what they called. Raises CommitConflict.
        """

    def give(self, step_id: int, member: StepMember) -> None:
        """Say, in a later turn, what a member of the open group is."""

    def takes(self, members: Sequence[StepMember]) -> bool:
        """Whether these can be the group behind the open one; of functions only that they are is looked at."""

    async def close(
        self,
        extra: Sequence[ExtraRows],
        *,
        commit: bool,
        opens: Sequence[StepMember] = (),
        waits: bool = True,
    ) -> Sequence[int]:
        """Close the group, and with ``commit`` the transaction; nothing is written if steps are returned: those
        conflicted with lower ones, were undone and must run again, in this order. Raises CommitConflict, Unsettled.

        ``opens``, members that :meth:`takes` takes, are opened as the next group in the same commit. Without ``waits``
        that may be durable later, before anything else that the turn writes.
        """

    async def settled(self) -> None:
        """Return once the group that was closed last is durable. Raises what the store raised for it."""

    async def decide(self) -> Decided:
        """Have the rollback controller decide on the failed member, and go back, or end, as it says.

        The owner's rows of that are those of :mod:`.rolled_back`; no group is open then.
        """

    async def rewind(
        self, to_step: int, reason: str, *, accept_irreversible: bool = False, dry_run: bool = False
    ) -> Undone:
        """Undo all from a step on, which begins a group; ``dry_run`` only says what that would be.

        Raises PreconditionFailed: IRREVERSIBLE_STEP, STEP_IN_DOUBT.
        """

    async def hand_over(self, run_id: str, extra: Sequence[ExtraRows]) -> None:
        """Make the transaction another run's, whose turn the next one is; an open group is closed early with it."""

    async def copy_writes(self, transaction_id: str, last_step: int, extra: Sequence[ExtraRows]) -> None:
        """Write to the store what another transaction had written after step ``last_step``, as a step of this one.

        Begun in a turn that was cut off it is gone on with.
        """

    async def write(self, extra: Sequence[ExtraRows]) -> None:
        """Write rows alone, guarded by the transaction."""

    async def commit(self, extra: Sequence[ExtraRows]) -> None:
        """Commit the transaction while no group is open. Raises CommitConflict."""

    async def roll_back(self, reason: str, *, accept_irreversible: bool = False) -> None:
        """Undo everything and end the transaction."""


class RunTransactions(Protocol):
    """The transactions of runs."""

    async def begin(
        self,
        run_id: str,
        principal: str,
        rows: Callable[[str], Sequence[ExtraRows]],
        opens: Sequence[StepMember] = (),
    ) -> str:
        """Begin the transaction of a run and return its id; ``rows`` are written with it, given that id.

        ``opens``, which :meth:`can_open_with` takes, is its first group, open from the start.
        """

    def check_stored(self, owner: str) -> None:
        """Raise engine.errors.LimitExceeded for an owner that may store no more."""

    def can_open_with(self, owner: str, members: Sequence[StepMember]) -> bool:
        """Whether these can be the first group of a transaction."""

    async def is_open(self, transaction_id: str) -> bool:
        """Whether a transaction is there and has not ended."""

    async def answers(self, transaction_id: str, step_id: int) -> Mapping[str, str]:
        """Return what the first calls of each scope in a step's journal gave, as JSON by scope; of those that succeeded."""

    def turn(
        self, transaction_id: str, run_id: str, server_id: str = ""
    ) -> AbstractAsyncContextManager[Turn]:
        """Take a turn.

        ``server_id``: whose the run is. Where that isn't this server's id any more, its lease having ended, no step
        is begun in the turn: it ends with StoreUnavailable.
        """


class NodeFunctions(Protocol):
    """Functions that workers host under a name."""

    async def missing(self, functions: Collection[str]) -> Sequence[str]:
        """Return those that nobody has hosted, once workers had a moment to connect: a run of them is not begun."""

    def is_hosted(self, function: str) -> bool:
        """Whether somebody hosts one now."""

    async def until_hosted(self, function: str) -> None:
        """Wait until somebody hosts one."""

    async def call(
        self,
        function: str,
        arguments: str,
        context: ToolContext | None,
        report: FunctionReport | None = None,
        idle_seconds: float | None = None,
    ) -> str:
        """Call one; ``arguments`` and the answer are JSON. A router has no context. Raises ToolFailure.

        ``report`` is filled with what it tells besides. ``idle_seconds`` without progress fail it (TIMEOUT): time in
        which it neither told anything nor waited for what it asked of its context, sub-steps among it.
        """

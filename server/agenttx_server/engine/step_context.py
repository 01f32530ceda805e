"""What one running attempt may do to its transaction: read, write, stage, register undo.

Reads see the attempt's own writes, then those of steps before its group, then committed
state. Writes, reads, checks and staged effects are collected here and become durable with
the step's result, in one commit; only an undo action is durable at once, because it has to
be there before the effect that it takes back. A closed context refuses everything: what a
tool does after its deadline can no longer be part of the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from agenttx_server.engine.limits import Limits, utf8_size
from agenttx_server.engine.ports import (
    Clock,
    ContextClosed,
    IdSource,
    StaleRevision,
    StoreUnavailable,
    SubStepCall,
    ToolFailure,
    TransactionStore,
)
from agenttx_server.engine.records import (
    CommitCheck,
    CommitCheckKind,
    EffectRecord,
    HintCategory,
    StateRead,
    StateWrite,
    TransactionId,
)
from agenttx_server.engine.state_overlay import StateOverlay
from agenttx_server.engine.touches import fitted, state_touch, touch_row
from agenttx_server.engine.visibility import in_tenant
from agenttx_server.engine.write_order import sub_step_span

if TYPE_CHECKING:
    from agenttx_server.engine.step_journal import StepJournal

__all__ = ["StepContext"]

MAX_CHANNEL_BYTES = 128
MAX_KEY_BYTES = 256

T = TypeVar("T")
RegisterUndo = Callable[[str, str, str], Awaitable[None]]
UpdateUndo = Callable[[str, str], Awaitable[None]]
MakeSubStep = Callable[[SubStepCall], Awaitable[str]]


class StepContext:
    """One attempt's view of its transaction; implements :class:`.ports.ToolContext`."""

    __slots__ = (
        "_beneath",
        "_calls",
        "_checks",
        "_clock",
        "_closed",
        "_deadline",
        "_effects",
        "_ids",
        "_limits",
        "_make_sub_step",
        "_overlay",
        "_reads",
        "_register_undo",
        "_space",
        "_store",
        "_store_failure",
        "_touches",
        "_update_undo",
        "_validates_scans",
        "_writes",
        "agent_id",
        "attempt",
        "check_begin",
        "fence",
        "group_first",
        "idempotency_key",
        "metadata",
        "owner",
        "step_id",
        "sub_step",
        "transaction_id",
    )

    def __init__(
        self,
        *,
        transaction_id: TransactionId,
        owner: str,
        agent_id: str,
        step_id: int,
        attempt: int,
        group_first: int,
        idempotency_key: str,
        deadline: float,
        fence: int,
        store: TransactionStore,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
        register_undo: RegisterUndo,
        update_undo: UpdateUndo,
        make_sub_step: MakeSubStep,
        check_begin: Callable[[], None],
        metadata: str = "",
        validates_scans: bool = False,
        sub_step: int = 0,
        beneath: StateOverlay | None = None,
        calls: Callable[[], StepJournal] | None = None,
    ) -> None:
        self.transaction_id = transaction_id
        self.agent_id = agent_id
        self.step_id = step_id
        self.attempt = attempt
        self.group_first = group_first
        self.idempotency_key = idempotency_key
        self.fence = fence
        self.metadata = metadata
        self.owner = owner
        self._space = in_tenant(owner, "")
        self._deadline = deadline
        self._store = store
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._register_undo = register_undo
        self._update_undo = update_undo
        self._make_sub_step = make_sub_step
        self.check_begin = check_begin
        self.sub_step = sub_step
        self._beneath = beneath
        self._calls = calls
        self._overlay: StateOverlay | None = None
        self._validates_scans = validates_scans
        self._closed = ""
        self._store_failure: Exception | None = None
        self._reads: dict[tuple[str, bool], StateRead] = {}
        self._writes: dict[str, str | None] = {}
        self._checks: list[CommitCheck] = []
        self._effects: list[EffectRecord] = []
        self._touches: dict[str, bool] = {}

    # --- for the tool -------------------------------------------------------------------

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""
        return self._deadline - self._clock.monotonic()

    async def get(self, key: str) -> str | None:
        """Read a key: own writes first, then the transaction's, then committed state."""
        self._check_open()
        key = self._placed(key)
        is_own, value = self._own(key)
        if is_own:
            if self._beneath is not None and key not in self._writes:
                self._touches.setdefault(state_touch(key), False)
            return value
        view = await self._answered(self._store.read_state(self.transaction_id, key, self.group_first))
        self._check_open()
        is_own, value = self._own(key)
        if is_own:  # written by a concurrent part of the tool meanwhile
            return value
        self._note_read(key, view.committed_version)
        return view.value

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        """Read present keys with a prefix, in key order, at most ``limit`` (1 to 1000)."""
        self._check_open()
        prefix, after = self._placed(prefix), self._space + after if after else ""
        limit = max(1, min(limit, 1000))
        own = {key: value for key, value in self._all_own().items() if key.startswith(prefix) and key > after}
        deleted = sum(1 for value in own.values() if value is None)
        # Before the scan: what is committed in between then counts as a change, though it was seen.
        version = await self._answered(self._store.commit_version()) if self._validates_scans else 0
        rows = await self._answered(
            self._store.scan_state(self.transaction_id, prefix, self.group_first, after, limit + deleted)
        )
        self._check_open()
        scanned = self._reads.get((prefix, True))
        if scanned is None or version < scanned.version:
            self._reads[(prefix, True)] = StateRead(
                self.step_id, prefix, version, is_prefix=True, sub_step=self.sub_step
            )
        found: dict[str, str] = {}
        for key, view in rows:
            if key not in own and view.value is not None:
                self._note_read(key, view.committed_version)
                found[key] = view.value
        complete = len(rows) < limit + deleted
        horizon = rows[-1][0] if rows and not complete else None
        for key, value in own.items():
            if value is not None and (horizon is None or key <= horizon):
                found[key] = value
        return [(key.removeprefix(self._space), value) for key, value in sorted(found.items())[:limit]]

    async def put(self, key: str, value: str) -> None:
        """Write a key; later steps see it once this step succeeded."""
        self._check_open()
        self._write(self._placed(key), value)

    async def delete(self, key: str) -> None:
        """Remove a key; no error if it is absent."""
        self._check_open()
        self._write(self._placed(key), None)

    async def require_exists(self, key: str, error: str) -> None:
        """Have the commit check again that a key exists; ``error`` is reported if it doesn't."""
        self._check_open()
        self._add_check(CommitCheckKind.EXISTS, self._placed(key), error)

    async def require_none(self, prefix: str, error: str) -> None:
        """Have the commit check again that no key has a prefix."""
        self._check_open()
        self._add_check(CommitCheckKind.NONE_WITH_PREFIX, self._placed(prefix), error)

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        """Register an undo action, durable when this returns; to be called before the effect."""
        self._check_open()
        await self._answered(
            self._register_undo(undo_name, arguments, idempotency_key or self.idempotency_key)
        )
        self._check_open()

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        """Replace the arguments of the undo action of a name that this call registered last; durable when this returns."""
        self._check_open()
        await self._answered(self._update_undo(undo_name, arguments))
        self._check_open()

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        """Stage an effect for delivery after commit; returns its id."""
        self._check_open()
        _check_text("channel", channel, MAX_CHANNEL_BYTES, required=True)
        _check_text("idempotency_key", idempotency_key, MAX_KEY_BYTES, required=False)
        if len(payload.encode()) > self._limits.arguments_bytes:
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"the effect's payload is larger than the limit of {self._limits.arguments_bytes} bytes. Stage a "
                "smaller one.",
                ("payload",),
            )
        effect_id = self._ids.new_id()
        self._effects.append(
            EffectRecord(
                effect_id=effect_id,
                step_id=self.step_id,
                attempt=self.attempt,
                sequence=len(self._effects),  # made the transaction's own order when the step is written
                channel=channel,
                payload=payload,
                idempotency_key=idempotency_key or effect_id,
                staged_at=self._clock.now(),
                sub_step=self.sub_step,
            )
        )
        return effect_id

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        """Call a tool as a sub-step of this step; return its output as JSON text."""
        return await self.make(SubStepCall(tool_name, arguments, timeout_us))

    async def make(self, call: SubStepCall) -> str:
        """Make any kind of sub-step; for layers above the engine."""
        self._check_open()
        output = await self._answered(self._make_sub_step(call))
        self._check_open()
        return output

    @property
    def calls(self) -> StepJournal:
        """The calls of the step, for layers above the engine."""
        if self._calls is None:
            raise RuntimeError("only a function has calls")
        return self._calls()

    async def touch(self, key: str, *, writes: bool) -> None:
        """Note an outside thing, and all beneath it, as read or as written; see :mod:`.touches`.

        A key over the limit stands for the longest path above it that fits.
        """
        self._check_open()
        key = fitted(key, self._limits.state_key_bytes)
        self._check_key(key)
        self._touches[key] = writes or self._touches.get(key, False)

    # --- for the engine -----------------------------------------------------------------

    def close(self, why: str) -> None:
        """Refuse everything from now on."""
        self._closed = self._closed or why

    @property
    def store_failure(self) -> Exception | None:
        """Why the store could not serve this attempt. Whatever the tool made of that is no result."""
        return self._store_failure

    @property
    def reads(self) -> list[StateRead]:
        """What was read of committed state."""
        return list(self._reads.values())

    def take_overlay(self) -> StateOverlay:
        """Return what this attempt and its sub-steps have written, for both to read and to write on from now."""
        if self._overlay is None:
            self._overlay = StateOverlay()
            for key, value in self._writes.items():
                self._overlay.write_own(key, value)
        return self._overlay

    @property
    def writes(self) -> list[StateWrite]:
        """The last write of each key, in order of first write, between what sub-steps wrote."""
        spans = self._overlay.own_spans if self._overlay is not None else {}
        base = sub_step_span(self.sub_step)[0] if self.sub_step else 0
        return [
            StateWrite(self.step_id, spans.get(key, base) + number, key, value)
            for number, (key, value) in enumerate(self._writes.items(), start=1)
        ]

    @property
    def touches(self) -> list[StateRead]:
        """What was touched outside, as the rows that keep it until the group is settled."""
        return [
            touch_row(self.step_id, key, writes=writes, sub_step=self.sub_step)
            for key, writes in self._touches.items()
        ]

    @property
    def checks(self) -> list[CommitCheck]:
        """What the commit has to check again."""
        return list(self._checks)

    @property
    def effects(self) -> list[EffectRecord]:
        """What was staged, in order; sequences count from 0 in this attempt."""
        return list(self._effects)

    async def _answered(self, request: Awaitable[T]) -> T:
        try:
            return await request
        except (StoreUnavailable, StaleRevision) as error:
            self._store_failure = self._store_failure or error
            self.close("the database could not serve the step")
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ContextClosed(self._closed)

    def _placed(self, key: str) -> str:
        """Return a key in the space of the owner's tenant; that of no other can be named."""
        self._check_key(key)
        if key.startswith("@"):
            raise ToolFailure(
                HintCategory.INVALID_VALUE,
                "key begins with '@', which is reserved. Choose another one.",
                ("key",),
            )
        return self._space + key

    def _check_key(self, key: str) -> None:
        _check_text("key", key, self._limits.state_key_bytes, required=True)

    def _note_read(self, key: str, version: int) -> None:
        # Also where the value was the transaction's own: siblings' conflicts are judged by
        # every key read, and the first own write keeps its older base for the commit.
        self._reads[(key, False)] = StateRead(self.step_id, key, version, sub_step=self.sub_step)

    def _own(self, key: str) -> tuple[bool, str | None]:
        """Return whether the step itself wrote a key, as far as this attempt sees, and its value."""
        if self._overlay is not None:
            return self._overlay.find(key)
        if key in self._writes:
            return True, self._writes[key]
        return self._beneath.find(key) if self._beneath is not None else (False, None)

    def _all_own(self) -> Mapping[str, str | None]:
        if self._overlay is not None:
            return self._overlay.values()
        return {**self._beneath.values(), **self._writes} if self._beneath is not None else self._writes

    def _write(self, key: str, value: str | None) -> None:
        if value is not None and utf8_size(value) > self._limits.output_bytes:
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"the value of '{key.removeprefix(self._space)[:64]}' is larger than the limit of {self._limits.output_bytes} bytes. Store a "
                "smaller one.",
                ("value",),
            )
        self._writes[key] = value
        if self._overlay is not None:
            self._overlay.write_own(key, value)

    def _add_check(self, kind: CommitCheckKind, key: str, error: str) -> None:
        base = sub_step_span(self.sub_step)[0] if self.sub_step else 0
        self._checks.append(CommitCheck(self.step_id, base + len(self._checks) + 1, kind, key, error))


def _check_text(name: str, text: str, limit: int, *, required: bool) -> None:
    if required and not text:
        raise ToolFailure(HintCategory.INVALID_VALUE, f"{name} is empty. Give one.", (name,))
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolFailure(
            HintCategory.INVALID_VALUE, f"{name} holds a lone surrogate. Remove it.", (name,)
        ) from None
    if size > limit:
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f"{name} is {size} bytes long; the limit is {limit}. Shorten it.",
            (name,),
        )
    if "\x00" in text:
        raise ToolFailure(
            HintCategory.INVALID_VALUE, f"{name} contains the character U+0000. Remove it.", (name,)
        )

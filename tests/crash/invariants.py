"""The promises, checked of everything that a run left behind: database, outside world, outbox, and what agents were told.

`check` reads through the API alone and returns what is broken, a line each. The names are those of the invariants: I1 nothing
acknowledged is lost, I2 nothing rewound stands, I3 a request takes effect once, I4 effects go out after commit and only then, I5 undo is
run or reported, and never after a later forward step, I6 what a rewind leaves is as if the rest had never been, I9 decisions end, I10 an
irreversible tool runs once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.crash.agent import COUNTERS, differs
from tests.crash.fleet import Fleet, Refused
from tests.crash.told import Told
from tests.crash.worker_rules import undo_recorded_twice, undo_that_counts
from tests.crash.world import Line, World

from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb

__all__ = ["Findings", "check", "read_outbox"]

_SIDE_BY_SIDE = 16
_UNDOABLE, _REPEATABLE, _ONCE = (
    pb.EFFECT_CLASS_COMPENSATABLE,
    pb.EFFECT_CLASS_IDEMPOTENT,
    pb.EFFECT_CLASS_IRREVERSIBLE,
)
_COMPLETED = pb.STEP_ATTEMPT_STATE_COMPLETED


@dataclass
class Findings:
    """What is broken, by kind, and what was counted."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    undelivered: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.undelivered, *self.other]


@dataclass(frozen=True)
class _Seen:
    """What the API says of one transaction."""

    told: Told
    view: Any
    attempts: Sequence[Any]
    effects: Sequence[Any]
    compensations: Sequence[Any]
    events: Sequence[Any]
    state: dict[str, Any]
    edges: set[tuple[int, int, str, str, int]]
    nodes: set[tuple[int, int]]


def read_outbox(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the lines of the outbox file in order; half a line, of a server that died, is none."""
    lines = []
    for text in fleet.outbox_file.read_text().splitlines() if fleet.outbox_file.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


async def check(fleet: Fleet, world: World, transactions: Sequence[Told]) -> Findings:
    """Read everything and compare."""
    world.look()
    findings = Findings()
    reader = _Reader(fleet)
    delivered: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read_outbox(fleet):
        delivered[line["transaction_id"]].append(line)
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def check_one(told: Told) -> None:
        async with gate:
            seen = await reader.see(told)
            lines = world.of_transaction(told.transaction_id)
            if fleet.acts_late:
                lines = list(undo_that_counts(lines, told.kept))
            judge = _Judge(fleet.repeats_undo, seen, lines, delivered[told.transaction_id], findings)
            judge.judge()
            if fleet.acts_late:
                judge.judge_undo_events()
            await reader.repeat_all(told, findings)

    await asyncio.gather(*(check_one(told) for told in transactions))
    known = {told.transaction_id for told in transactions}
    if len(known) != len(transactions):
        findings.doubled.append("I3: two begins were answered with one transaction")
    if strangers := await reader.all_ids() - known:
        findings.doubled.append(f"I3: transactions nobody was told of: {sorted(strangers)[:5]}")
    if strangers := (world.transactions() | delivered.keys()) - known:
        findings.other.append(f"I2: effects of transactions nobody was told of: {sorted(strangers)[:5]}")
    await _check_counters(reader, transactions, findings)
    return findings


async def _check_counters(reader: _Reader, transactions: Sequence[Told], findings: Findings) -> None:
    counted: Counter[str] = Counter()
    for told in transactions:
        if told.status == "COMMITTED":
            counted += told.counters()
    for name in COUNTERS:
        value = await reader.value(name)
        if value != counted[name]:
            findings.lost.append(f"I8: {name} is {value}, and {counted[name]} committed steps counted it up")


class _Reader:
    """Reads through the API."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._route = random.Random(0)

    async def see(self, told: Told) -> _Seen:
        name = {"transaction_id": told.transaction_id}
        view = await self._call("GetTransaction", pb.GetTransactionRequest(**name))
        graph = await self._call("GetDependencyGraph", pb.GetDependencyGraphRequest(**name))
        scanned = await self._pages("ScanState", pb.ScanStateRequest(prefix=f"{told.name}/"), "entries")
        watched = pb.WatchTransactionRequest(**name, from_sequence=1)
        ended = view.status in ("COMMITTED", "ROLLED_BACK", "FAILED")
        return _Seen(
            told=told,
            view=view,
            attempts=await self._pages(
                "ListSteps", pb.ListStepsRequest(**name, include_rewound=True), "attempts"
            ),
            effects=await self._pages("ListEffects", pb.ListEffectsRequest(**name), "effects"),
            compensations=await self._pages(
                "ListCompensations",
                pb.ListCompensationsRequest(
                    **name, states=[pb.COMPENSATION_STATE_FAILED, pb.COMPENSATION_STATE_PENDING]
                ),
                "compensations",
            ),
            events=await self._events(watched) if ended else (),
            state={entry.key: json.loads(entry.value_json) for entry in scanned},
            edges={
                (edge.from_step, edge.to_step, edge.source_key, edge.target_key, edge.kind)
                for edge in graph.edges
            },
            nodes={(node.step_id, node.attempt) for node in graph.nodes},
        )

    async def repeat_all(self, told: Told, findings: Findings) -> None:
        """Send every request again that was answered for good: the answer is the same."""
        for exchange in told.exchanges:
            findings.counts["answers repeated"] += 1
            try:
                answer = await self._call(exchange.method, exchange.request)
            except Refused as refused:
                if not exchange.refusal or refused.reason != exchange.refusal:
                    findings.other.append(f"I3: {told.name}: {exchange.method} is refused now: {refused}")
                continue
            difference = differs(exchange, answer) if exchange.response is not None else "it was refused"
            if difference:
                findings.other.append(f"I3: {told.name}: {exchange.method} is answered anew: {difference}")

    async def all_ids(self) -> set[str]:
        found = await self._pages("ListTransactions", pb.ListTransactionsRequest(), "transactions")
        return {item.transaction_id for item in found}

    async def value(self, key: str) -> int:
        answer = await self._call("GetState", pb.GetStateRequest(key=key))
        return int(json.loads(answer.entry.value_json)) if answer.entry.found else 0

    async def _events(self, request: Any) -> list[Any]:
        life = await self._fleet.pick(self._route)
        return [answer.event async for answer in life.stub.WatchTransaction(request, timeout=60)]

    async def _pages(self, method: str, request: Any, name: str) -> list[Any]:
        found: list[Any] = []
        while True:
            page = await self._call(method, request)
            found += getattr(page, name)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def _call(self, method: str, request: Any) -> Any:
        return await self._fleet.call(method, request, self._route)


class _Judge:
    """Judges one transaction."""

    def __init__(
        self,
        repeats_undo: bool,
        seen: _Seen,
        lines: Sequence[Line],
        delivered: Sequence[dict[str, Any]],
        findings: Findings,
    ) -> None:
        self._repeats_undo = repeats_undo
        self._seen = seen
        self._told = seen.told
        self._lines = lines
        self._delivered = delivered
        self._findings = findings
        self._attempts = {(item.step_id, item.attempt): item for item in seen.attempts}
        self._committed = seen.view.status == "COMMITTED"
        live = seen.told.live if self._committed else ()
        self._live = {(step.number, step.attempt): step for step in live}
        self._kept = {(kept.step_id, kept.attempt) for kept in seen.view.kept_effects}
        self._kept |= seen.told.seen_late

    def judge(self) -> None:
        self._judge_end()
        self._judge_steps()
        self._judge_world()
        self._judge_undo_order()
        self._judge_deliveries()
        self._judge_events()

    def judge_undo_events(self) -> None:
        """See that no undo was recorded as done twice."""
        if twice := undo_recorded_twice(self._seen.events):
            self._say("doubled", f"I5: the undo of {twice} was recorded as done, and again")

    # --- what the database says -----------------------------------------------------------

    def _judge_end(self) -> None:
        view = self._seen.view
        if view.status != self._told.status:
            self._say("lost", f"I1: it is {view.status}, and its agent was told {self._told.status}")
        if view.recovery_problem or view.rollback_incomplete or view.failed_compensations:
            self._say(
                "other", f"I5: left unsettled: {view.recovery_problem} {list(view.failed_compensations)}"
            )
        if self._seen.compensations:
            self._say(
                "other", f"I5: undo forgotten: {[item.compensation_id for item in self._seen.compensations]}"
            )
        if view.budget_spent > view.replay_budget:
            self._say("other", f"I9: {view.budget_spent} steps replayed of {view.replay_budget}")
        state = self._told.state() if self._committed else {}
        if self._seen.state != state:
            self._say("lost", f"I1: its state is {self._seen.state}, and should be {state}")

    def _judge_steps(self) -> None:
        open_states = (pb.STEP_ATTEMPT_STATE_EXECUTING, pb.STEP_ATTEMPT_STATE_IN_DOUBT)
        stands = {
            key: attempt for key, attempt in self._attempts.items() if self._committed and not attempt.rewound
            and attempt.state != pb.STEP_ATTEMPT_STATE_SUPERSEDED
        }  # fmt: skip
        for key, step in self._live.items():
            attempt = stands.pop(key, None)
            if attempt is None or attempt.state != _COMPLETED:
                self._say("lost", f"I1: step {key} was acknowledged and is not there")
            elif (
                attempt.request_id != step.call.request_id
                or attempt.tool_name != step.call.tool
                or json.loads(attempt.output_json) != step.output
            ):
                self._say("lost", f"I1: step {key} is another one than was acknowledged: {attempt}")
        if stands:
            self._say("doubled", f"I2: steps stand that were never acknowledged: {sorted(stands)}")
        if self._committed:
            edges = {edge for step in self._live.values() for edge in step.edges}
            if self._seen.edges != edges or self._seen.nodes != set(self._live):
                self._say("other", f"I6: its graph is {self._seen.edges}, and should be {edges}")
        finals = Counter(
            attempt.request_id for attempt in self._attempts.values() if attempt.state == _COMPLETED
        )
        if twice := [name for name, times in finals.items() if times > 1]:
            self._say("doubled", f"I3: completed twice: {twice}")
        if self._seen.view.status in ("COMMITTED",):
            left = [
                key
                for key, attempt in self._attempts.items()
                if attempt.state in open_states and not attempt.rewound
            ]
            if left:
                self._say("other", f"I1: committed with open steps {left}")

    # --- what the world says ----------------------------------------------------------------

    def _judge_world(self) -> None:
        done: dict[tuple[int, int], list[Line]] = defaultdict(list)
        undone: dict[tuple[int, int], list[Line]] = defaultdict(list)
        for line in self._lines:
            key = (line.step, line.attempt)
            if line.what == "effect":
                done[key].append(line)
            elif line.what == "undo":
                undone[key].append(line)
            attempt = self._attempts.get(key)
            if attempt is None:
                self._say("lost", f"I1: an effect of attempt {key} without the attempt: {line}")
            elif json.loads(attempt.arguments_json)["entry"] != line.entry:
                self._say("other", f"I3: attempt {key} ran {line.entry}")
        self._findings.counts["effects"] += sum(map(len, done.values()))
        self._findings.counts["undo actions"] += sum(map(len, undone.values()))
        for key, attempt in self._attempts.items():
            if attempt.effect_class in (_UNDOABLE, _REPEATABLE, _ONCE):
                self._judge_effect(key, attempt, done[key], undone[key])
        self._judge_once()

    def _judge_effect(self, key: tuple[int, int], attempt: Any, done: list[Line], undone: list[Line]) -> None:
        live = self._live.get(key)
        if live is not None and not done:
            self._say("lost", f"I1: step {key} ({attempt.tool_name}) was acknowledged and has no effect")
        if {line.key for line in done} - {attempt.idempotency_key}:
            self._say("doubled", f"I3: attempt {key} ran under other keys: {done}")
        if attempt.effect_class != _REPEATABLE and len(done) > 1:
            self._say("doubled", f"I3: attempt {key} ({attempt.tool_name}) took effect {len(done)} times")
        if live is not None and undone:
            self._say("lost", f"I5: step {key} was committed and undone")
        if live is not None or not done or key in self._kept:
            return
        if attempt.effect_class == _UNDOABLE:
            by_word = done[0].entry in self._told.kept
            if not undone and not by_word:
                self._say(
                    "other", f"I2: attempt {key} ({attempt.tool_name}) does not count and its effect stands"
                )
            return
        # Under the key of a step that counts, or that is named, it is the same effect.
        same = {
            other for other, item in self._attempts.items() if item.idempotency_key == attempt.idempotency_key
        }
        if not same & (self._live.keys() | self._kept):
            self._say(
                "other", f"I2: attempt {key} ({attempt.tool_name}) does not count, its effect stands unnamed"
            )

    def _judge_once(self) -> None:
        entries = Counter(
            line.entry
            for line in self._lines
            if line.what == "effect" and self._told.calls[line.entry].tool == "crash.send"
        )
        if twice := [entry for entry, times in entries.items() if times > 1]:
            self._say("doubled", f"I10: an irreversible tool ran twice for {twice}")

    def _judge_undo_order(self) -> None:
        """No undo after a later forward step, none again that was recorded as done.

        Where servers share the database one that loses its lease may fail to record what it undid, and be
        the one that undoes it again; so may one whose database takes no writes for a while.
        """
        recorded: set[tuple[int, int]] = set()
        pending: dict[int, tuple[int, int]] = {}
        for position, line in enumerate(self._lines):
            key = (line.step, line.attempt)
            # In one process each undo is recorded before the next thing of its transaction is begun.
            if line.pid in pending and (pending[line.pid] != key or line.what == "effect"):
                recorded.add(pending.pop(line.pid))
            if line.what == "effect":
                continue
            if key in recorded:
                self._say("doubled", f"I5: the undo of {key} was done, and then run again")
            if line.what == "undo":
                if pending.get(line.pid) == key and not self._repeats_undo:
                    self._say("doubled", f"I5: the undo of {key} was done twice by one process")
                pending[line.pid] = key
            for later in self._later_effects(key, position):
                self._say(
                    "other", f"I5: the undo of {key} ran after the later step {(later.step, later.attempt)}"
                )

    def _later_effects(self, key: tuple[int, int], position: int) -> Iterator[Line]:
        """Effects before a line of the log that were begun after the attempt had ceased to count."""
        step, number = key
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        dropped = min(
            (
                event.generation
                for event in self._seen.events
                if event.type == event_pb2.EVENT_TYPE_TRANSACTION_REWOUND
                and event.generation > attempt.generation
                and json.loads(event.payload_json)["to_step"] <= step
            ),
            default=1 << 62,
        )
        # One that recovery undid and ran again is undone before anything after its group.
        group_last = attempt.group_first_step + attempt.group_size - 1
        superseded = attempt.state == pb.STEP_ATTEMPT_STATE_SUPERSEDED
        for line in self._lines[:position]:
            other = self._attempts.get((line.step, line.attempt))
            if line.what != "effect" or other is None:
                continue
            again = line.step == step and line.attempt > number
            beyond = superseded and line.step > group_last and other.generation >= attempt.generation
            if other.generation >= dropped or again or beyond:
                yield line

    # --- what went out --------------------------------------------------------------------------

    def _judge_deliveries(self) -> None:
        counts = self._findings.counts
        first: dict[str, dict[str, Any]] = {}
        for line in self._delivered:
            known = first.setdefault(line["effect_id"], line)
            if known is line:
                continue
            counts["deliveries repeated"] += 1
            if any(known[name] != line[name] for name in ("idempotency_key", "channel", "payload")):
                self._say("doubled", f"I4: {line['effect_id']} went out under two keys or with two payloads")
            if line["delivery_attempt"] <= known["delivery_attempt"]:
                self._say("other", f"I4: {line['effect_id']} went out again and does not say so")
        counts["deliveries"] += len(first)
        if not self._committed:
            if first:
                self._say("other", f"I4: effects of a transaction went out that is {self._seen.view.status}")
            if any(effect.state not in (pb.EFFECT_STATE_DISCARDED,) for effect in self._seen.effects):
                self._say(
                    "other", f"I2: effects are staged of a transaction that is {self._seen.view.status}"
                )
            return
        stored = sorted(self._seen.effects, key=lambda effect: effect.sequence)
        self._judge_staged(stored)
        missing = [
            effect
            for effect in stored
            if effect.state != pb.EFFECT_STATE_DELIVERED or effect.effect_id not in first
        ]
        for effect in missing:
            self._say(
                "undelivered",
                f"I4: {effect.effect_id} is {effect.state} and was delivered {effect.effect_id in first}",
            )
        for channel in {effect.channel for effect in stored}:
            of_channel = [effect for effect in stored if effect.channel == channel]
            of_channel.sort(key=lambda effect: (effect.step_id, effect.sequence))
            order = [effect.effect_id for effect in of_channel]
            if [name for name, line in first.items() if line["channel"] == channel] != order and not missing:
                gone = [line["effect_id"] for line in first.values() if line["channel"] == channel]
                self._say("other", f"I4: channel {channel} went out as {gone} and not as {order}")

    def _judge_staged(self, stored: Sequence[Any]) -> None:
        """See that each step's effects are there in the order in which it staged them, groups one after the other."""
        wanted: dict[int, list[Any]] = defaultdict(list)
        for number, channel, payload in self._told.staged():
            wanted[number].append((channel, payload))
        found: dict[int, list[Any]] = defaultdict(list)
        for effect in stored:
            found[effect.step_id].append((effect.channel, json.loads(effect.payload_json)))
        if found != wanted:
            self._say("lost", f"I1: its effects are {dict(found)} and not {dict(wanted)}")
        groups = {step.number: step.group_first for step in self._live.values()}
        order = [groups.get(effect.step_id, 0) for effect in stored]
        if order != sorted(order):
            self._say("other", f"I4: effects of steps {[effect.step_id for effect in stored]} in this order")

    def _judge_events(self) -> None:
        numbers = [event.sequence for event in self._seen.events]
        if numbers != list(range(1, len(numbers) + 1)):
            self._say("lost", f"its events are numbered {numbers}")
        endings = [
            event.type
            for event in self._seen.events
            if event.type
            in (
                event_pb2.EVENT_TYPE_TRANSACTION_COMMITTED,
                event_pb2.EVENT_TYPE_TRANSACTION_ROLLED_BACK,
                event_pb2.EVENT_TYPE_TRANSACTION_FAILED,
            )
        ]
        if len(endings) != 1:
            self._say("doubled", f"it ended {len(endings)} times")
        completed = Counter(
            (event.step_id, event.attempt)
            for event in self._seen.events
            if event.type == event_pb2.EVENT_TYPE_STEP_COMPLETED
        )
        if twice := [key for key, times in completed.items() if times > 1]:
            self._say("doubled", f"events tell twice of {twice}")

    def _say(self, kind: str, what: str) -> None:
        getattr(self._findings, kind).append(f"{what} ({self._told.name}, {self._told.transaction_id})")

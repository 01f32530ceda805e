"""The calls of one assistant message as steps, and what of the conversation a rollback takes back.

An operation over a transaction's cursor, so that the synchronous and the asynchronous adapters share it. It knows
which call became which step, gives calls request_ids that follow from the call (a call that is sent again is
answered as it was, and takes effect once), and runs nothing that the model asked for before it knew of a rewind.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from agenttx import reads
from agenttx.errors import AmbiguousCall, InvalidArgument, StaleGeneration
from agenttx.integrations.call_identity import key_of, number_of
from agenttx.operation import Operation
from agenttx.records import StepAttempt, StepOutcome, StepStatus
from agenttx.step import Step
from agenttx.transaction_cursor import TransactionCursor, raise_unless_succeeded

__all__ = ["AgentSteps", "Answer", "CallStep", "Mark"]

PlaceT = TypeVar("PlaceT")

_LONGEST_GROUP = 64
_MEMBER = re.compile(r"members\[(\d+)\]\.tool_name")
_REQUEST_ID = re.compile(r"call:\d+:(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallStep(Generic[PlaceT]):
    """A call that is to become a step.

    Attributes:
        identity: What it is known by for ever, see `agenttx.integrations.call_identity`.
        step: The tool and its arguments.
        place: Where in the conversation the message that asks for it is, now.
    """

    identity: str
    step: Step
    place: PlaceT


@dataclass(frozen=True, slots=True)
class Mark(Generic[PlaceT]):
    """A call that became a step.

    ``place`` is None where the conversation, as it is now, doesn't hold it; ``output`` is what it returned, ``is_undone``
    that it is known to have been rewound.
    """

    identity: str
    step_id: int
    request_id: str
    step: Step
    place: PlaceT | None
    output: Any = None
    is_undone: bool = False


@dataclass(frozen=True, slots=True)
class Answer(Generic[PlaceT]):
    """What became of the calls of one message.

    Attributes:
        outcomes: Their outcomes, in their order; None for a call that never ran.
        is_rolled_back: Whether steps were undone; the following say more then.
        failure: The step that failed; None where somebody else rewound the transaction.
        next_step_id: Where the transaction goes on.
        undone: The steps of this conversation that were undone, in order; the failed one is among them.
        place: Where the conversation goes on: its earliest message with a call that was undone, or that never ran.
        standing: Calls of that message, or of a later one, that stand.
        constraints: What the agent has to keep to, oldest first.
    """

    outcomes: tuple[StepOutcome | None, ...]
    is_rolled_back: bool = False
    failure: StepOutcome | None = None
    next_step_id: int = 0
    undone: tuple[Mark[PlaceT], ...] = ()
    place: PlaceT | None = None
    standing: tuple[Mark[PlaceT], ...] = ()
    constraints: tuple[str, ...] = ()


class AgentSteps(Generic[PlaceT]):
    """The steps of one conversation in one transaction. ``run`` is not for two tasks at once.

    ``keeps_undone`` is that calls which were undone stay in the conversation, with results that say so.
    """

    def __init__(self, cursor: TransactionCursor, *, keeps_undone: bool) -> None:
        self._cursor = cursor
        self._keeps_undone = keeps_undone
        self._marks: dict[str, Mark[PlaceT]] = {}
        self._generation = 0

    def run(
        self,
        calls: Sequence[CallStep[PlaceT]],
        earlier: Sequence[CallStep[PlaceT]] | None = None,
        *,
        asked_in: int = 0,
    ) -> Operation[Answer[PlaceT]]:
        """Run the calls of one message, in groups where the tools allow it.

        Args:
            calls: The message's calls, in their order.
            earlier: The calls of the conversation before it, as it is now; None where that isn't known: calls are then
                where they were when they ran.
            asked_in: The generation that the model knew of; nothing new runs if a call of this conversation was rolled
                back since. 0 for the one that is.

        Raises:
            AmbiguousCall: the conversation lacks earlier calls with the id and the arguments of this one.
            TransactionAborted: a step failed and ended the transaction.
            StepInDoubt: whether a step took effect is unknown; the same call once more once that is resolved.
            StepAwaitingApproval: a step waits for a person; the same call once more once it is decided.
            RpcError: no answer; the same call once more settles it.
        """
        cursor = self._cursor
        yield from cursor.open()
        if not self._generation:
            yield from self._take_up(calls, earlier or ())
            self._generation = cursor.generation
        if earlier is not None:
            marks = _located(self._marks.values(), calls, earlier)
            self._marks = {mark.identity: mark for mark in marks}
        self._refuse_ambiguous(calls)
        request_ids = [self._request_id(call) for call in calls]
        done: dict[str, StepOutcome] = {}
        failure: StepOutcome | None = None
        # The process that had these ended before it took them out of the conversation.
        is_behind = any(mark.is_undone for mark in self._marks.values())
        if cursor.unsettled:
            settled = yield from cursor.settle()
            failure = self._take(calls, request_ids, done, settled)
        if failure is None and asked_in and asked_in != self._generation:
            return Answer(tuple(done.get(request_id) for request_id in request_ids))
        waiting = [at for at, request_id in enumerate(request_ids) if request_id not in done]
        while waiting and failure is None and cursor.generation == self._generation:
            together = self._together(waiting, calls)
            if is_behind and calls[together[0]].identity not in self._marks:
                break  # The model asked for it before it knew that the others had been undone.
            try:
                outcomes = yield from self._send([calls[at] for at in together])
            except StaleGeneration:
                yield from cursor.refresh()
                break
            waiting = waiting[len(outcomes) :]
            failure = self._take(calls, request_ids, done, outcomes)
            is_behind = is_behind or any(outcome.rewound for outcome in outcomes)
        answered = tuple(done.get(request_id) for request_id in request_ids)
        if failure is None and cursor.generation == self._generation and not is_behind:
            return Answer(answered)
        return self._go_back(calls, earlier, answered, failure)

    def answer_again(
        self, answer: Answer[PlaceT], calls: Sequence[CallStep[PlaceT]], earlier: Sequence[CallStep[PlaceT]]
    ) -> Answer[PlaceT]:
        """Return an answer that says where a conversation goes on for one that may have been changed since."""
        undone = tuple(_located(answer.undone, calls, earlier))
        standing = _located(self._marks.values(), calls, earlier)
        place, standing_there = _where(calls, earlier, undone, standing)
        return replace(answer, undone=undone, place=place, standing=standing_there)

    def _take(
        self,
        calls: Sequence[CallStep[PlaceT]],
        request_ids: Sequence[str],
        done: dict[str, StepOutcome],
        outcomes: Sequence[StepOutcome],
    ) -> StepOutcome | None:
        """Keep outcomes; return the one that rolled back, raise what ends the transaction or waits for somebody."""
        done |= {outcome.request_id: outcome for outcome in outcomes}
        for call, request_id in zip(calls, request_ids, strict=True):
            if (outcome := done.get(request_id)) is not None:
                sent = self._marks.get(call.identity)
                step = sent.step if sent else call.step
                self._marks[call.identity] = Mark(
                    call.identity, outcome.step_id, request_id, step, call.place, outcome.output
                )
        rolled_back = [outcome for outcome in outcomes if outcome.status is StepStatus.ROLLBACK_TRIGGERED]
        if not rolled_back:
            raise_unless_succeeded(outcomes)
        return rolled_back[0] if rolled_back else None

    def _send(self, calls: Sequence[CallStep[PlaceT]]) -> Operation[tuple[StepOutcome, ...]]:
        """Send calls as one group; where one of them has to be a step of its own, those before it, or it alone."""
        cursor = self._cursor
        if len(calls) == 1:
            mark = self._marks.get(calls[0].identity)
            # What is sent again is sent as it was: arguments that are equal need not be written the same.
            step = replace(mark.step if mark else calls[0].step, request_id=self._request_id(calls[0]))
            outcome = yield from cursor.step(step, step_id=mark.step_id if mark else None)
            return (outcome,)
        steps = [replace(call.step, request_id=self._request_id(call)) for call in calls]
        try:
            return (yield from cursor.group(steps))
        except InvalidArgument as refusal:
            alone = [int(found[1]) for v in refusal.violations if (found := _MEMBER.fullmatch(v.field))]
            if not alone:
                raise
        return (yield from self._send(calls[: max(1, min(alone))]))

    def _together(self, waiting: Sequence[int], calls: Sequence[CallStep[PlaceT]]) -> list[int]:
        """Return which calls go next: one that was sent before, else those up to the next such."""
        if calls[waiting[0]].identity in self._marks:
            return [waiting[0]]
        together = []
        for at in waiting[:_LONGEST_GROUP]:
            if calls[at].identity in self._marks:
                break
            together.append(at)
        return together

    def _go_back(
        self,
        calls: Sequence[CallStep[PlaceT]],
        earlier: Sequence[CallStep[PlaceT]] | None,
        outcomes: tuple[StepOutcome | None, ...],
        failure: StepOutcome | None,
    ) -> Answer[PlaceT]:
        """Forget what was undone, and say where the conversation goes on."""
        cursor = self._cursor
        target = cursor.next_step_id
        marks = sorted(self._marks.values(), key=lambda mark: mark.step_id)
        undone = [mark for mark in marks if mark.step_id >= target or mark.is_undone]
        self._marks = {mark.identity: mark for mark in marks if mark not in undone}
        self._generation = cursor.generation
        place, standing = _where(calls, earlier, undone, self._marks.values())
        return Answer(
            outcomes=outcomes,
            is_rolled_back=True,
            failure=failure,
            next_step_id=target,
            undone=tuple(undone),
            place=place,
            standing=standing,
            constraints=cursor.constraints,
        )

    def _take_up(
        self, calls: Sequence[CallStep[PlaceT]], earlier: Sequence[CallStep[PlaceT]]
    ) -> Operation[None]:
        """Find the calls that were sent by a process before this one."""
        if self._cursor.generation == 1 and self._cursor.next_step_id == 1:
            return
        attempts: dict[str, StepAttempt] = {}
        token = ""
        while True:
            page = yield from reads.list_steps(
                token,
                transaction_id=self._cursor.transaction_id,
                step_id=0,
                include_rewound=True,
                page_size=0,
            )
            for attempt in page.entries:
                if attempt.sub_step or not (found := _REQUEST_ID.fullmatch(attempt.request_id)):
                    continue
                known = attempts.get(found[1])
                if known is None or known.generation <= attempt.generation:
                    attempts[found[1]] = attempt
            token = page.next_page_token
            if not token:
                break
        told = {call.identity for call in earlier}
        asked = {call.identity: call for call in calls}
        for identity, sent in attempts.items():
            # Of what is asked for now the answer may have been lost, whatever it was.
            if sent.rewound and identity not in asked and (identity not in told or self._keeps_undone):
                continue
            self._marks[identity] = Mark(
                identity,
                sent.step_id,
                sent.request_id,
                _sent_step(sent),
                asked[identity].place if identity in asked else None,
                sent.output,
                is_undone=sent.rewound and identity not in asked,
            )

    def _refuse_ambiguous(self, calls: Sequence[CallStep[PlaceT]]) -> None:
        """Refuse a call of which the transaction knows more like it than the conversation does."""
        asked = {call.identity for call in calls}
        latest: dict[str, int] = {}
        for identity in self._marks:
            if identity not in asked and (number := number_of(identity)) is not None:
                latest[key_of(identity)] = max(number, latest.get(key_of(identity), 0))
        for call in calls:
            number = number_of(call.identity)
            if number is not None and number < latest.get(key_of(call.identity), number):
                raise AmbiguousCall(
                    f"the model asks for {call.step.tool} under an id and with arguments that "
                    f"{latest[key_of(call.identity)] + 1} calls of the transaction had, of which the history holds "
                    f"{number}: it can't be told whether this one is new. Keep earlier calls in the history, or say "
                    "which turn it is (turn_id)"
                )

    def _request_id(self, call: CallStep[PlaceT]) -> str:
        """Return the id that it is, or was, sent under: after a rewind the same call is another request."""
        if mark := self._marks.get(call.identity):
            return mark.request_id
        return f"call:{self._generation}:{call.identity}"


def _located(
    marks: Iterable[Mark[PlaceT]], calls: Sequence[CallStep[PlaceT]], earlier: Sequence[CallStep[PlaceT]]
) -> list[Mark[PlaceT]]:
    """Return marks, in the order of their steps, with their places in the conversation as it is now.

    Conversations are trimmed from their beginning, so of calls with one key the last that ran is the last one there.
    """
    places: defaultdict[str, list[PlaceT]] = defaultdict(list)
    for call in earlier:
        places[key_of(call.identity)].append(call.place)
    asked = {call.identity: call.place for call in calls}
    found = []
    for mark in sorted(marks, key=lambda mark: mark.step_id, reverse=True):
        place = asked.get(mark.identity)
        if place is None and (left := places[key_of(mark.identity)]):
            place = left.pop()
        found.append(replace(mark, place=place))
    return found[::-1]


def _where(
    calls: Sequence[CallStep[PlaceT]],
    earlier: Sequence[CallStep[PlaceT]] | None,
    undone: Sequence[Mark[PlaceT]],
    standing: Iterable[Mark[PlaceT]],
) -> tuple[PlaceT, tuple[Mark[PlaceT], ...]]:
    """Return the earliest message that has to go, and which calls stand though their messages go with it."""
    stand = tuple(standing)
    places: list[PlaceT | None] = [call.place for call in earlier or ()]
    if earlier is None:
        places = [mark.place for mark in sorted((*stand, *undone), key=lambda mark: mark.step_id)]
    order: dict[PlaceT, int] = {}
    for known in (*places, *(call.place for call in calls)):
        if known is not None:
            order.setdefault(known, len(order))
    gone = [mark.place for mark in undone if mark.place is not None]
    place = min((*gone, calls[0].place), key=order.__getitem__)
    # Messages are taken out of the conversation whole; their calls before the target stand all the same.
    return place, tuple(
        mark for mark in stand if mark.place is not None and order[mark.place] >= order[place]
    )


def _sent_step(attempt: StepAttempt) -> Step:
    return Step(attempt.tool_name, attempt.arguments if isinstance(attempt.arguments, dict) else {})

"""Frameworks run the calls of one message side by side, each on its own: here they become one group again.

The first call of a message waits until its siblings have come, and then runs them all. A sibling that doesn't come
(it was refused, or waits for a person, or its arguments were rejected) is not run for it, and holds the others up for
a moment only: it is run when it does come, unless the transaction was rolled back meanwhile. The model had not heard of that
when it asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from agenttx.async_transaction import AsyncTransaction
from agenttx.integrations.agent_steps import AgentSteps, Answer, CallStep
from agenttx.records import StepOutcome
from agenttx.transaction import Transaction

__all__ = ["GATHER_SECONDS", "CallAnswer", "MessageCall", "ParallelCalls"]

PlaceT = TypeVar("PlaceT")
CallAnswer: TypeAlias = tuple[StepOutcome | None, Answer[PlaceT]]

GATHER_SECONDS = 0.1
"""How long the calls of a message wait for siblings that don't come."""

_MESSAGES_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class MessageCall(Generic[PlaceT]):
    """A call that came, and what is known of its message.

    Attributes:
        message: Identifies the message.
        call: The call.
        siblings: The identities of the message's calls that may come, in their order, its own among them.
        earlier: The calls of the conversation before it; None where it isn't known.
    """

    message: str
    call: CallStep[PlaceT]
    siblings: tuple[str, ...]
    earlier: Sequence[CallStep[PlaceT]] | None = None


@dataclass
class _Gathering(Generic[PlaceT]):
    siblings: tuple[str, ...]
    came: dict[str, tuple[CallStep[PlaceT], Future[CallAnswer[PlaceT]]]] = field(default_factory=dict)
    is_complete: Future[None] = field(default_factory=Future)

    def in_order(self) -> list[tuple[CallStep[PlaceT], Future[CallAnswer[PlaceT]]]]:
        place = {identity: at for at, identity in enumerate(self.siblings)}
        return [self.came[identity] for identity in sorted(self.came, key=lambda i: place.get(i, len(place)))]


class ParallelCalls(Generic[PlaceT]):
    """Runs the calls of messages as steps of a transaction that has begun. Threads and tasks may share it.

    Raises ValueError for a transaction that hasn't begun.
    """

    def __init__(self, transaction: Transaction | AsyncTransaction) -> None:
        if not transaction.generation:
            raise ValueError("begin the transaction first: enter its block, or call begin()")
        self.transaction = transaction
        self._steps: AgentSteps[PlaceT] = AgentSteps(transaction._cursor, keeps_undone=True)
        self._lock = threading.Lock()
        self._open: dict[str, _Gathering[PlaceT]] = {}
        self._asked_in: OrderedDict[str, int] = OrderedDict()

    def note_message(self, message: str) -> int:
        """Take note that the model wrote a message, if that wasn't known; return the generation that it knew of."""
        with self._lock:
            asked_in = self._asked_in.setdefault(message, self.transaction.generation)
            while len(self._asked_in) > _MESSAGES_REMEMBERED:
                self._asked_in.popitem(last=False)
            return asked_in

    def run(self, call: MessageCall[PlaceT]) -> CallAnswer[PlaceT]:
        """Run a call from a thread, with its siblings."""
        transaction = self.transaction
        if not isinstance(transaction, Transaction):
            raise TypeError("the transaction is an asynchronous one: run the agent with `ainvoke`")
        asked_in = self.note_message(call.message)
        gathering, answered, leads = self._arrive(call)
        if leads:
            with contextlib.suppress(TimeoutError):
                gathering.is_complete.result(GATHER_SECONDS)
            came = self._close(call.message)
            steps = [step for step, _ in came]
            try:
                answer = transaction._perform(self._steps.run(steps, call.earlier, asked_in=asked_in))
            except BaseException as failure:
                _fail(came, failure)
                raise
            _answer(came, answer)
        return answered.result()

    async def arun(self, call: MessageCall[PlaceT]) -> CallAnswer[PlaceT]:
        """Run a call from a task, with its siblings."""
        transaction = self.transaction
        if isinstance(transaction, Transaction):
            return await asyncio.to_thread(self.run, call)
        asked_in = self.note_message(call.message)
        gathering, answered, leads = self._arrive(call)
        if leads:
            came = []
            try:
                await asyncio.wait((asyncio.wrap_future(gathering.is_complete),), timeout=GATHER_SECONDS)
                came = self._close(call.message)
                steps = [step for step, _ in came]
                answer = await transaction._perform(self._steps.run(steps, call.earlier, asked_in=asked_in))
            except BaseException as failure:
                _fail(came or self._close(call.message), failure)
                raise
            _answer(came, answer)
        return await asyncio.wrap_future(answered)

    def _arrive(
        self, call: MessageCall[PlaceT]
    ) -> tuple[_Gathering[PlaceT], Future[CallAnswer[PlaceT]], bool]:
        with self._lock:
            gathering = self._open.get(call.message)
            leads = gathering is None
            if gathering is None:
                gathering = self._open[call.message] = _Gathering(call.siblings)
            step, answered = gathering.came.setdefault(call.call.identity, (call.call, Future()))
            if step.step != call.call.step:
                raise ValueError(f"two calls of one message have the id {call.call.identity!r}")
            if set(gathering.siblings) <= set(gathering.came) and not gathering.is_complete.done():
                gathering.is_complete.set_result(None)
            return gathering, answered, leads

    def _close(self, message: str) -> list[tuple[CallStep[PlaceT], Future[CallAnswer[PlaceT]]]]:
        with self._lock:
            return self._open.pop(message).in_order()


def _answer(
    came: Sequence[tuple[CallStep[PlaceT], Future[CallAnswer[PlaceT]]]], answer: Answer[PlaceT]
) -> None:
    for (_, answered), outcome in zip(came, answer.outcomes, strict=True):
        answered.set_result((outcome, answer))


def _fail(came: Sequence[tuple[Any, Future[Any]]], failure: BaseException) -> None:
    for _, answered in came:
        if isinstance(failure, asyncio.CancelledError | CancelledError):
            answered.cancel()
        else:
            answered.set_exception(failure)

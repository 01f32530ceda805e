"""Loops of your own over a model's function calls: a call becomes a step, a rollback becomes messages.

    calls = FunctionCalls(transaction)
    while True:
        history.append(client.chat.completions.create(...).choices[0].message)
        turn = calls.run(history)
        if turn.is_final:
            break
        turn.apply(history)

Works for Chat Completions (``tool_calls``), Responses (``function_call`` items) and the Messages API (``tool_use``
blocks); which one is seen from the messages. The parallel calls of one message become a group. Where a step fails,
``apply`` takes everything that was undone out of the conversation and adds one message with what to keep to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agenttx.async_transaction import AsyncTransaction
from agenttx.integrations.agent_steps import AgentSteps, Answer, CallStep
from agenttx.integrations.call_identity import call_key, numbered, of_turn
from agenttx.integrations.model_calls import (
    CallForm,
    ModelCall,
    ModelTurn,
    answered_ids,
    note_message,
    persons_messages,
    read_turns,
    result_messages,
)
from agenttx.integrations.wording import call_result, rollback_note
from agenttx.records import StepOutcome, Tool
from agenttx.step import Step
from agenttx.transaction import Transaction

__all__ = [
    "AsyncFunctionCalls",
    "CallForm",
    "FunctionCalls",
    "Turn",
    "function_definitions",
    "function_names",
]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """What the calls of the last message came to.

    Attributes:
        messages: What to append to the history, in the form of the calls. After a cut these are what people said in the
            part that was cut, and a message that says what happened.
        cut: How many messages to take from the history's end before that; 0 unless steps were undone.
        outcomes: The outcomes of the calls, in their order; None for one that did not run.
        constraints: What the model has to keep to, oldest first.
        is_rolled_back: Whether steps were undone.
        is_final: Whether the message asked for nothing: the model is done.
    """

    messages: tuple[dict[str, Any], ...] = ()
    cut: int = 0
    outcomes: tuple[StepOutcome | None, ...] = ()
    constraints: tuple[str, ...] = ()
    is_rolled_back: bool = False
    is_final: bool = False

    def apply(self, history: list[Any]) -> None:
        """Bring the history that was run up to date."""
        if self.cut:
            del history[-self.cut :]
        history.extend(self.messages)


class _Conversation:
    """What both loops keep and neither waits for."""

    def __init__(self, steps: AgentSteps[int], names: Mapping[str, str] | None, cut_undone: bool) -> None:
        self.steps = steps
        self._names = dict(names or {})
        self._cut_undone = cut_undone
        self._last: tuple[tuple[str, ...], Answer[int], Turn] | None = None
        self._notes: list[dict[str, Any]] = []

    def read(
        self, history: Sequence[Any], turn_id: str
    ) -> tuple[ModelTurn, list[CallStep[int]], list[CallStep[int]]] | Turn:
        """Return the last message's calls and those before it, or the turn where nothing is to run."""
        turns = read_turns(history)
        if not turns or turns[-1].end != len(history):
            return Turn(is_final=True)
        now = turns[-1]
        if any(call.problem for call in now.calls):
            return Turn(messages=result_messages(now.form, [_unrun(call) for call in now.calls]))
        *before, calls = self._call_steps(history, turns, turn_id)
        earlier = [call for of_turn in before for call in of_turn]
        if self._last is not None and self._last[0] == _identities(calls):
            _, answer, turn = self._last
            between = history[turns[-2].end if before else 0 : now.start]
            if not turn.cut:
                return turn
            if turn.messages[-1] not in between:
                # The same message once more: its rollback hasn't been applied, and the history may have changed.
                return self.answer(history, now, calls, self.steps.answer_again(answer, calls, earlier))
        return now, calls, earlier

    def answer(
        self, history: Sequence[Any], now: ModelTurn, calls: Sequence[CallStep[int]], answer: Answer[int]
    ) -> Turn:
        """Return what the answer means for the conversation."""
        results = [
            (call, *call_result(outcome, answer))
            for call, outcome in zip(now.calls, answer.outcomes, strict=True)
        ]
        if not (answer.is_rolled_back and self._cut_undone):
            turn = Turn(
                result_messages(now.form, results),
                outcomes=answer.outcomes,
                constraints=answer.constraints,
                is_rolled_back=answer.is_rolled_back,
            )
        else:
            assert answer.place is not None
            cut_to = self._note_before(history, answer.place)
            kept = persons_messages(item for item in history[cut_to:] if item not in self._notes)
            note = note_message(rollback_note(answer, removed=True))
            messages = (*kept, note)
            turn = Turn(
                messages, len(history) - cut_to, answer.outcomes, answer.constraints, is_rolled_back=True
            )
            self._notes.append(note)
        self._last = (_identities(calls), answer, turn) if answer.is_rolled_back else None
        return turn

    def _note_before(self, history: Sequence[Any], place: int) -> int:
        """Take an earlier note that stands just before along: the new one says all that it says."""
        return place - 1 if place and history[place - 1] in self._notes else place

    def _call_steps(
        self, history: Sequence[Any], turns: Sequence[ModelTurn], turn_id: str
    ) -> list[list[CallStep[int]]]:
        steps = [
            [Step(self._names.get(call.name, call.name), call.arguments) for call in turn.calls]
            for turn in turns
        ]
        messages = []
        for at, turn in enumerate(turns):
            answered = answered_ids(history[turn.end : turns[at + 1].start if at + 1 < len(turns) else None])
            messages.append(
                [
                    (call_key(call.call_id, step.tool, step.arguments), call.call_id in answered)
                    for call, step in zip(turn.calls, steps[at], strict=True)
                ]
            )
        identities = numbered(messages)
        if turn_id:
            identities[-1] = of_turn(identities[-1], turn_id)
        return [
            [
                CallStep(identity, step, turn.start)
                for identity, step in zip(identities[at], steps[at], strict=True)
            ]
            for at, turn in enumerate(turns)
        ]


class FunctionCalls:
    """Runs the function calls of one conversation as steps of a transaction.

    Args:
        transaction: The transaction; begun by the first call if it wasn't.
        names: Names of tools by the names that the model knows them by, where these differ; see `function_names`.
        cut_undone: Whether calls that were undone are taken out of the conversation. If not, the results of the calls
            tell what was undone, and nothing is cut.
    """

    def __init__(
        self,
        transaction: Transaction,
        *,
        names: Mapping[str, str] | None = None,
        cut_undone: bool = True,
    ) -> None:
        self._transaction = transaction
        self._conversation = _Conversation(
            AgentSteps(transaction._cursor, keeps_undone=not cut_undone), names, cut_undone
        )

    def run(self, history: Sequence[Any], *, turn_id: str = "") -> Turn:
        """Run the calls of the last message of a history, once: the same calls again are answered the same.

        A call is the same if its id, its tool and its arguments are, unless the history holds an answer to it already;
        where in the history it stands is nothing to go by, so histories may be trimmed and added to. After a crash a history that was kept goes on with `Client.resume(transaction_id)` and a new `FunctionCalls`.

        Args:
            history: The messages, or items, that the model was shown, and then its last answer.
            turn_id: Which message of the transaction the last one is, the same whenever it is run again. Needed only
                where a provider repeats its ids ("call_0") and the history is trimmed, or several agents share the
                transaction.

        Raises:
            AmbiguousCall: it can't be told whether a call is new; nothing was run.
            TransactionAborted: a step failed and ended the transaction; everything is undone.
            StepInDoubt: whether a step took effect is unknown; run the same history once that is resolved.
            StepAwaitingApproval: a step waits for a person; run the same history once it is decided.
            RpcError: no answer; run the same history again.
        """
        read = self._conversation.read(history, turn_id)
        if isinstance(read, Turn):
            return read
        now, calls, earlier = read
        answer = self._transaction._perform(self._conversation.steps.run(calls, earlier))
        return self._conversation.answer(history, now, calls, answer)


class AsyncFunctionCalls:
    """`FunctionCalls` for the asynchronous client."""

    def __init__(
        self,
        transaction: AsyncTransaction,
        *,
        names: Mapping[str, str] | None = None,
        cut_undone: bool = True,
    ) -> None:
        self._transaction = transaction
        self._conversation = _Conversation(
            AgentSteps(transaction._cursor, keeps_undone=not cut_undone), names, cut_undone
        )

    async def run(self, history: Sequence[Any], *, turn_id: str = "") -> Turn:
        """Run the calls of the last message of a history; see `FunctionCalls.run`."""
        read = self._conversation.read(history, turn_id)
        if isinstance(read, Turn):
            return read
        now, calls, earlier = read
        answer = await self._transaction._perform(self._conversation.steps.run(calls, earlier))
        return self._conversation.answer(history, now, calls, answer)


def function_names(tools: Iterable[Tool]) -> dict[str, str]:
    """Return names that every provider accepts (``kv_put``), each with its tool's (``kv.put``).

    Raises:
        ValueError: two tools come to one name, or a name is too long.
    """
    names: dict[str, str] = {}
    for tool in tools:
        name = _NOT_IN_A_NAME.sub("_", tool.name)
        if len(name) > _LONGEST_NAME:
            raise ValueError(
                f"'{tool.name}' is longer than the {_LONGEST_NAME} characters that models may call"
            )
        if name in names:
            raise ValueError(f"'{names[name]}' and '{tool.name}' are both '{name}' to a model; leave one out")
        names[name] = tool.name
    return names


def function_definitions(tools: Iterable[Tool], form: CallForm | str) -> list[dict[str, Any]]:
    """Return tools of the server as a model's API takes them, under the names of `function_names`.

    Args:
        tools: What `client.tools()` lists, or some of it.
        form: The API.
    """
    chosen = CallForm(form)
    listed = list(tools)
    definitions = []
    for name, tool in zip(function_names(listed), listed, strict=True):
        schema = tool.arguments_schema or {"type": "object", "properties": {}}
        described: dict[str, Any] = {"name": name, "description": tool.description}
        match chosen:
            case CallForm.CHAT_COMPLETIONS:
                definitions.append({"type": "function", "function": {**described, "parameters": schema}})
            case CallForm.RESPONSES:
                parameters: dict[str, Any] = {"parameters": schema, "strict": False}
                definitions.append({"type": "function", **described, **parameters})
            case CallForm.MESSAGES:
                definitions.append({**described, "input_schema": schema})
    return definitions


def _identities(calls: Sequence[CallStep[int]]) -> tuple[str, ...]:
    return tuple(call.identity for call in calls)


def _unrun(call: ModelCall) -> tuple[ModelCall, str, bool]:
    return call, call.problem or "Not run: another call of the same message can't be made. Ask again.", True

# mypy: disable-error-code="import-not-found,misc,unused-ignore"
"""Function tools of the OpenAI Agents SDK under transaction protection.

    from agenttx.integrations.openai_agents import host, protect

    async with (
        host([book_flight, pay], address, effects={"pay": Promise("compensatable", undo=refund)}),
        client.transaction(agent_id="trips") as transaction,
    ):
        tools = protect([book_flight, pay], transaction)
        await Runner.run(Agent(name="Trips", tools=[*tools]), "Book a trip.", **tools.run_options())

`protect` makes tools of the same names and schemas whose calls run as steps. Who runs them is the server's affair: it
has a tool of that name itself, or a worker offers it, or `host` does, from this process.

Needs the SDK: ``pip install 'agenttx[openai-agents]'``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents import FunctionTool, ModelResponse, RunConfig, RunHooks
from agents.run_config import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from agenttx.async_transaction import AsyncTransaction
from agenttx.endpoint import Tls
from agenttx.integrations.agent_steps import Answer, CallStep
from agenttx.integrations.call_identity import call_key, numbered
from agenttx.integrations.effects import (
    Effects,
    FrameworkTool,
    Promise,
    check_declared,
    current_call,
    promise_of,
    worker_tool,
)
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.integrations.model_calls import ModelCall, note_message, read_call
from agenttx.integrations.parallel_calls import MessageCall, ParallelCalls
from agenttx.integrations.wording import call_result, rollback_note
from agenttx.records import Tool
from agenttx.step import Step
from agenttx.transaction import Transaction

__all__ = ["Promise", "ProtectedTools", "current_call", "host", "protect"]

_CALLS_REMEMBERED = 10_000
_OF_CALLS = frozenset({"function_call", "function_call_output"})

CallIds = tuple[str, ...]
"""The identities of the calls of one model response: where in the conversation it is."""


class ProtectedTools(list[FunctionTool]):
    """The tools that `protect` made, for an agent; and what a run needs to make the best of them."""

    def __init__(self, tools: Iterable[FunctionTool], protection: _Protection) -> None:
        super().__init__(tools)
        self._protection = protection

    @property
    def hooks(self) -> RunHooks[Any]:
        """For ``Runner.run(hooks=...)``: the calls of one response become one group. Without it each is a step."""
        return _Hooks(self._protection)

    def input_filter(self, data: CallModelData[Any]) -> ModelInputData:
        """For ``RunConfig(call_model_input_filter=...)``: what was undone isn't shown to the model again.

        Without it the results of the calls tell what was undone. What is kept of a run, by a session too, stays whole.
        """
        return self._protection.filtered(data.model_data)

    def run_options(self, config: RunConfig | None = None) -> dict[str, Any]:
        """Return both as arguments of ``Runner.run``.

        Args:
            config: What else is to be configured.

        Raises:
            ValueError: it has an input filter already.
        """
        chosen = config or RunConfig()
        if chosen.call_model_input_filter is not None:
            raise ValueError("the configuration has an input filter: call tools.input_filter from it")
        return {
            "hooks": self.hooks,
            "run_config": dataclasses.replace(chosen, call_model_input_filter=self.input_filter),
        }


def protect(
    tools: Iterable[FunctionTool | Tool],
    transaction: Transaction | AsyncTransaction,
    *,
    names: Mapping[str, str] | None = None,
) -> ProtectedTools:
    """Return tools of the same names and schemas whose calls run as steps of a transaction.

    Args:
        tools: Function tools, or tools of the server as `client.tools()` lists them.
        transaction: The transaction, begun.
        names: Names at the server by the names here, where these differ.

    Raises:
        ValueError: the transaction hasn't begun.

    A step that fails is answered to the model with what was undone and what to keep to. `TransactionAborted`,
    `StepInDoubt`, `StepAwaitingApproval` and `RpcError` end the run, as the ``__cause__`` of its UserError.
    """
    protection = _Protection(transaction, dict(names or {}))
    return ProtectedTools([protection.protected(tool) for tool in tools], protection)


def host(
    tools: Iterable[FunctionTool],
    address: str | Sequence[str] | None = None,
    *,
    effects: Effects | None = None,
    names: Mapping[str, str] | None = None,
    concurrency: int = 16,
    token: str | None = None,
    tls: Tls | bool | None = None,
) -> InProcessWorker:
    """Offer function tools to a server from this process, while the returned block is open.

    They are called with no run context: a step is repeated from its arguments alone. A failure is raised and not
    turned into text, whatever `failure_error_function` says.

    Args:
        tools: The tools; the original ones, not those that `protect` made.
        address: The server, as for the client.
        effects: What they promise, by name; IRREVERSIBLE if it isn't said: nothing goes back past a call of it.
        names: Names at the server by the names here, where these differ.
        concurrency: How many calls run at once.
        token: Bearer token, as for the client.
        tls: As for the client.

    Raises:
        ToolDefinitionError: a promise is of no tool, or contradicts itself.
    """
    listed = list(tools)
    declared = effects or {}
    check_declared(declared, (tool.name for tool in listed))
    called = dict(names or {})
    offered = [
        worker_tool(_framework_tool(tool, called.get(tool.name, tool.name)), promise_of(tool.name, declared))
        for tool in listed
    ]
    return InProcessWorker(offered, address, concurrency=concurrency, token=token, tls=tls)


@dataclasses.dataclass(frozen=True, slots=True)
class _Note:
    """What the model is told in place of calls that were undone."""

    instead_of: CallIds
    next_step_id: int
    text: str


class _Protection:
    """The tools of one conversation in one transaction."""

    def __init__(self, transaction: Transaction | AsyncTransaction, names: dict[str, str]) -> None:
        self._calls: ParallelCalls[CallIds] = ParallelCalls(transaction)
        self._names = names
        self._protected: set[str] = set()
        self._message_of: OrderedDict[str, tuple[str, CallIds]] = OrderedDict()
        self._current: dict[str, str] = {}
        self._shown: list[list[tuple[str, bool]]] = []
        self._undone: set[str] = set()
        self._notes: list[_Note] = []

    def protected(self, tool: FunctionTool | Tool) -> FunctionTool:
        name = tool.name
        self._protected.add(name)

        async def invoke(context: ToolContext[Any], sent: str) -> str:
            asked = read_call(context.tool_call_id, name, sent)
            if asked.problem:
                return asked.problem
            call = self._call(asked)
            outcome, answer = await self._calls.arun(call)
            if answer.is_rolled_back:
                self._note(answer, call.call.place)
            return call_result(outcome, answer)[0]

        if isinstance(tool, FunctionTool):
            return dataclasses.replace(tool, on_invoke_tool=invoke)
        schema = {"type": "object", "properties": {}, **(tool.arguments_schema or {})}
        return FunctionTool(name, tool.description, schema, invoke, strict_json_schema=False)

    def take_response(self, response: ModelResponse) -> None:
        """Take note of which calls a response asks for, before they are run."""
        keys = [
            self._key(read_call(item.call_id, item.name, item.arguments))
            for item in response.output
            if item.type == "function_call" and item.name in self._protected
        ]
        asked = tuple(numbered([*self._shown, [(key, False) for key in keys]])[-1])
        message = response.response_id or str(uuid.uuid4())
        self._calls.note_message(message)
        self._current = dict(zip(reversed(keys), reversed(asked), strict=True))
        for identity in asked:
            self._message_of[identity] = (message, asked)
        while len(self._message_of) > _CALLS_REMEMBERED:
            self._message_of.popitem(last=False)

    def filtered(self, data: ModelInputData) -> ModelInputData:
        identities = self._identities(data.input)
        items: list[Any] = []
        last_seen: dict[_Note, int] = {}
        for item, identity in zip(data.input, identities, strict=True):
            if identity not in self._undone:
                items.append(item)
                continue
            if item.get("type") == "function_call":
                while items and items[-1].get("type") == "reasoning":
                    items.pop()  # The API refuses reasoning without what it led to.
            for note in self._notes:
                if identity in note.instead_of:
                    last_seen[note] = len(items)
        for note, at in sorted(last_seen.items(), key=lambda seen: -seen[1]):
            items.insert(at, note_message(note.text))
        return ModelInputData(input=items, instructions=data.instructions)

    def _identities(self, items: Sequence[Any]) -> list[str]:
        """Return which protected call each item asks for or answers, empty for others; keep what is shown of them."""
        asked: dict[str, int] = {}
        calls: list[tuple[str, bool]] = []
        call_of: list[int | None] = []
        for item in items:
            kind, call_id = item.get("type"), str(item.get("call_id") or "")
            if kind == "function_call" and item.get("name") in self._protected:
                asked[call_id] = len(calls)
                key = self._key(read_call(call_id, item.get("name"), item.get("arguments")))
                calls.append((key, False))
            elif kind == "function_call_output" and call_id in asked:
                calls[asked[call_id]] = (calls[asked[call_id]][0], True)
            call_of.append(asked.get(call_id) if kind in _OF_CALLS else None)
        self._shown = [[call] for call in calls]
        known = [identity for message in numbered(self._shown) for identity in message]
        return ["" if at is None else known[at] for at in call_of]

    def _key(self, asked: ModelCall) -> str:
        return call_key(asked.call_id, self._names.get(asked.name, asked.name), asked.arguments)

    def _call(self, asked: ModelCall) -> MessageCall[CallIds]:
        step = Step(self._names.get(asked.name, asked.name), asked.arguments)
        key = self._key(asked if asked.call_id else dataclasses.replace(asked, call_id=str(uuid.uuid4())))
        identity = self._current.get(key) or numbered([[(key, False)]])[0][0]
        message, siblings = self._message_of.get(identity, (identity, (identity,)))
        return MessageCall(message, CallStep(identity, step, siblings), siblings)

    def _note(self, answer: Answer[CallIds], asked: CallIds) -> None:
        """Keep what a rollback means; each of the calls of a message brings the same answer."""
        self._undone.update(asked, *(mark.place or () for mark in answer.undone))
        note = _Note(asked, answer.next_step_id, rollback_note(answer, removed=True))
        kept = [old for old in self._notes if old.next_step_id < note.next_step_id]
        self._notes = [*kept, note]


class _Hooks(RunHooks[Any]):
    def __init__(self, protection: _Protection) -> None:
        self._protection = protection

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        self._protection.take_response(response)


def _framework_tool(tool: FunctionTool, name: str) -> FrameworkTool:
    # A failure has to be raised to be one: text about it would be a success.
    raising = dataclasses.replace(
        tool, _failure_error_function=None, _use_default_failure_error_function=False
    )
    return FrameworkTool(
        name=name,
        description=tool.description,
        schema=tool.params_json_schema,
        function=functools.partial(_invoke, raising),
    )


async def _invoke(tool: FunctionTool, arguments: dict[str, Any]) -> Any:
    sent = json.dumps(arguments)
    context: ToolContext[Any] = ToolContext(
        None, tool_name=tool.name, tool_call_id=current_call().idempotency_key, tool_arguments=sent
    )
    return await tool.on_invoke_tool(context, sent)

# mypy: disable-error-code="import-not-found,misc,unused-ignore"
"""LangChain tools under transaction protection, in `create_agent` and in graphs with a `ToolNode`.

    from agenttx.integrations.langchain import host, protect

    with host([book_flight, pay], address, effects={"pay": Promise("compensatable", undo=refund)}):
        with agenttx.Client(address).transaction(agent_id="trips") as transaction:
            tools = protect([book_flight, pay], transaction)
            agent = create_agent(model, tools, middleware=[tools.middleware])
            agent.invoke({"messages": [HumanMessage("Book a trip to Lisbon.")]})

`protect` makes tools of the same names and schemas whose calls run as steps. Who runs them is the server's affair: it
has a tool of that name itself, or a worker offers it, or `host` does, from this process.

Needs LangChain: ``pip install 'agenttx[langchain]'``.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import langchain_core.tools
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import get_all_basemodel_annotations
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, ValidationError

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
    effects,
    promise_of,
    worker_tool,
)
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.integrations.model_calls import shown
from agenttx.integrations.parallel_calls import CallAnswer, MessageCall, ParallelCalls
from agenttx.integrations.wording import call_result, rollback_note
from agenttx.records import Tool
from agenttx.step import Step
from agenttx.tools import ToolDefinitionError
from agenttx.tools.argument_problems import refuse_arguments
from agenttx.transaction import Transaction
from agenttx.transaction_cursor import raise_unless_succeeded

__all__ = ["Promise", "ProtectedTools", "RollbackMiddleware", "current_call", "effects", "host", "protect"]

_CALL_ID = "agenttx_call_id"
_NOTE = "agenttx_note"


class ProtectedTools(list[BaseTool]):
    """The tools that `protect` made, for an agent; and what takes undone calls out of its conversation."""

    def __init__(self, tools: Iterable[BaseTool], protection: _Protection) -> None:
        super().__init__(tools)
        self._protection = protection

    @property
    def middleware(self) -> RollbackMiddleware:
        """For ``create_agent(..., middleware=[tools.middleware])``: takes undone calls out of the conversation."""
        return RollbackMiddleware(self._protection)

    def go_back(self, messages: Sequence[AnyMessage]) -> list[Any]:
        """Return the changes to a conversation after a rollback; none where nothing was undone since the last time.

        For graphs of your own: a node before the model returns ``{"messages": tools.go_back(state["messages"])}``, over a
        channel with the reducer ``add_messages``. Calls that were undone are removed with their results, people's
        messages stay, and one message tells the model what to keep to. Without it the results of the calls tell it.
        """
        return self._protection.go_back(messages)


class RollbackMiddleware(AgentMiddleware[Any, Any, Any]):
    """Takes calls that were undone out of an agent's conversation before the model is asked again."""

    def __init__(self, protection: _Protection) -> None:
        super().__init__()
        self._protection = protection

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Return the changes, if there are any."""
        changes = self._protection.go_back(state["messages"])
        return {"messages": changes} if changes else None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Return the changes, if there are any."""
        return self.before_model(state, runtime)


def protect(
    tools: Iterable[BaseTool | Tool],
    transaction: Transaction | AsyncTransaction,
    *,
    names: Mapping[str, str] | None = None,
) -> ProtectedTools:
    """Return tools of the same names and schemas whose calls run as steps of a transaction.

    Args:
        tools: LangChain tools, or tools of the server as `client.tools()` lists them.
        transaction: The transaction, begun. An asynchronous one needs agents that are run with ``ainvoke``.
        names: Names at the server by the names here, where these differ.

    Raises:
        ValueError: the transaction hasn't begun.
        ToolDefinitionError: a tool takes arguments that the framework injects (state, store, runtime): a step is
            repeated from its arguments alone.

    A step that fails is answered to the model with what was undone and what to keep to. `TransactionAborted`,
    `StepInDoubt`, `StepAwaitingApproval` and `RpcError` leave the agent as exceptions; after the latter three
    the same state may be run again.
    """
    protection = _Protection(transaction, dict(names or {}))
    return ProtectedTools([protection.protected(tool) for tool in tools], protection)


def host(
    tools: Iterable[BaseTool],
    address: str | Sequence[str] | None = None,
    *,
    effects: Effects | None = None,
    names: Mapping[str, str] | None = None,
    concurrency: int = 16,
    token: str | None = None,
    tls: Tls | bool | None = None,
) -> InProcessWorker:
    """Offer LangChain tools to a server from this process, while the returned block is open.

    Args:
        tools: The tools; the original ones, not those that `protect` made.
        address: The server, as for the client.
        effects: What they promise, by name; a tool that is not named is taken as declared with `@effects`, and as
            IRREVERSIBLE if it isn't: nothing goes back past a call of it.
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
        worker_tool(
            _framework_tool(tool, called.get(tool.name, tool.name)),
            promise_of(tool.name, declared, getattr(tool, "func", None), getattr(tool, "coroutine", None)),
        )
        for tool in listed
    ]
    return InProcessWorker(offered, address, concurrency=concurrency, token=token, tls=tls)


class _Protection:
    """The tools of one conversation in one transaction."""

    def __init__(self, transaction: Transaction | AsyncTransaction, names: dict[str, str]) -> None:
        self._calls: ParallelCalls[str] = ParallelCalls(transaction)
        self._names = names
        self._protected: set[str] = set()
        self._rolled_back: Answer[str] | None = None

    def protected(self, tool: BaseTool | Tool) -> BaseTool:
        name = tool.name
        if isinstance(tool, Tool):
            schema = tool.arguments_schema or {}
        else:
            _refuse_injected(tool)
            schema = _schema(tool)
        self._protected.add(name)

        # By the type of its parameter a graph gives the runtime; everything else is the model's.
        def run(agenttx_runtime: ToolRuntime[Any, Any] | None = None, **received: Any) -> Any:
            call, call_id = self._call(name, received, agenttx_runtime)
            return self._told(call_id, name, self._calls.run(call))

        async def arun(agenttx_runtime: ToolRuntime[Any, Any] | None = None, **received: Any) -> Any:
            call, call_id = self._call(name, received, agenttx_runtime)
            return self._told(call_id, name, await self._calls.arun(call))

        return _ProtectedTool(
            name=name,
            description=tool.description,
            args_schema={"type": "object", "properties": {}, **schema},
            func=run,
            coroutine=arun,
            return_direct=isinstance(tool, BaseTool) and tool.return_direct,
        )

    def go_back(self, messages: Sequence[AnyMessage]) -> list[Any]:
        answer, self._rolled_back = self._rolled_back, None
        if answer is None:
            return []
        undone = {mark.place for mark in answer.undone} | {answer.place}
        place = next((at for at, message in enumerate(messages) if message.id in undone), len(messages))
        left = {message.id for message in messages}
        answer = dataclasses.replace(
            answer,
            undone=tuple(
                dataclasses.replace(mark, place=mark.place if mark.place in left else None)
                for mark in answer.undone
            ),
        )
        while place and _is_note(messages[place - 1]):
            place -= 1
        gone = [
            message
            for message in messages[place:]
            if isinstance(message, AIMessage | ToolMessage) or _is_note(message)
        ]
        note = HumanMessage(rollback_note(answer, removed=True), additional_kwargs={_NOTE: True})
        return [*(RemoveMessage(id=str(message.id)) for message in gone), note]

    def _call(
        self, name: str, received: dict[str, Any], runtime: ToolRuntime[Any, Any] | None
    ) -> tuple[MessageCall[str], str | None]:
        call_id: str | None = received.pop(_CALL_ID, None)
        step = Step(self._names.get(name, name), received)
        messages = _messages(runtime)
        asked = next(
            (
                message
                for message in reversed(messages)
                if isinstance(message, AIMessage) and any(c["id"] == call_id for c in message.tool_calls)
            ),
            None,
        )
        if asked is None:
            identity = numbered([[(call_key(call_id or str(uuid.uuid4()), step.tool, received), False)]])[0][
                0
            ]
            return MessageCall(identity, CallStep(identity, step, identity), (identity,)), call_id
        answered = _answered_after(messages, messages.index(asked))
        *before, siblings = self._call_steps(messages, asked)
        own = next(call for sibling, call in siblings if sibling == call_id)
        coming = tuple(call.identity for sibling, call in siblings if sibling not in answered)
        earlier = [call for of_message in before for _, call in of_message]
        message = asked.id or own.identity
        return MessageCall(message, CallStep(own.identity, step, own.place), coming, earlier), call_id

    def _call_steps(
        self, messages: Sequence[AnyMessage], asked: AIMessage
    ) -> list[list[tuple[str | None, CallStep[str]]]]:
        """Return the protected calls of each message up to the one that asks now, with their ids."""
        asking: list[tuple[AIMessage, list[Any]]] = []
        keys: list[list[tuple[str, bool]]] = []
        for at, message in enumerate(messages):
            if not isinstance(message, AIMessage):
                continue
            calls = [call for call in message.tool_calls if call["name"] in self._protected]
            asking.append((message, calls))
            answered = _answered_after(messages, at)
            keys.append([(self._key(call), call["id"] in answered) for call in calls])
            if message is asked:
                break
        return [
            [
                (call["id"], CallStep(identity, self._step(call), message.id or identity))
                for call, identity in zip(calls, identities, strict=True)
            ]
            for (message, calls), identities in zip(asking, numbered(keys), strict=True)
        ]

    def _step(self, call: Any) -> Step:
        return Step(self._names.get(call["name"], call["name"]), call["args"])

    def _key(self, call: Any) -> str:
        step = self._step(call)
        return call_key(call["id"] or "", step.tool, step.arguments)

    def _told(self, call_id: str | None, name: str, answered: CallAnswer[str]) -> Any:
        """Return what the framework is given: the output, or a message of a failed call."""
        outcome, answer = answered
        if answer.is_rolled_back:
            self._rolled_back = answer
        text, failed = call_result(outcome, answer)
        if not failed:
            assert outcome is not None
            return shown(outcome.output)
        if call_id is None:  # called by a program and not for a model
            raise_unless_succeeded([o for o in answer.outcomes if o is not None])
        return ToolMessage(text, tool_call_id=call_id or "", name=name, status="error")


class _ProtectedTool(StructuredTool):
    """A tool that knows by which call it is run; its arguments are validated by who runs it."""

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        positional, named = super()._to_args_and_kwargs(tool_input, tool_call_id)
        return positional, {**named, _CALL_ID: tool_call_id}


def _framework_tool(tool: BaseTool, name: str) -> FrameworkTool:
    _refuse_injected(tool)
    # A failure has to be raised to be one: text about it would be a success.
    raising = tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})
    return FrameworkTool(
        name=name,
        description=tool.description,
        schema=_schema(tool),
        function=functools.partial(_ainvoke, raising) if _is_async(tool) else raising.invoke,
        check=functools.partial(_check, raising),
    )


async def _ainvoke(tool: BaseTool, arguments: dict[str, Any]) -> Any:
    return await tool.ainvoke(arguments)


def _is_async(tool: BaseTool) -> bool:
    if isinstance(tool, StructuredTool | langchain_core.tools.Tool):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _check(tool: BaseTool, arguments: dict[str, Any]) -> None:
    schema = tool.get_input_schema()
    if isinstance(tool.args_schema, dict) or not issubclass(schema, BaseModel):
        return  # Validated when it is called, if at all.
    try:
        schema.model_validate(arguments)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise refuse_arguments(problems, arguments, tuple(schema.model_fields)) from None


def _schema(tool: BaseTool) -> dict[str, Any]:
    function = convert_to_openai_tool(tool)["function"]
    return dict(function.get("parameters") or {})


def _refuse_injected(tool: BaseTool) -> None:
    injected = set(tool._injected_args_keys)
    if not isinstance(tool.args_schema, dict):
        injected |= set(get_all_basemodel_annotations(tool.get_input_schema())) - set(tool.args)
    if injected:
        raise ToolDefinitionError(
            f"tool '{tool.name}' is given {', '.join(sorted(map(repr, injected)))} by its framework: a step is repeated "
            "from its arguments alone, so it can't be one"
        )


def _messages(runtime: ToolRuntime[Any, Any] | None) -> list[AnyMessage]:
    """Return the conversation that a call is part of, as the graph's state has it."""
    state = runtime.state if runtime is not None else None
    if isinstance(state, BaseModel):
        state = dict(state)
    if isinstance(state, Mapping):
        lists = [value for value in state.values() if isinstance(value, list)]
        return next((value for value in lists if any(isinstance(m, AIMessage) for m in value)), [])
    return state if isinstance(state, list) else []


def _answered_after(messages: Sequence[AnyMessage], at: int) -> set[str]:
    """Return the ids that are answered between a message of the model and its next."""
    answered = set()
    for message in messages[at + 1 :]:
        if isinstance(message, AIMessage):
            break
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
    return answered


def _is_note(message: AnyMessage) -> bool:
    return bool(message.additional_kwargs.get(_NOTE))

"""The MCP server: which tools there are, and how a call becomes an answer.

Whatever a call meets, its answer is a result that a model can act on; nothing of a fault's insides is in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from pydantic import ValidationError

from agenttx import AsyncClient
from agenttx.errors import AgentTxError
from agenttx_server.mcp_server import answers, requests
from agenttx_server.mcp_server.refusals import refusal, refused
from agenttx_server.mcp_server.tool_catalogue import brief
from agenttx_server.mcp_server.transaction_tools import Reply, TransactionTools
from agenttx_server.mcp_server.wording import refusal_text

__all__ = ["INSTRUCTIONS", "build_server", "tool_names"]

_LOGGER = logging.getLogger(__name__)

SECONDS_BETWEEN_PROGRESS = 5.0
"""Clients give up on a call that tells them nothing, many of them after a minute."""
CATALOGUE_SECONDS = 5.0

INSTRUCTIONS = """\
AgentTx runs your tool calls as steps of a transaction. If one fails, its cause is traced, everything since is undone, \
and you are told what to fix and where to go on.
1. begin_transaction gives a transaction_id and the number of the first step.
2. run_step runs one tool as the next step. Use "${steps.N.field}" for values out of earlier outputs: that is how a \
later failure is traced to the step that caused it. Run the steps one after another.
3. When a step fails, read the answer: it names the step to run next, which may be an earlier one. Run that one \
corrected, and then those after it again.
4. commit_transaction makes the work visible and final; rollback_transaction undoes all of it. Always end with one of \
the two.
Every answer says what to call next. A call that got no answer can be made again exactly as it was: it takes effect \
once. Only begin_transaction opens another one each time; a transaction that nobody uses is rolled back. \
list_tools says what run_step can call; explain_failure says why something failed."""


@dataclass(frozen=True, slots=True)
class _Tool:
    title: str
    description: str
    request: type[requests.Request]
    answer: type[answers.Answer]
    annotations: types.ToolAnnotations


def _hints(*, reads: bool = False, destroys: bool = False, repeats: bool = True) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, idempotent_hint=repeats, open_world_hint=False
    )


_TOOLS: dict[str, _Tool] = {
    "begin_transaction": _Tool(
        "Begin a transaction",
        "Open a transaction. Do this before anything else; one for each task of the user's. Every call opens another.",
        requests.BeginTransaction,
        answers.Begun,
        _hints(repeats=False),
    ),
    "run_step": _Tool(
        "Run a tool as a step",
        "Run one tool as the next step of a transaction. If it fails, the answer says what was undone, what to fix "
        "and which step to run next. Making exactly the same call again gives the same answer and runs nothing twice.",
        requests.RunStep,
        answers.StepRan,
        types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
        ),
    ),
    "rewind": _Tool(
        "Go back to a step",
        "Undo a step and all after it, because you want to do it differently. After a failed step it is not needed: "
        "that has gone back already.",
        requests.Rewind,
        answers.Rewound,
        _hints(destroys=True),
    ),
    "commit_transaction": _Tool(
        "Commit",
        "End a transaction and keep its work: its state becomes visible to others, its staged mails and messages are "
        "sent. Only when the whole task is done.",
        requests.CommitTransaction,
        answers.Committed,
        _hints(),
    ),
    "rollback_transaction": _Tool(
        "Roll back",
        "End a transaction and undo all of it.",
        requests.RollbackTransaction,
        answers.RolledBack,
        _hints(destroys=True),
    ),
    "get_transaction": _Tool(
        "Look at a transaction",
        "Say where a transaction stands: its status, its next step, its steps, and the output of one of them.",
        requests.GetTransaction,
        answers.TransactionShown,
        _hints(reads=True),
    ),
    "list_tools": _Tool(
        "List the tools for run_step",
        "List the tools that run_step can call, with the JSON Schemas of their arguments and what becomes of their "
        "effects when a transaction goes back.",
        requests.ListTools,
        answers.ToolsListed,
        _hints(reads=True),
    ),
    "explain_failure": _Tool(
        "Explain a failure",
        "Explain why a step failed: the tool's own error, where the failing value came from, what was decided and why.",
        requests.ExplainFailure,
        answers.Explained,
        _hints(reads=True),
    ),
}


def build_server(client: AsyncClient, version: str) -> Server[Any]:
    """Return the server. ``client`` is connected by the first call and closed by whoever made it."""
    tools = TransactionTools(client)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        catalogue = await _catalogue(client)
        return types.ListToolsResult(
            tools=[_declared(name, tool, catalogue) for name, tool in _TOOLS.items()]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async with _progress(context, params):
            reply = await _apart(_reply(tools, params.name, params.arguments or {}, _caller(context)))
        # Nothing is awaited between this and the answer's way out: a cancelled call never comes here.
        reply.handed_over()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=reply.text)],
            structured_content=reply.answer.model_dump(mode="json"),
            is_error=reply.is_error,
        )

    return Server(
        "agenttx",
        version=version,
        title="AgentTx transactions",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def tool_names() -> list[str]:
    """Return the names of the tools, in the order in which they are offered."""
    return list(_TOOLS)


def _declared(name: str, tool: _Tool, catalogue: str) -> types.Tool:
    description = tool.description
    if name == "run_step" and catalogue:
        description += f"\nTools at present (optional arguments with ?):\n{catalogue}"
    return types.Tool(
        name=name,
        title=tool.title,
        description=description,
        input_schema=tool.request.model_json_schema(),
        output_schema=tool.answer.model_json_schema(),
        annotations=tool.annotations,
    )


async def _catalogue(client: AsyncClient) -> str:
    """Return what run_step can call, in a few lines; nothing where the server can't say."""
    try:
        async with asyncio.timeout(CATALOGUE_SECONDS):
            return await brief(client)
    except (AgentTxError, TimeoutError) as error:
        _LOGGER.warning("the tools could not be listed: %s", error)
        return ""


async def _apart(work: Coroutine[Any, Any, Reply]) -> Reply:
    """Run work in a task of its own, which ends when its caller has gone.

    gRPC answers a cancellation with a CancelledError of its own. anyio takes only the one that it sent for its own,
    and would end the whole connection over another.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
    return task.result()


async def _reply(tools: TransactionTools, name: str, given: dict[str, Any], caller: str) -> Reply:
    tool = _TOOLS.get(name)
    if tool is None:
        return _refused(
            refused("unknown_tool", f"There is no tool {name!r} here", f"Call one of {', '.join(_TOOLS)}")
        )
    try:
        request = tool.request.model_validate(given)
    except ValidationError as bad:
        return _refused(
            refused(
                "bad_arguments",
                f"Bad arguments of {name}: {_problems(bad)}",
                "Correct them and call it again",
            )
        )
    transaction_id = str(given.get("transaction_id", ""))
    try:
        return await _run(tools, name, request, caller)
    except AgentTxError as error:
        return _refused(refusal(error, transaction_id))
    except Exception:
        _LOGGER.exception("a call of %s failed", name)
        return _refused(
            refused(
                "internal",
                "The MCP server of AgentTx had a fault of its own",
                "Make exactly the same call again; if it stays so, tell the user, whose log of `agenttx mcp` says more",
            )
        )


def _run(tools: TransactionTools, name: str, request: requests.Request, caller: str) -> Awaitable[Reply]:
    if isinstance(request, requests.BeginTransaction):
        return tools.begin_transaction(request, caller)
    method: Callable[[requests.Request], Awaitable[Reply]] = getattr(tools, name)
    return method(request)


def _refused(answer: answers.Refused) -> Reply:
    return Reply(refusal_text(answer), answer, is_error=True)


def _problems(bad: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
        for each in bad.errors(include_url=False, include_input=False)[:10]
    )


def _caller(context: ServerRequestContext[Any]) -> str:
    """Return the client's name, as it introduced itself."""
    introduced = context.session.client_params
    name = introduced.client_info.name if introduced is not None else ""
    return "".join(letter for letter in name if letter.isprintable())[:64]


@asynccontextmanager
async def _progress(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> AsyncIterator[None]:
    """Tell the caller now and then that its call is still under way, if it wants to hear of that."""

    async def tell() -> None:
        waited = 0.0
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_PROGRESS)
            waited += SECONDS_BETWEEN_PROGRESS
            await context.session.report_progress(
                waited, message=f"{params.name} is still under way ({waited:g} s)"
            )

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()

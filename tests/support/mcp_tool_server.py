"""A real MCP server for tests, over stdio or HTTP: tools that work, fail, hang, die, change on cue.

    python tests/support/mcp_tool_server.py LOG           speaks over stdin and stdout
    python tests/support/mcp_tool_server.py LOG --http PORT    listens, and prints its port

What its tools do outside are lines in LOG, `<what> <value>`; a file LOG.<cue> is a cue.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged

LOG = Path(sys.argv[1])
POLL_SECONDS = 0.02


def say(what: str, value: object) -> None:
    with LOG.open("a") as file:
        file.write(f"{what} {value}\n")


def cue(name: str) -> bool:
    return Path(f"{LOG}.{name}").exists()


async def wait_for(name: str) -> None:
    while not cue(name):  # noqa: ASYNC110 - what gives the cue is another process
        await asyncio.sleep(POLL_SECONDS)


def schema(*names: str, **types_of: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    properties |= {name: {"type": kind} for name, kind in types_of.items()}
    return {"type": "object", "properties": properties, "required": [*names, *types_of]}


def listed() -> list[types.Tool]:
    book = schema("room") if not cue("changed") else schema("room", "guest")
    return [
        types.Tool(name="book", description="Book a room.", input_schema=book),
        types.Tool(name="cancel", description="Cancel a booking.", input_schema=schema("booking")),
        types.Tool(
            name="look",
            description="Look.",
            input_schema={"type": "object"},
            annotations=types.ToolAnnotations(read_only_hint=True),
        ),
        types.Tool(
            name="set",
            description="Set.",
            input_schema=schema("value"),
            annotations=types.ToolAnnotations(idempotent_hint=True),
        ),
        types.Tool(name="fail", description="Fail.", input_schema=schema("how")),
        types.Tool(name="hang", description="Hang until told.", input_schema={"type": "object"}),
        types.Tool(name="progress", description="Tell progress.", input_schema={"type": "object"}),
        types.Tool(name="die", description="Die.", input_schema={"type": "object"}),
        types.Tool(name="answer", description="Answer so.", input_schema=schema("kind")),
        types.Tool(name="refuse", description="Refuse with a code.", input_schema=schema(code="integer")),
        types.Tool(name="a\nb", description="No name that is taken.", input_schema={"type": "object"}),
        types.Tool(name="environment", description="Name its variables.", input_schema={"type": "object"}),
    ]


def text(value: str, *, is_error: bool = False, structured: Any = None) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=value)], is_error=is_error, structured_content=structured
    )


async def on_call_tool(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    given = params.arguments or {}
    match params.name:
        case "book":
            say("book", given["room"])
            if cue("die-after-booking"):
                os._exit(1)
            return text("", structured={"booking": f"b-{given['room']}", "room": given["room"]})
        case "cancel":
            if cue("cancel-fails"):
                return text("the hotel does not answer", is_error=True)
            say("cancel", given["booking"])
            return text("cancelled")
        case "look":
            return text('{"rooms": [1, 2]}')
        case "set":
            say("set", f"{given['value']} {(params.meta or {}).get('agenttx/idempotency-key')}")
            if cue("die-after-set"):
                os.unlink(f"{LOG}.die-after-set")
                os._exit(1)
            return text("set")
        case "fail":
            if given["how"] == "structured":
                return text(
                    "x",
                    is_error=True,
                    structured={"category": "missing_record", "message": "no guest g-1", "keys": ["guest"]},
                )
            if given["how"] == "raise":
                raise RuntimeError("secret insides")
            return text(
                'insert or update violates foreign key constraint: Key (guest_id)=(g-9) is not present in table "guests"',
                is_error=True,
            )
        case "hang":
            say("hang", "began")
            try:
                await wait_for("let-go")
            except BaseException:
                say("hang", "cancelled")
                raise
            return text("let go")
        case "progress":
            for part in range(4):
                await context.session.report_progress(part, 4, "still at it")
                await asyncio.sleep(0.4)
            return text("done")
        case "die":
            say("die", os.getpid())
            os._exit(1)
        case "answer":
            return answered(given["kind"])
        case "refuse":
            raise MCPError(given["code"], "paid, but the receipt could not be mailed")
        case "environment":
            return text("", structured={"names": sorted(os.environ), "given": os.environ.get("HOTEL_KEY")})
    raise ValueError(params.name)


def answered(kind: str) -> types.CallToolResult:
    if kind == "image":
        return types.CallToolResult(
            content=[types.ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")]
        )
    return text({"json": "[1, 2]", "text": "plain words", "several": "one"}[kind])


def build() -> Server[Any]:
    sessions: list[Any] = []
    bus = InMemorySubscriptionBus()

    async def watch() -> None:
        await wait_for("changed")
        await bus.publish(ToolsListChanged())
        for session in sessions:
            await session.send_tool_list_changed()

    async def tools(context: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
        if not sessions:
            sessions.append(context.session)
            tasks.append(asyncio.create_task(watch()))
        return types.ListToolsResult(tools=listed())

    return Server(
        "hotel",
        version="1",
        on_list_tools=tools,
        on_call_tool=on_call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )


tasks: list[asyncio.Task[None]] = []


async def over_stdio() -> None:
    server = build()
    sys.stderr.write("the hotel is open\n")
    sys.stderr.flush()
    say("start", os.getpid())
    async with stdio_server() as (incoming, outgoing):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        if cue("legacy"):  # one that knows nothing of the newer protocol
            await serve_loop(server, incoming, outgoing, lifespan_state={}, init_options=options)
        else:
            await server.run(incoming, outgoing, options)
    say("stop", os.getpid())


def over_http() -> None:
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", int(sys.argv[3])))
    print(listener.getsockname()[1], flush=True)
    app = build().streamable_http_app()
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener]))


if __name__ == "__main__":
    if "--http" in sys.argv:
        over_http()
    else:
        asyncio.run(over_stdio())

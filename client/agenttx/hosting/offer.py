"""What a worker offers: its tools, their undo actions, handlers of channels, and functions of graphs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agenttx.graph import GraphBuilder
from agenttx.hosting.graph_functions import GraphFunction
from agenttx.records import Effect
from agenttx.tools.definition import AnyTool, Tool, ToolDefinitionError, UndoAction
from agenttx.v1 import tool_pb2 as pb
from agenttx.v1 import transaction_pb2

__all__ = ["ChannelHandler", "Offered", "is_async"]

ChannelHandler = Callable[[Effect], Awaitable[None] | None]


@dataclass(frozen=True)
class Offered:
    """Tools, undo actions and channels by name. Raises ToolDefinitionError for two of one name."""

    tools: dict[str, AnyTool] = field(default_factory=dict)
    undo_actions: dict[str, UndoAction] = field(default_factory=dict)
    channels: dict[str, ChannelHandler] = field(default_factory=dict)
    functions: dict[str, GraphFunction] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tools: Iterable[AnyTool],
        channels: Mapping[str, ChannelHandler],
        graphs: Iterable[GraphBuilder] = (),
    ) -> Offered:
        """Return what these come to."""
        offered = cls(channels=dict(channels))
        for tool in tools:
            if not isinstance(tool, Tool):
                raise ToolDefinitionError(
                    f"{tool!r:.80} is not a tool: make it one with @tool(name, effects=...)"
                )
            if tool.name in offered.tools:
                raise ToolDefinitionError(f"two tools are named '{tool.name}'; give one of them another name")
            offered.tools[tool.name] = tool
            for name, action in tool.undo_actions.items():
                if name in offered.undo_actions:
                    raise ToolDefinitionError(
                        f"two undo actions are named '{name}', one of them of tool '{tool.name}'; rename one"
                    )
                offered.undo_actions[name] = action
        for graph in graphs:
            for name, function in graph.functions.items():
                known = offered.functions.get(name)
                if known is not None and function is not None and known.function is not function:
                    raise ToolDefinitionError(
                        f"two functions of graphs are named '{name}'; give one of them another name"
                    )
                if function is not None:
                    offered.functions[name] = GraphFunction(name, function)
        if not offered.tools and not offered.channels and not offered.functions:
            raise ToolDefinitionError(
                "a worker offers at least one tool, channel or function of a graph: Worker(tools=[...], graphs=[...])"
            )
        for name, handler in offered.channels.items():
            if not name or not callable(handler):
                raise ToolDefinitionError(f"channels: {name!r} needs a function that takes the effect")
        return offered

    def hello(self, worker_name: str, sdk: str, concurrency: int) -> pb.WorkerHello:
        """Return the message that offers it."""
        return pb.WorkerHello(
            worker_name=worker_name,
            sdk=sdk,
            tools=[_tool(tool) for _, tool in sorted(self.tools.items())],
            channels=sorted(self.channels),
            concurrency=concurrency,
            functions=sorted(self.functions),
        )


def _tool(tool: AnyTool) -> pb.WorkerTool:
    declared = tool.describe()
    message = pb.WorkerTool(
        name=declared.name,
        description=declared.description,
        arguments_schema_json=declared.arguments_schema,
        effect_class=transaction_pb2.EffectClass.Value(f"EFFECT_CLASS_{declared.effect_class}"),
        retries=declared.retries,
        undo_names=declared.undo_names,
        needs_approval=declared.needs_approval,
        restartable=declared.restartable,
        emits_records=declared.emits_records,
    )
    if declared.timeout_us is not None:
        message.timeout.FromMicroseconds(declared.timeout_us)
    return message


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function gives a coroutine."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)

"""Tools: the ``@tool`` decorator, the registry that runs them, and the built-in ones."""

from agenttx_server.engine.ports import ContextClosed, OutcomeUnknown, ToolFailure, UndoContext
from agenttx_server.engine.records import EffectClass, HintCategory
from agenttx_server.tools.blocking_context import BlockingToolCallContext
from agenttx_server.tools.call_context import ToolCallContext
from agenttx_server.tools.definition import AnyTool, Tool, ToolDefinitionError, tool
from agenttx_server.tools.loading import ToolLoadError, load_tools
from agenttx_server.tools.registry import ToolRegistry

__all__ = [
    "AnyTool",
    "BlockingToolCallContext",
    "ContextClosed",
    "EffectClass",
    "HintCategory",
    "OutcomeUnknown",
    "Tool",
    "ToolCallContext",
    "ToolDefinitionError",
    "ToolFailure",
    "ToolLoadError",
    "ToolRegistry",
    "UndoContext",
    "load_tools",
    "tool",
]

"""Tools: the ``@tool`` decorator, the registry that runs them, and the built-in ones."""

from agenttx.tools import (
    AnyTool,
    BlockingToolCallContext,
    ContextClosed,
    EffectClass,
    HintCategory,
    OutcomeUnknown,
    SubStepFailed,
    Tool,
    ToolCallContext,
    ToolDefinitionError,
    ToolFailure,
    UndoContext,
    tool,
)
from agenttx_server.tools.loading import ToolLoadError, load_tools
from agenttx_server.tools.registry import ToolRegistry

__all__ = [
    "AnyTool",
    "BlockingToolCallContext",
    "ContextClosed",
    "EffectClass",
    "HintCategory",
    "OutcomeUnknown",
    "SubStepFailed",
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

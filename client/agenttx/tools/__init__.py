"""Tools: the ``@tool`` decorator and what a tool's code is given, for servers and workers alike.

Needs pydantic: ``pip install 'agenttx[worker]'``.
"""

from __future__ import annotations

from agenttx.enumerations import EffectClass
from agenttx.tools.blocking_context import BlockingToolCallContext
from agenttx.tools.call_context import StateStore, ToolCallContext
from agenttx.tools.call_port import UndoContext
from agenttx.tools.definition import AnyTool, Declaration, Tool, ToolDefinitionError, tool
from agenttx.tools.errors import (
    ArgumentsRefused,
    ContextClosed,
    DeliveryFailed,
    OutcomeUnknown,
    SubStepFailed,
    ToolFailure,
)
from agenttx.tools.hint_category import HintCategory

__all__ = [
    "AnyTool",
    "ArgumentsRefused",
    "BlockingToolCallContext",
    "ContextClosed",
    "Declaration",
    "DeliveryFailed",
    "EffectClass",
    "HintCategory",
    "OutcomeUnknown",
    "StateStore",
    "SubStepFailed",
    "Tool",
    "ToolCallContext",
    "ToolDefinitionError",
    "ToolFailure",
    "UndoContext",
    "tool",
]

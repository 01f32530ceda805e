"""A tool call that is to become a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

__all__ = ["Step", "call"]


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call, without its position.

    Attributes:
        tool: Name of the tool; at most 128 bytes.
        arguments: Its arguments: JSON values, references, outcomes of earlier steps.
        raw_context: What the agent wants remembered with the step; at most 1 MiB.
        step_timeout: How long the tool may run, in seconds or as timedelta; None for the tool's own timeout.
        request_id: The identity of the call, at most 128 bytes and never used for another; None to have one made up.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    raw_context: str = ""
    step_timeout: float | timedelta | None = None
    request_id: str | None = None


def call(
    tool: str,
    /,
    *,
    step_timeout: float | timedelta | None = None,
    raw_context: str = "",
    **arguments: Any,
) -> Step:
    """Return a tool call with its arguments as keywords, for groups and plans.

    Example:
        `tx.group([call("kv.get", key="a"), call("kv.get", key="b")])`
    """
    return Step(tool, arguments, raw_context, step_timeout)

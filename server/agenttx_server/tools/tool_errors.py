"""The errors of tools as both sides know them: what tools raise and catch, and what the engine does.

Tools are written against ``agenttx.tools``, the engine against its ports; neither may import the other.
What crosses from one to the other becomes one of these, which is both.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx import tools
from agenttx_server.engine import ports
from agenttx_server.engine.records import Hint

__all__ = ["for_engine", "for_tools"]


class _Failure(ports.ToolFailure, tools.ToolFailure):
    def __init__(self, category: str, message: str, keys: Sequence[str] = ()) -> None:
        Exception.__init__(
            self, message
        )  # not super(): each parent would hand the other one argument of three
        self.category = category
        self.message = message
        self.keys = tuple(keys)


class _ArgumentsRefused(_Failure, ports.ArgumentsRefused, tools.ArgumentsRefused):
    pass


class _OutcomeUnknown(ports.OutcomeUnknown, tools.OutcomeUnknown):
    pass


class _ContextClosed(ports.ContextClosed, tools.ContextClosed):
    pass


class _StepFailed(ports.SubStepFailed, tools.SubStepFailed):
    def __init__(self, sub_step: int, hint: Hint) -> None:
        Exception.__init__(self, hint.text)
        self.sub_step = sub_step
        self.hint = hint
        self.category = hint.category
        self.message = hint.text
        self.keys = hint.keys


class for_engine:
    """Raise what a tool raised as the engine knows it; its own errors stay as they are."""

    # A class, here and below: contextlib's way costs three times as much, and every call of a tool has several.
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, ports.ToolFailure | ports.OutcomeUnknown | ports.ContextClosed):
            return
        if isinstance(error, tools.ArgumentsRefused):
            raise _ArgumentsRefused(error.category, error.message, error.keys) from error
        if isinstance(error, tools.ToolFailure):
            raise _Failure(error.category, error.message, error.keys) from error
        if isinstance(error, tools.OutcomeUnknown):
            raise _OutcomeUnknown(*error.args) from error
        if isinstance(error, tools.ContextClosed):
            raise _ContextClosed(*error.args) from error


class for_tools:
    """Raise what the engine refused as tools know it."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, ports.ContextClosed):
            raise _ContextClosed(*error.args) from error
        if isinstance(error, ports.SubStepFailed):
            raise _StepFailed(error.sub_step, error.hint) from error
        if isinstance(error, ports.ToolFailure) and not isinstance(error, tools.ToolFailure):
            raise _Failure(error.category, error.message, error.keys) from error

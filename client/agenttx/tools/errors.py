"""What a tool's code raises to say more than that something went wrong, and what its ``ctx`` raises.

    Exception
    ├── ToolFailure           a structured error: category, message and the fields at fault
    │   ├── SubStepFailed     a call made with ctx.step failed, and was undone
    │   └── ArgumentsRefused  the arguments were refused; the function was never called
    ├── OutcomeUnknown        nobody can tell whether the effect happened
    └── ContextClosed         the call is over: nothing can become part of the step any more

Any other exception is a failure too: its text is cleaned into a hint.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx.tools.hint_category import HintCategory

__all__ = [
    "ArgumentsRefused",
    "ContextClosed",
    "DeliveryFailed",
    "OutcomeUnknown",
    "SubStepFailed",
    "ToolFailure",
]


class ToolFailure(Exception):
    """A tool's structured error: the agent is told its message as it is.

    ``category`` is one of the hint categories, ``keys`` the offending fields, most telling first.
    """

    def __init__(self, category: HintCategory | str, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.keys = tuple(keys)


class ArgumentsRefused(ToolFailure):
    """Arguments that the tool's schema refuses; the tool was never called."""


class SubStepFailed(ToolFailure):
    """A tool called with ``ctx.step`` failed; what it did is undone. ``message`` is its hint.

    Caught, the tool that called it goes on. Let through, it is that tool's own failure, decided on by where the
    call's arguments came from. ``sub_step`` is the call's number in the step.
    """

    def __init__(
        self, category: HintCategory | str, message: str, keys: Sequence[str] = (), *, sub_step: int = 0
    ) -> None:
        super().__init__(category, message, keys)
        self.sub_step = sub_step


class OutcomeUnknown(Exception):
    """The tool can't tell whether its effect happened."""


class ContextClosed(Exception):
    """The attempt's deadline passed or it was superseded: nothing more can be stored, staged or registered."""


class DeliveryFailed(Exception):
    """An effect could not be delivered, and its handler knows more about when it could.

    ``permanent`` is that trying again is pointless; ``retry_after_seconds`` the least time to leave the
    receiver alone for, None if it doesn't say.
    """

    def __init__(
        self, message: str, *, permanent: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent
        self.retry_after_seconds = retry_after_seconds

"""Text that UTF-8 can't carry is refused as what it is, naming the argument that holds it.

Messages are made in many places, and protobuf's error tells the text but not the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import CO_VARARGS
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from agenttx.errors import InvalidValue

__all__ = ["sends_text", "unsendable"]

P = ParamSpec("P")
T = TypeVar("T")

_LEVELS = 4


def unsendable(error: UnicodeEncodeError) -> InvalidValue:
    """Return the error for a text that a message can't hold; its `path` is the argument that holds it, if that is known."""
    name = _argument_with(error.object, error.__traceback__)
    problem = "the text holds a lone surrogate, which UTF-8 can't carry"
    return InvalidValue(problem if name else f"{problem}: {error.object[:64]!r}", path=name, rule="surrogate")


def sends_text(make: Callable[P, T]) -> Callable[P, T]:
    """Have a function that makes messages refuse text that can't be sent; see :func:`unsendable`."""

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return make(*args, **kwargs)
        except UnicodeEncodeError as error:
            raise unsendable(error) from None

    return made


def _argument_with(text: str, traceback: TracebackType | None) -> str:
    """Return the name of the outermost function's argument that is, or holds, a text; "" if none does."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename != __file__:
            given = _arguments_of(frame)
            # What an object was made for counts as given to its methods.
            known = getattr(given.pop("self", None), "__dict__", {})
            for name, value in (*given.items(), *known.items()):
                if _holds(value, text, _LEVELS):
                    return str(name).lstrip("_")
        traceback = traceback.tb_next
    return ""


def _arguments_of(frame: FrameType) -> dict[str, object]:
    code = frame.f_code
    number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    return {name: frame.f_locals.get(name) for name in code.co_varnames[:number]}


def _holds(value: object, text: str, levels: int) -> bool:
    if isinstance(value, str):
        return str.__str__(value) == text
    if not levels:
        return False
    parts: Iterable[object]
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        return False
    return any(_holds(part, text, levels - 1) for part in parts)

"""Names of threads as callers know them, and as the server keeps them.

Two principals may give two threads one name, and neither finds out about the other's. So a thread is kept under its owner and its
name: ``@ann invoices``. Its owner calls it ``invoices``; operators and auditors, who see everybody's, call it as it is kept. Threads of the
anonymous caller are kept under their names alone.

It is done here, once, for every field of these names in every request and answer of a service: a method that is
added can't forget it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.engine.errors import EngineError, FieldViolation, InvalidRequest
from agenttx_server.engine.visibility import is_everybody, thread_prefix

__all__ = ["ThreadNames"]

_NAMES = frozenset({"thread_id", "new_thread_id", "forked_from_thread_id"})
_RESERVED = "@"

Behaviour = Callable[[Any, RpcContext], Any]


class ThreadNames:
    """Goes around the methods of a service. ``is_there`` says whether a scope sees a thread under its kept name."""

    def __init__(self, is_there: Callable[[str, str], Awaitable[bool]]) -> None:
        self._is_there = is_there

    def around(self, method: MethodDescriptor, behaviour: Behaviour) -> Behaviour:
        """Return a method's behaviour with kept names in what it gets and callers' names in what it answers."""
        return self._around_stream(behaviour) if method.server_streaming else self._around_unary(behaviour)

    def _around_unary(self, behaviour: Behaviour) -> Behaviour:
        async def named(request: Message, context: RpcContext) -> Message:
            prefix = await self._take_in(request)
            try:
                answer: Message = await behaviour(request, context)
            except EngineError as refused:
                _forget_prefix(refused, prefix)
                raise
            _tell(answer, prefix)
            return answer

        return named

    def _around_stream(self, behaviour: Behaviour) -> Behaviour:
        async def named(request: Message, context: RpcContext) -> None:
            prefix = await self._take_in(request)
            try:
                await behaviour(request, cast("RpcContext", _Telling(context, prefix)) if prefix else context)
            except EngineError as refused:
                _forget_prefix(refused, prefix)
                raise

        return named

    async def _take_in(self, request: Message) -> str:
        """Put kept names into a request; return what is to be left out of answers."""
        call = current_call()
        prefix = thread_prefix(call.principal)
        for message, name in _named_fields(request):
            given = getattr(message, name)
            if not given:
                continue
            if not prefix and given.startswith(_RESERVED) and not is_everybody(call.scope):
                raise InvalidRequest((FieldViolation(name, "begins with '@', which is reserved"),))
            kept = prefix + given
            if (
                is_everybody(call.scope)
                and kept != given
                and not await self._is_there(call.principal, kept)
                and (given.startswith(_RESERVED) or await self._is_there(call.scope, given))
            ):
                kept = given  # an overseer names it as it is kept
            setattr(message, name, kept)
        return prefix


class _Telling:
    """A stream's context that writes callers' names."""

    def __init__(self, context: RpcContext, prefix: str) -> None:
        self._context = context
        self._prefix = prefix

    async def write(self, message: Message) -> None:
        _tell(message, self._prefix)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _tell(answer: Message, prefix: str) -> None:
    if not prefix:
        return
    for message, name in _named_fields(answer):
        kept = getattr(message, name)
        if kept.startswith(prefix):
            setattr(message, name, kept.removeprefix(prefix))


def _forget_prefix(refused: EngineError, prefix: str) -> None:
    if prefix:
        refused.message = refused.message.replace(prefix, "")
        refused.metadata = {name: text.removeprefix(prefix) for name, text in refused.metadata.items()}


def _named_fields(message: Message) -> Iterator[tuple[Message, str]]:
    """Find the fields that name threads, in a message and those in it that are there."""
    names, inner = _of_type(message.DESCRIPTOR)
    for name in names:
        yield message, name
    for field in inner:
        if field.is_repeated:
            for item in getattr(message, field.name):
                yield from _named_fields(item)
        elif message.HasField(field.name):
            yield from _named_fields(getattr(message, field.name))


@cache
def _of_type(kind: Descriptor) -> tuple[tuple[str, ...], tuple[FieldDescriptor, ...]]:
    names = tuple(field.name for field in kind.fields if field.name in _NAMES)
    inner = tuple(field for field in kind.fields if _may_hold_names(field))
    return names, inner


def _may_hold_names(field: FieldDescriptor) -> bool:
    kind = field.message_type
    if kind is None or kind.GetOptions().map_entry:
        return False
    return _holds_names(kind)


@cache
def _holds_names(kind: Descriptor) -> bool:
    seen: set[str] = set()

    def look(at: Descriptor) -> bool:
        if at.full_name in seen or not at.full_name.startswith("agenttx."):
            return False
        seen.add(at.full_name)
        return any(
            field.name in _NAMES or (field.message_type is not None and look(field.message_type))
            for field in at.fields
        )

    return look(kind)

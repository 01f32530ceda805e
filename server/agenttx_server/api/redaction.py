"""What looks like a secret is left out of what is shown to who only looks on.

An auditor sees everybody's, but for what stands under names such as ``password`` or ``api_key`` and for what has the form of a token or key:
in arguments, outputs, state, raw errors, events, in every text of every answer. Who made a thing sees it whole, and
so do operators, who have to settle it. Done once for all methods, by the types of the answers' fields.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from agenttx_server.access.identity import Identity, Role
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.method_roles import METHOD_ROLES
from agenttx_server.engine.hints import mask_secrets
from agenttx_server.engine.hints.masking import MASK, is_secret_name
from agenttx_server.engine.visibility import is_everybody

__all__ = ["around", "redacted"]

Behaviour = Callable[[Any, RpcContext], Any]

_DEEPEST = 100
# A name may stand beside its value and not over it: in the arguments and answers of kv.*, in entries of state.
_NAMES_BESIDE, _VALUES_BESIDE = ("key", "name"), ("value", "value_json")
# What callers send back to go on, and what they name things by: a cut one would be of no use.
_IDS = ("_id", "_ids", "_token", "_cursor", "_version")


def around(method: MethodDescriptor, behaviour: Behaviour) -> Behaviour:
    """Return a method's behaviour, whose answers are redacted for those who only look on."""
    roles = METHOD_ROLES.get(f"{method.containing_service.name}/{method.name}", frozenset())
    if Role.AUDITOR not in roles or method.client_streaming:
        return behaviour

    async def unary(request: Message, context: RpcContext) -> Message:
        answer: Message = await behaviour(request, context)
        if _only_looks_on():
            _redact(answer)
        return answer

    async def stream(request: Message, context: RpcContext) -> None:
        shown = cast("RpcContext", _Redacting(context)) if _only_looks_on() else context
        responses = behaviour(request, shown)
        if not hasattr(responses, "__aiter__"):
            await responses
            return
        async with contextlib.aclosing(responses):
            async for response in responses:
                await shown.write(response)

    return stream if method.server_streaming else unary


def _only_looks_on() -> bool:
    call = current_call()
    identity: Identity | None = call.identity
    return identity is not None and is_everybody(call.scope) and Role.OPERATOR not in identity.roles


class _Redacting:
    """A stream's context that redacts what is written."""

    def __init__(self, context: RpcContext) -> None:
        self._context = context

    async def write(self, message: Message) -> None:
        _redact(message)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _redact(message: Message) -> None:
    fields = message.ListFields()
    beside = _names_value_beside({field.name: value for field, value in fields})
    for field, value in fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _redact_map(field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if field.is_repeated else (value,):
                _redact(item)
        elif field.type == FieldDescriptor.TYPE_STRING and not field.name.endswith(_IDS):
            if field.is_repeated:
                value[:] = [redacted(text) for text in value]
            elif beside and field.name in _VALUES_BESIDE:
                setattr(message, field.name, f'"{MASK}"' if field.name.endswith("_json") else MASK)
            else:
                setattr(message, field.name, redacted(value))


def _redact_map(field: FieldDescriptor, entries: Any) -> None:
    assert field.message_type is not None
    kind = field.message_type.fields_by_name["value"].type
    for name in list(entries):
        secret = is_secret_name(str(name))
        if kind == FieldDescriptor.TYPE_STRING:
            entries[name] = MASK if secret else redacted(entries[name])
        elif kind == FieldDescriptor.TYPE_MESSAGE:
            if secret and entries[name].DESCRIPTOR.full_name == "google.protobuf.Value":
                entries[name].string_value = MASK
            else:
                _redact(entries[name])


def redacted(text: str) -> str:
    """Return a text without what looks like a secret; JSON is looked at by its names."""
    if text[:1] in ("{", "["):
        try:
            parsed = orjson.loads(text)
        except orjson.JSONDecodeError:
            return mask_secrets(text)
        shown = _value(parsed, _DEEPEST)
        return text if shown == parsed else orjson.dumps(shown).decode()
    return mask_secrets(text)


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redacted(value) if depth else MASK
    if not depth:
        return MASK
    if isinstance(value, dict):
        beside = _names_value_beside(value)
        return {
            name: MASK
            if (is_secret_name(name) or (beside and name in _VALUES_BESIDE)) and _may_be_secret(item)
            else _value(item, depth - 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_value(item, depth - 1) for item in value]
    return value


def _names_value_beside(fields: Mapping[str, Any]) -> bool:
    """Whether there is a secret's name in a field of its own; of a path, such as ``users/ann/password``, the end counts."""
    names = (fields.get(name) for name in _NAMES_BESIDE)
    return any(isinstance(name, str) and is_secret_name(re.split("[/:]", name)[-1]) for name in names)


def _may_be_secret(value: Any) -> bool:
    return value is not None and not isinstance(value, bool)

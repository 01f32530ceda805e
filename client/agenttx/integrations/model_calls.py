"""Tool calls as models write them, and their results as models read them.

Three forms are known: ``tool_calls`` of Chat Completions, ``function_call`` items of the Responses API and
``tool_use`` blocks of the Messages API. Messages may be mappings or the objects of the providers' libraries
(anything with ``model_dump``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agenttx.errors import InvalidValue
from agenttx.values import encode_arguments

__all__ = [
    "CallForm",
    "ModelCall",
    "ModelTurn",
    "answered_ids",
    "note_message",
    "persons_messages",
    "read_call",
    "read_turns",
    "result_messages",
    "shown",
]

_PERSONS = frozenset({"user", "system", "developer"})


class CallForm(StrEnum):
    """How a conversation writes its tool calls."""

    CHAT_COMPLETIONS = "CHAT_COMPLETIONS"
    RESPONSES = "RESPONSES"
    MESSAGES = "MESSAGES"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call that a model asked for.

    Attributes:
        call_id: The provider's id; the result carries it.
        name: The function.
        arguments: Its arguments; empty where they can't be read.
        problem: Why the call can't be made, in words for the model; empty if it can.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """What a model said at once: the calls, and the part of the history that holds them."""

    form: CallForm
    start: int
    end: int
    calls: tuple[ModelCall, ...]


def read_turns(history: Sequence[Any]) -> list[ModelTurn]:
    """Return every turn of a conversation that asks for tools, oldest first."""
    turns = []
    index = 0
    while index < len(history):
        message = _mapping(history[index])
        end = index + 1
        if calls := message.get("tool_calls"):
            turns.append(ModelTurn(CallForm.CHAT_COMPLETIONS, index, end, tuple(map(_chat_call, calls))))
        elif blocks := _tool_uses(message):
            turns.append(ModelTurn(CallForm.MESSAGES, index, end, tuple(map(_tool_use, blocks))))
        elif _is_item(message):
            while end < len(history) and _is_item(_mapping(history[end])):
                end += 1
            items = [_mapping(item) for item in history[index:end]]
            asked = tuple(_function_call(item) for item in items if item["type"] == "function_call")
            if asked:
                turns.append(ModelTurn(CallForm.RESPONSES, index, end, asked))
        index = end
    return turns


def answered_ids(messages: Iterable[Any]) -> frozenset[str]:
    """Return the ids of the calls that messages answer."""
    found = set()
    for item in messages:
        message = _mapping(item)
        if message.get("role") == "tool":
            found.add(str(message.get("tool_call_id") or ""))
        elif message.get("type") == "function_call_output":
            found.add(str(message.get("call_id") or ""))
        elif isinstance(content := message.get("content"), list):
            blocks = [_mapping(part) for part in content if not isinstance(part, str)]
            found |= {str(b.get("tool_use_id") or "") for b in blocks if b.get("type") == "tool_result"}
    return frozenset(found)


def result_messages(
    form: CallForm, results: Sequence[tuple[ModelCall, str, bool]]
) -> tuple[dict[str, Any], ...]:
    """Return the messages that answer calls, given each with its text and whether it failed."""
    match form:
        case CallForm.CHAT_COMPLETIONS:
            return tuple(
                {"role": "tool", "tool_call_id": call.call_id, "content": text} for call, text, _ in results
            )
        case CallForm.RESPONSES:
            return tuple(
                {"type": "function_call_output", "call_id": call.call_id, "output": text}
                for call, text, _ in results
            )
        case CallForm.MESSAGES:
            blocks = [
                {"type": "tool_result", "tool_use_id": call.call_id, "content": text, "is_error": failed}
                for call, text, failed in results
            ]
            return ({"role": "user", "content": blocks},)


def note_message(text: str) -> dict[str, Any]:
    """Return a message to the model, which has the same shape in all forms."""
    return {"role": "user", "content": text}


def persons_messages(history: Iterable[Any]) -> tuple[Any, ...]:
    """Return what users and developers said, without the results of calls."""
    kept = []
    for item in history:
        message = _mapping(item)
        content = message.get("content")
        if message.get("role") not in _PERSONS or not content:
            continue
        if isinstance(content, list):
            said = [
                part
                for part in content
                if isinstance(part, str) or _mapping(part).get("type") != "tool_result"
            ]
            if len(said) == len(content):
                kept.append(item)
            elif said:
                kept.append({**message, "content": said})
        else:
            kept.append(item)
    return tuple(kept)


def shown(output: Any) -> str:
    """Return a tool's output as text for a model: text as it is, everything else as JSON."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _mapping(message: Any) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        return message
    if hasattr(message, "model_dump"):
        dumped = message.model_dump(exclude_none=True)
        if isinstance(dumped, Mapping):
            return dumped
    raise TypeError(f"a message is a mapping or has model_dump(), which {type(message).__name__} has not")


def _is_item(message: Mapping[str, Any]) -> bool:
    """Whether this is an item of the Responses API that the model made."""
    kind = message.get("type")
    if not isinstance(kind, str) or kind.endswith("_output"):
        return False
    return message.get("role") not in _PERSONS


def _tool_uses(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return []
    blocks = [_mapping(block) for block in content if not isinstance(block, str)]
    return [block for block in blocks if block.get("type") == "tool_use"]


def _chat_call(call: Any) -> ModelCall:
    call = _mapping(call)
    function = _mapping(call.get("function") or {})
    if call.get("type", "function") != "function" or not function:
        return ModelCall(str(call.get("id", "")), "", {}, "Only function calls can be made.")
    return read_call(call.get("id"), function.get("name"), function.get("arguments"))


def _function_call(item: Mapping[str, Any]) -> ModelCall:
    return read_call(item.get("call_id"), item.get("name"), item.get("arguments"))


def _tool_use(block: Mapping[str, Any]) -> ModelCall:
    return read_call(block.get("id"), block.get("name"), block.get("input"))


def read_call(call_id: Any, name: Any, sent: Any) -> ModelCall:
    """Return a call; one that can't be made says why, so that the model can write it again."""
    arguments: Any = sent
    problem = ""
    if not isinstance(name, str) or not name:
        name, problem = "", "The call names no function."
    if isinstance(sent, str | bytes):
        try:
            arguments = json.loads(sent or "{}")
        except ValueError as error:
            problem = problem or f"The arguments are not valid JSON: {error}. Write them again."
    if arguments is None:
        arguments = {}
    if not problem and not isinstance(arguments, Mapping):
        problem = "The arguments are not a JSON object. Write them again."
    if not problem:
        try:
            encode_arguments(arguments)
        except InvalidValue as error:
            problem = f"The arguments can't be sent: {error}. Write them again."
    return ModelCall(str(call_id or ""), name, {} if problem else arguments, problem)

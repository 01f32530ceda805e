"""The reducer of conversations: messages are objects with an ``id``.

A message with a known id takes the place of that one, any other comes behind. One without
an id gets one, made from the write's identity, so that the same work gives the same ids again.
``{"__remove__": "id"}`` removes one, ``{"__remove_all__": true}`` all before it. To remove an id that
was never there is an error unless the channel says otherwise; to remove twice in one update is none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.graphs.channel_types import type_name
from agenttx_server.graphs.reducers.reduction import Mismatch, Reduced, Reducer, WriteContext

__all__ = ["MESSAGES_REDUCER", "REMOVE", "REMOVE_ALL"]

REMOVE: Final = "__remove__"
REMOVE_ALL: Final = "__remove_all__"

Message = dict[str, JsonValue]


@dataclass(slots=True)
class _Conversation:
    """Messages by id, in order, each with its old index; what was removed is remembered for this update."""

    messages: dict[str, tuple[Message, int | None]]
    removed: set[str] = field(default_factory=set)

    def put(self, message: Message) -> None:
        # A dictionary keeps the place of a key that it has.
        self.messages[str(message["id"])] = (message, None)

    def remove(self, message_id: str, *, ignore_unknown: bool) -> None:
        if message_id in self.messages:
            del self.messages[message_id]
            self.removed.add(message_id)
        elif message_id not in self.removed and not ignore_unknown:
            raise Mismatch("the id of a message that is there", "the removal of an unknown id")

    def clear(self) -> None:
        self.removed |= self.messages.keys()
        self.messages.clear()


@dataclass(frozen=True, slots=True)
class _Messages:
    name: str = field(default="messages", init=False)
    version: str = field(default="", init=False)
    types: frozenset[str] = field(default=frozenset({"array"}), init=False)
    one_writer: bool = field(default=False, init=False)
    ephemeral: bool = field(default=False, init=False)
    untracked: bool = field(default=False, init=False)

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        conversation = _Conversation(_by_id(current))
        written: list[JsonValue] = []
        for index, message in enumerate(update if isinstance(update, list) else [update]):
            written.append(_apply(conversation, message, index, write))
        kept = conversation.messages.values()
        return Reduced(
            [message for message, _ in kept],
            tuple(old_index for _, old_index in kept),
            written,
        )


def _apply(conversation: _Conversation, item: JsonValue, index: int, write: WriteContext) -> JsonValue:
    if not isinstance(item, dict):
        raise Mismatch("message (an object)", type_name(item))
    if REMOVE_ALL in item:
        if len(item) > 1 or item[REMOVE_ALL] is not True:
            raise Mismatch(f'{{"{REMOVE_ALL}": true}}', "another form of it")
        conversation.clear()
        return item
    if REMOVE in item:
        message_id = item[REMOVE]
        if len(item) > 1 or not isinstance(message_id, str):
            raise Mismatch(f'{{"{REMOVE}": "id"}}', "another form of it")
        conversation.remove(message_id, ignore_unknown=write.ignore_unknown_removals)
        return item
    message = _identified(item, index, write)
    conversation.put(message)
    return message


def _identified(message: Message, index: int, write: WriteContext) -> Message:
    message_id = message.get("id")
    if isinstance(message_id, str) and message_id:
        return message
    if message_id is not None and message_id != "":
        raise Mismatch("message whose id is a string", type_name(message_id))
    digest = hashlib.sha256(f"{write.seed}\0{index}".encode()).hexdigest()
    return {**message, "id": f"m-{digest[:24]}"}


def _by_id(current: JsonValue | Missing) -> dict[str, tuple[Message, int | None]]:
    if current is MISSING:
        return {}
    if not isinstance(current, list):
        raise Mismatch("array of messages", type_name(current))
    messages: dict[str, tuple[Message, int | None]] = {}
    for index, message in enumerate(current):
        if not isinstance(message, dict) or not isinstance(message.get("id"), str):
            raise Mismatch("array of messages with ids", "another array")
        messages[str(message["id"])] = (message, index)
    return messages


MESSAGES_REDUCER: Final[Reducer] = _Messages()

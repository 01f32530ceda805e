"""What a model's call is known by: what the provider and the model said, and never where in a history it stands.

Histories are trimmed, summarized and given new system messages between two tries of one call, so its position says
nothing. The same id, tool and arguments are the same call. Some providers count their ids anew in every answer
("call_0"): a call that repeats an earlier one which was *answered* is the next of its kind, and one that repeats a call
without an answer is that call, sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agenttx.errors import InvalidValue
from agenttx.values import encode_arguments

__all__ = ["call_key", "key_of", "number_of", "numbered", "of_turn"]

_LONGEST_ID = 48
_DIGEST = 24
_TURN = "@"


def call_key(call_id: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return what all tries of a call have in common: its id, and a digest of the tool and the arguments.

    The digest is the same for arguments that are equal as JSON, whatever their order and however a number is written.
    """
    try:
        plain = json.dumps(_canonical(json.loads(encode_arguments(arguments))), sort_keys=True)
    except InvalidValue:
        plain = repr(arguments)  # It will be refused when it is sent.
    known_by = call_id if len(call_id.encode(errors="replace")) <= _LONGEST_ID else _digest(call_id)
    return f"{known_by}.{_digest(tool, plain)}"


def numbered(messages: Sequence[Sequence[tuple[str, bool]]]) -> list[list[str]]:
    """Return the identities of a conversation's calls, message by message.

    Args:
        messages: The calls of each message, as their keys and whether the conversation holds an answer to them.
    """
    answered: Counter[str] = Counter()
    identities = []
    for message in messages:
        beside: Counter[str] = Counter()
        of_message = []
        for key, _ in message:
            of_message.append(f"{key}/{answered[key] + beside[key]}")
            beside[key] += 1
        answered.update(key for key, is_answered in message if is_answered)
        identities.append(of_message)
    return identities


def of_turn(identities: Sequence[str], turn_id: str) -> list[str]:
    """Return the identities of a message's calls where the caller says which message of the transaction it is."""
    beside: Counter[str] = Counter()
    of_message = []
    for key in map(key_of, identities):
        of_message.append(f"{key}/{_TURN}{_digest(turn_id, str(beside[key]))}")
        beside[key] += 1
    return of_message


def key_of(identity: str) -> str:
    """Return the key that an identity was made of."""
    return identity.rpartition("/")[0]


def number_of(identity: str) -> int | None:
    """Return which of the calls with its key this is, from 0; None where the caller named the turn."""
    number = identity.rpartition("/")[2]
    return int(number) if number.isdecimal() else None


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest(*parts: str) -> str:
    whole = json.dumps(parts).encode()
    return hashlib.sha256(whole).hexdigest()[:_DIGEST]

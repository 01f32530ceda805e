"""Reads the fields of one request and keeps what is wrong with them, to be told together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import WireEnumeration, from_wire
from agenttx_server.api.message_conversion.values import (
    json_from_struct,
    microseconds_from_duration,
    microseconds_from_timestamp,
)
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.records import MicrosecondsUtc, TransactionId

__all__ = ["DEFAULT_PAGE", "LONGEST_ID_BYTES", "PageRequest", "RequestReader"]

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
M = TypeVar("M", duration_pb2.Duration, timestamp_pb2.Timestamp)

LONGEST_ID_BYTES = 128
LONGEST_TOKEN_BYTES = 4096
LARGEST_PAGE = 1000
DEFAULT_PAGE = 100


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page of a list is wanted."""

    cursor: str
    limit: int


class RequestReader:
    """Reads fields of one message and keeps what is wrong with them, to be raised together."""

    def __init__(self) -> None:
        self.violations: list[FieldViolation] = []

    def refuse(self, field: str, description: str) -> None:
        """Note a violation."""
        self.violations.append(FieldViolation(field, description))

    def check(self) -> None:
        """Raise InvalidRequest if anything was refused."""
        if self.violations:
            raise InvalidRequest(tuple(self.violations))

    def transaction_id(self, text: str) -> TransactionId:
        """Return an id. Any other text is no transaction's, which is NOT_FOUND and not a malformed request."""
        if not text:
            self.refuse("transaction_id", "is empty; BeginTransaction gives one")
        self.name("transaction_id", text, LONGEST_ID_BYTES)
        return TransactionId(text)

    def name(self, field: str, text: str, longest_bytes: int) -> None:
        """Refuse a text that is too long or holds U+0000, which no database column keeps."""
        size = len(text) if text.isascii() else len(text.encode())
        if size > longest_bytes:
            self.refuse(field, f"is {size} bytes long; the limit is {longest_bytes}")
        if "\0" in text:
            self.refuse(field, "contains the character U+0000")

    def identifier(self, field: str, text: str, longest_bytes: int) -> None:
        """Refuse an id of a caller's choosing that is too long or has a control character: it is shown in lines."""
        self.name(field, text, longest_bytes)
        if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text if character != "\0"):
            self.refuse(field, "contains a control character")

    def known(self, field: str, enumeration: WireEnumeration, number: int) -> None:
        """Refuse a number that is no value of one of the wire's enumerations."""
        if number not in enumeration.values():
            self.refuse(field, f"is {number}, which is no value of {enumeration.DESCRIPTOR.name}")

    def enumeration(self, field: str, engine: type[E], number: int) -> E | None:
        """Return an engine value; None where it is unspecified or was refused."""
        if number == 0:
            return None
        member = from_wire(engine, number)
        if member is None:
            self.refuse(field, f"is {number}, which is no value of {engine.__name__}")
        return member

    def duration(self, message: Message, field: str, *, shown: str = "") -> int | None:
        """Return a Duration field in microseconds, None where it is unset or was refused."""
        return self._converted(
            message, field, shown or field, microseconds_from_duration, duration_pb2.Duration
        )

    def timestamp(self, message: Message, field: str) -> MicrosecondsUtc | None:
        """Return a Timestamp field, None where it is unset or was refused."""
        return self._converted(message, field, field, microseconds_from_timestamp, timestamp_pb2.Timestamp)

    def _converted(
        self, message: Message, field: str, shown: str, convert: Callable[[M], T], kind: type[M]
    ) -> T | None:
        if not message.HasField(field):
            return None
        value = getattr(message, field)
        assert isinstance(value, kind)
        try:
            return convert(value)
        except ValueError as error:
            self.refuse(shown, str(error))
            return None

    def arguments(self, message: pb.ExecuteStepRequest | pb.GroupMember, prefix: str = "") -> str:
        """Return a call's arguments as JSON text, whichever field they came in; none are ``{}``."""
        if not message.HasField("arguments"):
            return message.arguments_json or "{}"
        if message.arguments_json:
            self.refuse(f"{prefix}arguments", "is set beside arguments_json; set one of them")
            return ""
        text, violations = json_from_struct(message.arguments, f"{prefix}arguments")
        self.violations += violations
        return text

    def page(self, size: int, token: str, default: int = DEFAULT_PAGE) -> PageRequest:
        """Return which page is asked for."""
        if size > LARGEST_PAGE:
            self.refuse("page_size", f"is {size}; the limit is {LARGEST_PAGE}")
        self.name("page_token", token, LONGEST_TOKEN_BYTES)
        return PageRequest(token, size or default)

"""Times, durations and JSON between the wire and the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import orjson
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from agenttx_server.engine.errors import FieldViolation
from agenttx_server.engine.records import MicrosecondsUtc

__all__ = [
    "duration_from_microseconds",
    "json_from_struct",
    "microseconds_from_duration",
    "microseconds_from_timestamp",
    "struct_from_json",
    "timestamp_from_microseconds",
]

LARGEST_EXACT_INTEGER = 2**53 - 1  # 2^53 itself may be 2^53 + 1, rounded
LARGEST_DURATION_SECONDS = 315_576_000_000  # of google.protobuf.Duration
MICROSECONDS = 1_000_000
SHOWN_VIOLATIONS = 32


def microseconds_from_duration(duration: duration_pb2.Duration) -> int:
    """Return whole microseconds, a rest rounded up. Raises ValueError for no valid or a negative Duration."""
    if abs(duration.nanos) > 999_999_999 or duration.seconds * duration.nanos < 0:
        raise ValueError("is no valid Duration: nanos are out of range or differ in sign from seconds")
    if abs(duration.seconds) > LARGEST_DURATION_SECONDS:
        raise ValueError("is no valid Duration: longer than 10,000 years")
    if duration.seconds < 0 or duration.nanos < 0:
        raise ValueError("must not be negative")
    return duration.seconds * MICROSECONDS + -(-duration.nanos // 1000)


def duration_from_microseconds(microseconds: int) -> duration_pb2.Duration:
    """Return a Duration."""
    seconds, rest = divmod(microseconds, MICROSECONDS)
    return duration_pb2.Duration(seconds=seconds, nanos=rest * 1000)


def microseconds_from_timestamp(timestamp: timestamp_pb2.Timestamp) -> MicrosecondsUtc:
    """Return a time, a rest cut off. Raises ValueError for no valid Timestamp."""
    try:
        return MicrosecondsUtc(timestamp.ToMicroseconds())
    except ValueError as error:
        raise ValueError("is no valid Timestamp: outside of the years 1 to 9999") from error


def timestamp_from_microseconds(microseconds: MicrosecondsUtc) -> timestamp_pb2.Timestamp:
    """Return a Timestamp."""
    seconds, rest = divmod(microseconds, MICROSECONDS)
    return timestamp_pb2.Timestamp(seconds=seconds, nanos=rest * 1000)


def json_from_struct(struct: struct_pb2.Struct, field: str) -> tuple[str, list[FieldViolation]]:
    """Return a Struct as JSON text, and what in it can't be told for certain.

    A Struct knows doubles only. Whole ones become integers; from 2^53 on they may have been
    rounded on the way, so they are refused in favour of the field for JSON text.
    """
    violations: list[FieldViolation] = []
    value = _plain_object(struct, field, violations)
    if violations:
        return "", violations[:SHOWN_VIOLATIONS]
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode(), []


def _plain_object(
    struct: struct_pb2.Struct, path: str, violations: list[FieldViolation]
) -> dict[str, object]:
    return {key: _plain(value, f"{path}.{key}", violations) for key, value in struct.fields.items()}


def _plain(value: struct_pb2.Value, path: str, violations: list[FieldViolation]) -> object:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        return _number(value.number_value, path, violations)
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return _plain_object(value.struct_value, path, violations)
    if kind == "list_value":
        items = value.list_value.values
        return [_plain(item, f"{path}[{index}]", violations) for index, item in enumerate(items)]
    if kind == "null_value":
        return None
    violations.append(FieldViolation(path, "is a Value without a kind"))
    return None


def _number(number: float, path: str, violations: list[FieldViolation]) -> int | float:
    if not math.isfinite(number):
        violations.append(FieldViolation(path, f"is {number}, which JSON doesn't have"))
        return 0
    if not number.is_integer() or (number == 0 and math.copysign(1, number) < 0):
        return number
    if abs(number) > LARGEST_EXACT_INTEGER:
        violations.append(
            FieldViolation(
                path,
                f"is {number:.0f}, which may have been rounded: a Struct holds integers exactly only below 2^53; "
                "send it in arguments_json",
            )
        )
    return int(number)


def struct_from_json(text: str) -> struct_pb2.Struct | None:
    """Return a JSON object as a Struct, None for any other value. Its integers become doubles."""
    if not text.startswith("{"):
        return None
    struct = struct_pb2.Struct()
    for key, value in orjson.loads(text).items():
        _fill(struct.fields[key], value)
    return struct


def _fill(target: struct_pb2.Value, value: object) -> None:
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        for key, inner in value.items():
            _fill(target.struct_value.fields[key], inner)
    else:
        target.list_value.SetInParent()
        for inner in _items(value):
            _fill(target.list_value.values.add(), inner)


def _items(value: object) -> Iterator[object]:
    assert isinstance(value, list)
    return iter(value)

"""Records to rows and back, driven by the records' own type annotations.

A record's row is a list of plain values: one a column, in the order given, and last the
``details``: canonical JSON of all other fields that differ from their defaults. A field
added to a record with a default is therefore stored, and absent from older rows, without
a migration.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Generic, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson

from agenttx_server.store.row_functions import Column, compiled_row

__all__ = ["RecordCodec", "canonical_json", "parse_json"]

Record = TypeVar("Record")
_Decoder = Callable[[Any], Any]
_NO_DEFAULT = object()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} can't be stored")


def canonical_json(value: Any) -> str:
    """Return canonical JSON text (sorted keys, no spaces); nested records become objects.

    A lone surrogate, which an error text of a tool may hold, is kept as its escape.
    """
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        if "surrogates" not in str(error):
            raise
        return json.dumps(value, default=_plain_record, sort_keys=True, separators=(",", ":"))


def _plain_record(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return _plain(value)


def parse_json(text: str) -> Any:
    """Parse what :func:`canonical_json` wrote."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


class RecordCodec(Generic[Record]):
    """Turns records of one class into rows and rows into equal records.

    ``columns`` are the fields with a column of their own; with ``details`` the rest is one
    JSON text behind them, without it there must be no rest. ``json_columns``, some of the
    columns, hold canonical JSON, NULL for an empty value. ``kept`` are those of the rest that are the same object
    in many records.
    """

    def __init__(
        self,
        record_type: type[Record],
        columns: Sequence[str],
        *,
        details: bool,
        json_columns: Sequence[str] = (),
        kept: Sequence[str] = (),
    ) -> None:
        fields = {field.name: field for field in dataclasses.fields(record_type)}  # type: ignore[arg-type]
        rest = [name for name in fields if name not in columns]
        if rest and not details:
            raise TypeError(f"{record_type.__name__} has fields without a column: {', '.join(rest)}")
        self.columns = (*columns, "details") if details else tuple(columns)
        self._record_type = record_type
        self._details = details
        self._json_indices = [columns.index(name) for name in json_columns]
        decoders = _field_decoders(cast("Any", record_type))
        self.row: Callable[[Record], list[Any]] = compiled_row(
            [
                Column(name, _is_enum(decoders[name]), decoders[name] is bool, name in json_columns)
                for name in columns
            ],
            [(name, _default(fields[name])) for name in rest] if details else None,
            canonical_json,
            kept,
        )
        """Returns a record's row, in the order of ``columns``."""
        self._column_decoders = [(name, decoders[name]) for name in columns]
        self._rest_decoders = {name: decoders[name] for name in rest}

    def record(self, row: Sequence[Any]) -> Record:
        """Return the record of a row in the order of ``columns``."""
        values = {
            name: decode(value) for (name, decode), value in zip(self._column_decoders, row, strict=False)
        }
        for index in self._json_indices:
            name, decode = self._column_decoders[index]
            if row[index] is None:
                del values[name]
            else:
                values[name] = decode(parse_json(row[index]))
        if self._details:
            for name, value in parse_json(row[len(self._column_decoders)]).items():
                if name in self._rest_decoders:
                    values[name] = self._rest_decoders[name](value)
        return self._record_type(**values)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NO_DEFAULT


@cache
def _field_decoders(record_type: Any) -> dict[str, _Decoder]:
    return {
        name: _decoder(hint)
        for name, hint in get_type_hints(record_type).items()
        if name in record_type.__dataclass_fields__
    }


def _is_enum(decoder: _Decoder) -> bool:
    return isinstance(decoder, type) and issubclass(decoder, StrEnum)


def _same(value: Any) -> Any:
    return value


def _decoder(hint: Any) -> _Decoder:
    if isinstance(hint, NewType):
        return _decoder(hint.__supertype__)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in get_args(hint) if argument is not NoneType)
        return _optional(_decoder(inner))
    if origin is tuple:
        return _tuple_decoder(get_args(hint))
    if hint in (str, int):
        return _same
    if isinstance(hint, type) and (hint in (bool, Decimal) or issubclass(hint, StrEnum)):
        return hint
    if dataclasses.is_dataclass(hint):
        return _record_decoder(hint)
    raise TypeError(f"no decoder for a field of type {hint}")


def _optional(decode: _Decoder) -> _Decoder:
    if decode is _same:
        return _same
    return lambda value: None if value is None else decode(value)


def _tuple_decoder(arguments: tuple[Any, ...]) -> _Decoder:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        decode = _decoder(arguments[0])
        return lambda values: tuple([decode(value) for value in values])
    decoders = [_decoder(argument) for argument in arguments]
    return lambda values: tuple([decode(value) for decode, value in zip(decoders, values, strict=True)])


def _record_decoder(record_type: Any) -> _Decoder:
    def decode_record(value: dict[str, Any]) -> Any:
        decoders = _field_decoders(record_type)
        return record_type(**{name: decoders[name](item) for name, item in value.items() if name in decoders})

    return decode_record

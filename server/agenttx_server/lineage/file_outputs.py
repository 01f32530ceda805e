"""What a FILE tool answered: ``{"records": [{"source_index": …, "data": …}]}``. Nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agenttx_server.engine.json_values import JsonValue
from agenttx_server.lineage.limits import MAX_ROWS_PER_CALL

__all__ = ["FileOutput", "FileOutputRefused", "read_file_outputs"]


class FileOutputRefused(Exception):
    """The answer is not accepted; ``message`` names the output by its place from 0."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class FileOutput:
    """One output. ``sources`` are indices of inputs; none: it is an aggregation of all."""

    sources: tuple[int, ...]
    data: JsonValue


def read_file_outputs(answer: JsonValue, received: int) -> list[FileOutput]:
    """Read an answer to ``received`` inputs.

    Raises:
        FileOutputRefused: a source_index that is missing, no index, or out of range anywhere.
    """
    rows = answer.get("records") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise FileOutputRefused('a FILE tool answers {"records": [{"source_index": …, "data": …}]}')
    if len(rows) > max(MAX_ROWS_PER_CALL, received):
        raise FileOutputRefused(f"{len(rows):,} outputs are more than {MAX_ROWS_PER_CALL:,}")
    return [_read(row, place, received) for place, row in enumerate(rows)]


def _read(row: Any, place: int, received: int) -> FileOutput:
    if not isinstance(row, dict) or "data" not in row:
        raise FileOutputRefused(f"output {place} is no object with source_index and data")
    if "source_index" not in row:
        raise FileOutputRefused(f"output {place} has no source_index; null says that it is an aggregation")
    index = row["source_index"]
    if index is None:
        return FileOutput((), row["data"])
    if isinstance(index, list):
        if not index:
            raise FileOutputRefused(f"output {place}: source_index is an empty list")
        sources = tuple(_index(item, place, received) for item in index)
        if len(set(sources)) < len(sources):
            raise FileOutputRefused(f"output {place}: source_index names an input twice")
        return FileOutput(sources, row["data"])
    return FileOutput((_index(index, place, received),), row["data"])


def _index(value: Any, place: int, received: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FileOutputRefused(f"output {place}: source_index {str(value)[:40]!r} is no index")
    if not 0 <= value < received:
        raise FileOutputRefused(
            f"output {place}: source_index {value} is out of range; the tool received {received} records, from 0"
        )
    return value

"""What every reducer is: a pure function of what is there and of one update."""

from __future__ import annotations

from typing import Protocol

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue, Missing

__all__ = ["Mismatch", "Reduced", "Reducer", "ReducerFailed", "WriteContext"]


class Mismatch(Exception):
    """An update can't be combined with what is there: TYPE_MISMATCH."""

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(f"expected {expected}, received {received}")
        self.expected = expected
        self.received = received


class ReducerFailed(Exception):
    """A reducer raised, or gave what is no JSON value: REDUCER_FAILED."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What a reducer may know of the update beside its value.

    Attributes:
        seed: identifies the write: the same over retries, and in a second run of the same work.
        scalars: the channel's option of that name.
        ignore_unknown_removals: the channel's option of that name.
    """

    seed: str = ""
    scalars: bool = False
    ignore_unknown_removals: bool = False


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a reducer gives.

    Attributes:
        value: what the channel holds now. It may share parts with what it held; neither is changed.
        kept: for arrays: the old index of each element, None for one of this update; None where the
            value is not made of elements, or where ``appended`` says it.
        update: the update as it should be written down, with ids filled in.
        appended: for arrays that hold all that was there, and this many elements behind it.
    """

    value: JsonValue
    kept: tuple[int | None, ...] | None
    update: JsonValue
    appended: int | None = None


class Reducer(Protocol):
    """One way of combining.

    Attributes:
        name: as channels name it.
        version: "" for the built-in ones.
        types: the channel types that it fits, beside ``any``.
        one_writer: whether two writers in one superstep are an error.
        ephemeral: whether what was written is gone after the next superstep.
        untracked: whether it is left out of checkpoints.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def types(self) -> frozenset[str]: ...
    @property
    def one_writer(self) -> bool: ...
    @property
    def ephemeral(self) -> bool: ...
    @property
    def untracked(self) -> bool: ...

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        """Combine; ``current`` is MISSING for the first write.

        Raises:
            Mismatch: the update has no meaning for this reducer, or beside what is there.
            ReducerFailed: there is no result.
        """
        ...

"""Ids of records: all derived, so that a run that is taken up again makes the ids that it made before."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

from agenttx_server.engine.json_values import JsonValue, canonical

__all__ = ["content_hash", "correlation_id", "derived_id", "id_beside", "root_id", "source_guid"]

_ROWS: Final = uuid.UUID("5b0f3f0e-6a55-5d0e-9d4f-0d1f4a8c2e71")
_VERSIONS: Final = uuid.UUID("8d0c2b8e-1f0b-5c39-8a34-4f7e5d1b6a90")


def source_guid(row: JsonValue, occurrence: int) -> str:
    """The id of a row by what it holds; ``occurrence`` counts identical rows from 0."""
    return str(uuid.uuid5(_ROWS, f"{canonical(row)}#{occurrence}"))


def correlation_id(path: str, action: str, row: int) -> str:
    """The id of one row of an action, whatever its version, for the input that came by ``path``."""
    return str(uuid.uuid5(_VERSIONS, f"{path}/{action}/{row}"))


def derived_id(run_id: str, *parts: str | int) -> str:
    """An id that no other parts of this or another run have."""
    namespace = uuid.uuid5(_ROWS, run_id)
    return str(uuid.uuid5(namespace, "\x1f".join(map(str, parts))))


def root_id(run_id: str, place: int, *parts: str | int) -> str:
    """The derived id (UUIDv8) of the ``place``-th root of a run; ids of later places are greater, up to 2**24 of them.

    So what a run makes goes to one place of each index after the other, however many records there are: ids at random
    touch another page for each index and record, and cost the more the larger the tables are.
    """
    own = derived_id(run_id, place, *parts)
    where = f"{derived_id(run_id)[:6]}{place % (1 << 24):06x}"
    return f"{where[:8]}-{where[8:]}-8{own[15:]}"


def id_beside(neighbour: str, run_id: str, *parts: str | int) -> str:
    """A derived id (UUIDv8) that begins as ``neighbour`` does: what comes of one root has its place."""
    return f"{neighbour[:14]}8{derived_id(run_id, *parts)[15:]}"


def content_hash(namespace: JsonValue) -> str:
    """SHA-256 of the canonical JSON of a record's own namespace."""
    return hashlib.sha256(canonical(namespace).encode()).hexdigest()

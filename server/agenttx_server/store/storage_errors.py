"""What can go wrong below the store, and what the engine is told.

    DatabaseRefused          the database can't be opened: in use, newer, not ours (one clear line)
    engine.ports
    ├── StaleRevision        another writer was first
    ├── DuplicateRequestId   an answer is recorded under this request_id
    ├── ExtraRowsRefused     a row of a layer above the engine exists already, or isn't there
    ├── CommitRefused        validation at commit
    └── StoreUnavailable     everything else the database says; the outcome may be unknown

An error that means a mistake in this program (a malformed statement, a broken constraint
other than the above) is raised as it is.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError

from agenttx_server.engine.ports import DuplicateRequestId, ExtraRowsRefused, StoreUnavailable
from agenttx_server.store.schema import ENGINE_TABLES

__all__ = ["DatabaseRefused", "engine_error", "is_busy"]

# Primary result codes of https://www.sqlite.org/rescode.html; the low byte of an extended code.
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

# Not the database's: a broken constraint, a statement or a value that it can't take.
_MISTAKES = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)

_NOT_UNIQUE = "UNIQUE constraint failed: "


class DatabaseRefused(Exception):
    """The database can't be served by this process; ``str()`` is one line for the operator."""


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether a statement lost to another process's lock, so that nothing was done."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF) in _BUSY_CODES


def engine_error(error: Exception) -> Exception:
    """Return what the engine is told about an error of the database layer."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.IntegrityError) and str(cause).startswith(_NOT_UNIQUE):
        table = str(cause).removeprefix(_NOT_UNIQUE).partition(".")[0]
        if table == "recorded_responses":
            return DuplicateRequestId("an answer is recorded under this request_id")
        if table not in ENGINE_TABLES:
            return ExtraRowsRefused(f"a row of {table} exists already, or one that must be there doesn't")
    if isinstance(cause, _MISTAKES):
        return error
    if isinstance(error, (DataError, IntegrityError, InterfaceError, ProgrammingError)):
        return error
    if isinstance(cause, (sqlite3.Error, OSError)) or isinstance(error, DBAPIError):
        return StoreUnavailable(f"the database did not answer: {' '.join(str(cause).split())}")
    return error

"""Whether a database may be served with some keys: all that its values may be sealed with must be there, and be the same ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, select, text

from agenttx_server.engine.ports import StoredValueDamaged, StoreUnavailable
from agenttx_server.store.payload_keys import PayloadKeys
from agenttx_server.store.payload_queries import binding
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.schema import encryption_keys
from agenttx_server.store.served_database import ServedDatabase
from agenttx_server.store.storage_errors import DatabaseRefused

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["REGISTER", "admit_keys", "check_keys", "keys_refused", "new_key", "registered_keys"]

_CHECKED: Final = "agenttx payload key"

_KEYS = PreparedQuery(
    select(encryption_keys.c.key_id, encryption_keys.c.check_value).order_by(encryption_keys.c.key_id)
)
# Of several servers that start at once the first one's stands; it is looked at again.
REGISTER = PreparedQuery(
    text(
        "INSERT INTO encryption_keys (key_id, check_value, registered_at) VALUES (:key_id, :check_value, :now) "
        "ON CONFLICT (key_id) DO NOTHING"
    )
)


async def admit_keys(
    database: ServedDatabase, keys: PayloadKeys | None, payloads: PayloadCodec | None
) -> None:
    """Make sure that keys open what a database may hold, and note the one that is sealed with from now on.

    Raises DatabaseRefused.
    """
    try:
        registered = await database.pool.read(registered_keys)
        check_keys(registered, keys, payloads)
        row = new_key(registered, payloads)
        if row is not None:
            await database.writer.run(lambda calls: calls.change(REGISTER, **row))
            check_keys(await database.pool.read(registered_keys), keys, payloads)
    except StoreUnavailable as error:
        raise DatabaseRefused(f"the keys of the database can't be looked at: {error}") from error


@one_statement
def registered_keys(connection: Connection) -> dict[str, str]:
    """Return what tells of each key that values may be sealed with whether it is the same, by the keys' names."""
    return {str(name): str(check) for name, check in _KEYS.run(connection)}


def check_keys(
    registered: Mapping[str, str], keys: PayloadKeys | None, payloads: PayloadCodec | None
) -> None:
    """Raise DatabaseRefused unless each registered key is there and is the same."""
    if not registered:
        return
    if keys is None or payloads is None:
        raise DatabaseRefused(
            f"values of this database are sealed with the keys {', '.join(registered)}; "
            "name the file that holds them (--encryption-keys-file)"
        )
    missing = [name for name in registered if name not in keys.keys]
    if missing:
        raise DatabaseRefused(
            f"values of this database may be sealed with the key {missing[0]!r}, which is not in the file of keys; "
            "put it back, and have `agenttx encryption rotate` seal them with another before it goes"
        )
    for name, check in registered.items():
        try:
            payloads.open(check, _bound(name))
        except StoredValueDamaged:
            raise DatabaseRefused(
                f"the key {name!r} in the file of keys is not the one of this name that values of this database are "
                "sealed with"
            ) from None


def keys_refused(registered: Mapping[str, str], keys: PayloadKeys | None) -> str:
    """Return why a database with such keys would not be served with these, empty if it would."""
    from agenttx_server.store.payload_codec import PayloadCodec

    try:
        check_keys(registered, keys, None if keys is None else PayloadCodec(keys))
    except DatabaseRefused as refused:
        return str(refused)
    return ""


def new_key(registered: Mapping[str, str], payloads: PayloadCodec | None) -> dict[str, Any] | None:
    """Return the row of the key that is sealed with, unless it has one."""
    active = None if payloads is None else payloads.keys.active
    if payloads is None or active is None or active in registered:
        return None
    check = payloads.seal(_CHECKED, _bound(active))
    return {"key_id": active, "check_value": check, "now": time.time_ns() // 1_000}


def _bound(name: str) -> bytes:
    return binding("encryption_keys.check_value", [name])

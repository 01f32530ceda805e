"""The versions of the schema and the way from one to the next, on any database.

Alembic is imported where it is needed: a database of the right version starts without it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from agenttx_server.store.schema import counters, database_facts

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["bring_to_head", "known_revisions"]


def known_revisions() -> set[str]:
    """Return the versions that this program knows how to go on from, and its own."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def bring_to_head(connection: Connection) -> None:
    """Migrate inside the connection's transaction, from nothing or from any known version."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _record_facts(connection)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "agenttx_server.store:migrations")
    return config


def _record_facts(connection: Connection) -> None:
    if (
        connection.scalar(select(database_facts.c.value).where(database_facts.c.name == "database_id"))
        is None
    ):
        connection.execute(insert(database_facts).values(name="database_id", value=str(uuid.uuid4())))
        connection.execute(insert(counters).values(name="commit_version", value=0))

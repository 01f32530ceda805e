"""Alembic's entry: runs revisions on the connection, and in the transaction, that it is given."""

from __future__ import annotations

from alembic import context

from agenttx_server.store.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    # SQLite's DDL is transactional once the driver leaves BEGIN to us.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

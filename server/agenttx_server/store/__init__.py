"""Durable memory on SQL (SQLAlchemy Core): schema, group commit, reading, migrations."""

from agenttx_server.store.migrating import migrate
from agenttx_server.store.settings import StoreSettings, WriterSettings
from agenttx_server.store.storage_errors import DatabaseRefused
from agenttx_server.store.transaction_store import SqlTransactionStore, open_store

__all__ = [
    "DatabaseRefused",
    "SqlTransactionStore",
    "StoreSettings",
    "WriterSettings",
    "migrate",
    "open_store",
]

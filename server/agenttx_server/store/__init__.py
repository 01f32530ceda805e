"""Durable memory on SQL (SQLAlchemy Core): schema, group commit, reading, migrations."""

from agenttx_server.store.audit_table import open_audit
from agenttx_server.store.backup import BackupRefused, Restored, back_up, restore
from agenttx_server.store.database_copy import CopiedDatabase
from agenttx_server.store.database_report import DatabaseReport, LateThings, report_on
from agenttx_server.store.migrating import migrate
from agenttx_server.store.payload_admission import keys_refused
from agenttx_server.store.payload_keys import PayloadKeys, load_payload_keys
from agenttx_server.store.settings import PostgresSettings, StoreSettings, WriterSettings
from agenttx_server.store.storage_errors import DatabaseRefused
from agenttx_server.store.stored_bytes import Measured, measure_usage
from agenttx_server.store.token_tables import TokenTable, open_tokens
from agenttx_server.store.transaction_store import SqlTransactionStore, open_store

__all__ = [
    "BackupRefused",
    "CopiedDatabase",
    "DatabaseRefused",
    "DatabaseReport",
    "LateThings",
    "Measured",
    "PayloadKeys",
    "PostgresSettings",
    "Restored",
    "SqlTransactionStore",
    "StoreSettings",
    "TokenTable",
    "WriterSettings",
    "back_up",
    "keys_refused",
    "load_payload_keys",
    "measure_usage",
    "migrate",
    "open_audit",
    "open_store",
    "open_tokens",
    "report_on",
    "restore",
]

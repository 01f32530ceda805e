"""Where a PostgreSQL database is, and connections to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from agenttx_server.store.settings import PostgresSettings
from agenttx_server.store.storage_errors import DatabaseRefused

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresAddress", "is_postgresql", "one_line"]

_DRIVERS = ("postgresql", "postgresql+psycopg")

# A peer that is gone without a word is noticed within a minute.
_KEEPALIVES = {
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "50000",
}

# Every statement finds its rows by index (tests hold that), whatever its parameters. The planner would
# else take a table that is still small for one to be walked, and keep to that while it grows.
_PLANNING = {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}
_PLANNING_OF_WRITER = {
    **_PLANNING,
    # The rows of a batch lead, and what they lead to is locked in their order.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
}


# What is answered is on disk: no less than `on`, whatever the database's default is.
_SET = """
SELECT set_config(name, value, false) FROM (
  SELECT * FROM unnest(%(names)s::text[], %(values)s::text[])
  UNION ALL SELECT 'synchronous_commit', 'on' WHERE current_setting('synchronous_commit') = 'off'
) AS wanted (name, value)
"""


def is_postgresql(database_url: str) -> bool:
    """Tell whether an address names a PostgreSQL database, be it otherwise good or not."""
    return database_url.partition(":")[0].partition("+")[0] in ("postgresql", "postgres")


def one_line(error: Exception) -> str:
    """Return what the database says in one line."""
    return " ".join(str(error).split())


@dataclass(frozen=True)
class PostgresAddress:
    """Everything that a connection needs. ``str()`` is for people and logs: it holds no password."""

    name: str
    options: dict[str, Any]
    settings: PostgresSettings

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"PostgresAddress({self.name!r})"

    @classmethod
    def parse(cls, database_url: str, settings: PostgresSettings) -> PostgresAddress:
        """Take apart a ``postgresql://`` address. Raises DatabaseRefused, also where psycopg is missing."""
        _psycopg()
        try:
            url = make_url(database_url)
        except (ArgumentError, ValueError) as refused:
            raise DatabaseRefused(
                "the database address is no URL such as postgresql://user@host:5432/agenttx"
            ) from refused
        if url.drivername not in _DRIVERS:
            raise DatabaseRefused(
                f"an address of PostgreSQL begins with postgresql://, not with {url.drivername}://"
            )
        given = dict(url.query) | url.translate_connect_args(username="user", database="dbname")
        options: dict[str, Any] = {
            "application_name": "agenttx",
            "connect_timeout": settings.connect_timeout_seconds,
            **_KEEPALIVES,
            **{name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()},
            "client_encoding": "UTF8",
        }
        return cls(_name_of(url, options), options, settings)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new connection in autocommit mode. Raises psycopg.Error."""
        connection: psycopg.Connection[Any] = _psycopg().connect(**self.options, autocommit=True)
        return connection

    def connect_writer(self) -> psycopg.Connection[Any]:
        """Return a connection that writes batches."""
        return self._session(_PLANNING_OF_WRITER | {"lock_timeout": _ms(self.settings.lock_timeout_seconds)})

    def _connect_reader(self) -> psycopg.Connection[Any]:
        return self._session(_PLANNING | {"default_transaction_read_only": "on"})

    def _session(self, parameters: dict[str, str]) -> psycopg.Connection[Any]:
        connection = self.connect()
        parameters = parameters | {
            "statement_timeout": _ms(self.settings.statement_timeout_seconds),
            "idle_in_transaction_session_timeout": _ms(2 * self.settings.statement_timeout_seconds),
        }
        try:
            connection.execute(_SET, {"names": [*parameters], "values": [*parameters.values()]})
        except BaseException:
            connection.close()
            raise
        return connection

    def engine(self) -> Engine:
        """Return an engine that does not pool, for what is done before serving."""
        return self._engine(self.connect, "READ COMMITTED")

    def reader_engine(self) -> Engine:
        """Return an engine for reading; a statement outside BEGIN is a snapshot of its own."""
        return self._engine(self._connect_reader, "AUTOCOMMIT")

    def _engine(self, connect: Any, isolation_level: Any) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            # The threads keep their connections themselves.
            poolclass=NullPool,
            isolation_level=isolation_level,
            use_native_hstore=False,
        )


def _ms(seconds: float) -> str:
    return f"{int(1000 * seconds)}ms"


def _name_of(url: URL, options: dict[str, Any]) -> str:
    host = f" at {options['host']}" if options.get("host") else ""
    port = f":{url.port}" if url.port else ""
    return f"PostgreSQL database {options.get('dbname') or '(default)'}{host}{port}"


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as missing:
        raise DatabaseRefused(
            "PostgreSQL needs psycopg, which is not installed: pip install 'agenttx[server,postgres]'"
        ) from missing
    return psycopg

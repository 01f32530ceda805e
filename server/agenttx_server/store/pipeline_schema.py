"""Tables of pipelines, their runs, and the rows that these were given.

A run under way has a row in ``pipeline_carriers``: the server that carries it, or that receives its rows. A row of a run that
was begun has one in ``pipeline_units``, inserted with its transaction: so it is begun once, whoever thinks the run its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, Table, Text

from agenttx_server.store.schema import KEY_TEXT, METADATA

__all__ = [
    "PIPELINE_TABLES",
    "pipeline_carriers",
    "pipeline_inputs",
    "pipeline_runs",
    "pipeline_stops",
    "pipeline_units",
    "pipeline_versions",
]

pipeline_runs = Table(
    "pipeline_runs",
    METADATA,
    Column("run_id", KEY_TEXT, nullable=False),
    Column("principal", Text, nullable=False),
    Column("pipeline", KEY_TEXT, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("details", Text, nullable=False),
    PrimaryKeyConstraint("run_id"),
)
Index("ix_pipeline_runs_created", pipeline_runs.c.created_at, pipeline_runs.c.run_id)

pipeline_inputs = Table(
    "pipeline_inputs",
    METADATA,
    Column("run_id", KEY_TEXT, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("transaction_id", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("details", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "place"),
)

pipeline_versions = Table(
    "pipeline_versions",
    METADATA,
    Column("name", KEY_TEXT, nullable=False),
    Column("version", KEY_TEXT, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("registered_at", BigInteger, nullable=False),
    Column("details", Text, nullable=False),
    PrimaryKeyConstraint("name", "version"),
)
Index("ux_pipeline_versions_sequence", pipeline_versions.c.name, pipeline_versions.c.sequence, unique=True)

pipeline_carriers = Table(
    "pipeline_carriers",
    METADATA,
    Column("run_id", KEY_TEXT, nullable=False),
    Column("server_id", KEY_TEXT, nullable=False),
    PrimaryKeyConstraint("run_id"),
)

pipeline_units = Table(
    "pipeline_units",
    METADATA,
    Column("run_id", KEY_TEXT, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("transaction_id", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "place"),
)

pipeline_stops = Table(
    "pipeline_stops",
    METADATA,
    Column("run_id", KEY_TEXT, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("run_id"),
)

PIPELINE_TABLES: Final[Sequence[Table]] = (pipeline_runs, pipeline_inputs, pipeline_units)

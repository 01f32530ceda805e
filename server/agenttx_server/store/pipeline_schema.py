"""Tables of pipeline runs and the rows that they were given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, Table, Text

from agenttx_server.store.schema import KEY_TEXT, METADATA

__all__ = ["PIPELINE_TABLES", "pipeline_inputs", "pipeline_runs"]

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

PIPELINE_TABLES: Final[Sequence[Table]] = (pipeline_runs, pipeline_inputs)

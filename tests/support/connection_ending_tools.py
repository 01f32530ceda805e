"""Tools whose outside effect is followed by the end of all connections to PostgreSQL: `--tools` of this module."""

from tests.support.postgres_cluster import terminate_backends
from tests.support.sample_tools import log_line

from agenttx_server.tools import BlockingToolCallContext, tool

__all__ = ["charge", "pay"]


@tool("ending.charge", effects="irreversible")
def charge(ctx: BlockingToolCallContext, log: str, entry: str, database_url: str) -> str:
    """Leave a line, and end the connections before it can be recorded that it was left."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    terminate_backends(database_url)
    return entry


@tool("ending.pay", effects="idempotent")
def pay(ctx: BlockingToolCallContext, log: str, entry: str, database_url: str) -> str:
    """The same, for a tool that could be run again."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    terminate_backends(database_url)
    return entry

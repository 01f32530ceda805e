"""How a command is told which transaction it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused

if TYPE_CHECKING:
    import agenttx

__all__ = ["ChangedTransactionArgument", "TransactionArgument", "chosen"]

LATEST = "latest"

TransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="The transaction's id, or `latest` for the newest one.")
]
ChangedTransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="The transaction's id, in full.")
]


def chosen(client: agenttx.Client, transaction: str) -> str:
    """Return the id that is meant.

    Raises:
        CommandRefused: ``latest`` is meant and there is none.
    """
    if transaction != LATEST:
        return transaction
    for summary in client.list_transactions(page_size=1):
        return summary.transaction_id
    raise CommandRefused("there is no transaction yet")

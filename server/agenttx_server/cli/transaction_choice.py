"""How a command is told which transaction it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    import agenttx

__all__ = ["ChangedTransactionArgument", "TransactionArgument", "chosen", "named"]

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


def named(transaction: str) -> str:
    """Return the id of a transaction that is to be changed.

    Raises:
        CommandRefused: ``latest`` is given, which may be another transaction by the time that the command is run.
    """
    if transaction == LATEST:
        raise CommandRefused(
            "`latest` is for commands that change nothing; give the transaction's id, which `agenttx tx list` shows",
            ExitCode.USAGE,
        )
    return transaction

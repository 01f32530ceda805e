"""``agenttx tx rewind`` and ``abort``: what a person undoes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import AsJson
from agenttx_server.cli.output import print_json, print_text
from agenttx_server.cli.transaction_choice import ChangedTransactionArgument, named

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the transaction's history.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("rewind")(connected(rewind))
    for name, hidden in (("abort", False), ("rollback", True)):
        group.command(name, hidden=hidden)(connected(abort))


def rewind(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    step: Annotated[
        int,
        typer.Argument(
            metavar="STEP", min=1, help="It and all later ones are undone; it is the next to run."
        ),
    ],
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be undone.")] = False,
    accept_irreversible: Annotated[
        bool,
        typer.Option(
            "--accept-irreversible", help="Go back even past steps that can't be undone; their effects stay."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Undo a step and all after it; the agent goes on from there.

    Exit code 1 if undo actions hold the rewind: some failed, or the agent has to do them.
    """
    resumed = client.resume(named(transaction)).begin()
    nothing_to_undo = resumed.next_step_id == step
    result = resumed.rewind(step, reason=reason, dry_run=dry_run, accept_irreversible=accept_irreversible)
    if as_json:
        print_json({"transaction_id": transaction, "to_step": step, "dry_run": dry_run, "result": result})
    else:
        from agenttx_server.cli.rendering.rewinds import rewind_plan, rewind_report

        print_text(rewind_plan(step, result) if dry_run or nothing_to_undo else rewind_report(step, result))
    if result.rollback_incomplete:
        raise typer.Exit(ExitCode.REFUSED)


def abort(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    reason: Reason = "",
    accept_irreversible: Annotated[
        bool,
        typer.Option("--accept-irreversible", help="Also while a step is in doubt; its effect may stay."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Undo everything and end the transaction.

    What can't be undone is named. Exit code 1 if undo actions hold it.
    """
    result = client.resume(named(transaction)).rollback(reason, accept_irreversible=accept_irreversible)
    if as_json:
        print_json({"transaction_id": transaction, "result": result})
    else:
        from agenttx_server.cli.rendering.rewinds import abort_report

        print_text(abort_report(result))
    if result.rollback_incomplete:
        raise typer.Exit(ExitCode.REFUSED)

"""``agenttx compensations``: undo actions that failed or that the agent has to do, and what a person does about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import (
    DEFAULT_LIMIT,
    AsJson,
    Limit,
    OfTransaction,
    first_of,
    say_there_are_more,
)
from agenttx_server.cli.output import print_json, print_line, print_text
from agenttx_server.cli.transaction_choice import ChangedTransactionArgument, chosen, named

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_acknowledge_to", "add_to"]


CompensationArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The undo action's id, which `compensations list` shows.")
]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_compensations))
    group.command("retry")(connected(retry))
    group.command("resolve")(connected(resolve))


def add_acknowledge_to(group: typer.Typer) -> None:
    """Add the command by which an agent's undo is acknowledged."""
    group.command("acknowledge-undo")(connected(acknowledge_undo))


def list_compensations(
    client: agenttx.Client,
    transaction: OfTransaction = "",
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="In this state instead of those that need someone; may be given several times.",
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="With arguments, keys and the errors as they were given.")
    ] = False,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List undo actions that failed or that an agent has to do, and late effects, oldest transaction first."""
    found = client.list_compensations(
        chosen(client, transaction) if transaction else "", states=_states(state or ())
    )
    compensations, more = first_of(found, limit)
    if as_json:
        print_json({"compensations": compensations, "more": more})
        return
    if not compensations:
        print_line("No such undo actions." if state else "No undo action needs anybody.")
        return
    from agenttx_server.cli.rendering.compensations import compensation_details, compensation_table

    now = datetime.now(UTC)
    print_text(
        compensation_details(compensations, now) if details else compensation_table(compensations, now)
    )
    if more:
        say_there_are_more(limit)


def retry(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    compensation: CompensationArgument,
    as_json: AsJson = False,
) -> None:
    """Run a failed undo action again, with the same key; one that only the agent can do is asked of it again.

    If it alone held a rewind or an abort, that is completed. Exit code 1 if it failed again.
    """
    result = client.retry_compensation(named(transaction), compensation)
    _report(result, as_json=as_json)
    if result.compensation.state == "FAILED":
        raise typer.Exit(ExitCode.REFUSED)


def resolve(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    compensation: CompensationArgument,
    undone: Annotated[bool, typer.Option("--undone", help="The effect was undone by other means.")] = False,
    kept: Annotated[
        bool, typer.Option("--kept", help="The effect stays; the transaction names it from now on.")
    ] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What is to be remembered about it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say what became of an effect whose undo failed, or that its agent doesn't undo: --undone or --kept.

    If it alone held a rewind or an abort, that is completed.
    """
    if undone == kept:
        raise CommandRefused("say either --undone or --kept", ExitCode.USAGE)
    resolution = "UNDONE" if undone else "KEPT"
    _report(
        client.resolve_compensation(named(transaction), compensation, resolution, note=note), as_json=as_json
    )


def acknowledge_undo(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    compensation: CompensationArgument,
    error: Annotated[
        str, typer.Option(metavar="TEXT", help="Why it could not be done; without this it was done.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say that an undo action that only the agent can do was done or, with --error, could not be.

    In order: the newest that `compensations list` shows as AWAITING_AGENT. With the last one the rollback is completed.
    """
    _report(client.acknowledge_undo(named(transaction), compensation, error=error), as_json=as_json)


def _report(result: agenttx.CompensationResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"result": result})
        return
    from agenttx_server.cli.rendering.compensations import settlement_report

    print_text(settlement_report(result))


def _states(names: tuple[str, ...] | list[str]) -> list[str]:
    from agenttx.enumerations import CompensationState

    allowed = [state.value for state in CompensationState if state is not CompensationState.UNSPECIFIED]
    wanted = [name.upper().replace("-", "_") for name in names]
    for name, state in zip(names, wanted, strict=True):
        if state not in allowed:
            raise CommandRefused(f"--state {name!r} is none of {', '.join(allowed)}", ExitCode.USAGE)
    return wanted

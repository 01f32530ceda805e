"""``agenttx tx approvals``, ``approve`` and ``reject``: steps that wait for a person."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_line, print_text
from agenttx_server.cli.transaction_choice import ChangedTransactionArgument, chosen, named

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


ApprovalArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The approval's id, which `tx approvals` shows.")
]
By = Annotated[
    str,
    typer.Option("--by", metavar="NAME", help="Who decides, for the history; the name you are logged in by."),
]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("approvals")(connected(list_approvals))
    group.command("approve")(connected(approve))
    group.command("reject")(connected(reject))


def list_approvals(
    client: agenttx.Client,
    transaction: Annotated[
        str,
        typer.Argument(
            metavar="[TRANSACTION]",
            help="Only of this transaction; `latest` is the newest. All if left out.",
            show_default=False,
        ),
    ] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="In this state instead of those that wait; may be given several times.",
        ),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List steps that wait for a person, with the exact arguments, the one asked for first first."""
    found = client.approvals(chosen(client, transaction) if transaction else "", states=_states(state or ()))
    approvals, more = first_of(found, limit)
    if as_json:
        print_json({"approvals": approvals, "more": more})
        return
    if not approvals:
        print_line("No such approvals." if state else "Nobody is asked to approve anything.")
        return
    from agenttx_server.cli.rendering.approvals import approval_details

    print_text(approval_details(approvals, datetime.now(UTC)))
    if more:
        say_there_are_more(limit)


def approve(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    approval: ApprovalArgument,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="What is to be remembered about it.")] = "",
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Say yes to a step that waits.

    This runs nothing: it runs when its agent sends it again, once, and with exactly the arguments shown.
    """
    decided = client.approve(named(transaction), approval, comment=comment, decided_by=by or _login())
    _report(decided, as_json=as_json)


def reject(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    approval: ApprovalArgument,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="Why; the agent is told.")] = "",
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Say no to a step that waits: it fails without having run, and nothing before it is undone."""
    decided = client.reject(named(transaction), approval, comment=comment, decided_by=by or _login())
    _report(decided, as_json=as_json)


def _report(approval: agenttx.Approval, *, as_json: bool) -> None:
    if as_json:
        print_json({"approval": approval})
        return
    from agenttx_server.cli.rendering.approvals import decision_report

    print_text(decision_report(approval))


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return ""


def _states(names: tuple[str, ...] | list[str]) -> list[str]:
    from agenttx.enumerations import ApprovalState

    allowed = [state.value for state in ApprovalState if state is not ApprovalState.UNSPECIFIED]
    wanted = [name.upper() for name in names]
    for name, state in zip(names, wanted, strict=True):
        if state not in allowed:
            raise CommandRefused(f"--state {name!r} is none of {', '.join(allowed)}", ExitCode.USAGE)
    return wanted

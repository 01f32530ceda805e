"""``agenttx tx list``, ``show`` and ``steps``: what transactions there are and what happened in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import AsJson, first_of, say_there_are_more
from agenttx_server.cli.output import console, print_json, print_line, print_text
from agenttx_server.cli.transaction_choice import TransactionArgument, chosen

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]

DEFAULT_LIMIT = 20
OPEN_STATUSES = ("ACTIVE", "EXECUTING", "AWAITING_APPROVAL", "IN_DOUBT", "ROLLING_BACK", "COMMITTING")


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_transactions))
    for name, hidden in (("show", False), ("get", True)):
        group.command(name, hidden=hidden)(connected(show))
    group.command("steps")(connected(steps))


def list_transactions(
    client: agenttx.Client,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", "-s", metavar="STATUS", help="Only of this status; may be given several times."
        ),
    ] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that haven't ended.")] = False,
    needs_attention: Annotated[
        bool,
        typer.Option(
            "--needs-attention",
            help="Only open ones that wait for a person: in doubt, for approval, held by a failed undo, not recovered.",
        ),
    ] = False,
    agent: Annotated[str, typer.Option(metavar="NAME", help="Only of this agent.")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "-l", metavar="NAME=VALUE", help="Only with this label; may be given several times."
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only opened since: 30s, 10m, 2h, 7d, or an ISO 8601 time.")
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=0, metavar="COUNT", help="At most so many, the newest; 0 for all."),
    ] = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List transactions, the newest first."""
    now = datetime.now(UTC)
    found: Iterable[agenttx.TransactionSummary] = client.list_transactions(
        statuses=[*_statuses(status or ()), *(OPEN_STATUSES if only_open or needs_attention else ())],
        agent_id=agent,
        metadata=_labels(label or ()),
        created_from=_since(since, now) if since else None,
    )
    if needs_attention:
        found = filter(_needs_attention, found)
    summaries, more = first_of(found, limit)
    if as_json:
        print_json({"transactions": summaries, "more": more})
        return
    if not summaries and needs_attention:
        print_line("No open transaction waits for anybody.")
        return
    if not summaries:
        print_line(
            "No such transactions." if status or only_open or agent or label or since else "No transactions."
        )
        return
    from agenttx_server.cli.rendering.transactions import transaction_list

    print_text(transaction_list(summaries, now, console().width))
    if more:
        say_there_are_more(limit, "newest")


def show(client: agenttx.Client, transaction: TransactionArgument, as_json: AsJson = False) -> None:
    """Show one transaction: status, counters, constraints, and what needs attention."""
    info = client.get_transaction(chosen(client, transaction))
    if as_json:
        print_json(info)
        return
    from agenttx_server.cli.rendering.transactions import transaction_details

    print_text(transaction_details(info, datetime.now(UTC)))


def steps(
    client: agenttx.Client,
    transaction: TransactionArgument,
    step: Annotated[
        int, typer.Option("--step", min=0, metavar="N", help="Only the attempts of this step; 0 for all.")
    ] = 0,
    live: Annotated[bool, typer.Option("--live", help="Leave out what was rewound.")] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details", "-d", help="With arguments, outputs and the errors as the tools gave them."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what was tried, in order of time: every attempt, its hint, what was decided, what was rewound."""
    from agenttx_server.cli.rendering.steps import in_order_of_time, step_details, step_history

    transaction_id = chosen(client, transaction)
    attempts = in_order_of_time(client.list_steps(transaction_id, step_id=step, include_rewound=not live))
    if as_json:
        print_json({"transaction_id": transaction_id, "attempts": attempts})
    elif not attempts:
        print_line("No steps.")
    else:
        print_text(step_details(attempts) if details else step_history(attempts, datetime.now(UTC)))


def _needs_attention(summary: agenttx.TransactionSummary) -> bool:
    waits = summary.status in ("IN_DOUBT", "AWAITING_APPROVAL")
    return waits or summary.rollback_incomplete or bool(summary.recovery_problem)


def _statuses(names: Sequence[str]) -> list[str]:
    from agenttx.enumerations import TransactionStatus

    allowed = [status.value for status in TransactionStatus if status is not TransactionStatus.UNSPECIFIED]
    wanted = [name.upper().replace("-", "_") for name in names]
    for name, status in zip(names, wanted, strict=True):
        if status not in allowed:
            raise CommandRefused(f"--status {name!r} is none of {', '.join(allowed)}", ExitCode.USAGE)
    return wanted


def _labels(labels: Sequence[str]) -> dict[str, str]:
    wanted = {}
    for label in labels:
        name, separator, value = label.partition("=")
        if not (name and separator):
            raise CommandRefused(f"--label {label!r} is not NAME=VALUE", ExitCode.USAGE)
        wanted[name] = value
    return wanted


def _since(text: str, now: datetime) -> datetime:
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:])
    if seconds and text[:-1].isascii() and text[:-1].isdigit():
        return now - timedelta(seconds=int(text[:-1]) * seconds)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandRefused(
            f"--since {text!r} is neither a span such as 10m nor a time such as 2026-07-03T14:00Z",
            ExitCode.USAGE,
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)

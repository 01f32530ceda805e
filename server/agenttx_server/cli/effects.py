"""``agenttx effects``: the outbox, and what a person does about effects that could not be delivered."""

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
    from collections.abc import Sequence

    import agenttx

__all__ = ["add_to"]

UNDELIVERED = ("READY", "DEAD")

Channel = Annotated[
    str, typer.Option("--channel", "-c", metavar="CHANNEL", help="Only effects of this channel.")
]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_effects))
    group.command("requeue")(connected(requeue))
    group.command("discard")(connected(discard))


def list_effects(
    client: agenttx.Client,
    transaction: OfTransaction = "",
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="In this state instead of READY and DEAD; may be given several times.",
        ),
    ] = None,
    channel: Channel = "",
    every: Annotated[bool, typer.Option("--all", help="In every state.")] = False,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="With payloads, keys and all that is known of them.")
    ] = False,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List effects that are not delivered, those that were given up too; oldest transaction first."""
    if every and state:
        raise CommandRefused("say either --state or --all", ExitCode.USAGE)
    states = () if every else _states(state) if state else UNDELIVERED
    found = client.list_effects(
        chosen(client, transaction) if transaction else "", states=states, channel=channel
    )
    effects, more = first_of(found, limit)
    if as_json:
        print_json({"effects": effects, "more": more})
        return
    if not effects:
        print_line("No such effects." if state or every or channel else "Every effect is delivered.")
        return
    from agenttx_server.cli.rendering.effects import effect_details, effect_table

    now = datetime.now(UTC)
    print_text(effect_details(effects, now) if details else effect_table(effects, now))
    if more:
        say_there_are_more(limit)


def requeue(
    client: agenttx.Client,
    transaction: Annotated[
        str, typer.Argument(metavar="TRANSACTION", help="The transaction's id, in full.")
    ] = "",
    effect: Annotated[
        str,
        typer.Argument(metavar="ID", help="The effect's id; without it all DEAD ones of the transaction."),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="DEAD effects of all transactions.")] = False,
    channel: Channel = "",
    as_json: AsJson = False,
) -> None:
    """Have DEAD effects delivered after all, with fresh attempts and the same keys."""
    if every == bool(transaction) or (effect and channel):
        raise CommandRefused("say which: TRANSACTION and ID, TRANSACTION alone, or --all", ExitCode.USAGE)
    if effect:
        requeued = [client.requeue_effect(named(transaction), effect)]
    else:
        requeued = _requeue_all(client, "" if every else named(transaction), channel)
    _report(requeued, as_json=as_json)


def _requeue_all(client: agenttx.Client, transaction_id: str, channel: str) -> list[agenttx.Effect]:
    from agenttx.errors import NotFound, PreconditionFailed

    requeued = []
    for dead in client.list_effects(transaction_id, states=("DEAD",), channel=channel):
        try:
            requeued.append(client.requeue_effect(dead.transaction_id, dead.effect_id))
        except (NotFound, PreconditionFailed):
            continue  # Somebody else requeued or discarded it meanwhile.
    return requeued


def discard(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    effect: Annotated[str, typer.Argument(metavar="ID", help="The effect's id, which `effects list` shows.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the transaction's history.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give up an effect that is READY or DEAD: it is not delivered any more.

    A delivery that is under way may still arrive.
    """
    _report([client.discard_effect(named(transaction), effect, reason=reason)], as_json=as_json)


def _report(effects: Sequence[agenttx.Effect], *, as_json: bool) -> None:
    if as_json:
        print_json({"effects": effects})
        return
    if not effects:
        print_line("No effect is DEAD.")
        return
    from agenttx_server.cli.rendering.effects import effect_table

    print_text(effect_table(effects, datetime.now(UTC)))


def _states(names: Sequence[str]) -> list[str]:
    from agenttx.enumerations import EffectState

    allowed = [state.value for state in EffectState if state is not EffectState.UNSPECIFIED]
    wanted = [name.upper() for name in names]
    for name, state in zip(names, wanted, strict=True):
        if state not in allowed:
            raise CommandRefused(f"--state {name!r} is none of {', '.join(allowed)}", ExitCode.USAGE)
    return wanted

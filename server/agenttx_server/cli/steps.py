"""``agenttx steps``: what a person does about a step that runs too long or is in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import AsJson
from agenttx_server.cli.output import print_json, print_text
from agenttx_server.cli.transaction_choice import ChangedTransactionArgument, named

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]

RESOLUTIONS = ("SUCCEEDED", "FAILED", "RETRY")


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("resolve")(connected(resolve))
    group.command("cancel")(connected(cancel))


def resolve(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    step: Annotated[int, typer.Argument(metavar="STEP", min=1, help="The step that is in doubt.")],
    resolution: Annotated[
        str, typer.Argument(metavar="succeeded|failed|retry", help="What became of it, or what shall.")
    ],
    output: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With succeeded: what the step returned; null without it."),
    ] = None,
    error: Annotated[
        str, typer.Option(metavar="TEXT", help="With failed: what went wrong; the agent gets a hint from it.")
    ] = "",
    sub_step: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The sub-step N of it that is in doubt; 0: the step itself."),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Say what became of a step in doubt: its effect happened, it did not, or its call is run once more.

    A failed step is decided on like any failure. Exit code 1 if it is still in doubt, a retry failed, or a rollback
    is held.
    """
    wanted = resolution.upper()
    if wanted not in RESOLUTIONS:
        allowed = ", ".join(word.lower() for word in RESOLUTIONS)
        raise CommandRefused(f"{resolution!r} is none of {allowed}", ExitCode.USAGE)
    if output is not None and wanted != "SUCCEEDED":
        raise CommandRefused("--output goes with succeeded only", ExitCode.USAGE)
    if error and wanted != "FAILED":
        raise CommandRefused("--error goes with failed only", ExitCode.USAGE)
    result = client.resolve_step(
        named(transaction),
        step,
        wanted,
        output=_parsed(output) if output is not None else None,
        error=error,
        sub_step=sub_step,
    )
    outcome = result.outcome
    doubtful = _in_doubt(client, transaction) if outcome is None else []
    if as_json:
        print_json({"transaction_id": transaction, "step_id": step, "result": result, "in_doubt": doubtful})
    else:
        from agenttx_server.cli.rendering.settlement import resolution_report

        print_text(resolution_report(transaction, step, result, doubtful))
    if outcome is None:
        refused = step in doubtful
    else:
        refused = outcome.rollback_incomplete or (wanted == "RETRY" and not outcome.succeeded)
    if refused:
        raise typer.Exit(ExitCode.REFUSED)


def cancel(
    client: agenttx.Client,
    transaction: ChangedTransactionArgument,
    step: Annotated[
        int, typer.Argument(metavar="STEP", min=1, help="The step that runs; of a group any member.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the transaction's history.")] = "",
    as_json: AsJson = False,
) -> None:
    """Stop a running step, and wait until it is settled.

    Its tool may have taken effect: it is undone, or the step is in doubt, by what the tool promises.
    """
    result = client.cancel_step(named(transaction), step, reason=reason)
    if as_json:
        print_json({"transaction_id": transaction, "step_id": step, "result": result})
        return
    from agenttx_server.cli.rendering.settlement import cancellation_report

    print_text(cancellation_report(transaction, step, result))


def _in_doubt(client: agenttx.Client, transaction_id: str) -> list[int]:
    """Return the steps that are in doubt still: after a retry the same one, in a group the others."""
    unsettled = client.get_transaction(transaction_id).running_steps
    return [each.step_id for each in unsettled if each.state == "IN_DOUBT" and not each.sub_step]


def _parsed(text: str) -> Any:
    import orjson

    from agenttx.values import decode_json

    try:
        return decode_json(text)
    except orjson.JSONDecodeError as error:
        raise CommandRefused(f"--output is no JSON: {error}", ExitCode.USAGE) from None

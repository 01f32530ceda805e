"""The database: reached, of which version, by which clock, and what in it stands still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from agenttx_server.doctor.findings import Finding, Level
from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.settings import Settings
from agenttx_server.store import (
    DatabaseRefused,
    DatabaseReport,
    LateThings,
    keys_refused,
    load_payload_keys,
    report_on,
)

__all__ = ["judge", "look_at_database"]

SECOND_US = 1_000_000
OVERDUE_US = 600 * SECOND_US
UNANSWERED_US = 86_400 * SECOND_US
ABANDONED_US = 7 * 86_400 * SECOND_US
FAR_OFF_US = 2 * SECOND_US

# kind: how bad, what there are, what to do. The order is that of the answer.
_KINDS = {
    "in_doubt": (
        Level.ERROR,
        "in doubt: a tool that can't be repeated was cut off",
        "agenttx tx show ID, look whether it happened, then agenttx steps resolve ID STEP succeeded|failed|retry",
    ),
    "held": (
        Level.ERROR,
        "held: an undo failed",
        "agenttx compensations list, mend the cause, then agenttx compensations retry or resolve",
    ),
    "late_undo": (
        Level.ERROR,
        "with an undo that failed and holds nothing",
        "agenttx compensations list, then agenttx compensations retry or resolve",
    ),
    "unrecovered": (
        Level.ERROR,
        "that could not be recovered",
        "agenttx tx show ID says why: most often a tool that is no longer offered; start a server with it",
    ),
    "dead_effects": (
        Level.ERROR,
        "with effects that were given up",
        "agenttx effects list --state dead, mend the receiver, then agenttx effects requeue or discard",
    ),
    "overdue_effects": (
        Level.WARNING,
        "with effects that are due for more than 10 minutes",
        "is a server running, and does the receiver answer? agenttx effects list --details",
    ),
    "approvals": (
        Level.WARNING,
        "that wait for an approval for more than a day",
        "agenttx tx approvals, then agenttx tx approve or reject",
    ),
    "orphans": (
        Level.WARNING,
        "under way on a server that is gone",
        "start a server; one that runs takes them over within a lease",
    ),
    "abandoned": (
        Level.WARNING,
        "open, without a timeout, that nobody has touched for a week",
        "agenttx tx abort ID, or have agents begin with an idle timeout (--idle-timeout-seconds)",
    ),
}


def look_at_database(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Look at the database that the settings name, without changing anything; ``now`` is aware."""
    try:
        report = report_on(
            settings.database_url,
            overdue_us=OVERDUE_US,
            unanswered_us=UNANSWERED_US,
            abandoned_us=ABANDONED_US,
        )
    except DatabaseRefused as refused:
        remedy = (
            "docs/operations/upgrading.md"
            if "newer release" in str(refused)
            else "check the address, the password and whether it runs: docs/postgresql.md"
        )
        if settings.database_url.startswith("sqlite"):
            remedy = (
                "install the release that wrote it, or restore a backup: agenttx restore FILE"
                if "newer release" in str(refused)
                else "check --data-dir and --database-url, or restore a backup: agenttx restore FILE"
            )
        yield Finding(Level.ERROR, "database", str(refused), remedy)
        return
    yield from judge(report, int(now.timestamp() * SECOND_US))
    yield from _keys(report, settings)


def judge(report: DatabaseReport, now_us: int) -> Iterator[Finding]:
    """Say what a report means; ``now_us`` is this machine's time in µs UTC."""
    yield _version(report)
    if report.revision != report.head_revision:
        return
    yield from _clock(report, now_us)
    servers = f"{report.live_servers} server{'' if report.live_servers == 1 else 's'} running"
    yield Finding(Level.OK, "transactions", f"{report.open_transactions:,} open, {servers}")
    for kind, (level, what, remedy) in _KINDS.items():
        late = report.transactions.get(kind, LateThings())
        if late.count:
            yield Finding(level, "transactions", f"{late.count:,} {what}: {_named(late)}", remedy)


def _keys(report: DatabaseReport, settings: Settings) -> Iterator[Finding]:
    file = settings.encryption_keys_file
    try:
        keys = None if file is None else load_payload_keys(file)
    except FileRefused:
        return  # said where files of rules are looked at
    refused = keys_refused(report.key_checks, keys)
    if refused:
        yield Finding(Level.ERROR, "encryption", refused, "docs/operations/encryption.md")
    elif report.key_checks:
        yield Finding(
            Level.OK, "encryption", f"the keys {', '.join(report.key_checks)} are those of the database"
        )


def _version(report: DatabaseReport) -> Finding:
    if report.revision is None:
        return Finding(
            Level.OK, "database", f"the {report.address} is empty; the first server makes its tables"
        )
    if report.revision != report.head_revision:
        return Finding(
            Level.WARNING,
            "database",
            f"the {report.address} has schema version {report.revision}; this release's is {report.head_revision}",
            "back up, stop the servers of before, then start one or run agenttx migrate (docs/operations/upgrading.md)",
        )
    return Finding(Level.OK, "database", f"the {report.address} answers, schema version {report.revision}")


def _clock(report: DatabaseReport, now_us: int) -> Iterator[Finding]:
    off = report.time_ahead_us / SECOND_US
    remedy = "have both machines follow the time: timedatectl set-ntp true"
    if abs(report.time_ahead_us) > FAR_OFF_US:
        yield Finding(
            Level.WARNING,
            "clock",
            f"the database's is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this machine's",
            remedy,
        )
    elif report.newest_us > now_us + max(report.time_ahead_us, 0) + FAR_OFF_US:
        yield Finding(
            Level.WARNING,
            "clock",
            f"this machine's is {(report.newest_us - now_us) / SECOND_US:,.0f} s behind what was last written: "
            "it was set back, or another machine's is fast",
            remedy,
        )
    else:
        yield Finding(Level.OK, "clock", "agrees with the database")


def _named(late: LateThings) -> str:
    more = ", …" if late.count > len(late.examples) else ""
    since = ""
    if late.since:
        moment = datetime.fromtimestamp(late.since / SECOND_US, UTC)
        since = f", the oldest since {moment:%Y-%m-%d %H:%M} UTC"
    return f"{', '.join(late.examples)}{more}{since}"

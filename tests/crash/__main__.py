"""The full run: `make test-crash`, or `python -m tests.crash --seed N`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.crash.databases import DATABASES, SHARED, replicated
from tests.crash.faults import FAULTS
from tests.crash.run import POINTS, Options, run
from tests.crash.scratch import scratch_directory

_SHOWN = 40
FAULTS_TOLD = {
    "freezes": "times that a server stands still, for up to three leases",
    "clock_jumps": "times that a server's time of day jumps",
    "outages": "times that PostgreSQL stops and starts again",
    "failovers": "times that PostgreSQL dies and the standby that it waits for takes its place",
    "full_disks": "times that the disk of the database is full; takes a user who may mount",
}


def main() -> int:
    """Run as the command line says; print the table; 1 where anything was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seed", default="1", help="draws programs, kills and failpoints")
    parser.add_argument(
        "--kills", type=int, default=500, help="least number of kills of servers; 0 kills none"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="least number of answered steps")
    parser.add_argument("--agents", type=int, default=24, help="agents at work side by side")
    parser.add_argument("--servers", type=int, default=1, help="servers on one database; SQLite takes one")
    parser.add_argument(
        "--workers", type=int, default=0, help="have the tools in so many workers; 0: in the servers"
    )
    parser.add_argument("--worker-kills", type=int, default=0, help="number of kills of workers")
    for kind in FAULTS:
        parser.add_argument(
            f"--{kind.replace('_', '-')}", type=int, default=0, help=f"number of {FAULTS_TOLD[kind]}"
        )
    parser.add_argument("--database", choices=tuple(DATABASES), default="sqlite")
    parser.add_argument("--keep", action="store_true", help="keep the directory, to look at")
    chosen = parser.parse_args()
    if chosen.servers > 1 and chosen.database not in SHARED:
        parser.error(f"{chosen.database} takes one server")
    if chosen.worker_kills and not chosen.workers:
        parser.error("--worker-kills needs --workers")
    if (chosen.outages or chosen.failovers) and chosen.database not in SHARED:
        parser.error(f"{chosen.database} can't be stopped")
    if chosen.failovers and (chosen.outages or chosen.full_disks):
        parser.error("--failovers goes with neither --outages nor --full-disks")
    options = Options(
        seed=chosen.seed,
        kills=chosen.kills,
        steps=chosen.steps,
        agents=chosen.agents,
        servers=chosen.servers,
        database=chosen.database,
        points=POINTS if chosen.kills else (),
        workers=chosen.workers,
        worker_kills=chosen.worker_kills,
        faults={kind: getattr(chosen, kind) for kind in FAULTS},
    )
    try:
        opening = (
            replicated() if chosen.failovers else DATABASES[chosen.database](is_small=bool(chosen.full_disks))
        )
        with (
            opening as database,
            scratch_directory(keep=chosen.keep) as directory,
        ):
            report = asyncio.run(run(options, directory, database))
    except BaseException:
        print(f"the run broke off; again: {options.command}", file=sys.stderr)
        raise
    print(report.table())
    if report.missed:
        print("failpoints not come by:", ", ".join(report.missed))
    broken = report.findings.all
    for line in broken[:_SHOWN]:
        print(line)
    if broken:
        print(f"{len(broken)} breaches; again: {options.command}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

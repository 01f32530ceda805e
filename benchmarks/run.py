"""Run the benchmarks one after another and write what they found to build/benchmarks.json.

    python -m benchmarks.run               # everything, about ten minutes on two quiet cores
    python -m benchmarks.run --quick       # a look that it works, under three
    python -m benchmarks.run --only peers rewinds
    python -m benchmarks.run --render      # and write docs/benchmarks/ from it

Each topic is a process of its own, which measures whatever it compares in turns. A topic that fails is named, the others
go on, and the exit code is 1. Topics whose extra is not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import databases, measuring, render
from benchmarks.servers import REPOSITORY

TOPICS = (
    "limits",
    "step_throughput",
    "slow_disk",
    "peers",
    "transaction_length",
    "value_sizes",
    "rewinds",
    "publications",
    "open_transactions",
    "root_cause",
    "agent_recovery",
    "peers_recovery",
)
NEEDED = dict.fromkeys(("peers", "peers_recovery"), ("langgraph", "dbos"))
"""Modules of an extra without which a topic is left out."""
TOPIC_SECONDS = 900.0


def _measure(topic: str, budget: str, environment: dict[str, str]) -> dict[str, Any] | None:
    """Return what a topic found, None if it failed."""
    flags = [] if budget == "full" else [f"--{budget}"]
    command = [sys.executable, "-m", f"benchmarks.{topic}", *flags]
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TOPIC_SECONDS,
            check=True,
            env=environment,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        print(f"{topic} failed: {error}", file=sys.stderr, flush=True)
        return None
    return found


def run(topics: list[str], budget: str) -> dict[str, Any]:
    """Measure topics and return everything that was found."""
    started, where = time.perf_counter(), measuring.machine()
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": where,
        "budget": asdict(measuring.BUDGETS[budget]),
        "topics": [],
        "failed": [],
        "left_out": [],
    }
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        postgresql = stack.enter_context(databases.postgresql_server())
        if postgresql:  # one server for all topics
            environment[databases.VARIABLE] = postgresql
        for number, topic in enumerate(topics, 1):
            missing = [module for module in NEEDED.get(topic, ()) if find_spec(module) is None]
            if missing:
                results["left_out"].append(
                    f"{topic}, for want of `pip install 'agenttx[server,postgres,peers]'`"
                )
                continue
            elapsed = time.perf_counter() - started
            print(f"[{number}/{len(topics)}, {elapsed:4.0f} s] {topic}", file=sys.stderr, flush=True)
            found = _measure(topic, budget, environment)
            if found is None:
                results["failed"].append(topic)
            else:
                results["topics"].append(found)
    return results | {"seconds": round(time.perf_counter() - started, 1)}


def _report(results: dict[str, Any]) -> None:
    """Print the aims and how long each topic took."""
    for found in results["topics"]:
        print(f"{found['topic']}: {found['seconds']:.0f} s")
        for target in found["targets"]:
            sign = "≥" if target["at_least"] else "≤"
            print(
                f"  {'met   ' if target['is_met'] else 'MISSED'} {target['figure']}: {render.cell(target['measured'])}, "
                f"aim {sign} {target['bound']:g} {target['unit']}"
            )
    for topic in results["left_out"]:
        print(f"left out: {topic}")
    for topic in results["failed"]:
        print(f"failed: {topic}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", dest="budget", action="store_const", const="quick", default="full")
    parser.add_argument(
        "--tiny", dest="budget", action="store_const", const="tiny", help="only that it works"
    )
    parser.add_argument("--only", choices=TOPICS, nargs="+", default=list(TOPICS))
    parser.add_argument("--out", type=Path, default=render.RESULTS)
    parser.add_argument("--render", action="store_true", help="write docs/benchmarks/ from what was found")
    given = parser.parse_args()
    results = run(given.only, given.budget)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _report(results)
    print(f"{results['seconds']:.0f} s, written: {given.out}")
    if given.render:
        render.render(results, render.PAGES)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Plays seeds: ``python -m tests.simulation --seed 7 --trace``, or many of them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.simulator import Outcome, play, quiet


def main() -> int:
    """Play what was asked for; 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no further seed after so long")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller plan that fails too")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    options = parser.parse_args()
    # What is left of dead servers when the interpreter ends has nothing to say.
    sys.unraisablehook = lambda _: None
    began = time.perf_counter()
    failed = played = 0
    with quiet():
        for seed in range(options.seed, options.seed + options.count):
            if options.seconds and time.perf_counter() - began > options.seconds:
                break
            outcome = play(seed)
            played += 1
            if outcome.failure and options.shrink:
                outcome = _shrunk(outcome)
            if options.trace:
                print(*outcome.world.log, sep="\n")
            if outcome.failure:
                failed += 1
                print(f"seed {seed}: {outcome.plan}\n{outcome.failure}\n", flush=True)
                if not options.keep_going:
                    break
            elif options.count == 1:
                print(f"seed {seed} holds: {outcome.callbacks} callbacks, {outcome.seconds:.1f} s")
    took = time.perf_counter() - began
    print(f"{played} histories in {took:.1f} s, {played / took:.0f}/s, {failed} failed")
    return 1 if failed else 0


def _shrunk(outcome: Outcome) -> Outcome:
    """Return a failing outcome of a plan with as little in it as can be left out."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for plan in _smaller(outcome.plan):
            tried = play(plan.seed, plan)
            if tried.failure and _kind(tried.failure) == _kind(outcome.failure):
                outcome, is_smaller = tried, True
                break
    return outcome


def _kind(failure: str) -> str:
    """What went wrong, without names and numbers."""
    return re.sub(r"\S*[\d']\S*", "", failure)[:60]


def _smaller(plan: Plan) -> list[Plan]:
    plans = []
    for name in ("crashes", "pauses"):
        faults = getattr(plan, name)
        plans += [replace(plan, **{name: faults[:at] + faults[at + 1 :]}) for at in range(len(faults))]
    for name in ("write_faults", "read_faults", "delays", "network_faults", "disorder", "trouble"):
        if getattr(plan, name):
            plans.append(replace(plan, **{name: 0.0}))
    for name in ("clients", "servers", "transactions", "operations"):
        if getattr(plan, name) > 1:
            plans.append(replace(plan, **{name: getattr(plan, name) - 1}))
    return plans


if __name__ == "__main__":
    sys.exit(main())

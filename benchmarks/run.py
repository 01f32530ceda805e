"""Run all benchmarks and write build/benchmarks.json; `--quick` for a look that they work."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "step_throughput",
    "step_cost",
    "transaction_length",
    "root_cause",
    "agent_recovery",
    "clean_hints",
    "store_writes",
    "recovery",
    "worker_step",
    "idle_workers",
    "peers",
    "graph_supersteps",
    "graph_streams",
)
TAKING_QUICK = {
    "step_throughput",
    "step_cost",
    "transaction_length",
    "root_cause",
    "agent_recovery",
    "store_writes",
    "recovery",
    "worker_step",
    "idle_workers",
    "peers",
    "graph_supersteps",
    "graph_streams",
}
# Left out where their extra is not installed.
NEEDING_EXTRA = {"peers": "dbos"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs; figures are rough")
    parser.add_argument("--only", choices=MODULES, nargs="+", default=MODULES)
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        if name in NEEDING_EXTRA and find_spec(NEEDING_EXTRA[name]) is None:
            print(f"{name}: left out, pip install 'agenttx[bench-{name}]'", file=sys.stderr, flush=True)
            continue
        flags = ["--quick"] if arguments.quick and name in TAKING_QUICK else []
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
        results[name] = json.loads(done.stdout)
    out = ROOT / "build" / "benchmarks.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=2))
    print(f"written: {out.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

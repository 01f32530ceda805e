"""What the benchmarks share: the machine's description, medians with their spread, JSON out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and greatest of repeated measurements."""
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "greatest": round(max(values), 4),
    }


def machine() -> dict[str, Any]:
    """Describe where the figures come from."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "sqlite": sqlite3.sqlite_version,
        "grpcio": version("grpcio"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--repetitions", type=int, default=5, help="measurements of each kind, interleaved")
    made.add_argument(
        "--quick", action="store_true", help="short runs, to see that it works; figures are rough"
    )
    return made


def report(name: str, results: Any) -> None:
    """Print the results as one JSON object."""
    json.dump({"benchmark": name, "machine": machine(), "results": results}, sys.stdout, indent=2)
    print()

"""What the benchmarks share: how much is measured, what is found, and the machine it was found on.

A topic is a module with ``measure(budget)``, which returns :class:`Findings`, and runs alone too::

    python -m benchmarks.TOPIC [--quick | --tiny] [--repetitions N] [--seconds S]

prints its findings as JSON. Benchmarks that are no topic of the runner print JSON by :func:`report`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

Anything = TypeVar("Anything")
Summary = dict[str, float]
"""Median, least and greatest of repeated measurements, and how many there were (``count``)."""
SIGNIFICANT_DIGITS = 5


def summary(values: Iterable[float]) -> Summary:
    """Return median, least and greatest of repeated measurements."""
    values = list(values)
    return {
        "median": _rounded(statistics.median(values)),
        "least": _rounded(min(values)),
        "greatest": _rounded(max(values)),
        "count": len(values),
    }


def ratios(values: Sequence[float], baseline: Sequence[float]) -> Summary:
    """Return the summary of each measurement divided by the baseline's of the same round."""
    return summary([value / base for value, base in zip(values, baseline, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


# --- how much -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How long and how often is measured: in full, quickly, or just to see that it works."""

    name: str = "full"
    repetitions: int = 5
    seconds: float = 0.25
    """Length of one window of measurement."""

    def pick(self, full: Anything, quick: Anything, tiny: Anything) -> Anything:
        """Return what this budget is given."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.name]


BUDGETS = {
    "full": Budget(),
    "quick": Budget("quick", 2, 0.1),
    "tiny": Budget("tiny", 1, 0.02),
}


# --- what is found --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of figures. A cell is a text, a number, a summary, or None where nothing was measured."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]
    note: str = ""


@dataclass(frozen=True)
class Series:
    """A line of a plot: points of x, median, least, greatest."""

    name: str
    points: list[tuple[float, float, float, float]]

    @staticmethod
    def of(name: str, by_x: dict[Any, Summary]) -> Series:
        """Return the series of summaries by x."""
        return Series(
            name,
            [(float(x), one["median"], one["least"], one["greatest"]) for x, one in by_x.items()],
        )


@dataclass(frozen=True)
class Plot:
    """Lines over an axis; either axis may be logarithmic."""

    name: str
    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = True
    log_y: bool = False


@dataclass(frozen=True)
class Target:
    """What a figure was to be: at least or at most the bound. Its median decides."""

    figure: str
    measured: Summary
    bound: float
    unit: str = "×"
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the median is within the bound."""
        median = self.measured["median"]
        return median >= self.bound if self.at_least else median <= self.bound


@dataclass
class Findings:
    """What one topic found."""

    topic: str
    title: str
    about: str
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What could not be measured here, and why."""

    def as_json(self) -> dict[str, Any]:
        """Return what is written down."""
        found = asdict(self)
        found["targets"] = [asdict(target) | {"is_met": target.is_met} for target in self.targets]
        return found


# --- where ----------------------------------------------------------------------------------------


def _first_line(path: str, start: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(start)), "")


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of those that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Describe where the figures come from."""
    memory = _first_line("/proc/meminfo", "MemTotal").split()
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _first_line("/proc/cpuinfo", "model name") or platform.processor(),
        "memory_gib": round(int(memory[0]) / (1 << 20), 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **versions("grpcio", "uvloop", "rustworkx", "psycopg"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


# --- on the command line --------------------------------------------------------------------------


def progress(text: str) -> None:
    """Say what is being measured, on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def topic_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that all topics have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", dest="budget", action="store_const", const="quick", default="full")
    made.add_argument("--tiny", dest="budget", action="store_const", const="tiny", help="only that it works")
    made.add_argument("--repetitions", type=int, help="measurements of each kind, in turns")
    made.add_argument("--seconds", type=float, help="length of one window of measurement")
    return made


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget that the flags ask for."""
    base = BUDGETS[arguments.budget]
    return Budget(base.name, arguments.repetitions or base.repetitions, arguments.seconds or base.seconds)


def run_topic(description: str | None, measure: Callable[[Budget], Findings]) -> None:
    """Measure as the command line says and print the findings as JSON."""
    print_findings(measure, budget_of(topic_parser(description).parse_args()))


def print_findings(measure: Callable[[Budget], Findings], budget: Budget) -> None:
    """Measure and print the findings as JSON, with where and how they were found."""
    where, started = machine(), time.perf_counter()
    found = measure(budget).as_json()
    found |= {
        "budget": asdict(budget),
        "machine": where,
        "seconds": round(time.perf_counter() - started, 1),
    }
    json.dump(found, sys.stdout, indent=1)
    print()


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of a benchmark that is no topic."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--repetitions", type=int, default=5, help="measurements of each kind, interleaved")
    made.add_argument(
        "--quick", action="store_true", help="short runs, to see that it works; figures are rough"
    )
    return made


def report(name: str, results: Any) -> None:
    """Print the results of a benchmark that is no topic as one JSON object."""
    json.dump({"benchmark": name, "machine": machine(), "results": results}, sys.stdout, indent=2)
    print()

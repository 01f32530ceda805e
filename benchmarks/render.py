"""Writes what a run found as a page of tables and plots: docs/benchmarks/README.md, and an SVG a plot beside it.

    python -m benchmarks.render [RESULTS] [--to DIRECTORY]

takes the results of ``benchmarks.run`` and needs nothing else: the same results give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.servers import REPOSITORY
from benchmarks.svg import line_chart, number

RESULTS = REPOSITORY / "build" / "benchmarks.json"
PAGES = REPOSITORY / "docs" / "benchmarks"
MACHINE_WORDS = {
    "cpus": "processors",
    "processor": "processor",
    "memory_gib": "memory, GiB",
    "system": "system",
    "python": "CPython",
    "sqlite": "SQLite",
    "load_average_before": "load average before",
}


def cell(value: Any) -> str:
    """Return a cell of a table: a summary as its median with the least and the greatest in brackets."""
    if value is None:
        return ""
    if isinstance(value, dict):
        if value["count"] == 1 or value["least"] == value["greatest"]:
            return f"**{number(value['median'])}**"
        return f"**{number(value['median'])}** ({number(value['least'])} – {number(value['greatest'])})"
    if isinstance(value, int | float):
        return number(value)
    return str(value).replace("|", "\\|")


def _table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(cell, line)) + " |" for line in lines]


def _targets(topics: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            target["figure"],
            target["measured"],
            f"{'≥' if target['at_least'] else '≤'} {number(target['bound'])} {target['unit']}",
            "yes" if target["is_met"] else "**no**",
        ]
        for topic in topics
        for target in topic["targets"]
    ]
    return _table(["figure", "measured", "aim", "met"], rows)


def _topic(found: dict[str, Any]) -> list[str]:
    lines = [f"## {found['title']}", "", found["about"], ""]
    for plot in found["plots"]:
        lines += [f"![{plot['title']}]({plot['name']}.svg)", ""]
    for table in found["tables"]:
        lines += [f"### {table['title']}", "", *_table(table["columns"], table["rows"]), ""]
        if table["note"]:
            lines += [table["note"], ""]
    for left_out in found["left_out"]:
        lines += [f"Left out: {left_out}.", ""]
    return [*lines, f"`python -m benchmarks.{found['topic']}`, {found['seconds']:.0f} s.", ""]


def page(results: dict[str, Any]) -> str:
    """Return the page of a run's results."""
    topics, budget, machine = results["topics"], results["budget"], results["machine"]
    where = ", ".join(
        f"{MACHINE_WORDS.get(name, name)} {value}"
        for name, value in machine.items()
        if value not in (None, "")
    )
    how = f"{budget['repetitions']} repetitions, in turns, windows of {budget['seconds'] * 1000:.0f} ms"
    lines = [
        "# Benchmarks: the figures",
        "",
        "<!-- Written by `python -m benchmarks.render` from results.json; not edited by hand. -->",
        "",
        f"Of one run on {results['date']} ({results['seconds'] / 60:.1f} minutes, {how}): {where}. Clients, servers and databases share the "
        "machine. Medians of the repetitions, the least and the greatest in brackets; what is compared was measured in turns. [What each figure "
        "means and how to measure it](../benchmarks.md).",
        "",
    ]
    if budget["name"] != "full":
        lines += [f"**A {budget['name']} run: its figures are rough.**", ""]
    if results["failed"]:
        lines += [f"Failed: {', '.join(results['failed'])}.", ""]
    if results["left_out"]:
        lines += [f"Left out: {'; '.join(results['left_out'])}.", ""]
    lines += ["## Aims", "", *_targets(topics), ""]
    for found in topics:
        lines += _topic(found)
    return "\n".join(lines)


def render(results: dict[str, Any], directory: Path) -> list[Path]:
    """Write the page, its plots and the results themselves into a directory; return what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.svg"):
        old.unlink()
    files = {
        "README.md": page(results),
        "results.json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
    }
    files |= {
        f"{plot['name']}.svg": line_chart(plot) for found in results["topics"] for plot in found["plots"]
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in files]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--to", type=Path, default=PAGES)
    given = parser.parse_args()
    written = render(json.loads(given.results.read_text(encoding="utf-8")), given.to)
    print(f"{len(written)} files in {given.to}")


if __name__ == "__main__":
    main()

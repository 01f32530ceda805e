"""The dependency graph alone: tracing a root cause, adding and forgetting steps, and a transaction's weight.

The shapes are the hard ones for the walk: a value that every step hands on, one step that takes
from all others, and steps that each take from the eight before them. The bare walk
beside each follows the same edges in a plain dictionary and keeps neither keys nor path.
Times are the process's own CPU time: nothing here waits, and other work on the machine doesn't count.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from time import process_time
from typing import Any

from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.records import DependencyKind, Edge
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Summary,
    Table,
    Target,
    progress,
    ratios,
    run_topic,
    summary,
)

SMALL_STEPS = 20
FAR = 10_000
STATM = Path("/proc/self/statm")


def measure(budget: Budget) -> Findings:
    """Measure the graph."""
    sizes = budget.pick((100, 1_000, 10_000, 100_000), (100, 10_000), (20,))
    # First, while the process is small: memory that other work gave back would be used again, unseen.
    weight = weigh(budget.pick(1_000, 200, 10))
    shapes = {
        "a value that every step hands on under another name": handed_on,
        "one step that takes from all others": from_all,
        "every step takes from the eight before it": from_eight,
    }
    rows: list[list[Any]] = []
    series: dict[str, dict[int, Summary]] = {}
    targets = []
    for name, shape in shapes.items():
        for steps in sizes:
            progress(f"{name}, {steps:,} steps")
            graph = shape(steps)
            traced, bare, path = trace(graph, steps, budget.repetitions)
            series.setdefault(name, {})[steps] = summary(traced)
            per_edge = summary(one * 1000 / max(len(graph.edges()), 1) for one in traced)
            rows.append([name, steps, summary(traced), per_edge, ratios(traced, bare), path])
            if shape is handed_on and steps == FAR:
                targets.append(Target(f"root cause over {steps:,} hops", summary(traced), 20, unit="ms"))
    growing = grow_and_forget(budget.pick(10_000, 2_000, 30), budget.repetitions)
    return Findings(
        "root_cause",
        "Root cause",
        "The dependency graph alone: from the last step's question to its answer, in processor time. The bare walk follows the same "
        "edges in a plain dictionary and keeps neither keys nor path.",
        tables=[
            Table(
                "Finding it",
                ("shape", "steps", "ms", "µs an edge", "of the bare walk", "elements of the path"),
                rows,
            ),
            growing,
            Table(
                f"A transaction of {SMALL_STEPS} small steps",
                ("what", "bytes"),
                [["its graph in memory", weight]],
            ),
        ],
        plots=[
            Plot(
                "root-cause",
                "Finding the root cause by the steps of the transaction",
                "steps",
                "ms",
                [Series.of(name, by_steps) for name, by_steps in series.items()],
                log_y=True,
            )
        ],
        targets=targets,
    )


# --- shapes -------------------------------------------------------------------------------


def explicit(producer: int, taker: int, source_key: str) -> Edge:
    return Edge(producer, taker, source_key, "in", DependencyKind.EXPLICIT)


def handed_on(steps: int) -> DependencyGraph:
    """Each step takes its predecessor's value under one name and gives it away under another."""
    graph = DependencyGraph()
    for step in range(1, steps + 1):
        edges = [explicit(step - 1, step, "out")] if step > 1 else []
        graph.add_step(step, arguments={"in": "v"}, explicit=edges, before_step=step)
        graph.record_output(step, {"out": "v"})
    return graph


def from_all(steps: int) -> DependencyGraph:
    """The last step takes from every other one."""
    graph = DependencyGraph()
    for step in range(1, steps):
        graph.add_step(step, arguments={}, explicit=(), before_step=step)
        graph.record_output(step, {"id": step})
    edges = [explicit(step, steps, "id") for step in range(1, steps)]
    graph.add_step(steps, arguments={"in": list(range(1, steps))}, explicit=edges, before_step=steps)
    return graph


def from_eight(steps: int) -> DependencyGraph:
    """Each step takes from the eight before it."""
    graph = DependencyGraph()
    for step in range(1, steps + 1):
        edges = [explicit(earlier, step, "in") for earlier in range(max(1, step - 8), step)]
        graph.add_step(step, arguments={"in": step}, explicit=edges, before_step=step)
        graph.record_output(step, {"in": step})
    return graph


# --- measurements -------------------------------------------------------------------------


def trace(graph: DependencyGraph, steps: int, repetitions: int) -> tuple[list[float], list[float], int]:
    """Milliseconds of CPU from the last step's question to its answer, and of the bare walk, in turns; the path's length."""
    producers: dict[int, list[int]] = {}
    for edge in graph.edges():
        producers.setdefault(edge.to_step, []).append(edge.from_step)
    traced, bare, path = [], [], 0
    for _ in range(repetitions):
        started = process_time()
        root = graph.find_root_cause(steps, "in")
        traced.append((process_time() - started) * 1e3)
        started = process_time()
        earliest = bare_walk(producers, steps)
        bare.append((process_time() - started) * 1e3)
        assert root.step_id == earliest == 1
        path = len(root.path)
    return traced, bare, path


def bare_walk(producers: dict[int, list[int]], step: int) -> int:
    reached, ahead = {step}, [step]
    while ahead:
        for producer in producers.get(ahead.pop(), ()):
            if producer not in reached:
                reached.add(producer)
                ahead.append(producer)
    return min(reached)


def grow_and_forget(steps: int, repetitions: int) -> Table:
    """Microseconds of CPU a step: the first and the last tenth of a long transaction, and its rewind."""
    first, last, rewind = [], [], []
    tenth = max(steps // 10, 1)
    for _ in range(repetitions):
        graph = DependencyGraph()
        times = [process_time()]
        for step in range(1, steps + 1):
            small_step(graph, 0, step)
            times.append(process_time())
        started = process_time()
        graph.rewind(1)
        rewind.append((process_time() - started) * 1e6 / steps)
        first.append((times[tenth] - times[0]) * 1e6 / tenth)
        last.append((times[-1] - times[-1 - tenth]) * 1e6 / tenth)
    return Table(
        f"Small steps added to a graph of {steps:,}, and forgotten",
        ("what", "µs a step", "of the first tenth's"),
        [
            ["adding, the first tenth", summary(first), 1.0],
            ["adding, the last tenth", summary(last), ratios(last, first)],
            ["rewinding all", summary(rewind), ratios(rewind, first)],
        ],
        note="Processor time. Three fields in, three out; each step takes one from the step before.",
    )


def weigh(transactions: int) -> int | None:
    """Resident bytes a transaction of small steps takes; None where the system doesn't tell."""
    if not STATM.exists():
        return None
    graphs = [small_transaction(0)]
    gc.collect()
    before = resident()
    graphs += [small_transaction(number) for number in range(1, transactions + 1)]
    gc.collect()
    return round((resident() - before) / transactions)


def resident() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def small_transaction(number: int) -> DependencyGraph:
    graph = DependencyGraph()
    for step in range(1, SMALL_STEPS + 1):
        small_step(graph, number, step)
    return graph


def small_step(graph: DependencyGraph, number: int, step: int) -> None:
    """Three fields in, three out; one links to the step before."""
    arguments = {"user_id": f"{number}-{step - 1}", "amount": step * 3, "note": f"step {step} of {number}"}
    output = {"id": f"{number}-{step}", "status": "ok", "total": step + 0.5}
    # Read from text as the coordinator does, so that nothing is shared that would not be.
    graph.add_step(step, arguments=load(canonical(arguments)), explicit=(), before_step=step)
    graph.record_output(step, load(canonical(output)))


if __name__ == "__main__":
    run_topic(__doc__, measure)

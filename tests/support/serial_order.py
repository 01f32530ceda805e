"""Whether a history of committed transactions could have come from running them one after another.

The data are lists that are only ever appended to, every element once in a history. So each value read
tells whose appends it has seen, and the final lists tell in which order they were made (the method
of Elle, arXiv 2003.10554). From that follow, between committed transactions:

    ww  one's append comes right before the other's in a list
    wr  one's append is the last that the other has read
    rw  the one has read a list without the other's append, which comes next

A serial order exists iff there is no cycle. A cycle of ww and wr alone is forbidden whatever the
isolation; one with rw is write skew or a phantom, and READ_COMMITTED admits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import rustworkx

__all__ = ["Anomaly", "Committed", "find_anomalies"]


@dataclass
class Committed:
    """What a committed transaction saw and did: lists read by key, as first read, and elements appended."""

    name: str
    reads: dict[str, list[int]] = field(default_factory=dict)
    appends: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Anomaly:
    """What is wrong: ``kind`` in a word, ``where`` in a line."""

    kind: str
    where: str


def find_anomalies(
    history: Sequence[Committed], final: Mapping[str, Sequence[int]], *, serializable: bool
) -> list[Anomaly]:
    """Return everything in a history that no serial order explains, or for READ_COMMITTED the worst of it."""
    found: list[Anomaly] = []
    writers = {
        (key, element): number
        for number, transaction in enumerate(history)
        for key, elements in transaction.appends.items()
        for element in elements
    }
    for key, elements in final.items():
        if len(set(elements)) != len(elements):
            found.append(Anomaly("doubled append", f"{key}: {elements}"))
        found += [
            Anomaly("append of nobody", f"{key}: {element}")
            for element in elements
            if (key, element) not in writers
        ]
    for (key, element), number in writers.items():
        if element not in final.get(key, ()):
            found.append(Anomaly("lost append", f"{history[number].name}: {key} {element}"))
    if found:
        return found
    edges: set[tuple[int, int, str]] = set()
    for key, elements in final.items():
        for before, after in pairwise(elements):
            edges.add((writers[key, before], writers[key, after], f"ww {key}"))
    for number, transaction in enumerate(history):
        for key, seen in transaction.reads.items():
            elements = list(final.get(key, ()))
            if seen != elements[: len(seen)]:
                found.append(
                    Anomaly("read of what was not", f"{transaction.name}: {key} {seen} of {elements}")
                )
                continue
            if seen:
                edges.add((writers[key, seen[-1]], number, f"wr {key}"))
            if len(seen) < len(elements):
                edges.add((number, writers[key, elements[len(seen)]], f"rw {key}"))
    return found + _cycles(history, edges, serializable=serializable)


def _cycles(
    history: Sequence[Committed], edges: set[tuple[int, int, str]], *, serializable: bool
) -> list[Anomaly]:
    graph = rustworkx.PyDiGraph(multigraph=True)
    graph.add_nodes_from(list(range(len(history))))
    graph.add_edges_from(
        [
            (before, after, label)
            for before, after, label in sorted(edges)
            if before != after and (serializable or not label.startswith("rw"))
        ]
    )
    cycle = rustworkx.digraph_find_cycle(graph)
    if not cycle:
        return []
    path = ", ".join(
        f"{history[before].name} -{'|'.join(sorted(graph.get_all_edge_data(before, after)))}-> "
        f"{history[after].name}"
        for before, after in cycle
    )
    return [Anomaly("cycle", path)]

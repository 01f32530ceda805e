"""The dependency graph of one transaction: which step consumed what another produced.

Nodes are live steps; an edge P → C says that C consumed, under ``target_key``, what P gave
under ``source_key``. Explicit edges come from references; implicit ones are found here, by
equal scalar values under fitting keys (transactions.md 5). The graph answers one question,
:meth:`DependencyGraph.find_root_cause`, and forgets, by :meth:`DependencyGraph.rewind`, in the time
of what it forgets.

rustworkx gives a removed node's index to the next node, so indices never leave this class
and nothing relies on the order in which it lists edges.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from typing import Final, TypeAlias

import rustworkx

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.engine.records import DependencyKind, Edge, PathElement
from agenttx_server.engine.requests import RootCause

__all__ = ["DependencyGraph", "GraphSnapshot"]

_LONGEST_SUFFIX: Final = 128
"""Of longer input keys only suffixes up to this length are looked up: their number is what a step costs."""

_LONGEST_TEXT: Final = 64
"""Longer text values are known by their digest, so that a document isn't kept in memory to be compared with."""

_MOST_OUTPUTS: Final = 10_000
"""Distinct output leaves of one step that later steps can link to; a table of a million numbers is no identity."""


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """Everything a graph knows, comparable: two graphs with equal snapshots answer alike."""

    edges: tuple[Edge, ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    passed_through: tuple[tuple[int, str, tuple[str, ...]], ...]
    open_inputs: tuple[tuple[int, tuple[tuple[str, str], ...]], ...]


class DependencyGraph:
    """The steps of one transaction, their edges, and the index of output values."""

    __slots__ = ("_graph", "_last_step", "_producers", "_steps")

    def __init__(self) -> None:
        self._graph: rustworkx.PyDiGraph[int, Edge] = rustworkx.PyDiGraph()
        self._steps: dict[int, _Step] = {}
        # Leaf → the step that produced it, or the steps, ascending, where there are several.
        self._producers: dict[str, int | list[int]] = {}
        self._last_step = 0

    # --- growing

    def add_step(
        self, step_id: int, *, arguments: JsonValue, explicit: Sequence[Edge], before_step: int
    ) -> tuple[Edge, ...]:
        """Add a step that is about to run; answers all its edges, sorted.

        ``arguments`` are the resolved ones, ``explicit`` the edges of their references,
        ``before_step`` the first step of its group: only outputs of earlier steps are linked to.

        Raises:
            ValueError: when the step is there already.
            KeyError: when an explicit edge comes from a step that is not there.
        """
        inputs = _leaves(arguments)
        referenced = {_folded(edge.target_key) for edge in explicit}
        edges = set(explicit)
        for key, value in inputs:
            if _folded(key) not in referenced:
                found = self._latest_producer(key, value, before_step)
                if found is not None:
                    edges.add(Edge(found[0], step_id, found[1], sys.intern(key), DependencyKind.IMPLICIT))
        ordered = tuple(sorted(edges))
        self._add_node(step_id, ordered, inputs)
        return ordered

    def record_output(self, step_id: int, output: JsonValue) -> None:
        """Index what a completed step gave; called once a step.

        Raises:
            KeyError: when the step is not there.
            ValueError: when its output was recorded already.
        """
        step = self._steps[step_id]
        if step.open_inputs is None:
            raise ValueError(f"the output of step {step_id} is recorded already")
        outputs = _leaves(output)
        step.passed_through = _passed_through(step.open_inputs, outputs)
        step.open_inputs = None
        step.outputs = _indexed_outputs(outputs)
        for leaf in step.outputs:
            self._add_producer(leaf, step_id)

    def restore(
        self,
        step_id: int,
        *,
        arguments: JsonValue,
        edges: Iterable[Edge],
        output: JsonValue | Missing = MISSING,
    ) -> None:
        """Add a step as it was stored, its edges taken over and not looked for again.

        ``output`` is MISSING for a step that has not completed (``None`` is the value null).
        """
        self._add_node(step_id, tuple(sorted(set(edges))), _leaves(arguments))
        if not isinstance(output, Missing):
            self.record_output(step_id, output)

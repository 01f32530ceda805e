"""The graph against a naive one written from the words of its description, over random lives of a transaction.

The naive one scans all earlier outputs, compares values as they are and walks recursively; it
knows no index, no folding table and no digest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.json_values import MISSING, canonical, load
from agenttx_server.engine.records import DependencyKind, Edge, PathElement

# --- the naive graph ----------------------------------------------------------------------


def lowered(key: str) -> str:
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in key)


def leaves(value: Any, key: str | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, key)
    elif key is not None and not isinstance(value, bool) and value is not None and value != "":
        yield key, value


def equal(one: Any, other: Any) -> bool:
    return isinstance(one, str) == isinstance(other, str) and one == other


@dataclass
class NaiveStep:
    arguments: Any
    edges: set[Edge]
    before_step: int
    explicit: tuple[Edge, ...]
    output: Any = MISSING


@dataclass
class NaiveGraph:
    steps: dict[int, NaiveStep] = field(default_factory=dict)

    def add_step(
        self, step_id: int, arguments: Any, explicit: tuple[Edge, ...], before_step: int
    ) -> set[Edge]:
        edges = set(explicit)
        for key, value in leaves(arguments):
            if any(lowered(edge.target_key) == lowered(key) for edge in explicit):
                continue
            for earlier in sorted(self.steps, reverse=True):
                if earlier >= before_step or self.steps[earlier].output is MISSING:
                    continue
                names = [
                    name
                    for name, given_value in leaves(self.steps[earlier].output)
                    if equal(value, given_value)
                    and (lowered(name) == lowered(key) or lowered(key).endswith("_" + lowered(name)))
                ]
                if names:
                    # The longest fits best; of two spellings of one key the first in order is shown.
                    name = min(names, key=lambda name: (-len(name), name))
                    edges.add(Edge(earlier, step_id, name, key, DependencyKind.IMPLICIT))
                    break
        self.steps[step_id] = NaiveStep(arguments, edges, before_step, explicit)
        return edges

    def rewind(self, to_step: int) -> None:
        self.steps = {step_id: step for step_id, step in self.steps.items() if step_id < to_step}

    def taken(self, step_id: int, key: str) -> list[Edge]:
        return [edge for edge in self.steps[step_id].edges if lowered(edge.target_key) == lowered(key)]

    def passed_through(self, step_id: int, key: str) -> set[str]:
        step = self.steps[step_id]
        return {
            input_key
            for output_key, given_value in leaves(step.output)
            if lowered(output_key) == lowered(key)
            for input_key, value in leaves(step.arguments)
            if equal(value, given_value)
        }

    def producers(self, step_id: int, key: str) -> dict[tuple[int, str], int]:
        """Everything that a failure of ``step_id`` under ``key`` may come from, and over how few edges."""
        found: dict[tuple[int, str], int] = {}
        ahead = [(edge.from_step, edge.source_key, 1) for edge in self.taken(step_id, key)]
        while ahead:
            producer, source_key, hops = min(ahead, key=lambda stop: stop[2])
            ahead.remove((producer, source_key, hops))
            if (producer, lowered(source_key)) in found:
                continue
            found[producer, lowered(source_key)] = hops
            for input_key in {source_key} | self.passed_through(producer, source_key):
                ahead += [
                    (edge.from_step, edge.source_key, hops + 1) for edge in self.taken(producer, input_key)
                ]
        return found


# --- random lives -------------------------------------------------------------------------

KEYS = ["id", "ID", "user_id", "User_Id", "a_user_id", "_id", "_", "", "x", "a_", "k" * 200, "a_" + "K" * 200]
SCALARS = [
    0,
    -0.0,
    1,
    1.0,
    True,
    False,
    None,
    "",
    "1",
    "u-7",
    2**53,
    2.0**53,
    2**53 + 1,
    1.5,
    "y" * 100,
    "y" * 99 + "z",
]

keys = st.sampled_from(KEYS)
scalars = st.sampled_from(SCALARS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(keys, values, max_size=4) | values


@dataclass
class Attempt:
    arguments: Any
    references: list[tuple[int, str, str]]
    output: Any
    turn: int
    retried: bool


attempts = st.builds(
    Attempt,
    arguments=objects,
    references=st.lists(st.tuples(st.integers(0, 50), keys, keys), max_size=2),
    output=objects | st.just(MISSING),
    turn=st.integers(0, 9),
    retried=st.integers(0, 9).map(lambda die: die == 0),
)
groups = st.lists(attempts, min_size=1, max_size=3)
rewinds = st.integers(0, 100)
lives = st.lists(groups | groups | groups | rewinds, max_size=14)


@dataclass
class Transaction:
    """The graph and the naive one side by side, run as the coordinator runs a transaction."""

    graph: DependencyGraph = field(default_factory=DependencyGraph)
    naive: NaiveGraph = field(default_factory=NaiveGraph)
    next_step: int = 1

    def run_group(self, group: list[Attempt]) -> None:
        first = self.next_step
        completed = [step_id for step_id, step in self.naive.steps.items() if step.output is not MISSING]
        members = list(enumerate(group, start=first))
        for step_id, attempt in members:
            if attempt.retried:
                # A first attempt that came to nothing, or a conflict's loser that had completed.
                self.graph.add_step(step_id, arguments=attempt.output or {}, explicit=(), before_step=first)
                if attempt.turn % 2:
                    self.graph.record_output(step_id, attempt.arguments)
                self.graph.discard(step_id)
            explicit = tuple(
                Edge(completed[rank % len(completed)], step_id, source, target, DependencyKind.EXPLICIT)
                for rank, source, target in attempt.references
                if completed
            )
            edges = self.graph.add_step(
                step_id, arguments=attempt.arguments, explicit=explicit, before_step=first
            )
            assert edges == tuple(sorted(self.naive.add_step(step_id, attempt.arguments, explicit, first)))
            if attempt.turn == 0:
                self.complete(step_id, attempt)
        for step_id, attempt in sorted(members, key=lambda member: member[1].turn):
            if attempt.turn > 0:
                self.complete(step_id, attempt)
        self.next_step += len(group)

    def complete(self, step_id: int, attempt: Attempt) -> None:
        if attempt.output is not MISSING:
            self.graph.record_output(step_id, attempt.output)
            self.naive.steps[step_id].output = attempt.output

    def rewind(self, percent: int) -> None:
        self.next_step = 1 + (self.next_step - 1) * percent // 100
        self.graph.rewind(self.next_step)
        self.naive.rewind(self.next_step)


def lived(life: list[Any]) -> Transaction:
    transaction = Transaction()
    for event in life:
        if isinstance(event, int):
            transaction.rewind(event)
        else:
            transaction.run_group(event)
    return transaction


@settings(max_examples=300)
@given(lives)
def test_edges_are_those_the_description_gives(life):
    transaction = lived(life)
    steps = transaction.naive.steps
    assert transaction.graph.step_ids() == tuple(sorted(steps))
    assert transaction.graph.edges() == tuple(sorted(edge for step in steps.values() for edge in step.edges))
    for step_id, step in steps.items():
        assert transaction.graph.edges_of(step_id) == tuple(sorted(step.edges))


@settings(max_examples=300)
@given(lives)
def test_the_root_cause_is_the_earliest_producer_and_the_path_leads_there(life):
    transaction = lived(life)
    naive = transaction.naive
    for step_id in naive.steps:
        for key in KEYS:
            answer = transaction.graph.find_root_cause(step_id, key)
            producers = naive.producers(step_id, key)
            if not producers:
                assert answer.step_id is None
                assert answer.path == ()
                continue
            root = min(step for step, _ in producers)
            assert answer.step_id == root
            hops = min(hops for (step, _), hops in producers.items() if step == root)
            check_path(naive, answer.path, PathElement(step_id, key), root, hops)


def check_path(
    naive: NaiveGraph, path: tuple[PathElement, ...], start: PathElement, root: int, fewest_hops: int
) -> None:
    assert path[0] == start
    assert path[-1].step_id == root
    hops = 0
    for taker, giver in pairwise(path):
        if taker.step_id == giver.step_id:
            passed = {lowered(key) for key in naive.passed_through(taker.step_id, taker.key)}
            assert lowered(giver.key) in passed
        else:
            hops += 1
            edges = naive.taken(taker.step_id, taker.key)
            assert any((edge.from_step, edge.source_key) == (giver.step_id, giver.key) for edge in edges)
    assert hops == fewest_hops


@settings(max_examples=200)
@given(lives)
def test_a_graph_that_was_rewound_equals_one_that_only_ran_the_steps_that_live(life):
    transaction = lived(life)
    fresh = DependencyGraph()
    for step_id, step in sorted(transaction.naive.steps.items()):
        fresh.add_step(
            step_id, arguments=step.arguments, explicit=step.explicit, before_step=step.before_step
        )
        if step.output is not MISSING:
            fresh.record_output(step_id, step.output)
    assert fresh.snapshot() == transaction.graph.snapshot()


@settings(max_examples=200)
@given(lives)
def test_a_graph_restored_from_what_is_stored_equals_the_one_that_grew(life):
    transaction = lived(life)
    restored = DependencyGraph()
    for step_id, step in sorted(transaction.naive.steps.items()):
        restored.restore(
            step_id,
            arguments=load(canonical(step.arguments)),
            edges=transaction.graph.edges_of(step_id),
            output=MISSING if step.output is MISSING else load(canonical(step.output)),
        )
    assert restored.snapshot() == transaction.graph.snapshot()
    for step_id in transaction.naive.steps:
        for key in KEYS:
            assert restored.find_root_cause(step_id, key) == transaction.graph.find_root_cause(step_id, key)


@given(lives, values)
def test_a_step_that_gives_what_it_took_is_known_without_looking_at_its_output(life, value):
    transaction, other = lived(life), lived(life)
    step_id = transaction.next_step
    for graph in (transaction.graph, other.graph):
        graph.add_step(step_id, arguments=value, explicit=(), before_step=step_id)
    transaction.graph.record_output(step_id, load(canonical(value)))
    other.graph.record_arguments_as_output(step_id)
    assert transaction.graph.snapshot() == other.graph.snapshot()

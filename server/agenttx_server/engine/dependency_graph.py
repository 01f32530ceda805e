"""The dependency graph of one transaction: which step consumed what another produced.

Nodes are live steps; an edge P → C says that C consumed, under ``target_key``, what P gave
under ``source_key``. Explicit edges come from references; implicit ones are found here, by
equal scalar values under fitting keys. The graph answers one question,
:meth:`DependencyGraph.find_root_cause`, and forgets, by :meth:`DependencyGraph.rewind`, in the time
of what it forgets.

rustworkx gives a removed node's index to the next node, so indices never leave this class
and nothing relies on the order in which it lists edges.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import repeat
from operator import itemgetter
from sys import intern
from typing import Final, TypeAlias

import rustworkx

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.engine.records import DependencyKind, Edge, PathElement, PathSource
from agenttx_server.engine.requests import RootCause

__all__ = ["DependencyGraph", "GraphSnapshot", "fold"]

_MOST_LEAVES: Final = 10_000
"""Leaves of one step's input, and of its output, that take part in implicit links. Larger ones give each field
its share, small fields first: a table of a million numbers would cost a hundred megabytes and identify nothing."""

LONGEST_PATH: Final = 200
"""Stops of a root cause's path that are told: of a longer one the first and the last half."""

_MOST_SUFFIXES: Final = 16
"""Suffixes of one input key that are looked up, shortest first, besides the whole key."""

_MOST_SHARED_KEYS: Final = 32
_LONGEST_SHARED_KEYS: Final = 512
"""Keys of one step, and characters of them, that what it passed through is shared for with others."""

_LONGEST_KEY: Final = 128
_LONGEST_TEXT: Final = 64
"""Longer keys and texts are known by their digest: a document isn't kept in memory to be compared with."""


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """All that a graph knows, comparable: graphs with equal snapshots answer alike from here on.

    ``outputs`` lists indexed leaves with the steps that gave them; ``passed_through`` is (step,
    output key, input keys); ``open_inputs`` the leaves of steps whose output is not recorded.
    """

    steps: tuple[int, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]
    passed_through: tuple[tuple[int, str, tuple[str, ...]], ...]
    open_inputs: tuple[tuple[int, tuple[tuple[str, str], ...]], ...]


class DependencyGraph:
    """The live steps of one transaction, their edges, and the index of what they gave."""

    __slots__ = ("_graph", "_last_step", "_producers", "_steps")

    def __init__(self) -> None:
        self._graph: rustworkx.PyDiGraph[int, Edge] = rustworkx.PyDiGraph()
        self._steps: dict[int, _Step] = {}
        # Leaf → the step that gave it, or the steps, ascending, where there are several.
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
        referenced = {fold(edge.target_key) for edge in explicit} if explicit else ()
        edges = list(explicit)
        for key, values in inputs.items():
            known = _known_key(key)
            if known.folded not in referenced:
                for producer, source_key in self._latest_producers(known, values, before_step):
                    edges.append(Edge(producer, step_id, source_key, intern(key), DependencyKind.IMPLICIT))
        # Most steps have one edge or none, which need be neither told apart nor ordered.
        ordered = tuple(sorted(set(edges))) if len(edges) > 1 else tuple(edges)
        self._add_node(step_id, ordered, inputs)
        return ordered

    def record_output(self, step_id: int, output: JsonValue) -> None:
        """Index what a completed step gave; once for each step.

        Raises:
            KeyError: when the step is not there.
            ValueError: when its output is recorded already.
        """
        self._record_leaves(step_id, _leaves(output))

    def record_arguments_as_output(self, step_id: int) -> None:
        """Index that a completed step without sub-steps gave just what it took: :meth:`record_output` of its arguments.

        Raises KeyError and ValueError as that does.
        """
        taken = self._steps[step_id].open_inputs or {}
        self._record_leaves(step_id, taken, _passed_on(taken))

    def _record_leaves(
        self, step_id: int, outputs: _Leaves, passed_through: _PassedThrough | None = None
    ) -> None:
        step = self._steps[step_id]
        if step.open_inputs is None:
            raise ValueError(f"the output of step {step_id} is recorded already")
        if step.made:
            outputs, step.made = _merged(outputs, step.made), _NO_LEAVES
        step.passed_through = passed_through or _passed_through(step.open_inputs, outputs)
        step.open_inputs = None
        step.outputs, step.spellings = _indexed(outputs)
        self._index_outputs(step_id, step)

    def links(
        self, step_id: int, sub_step: int, arguments: JsonValue, *, before_step: int
    ) -> tuple[Edge, ...]:
        """Return the edges of a sub-step's arguments, sorted; nothing is added."""
        edges = {
            Edge(producer, step_id, source_key, intern(key), DependencyKind.IMPLICIT, sub_step)
            for key, values in _leaves(arguments).items()
            for producer, source_key in self._latest_producers(_known_key(key), values, before_step)
        }
        return tuple(sorted(edges))

    def extend(self, step_id: int, *, arguments: JsonValue, edges: Iterable[Edge], output: JsonValue) -> None:
        """Count a completed sub-step as part of its step, whose own output is not recorded yet.

        What it took and gave, the step took and gave. Raises KeyError when the step is not there.
        """
        step = self._steps[step_id]
        if step.open_inputs is None:
            raise ValueError(f"the output of step {step_id} is recorded already")
        step.open_inputs = _merged(step.open_inputs, _leaves(arguments))
        step.made = _merged(step.made, _leaves(output))
        self._graph.add_edges_from([(self._steps[edge.from_step].index, step.index, edge) for edge in edges])

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
        Steps are restored in ascending order. Raises as :meth:`add_step` does.
        """
        self._add_node(step_id, tuple(sorted(set(edges))), _leaves(arguments))
        if not isinstance(output, Missing):
            self.record_output(step_id, output)

    # --- forgetting

    def rewind(self, to_step: int) -> None:
        """Forget ``to_step`` and every later step with their edges, in O(what is forgotten)."""
        self._forget([step for step in range(to_step, self._last_step + 1) if step in self._steps])
        self._last_step = min(self._last_step, to_step - 1)

    def discard(self, step_id: int) -> None:
        """Forget one step whose attempt is to be made again; nothing if it is not there."""
        if step_id in self._steps:
            self._forget([step_id])

    # --- asking

    def find_root_cause(self, step_id: int, key: str) -> RootCause:
        """Trace the value that ``step_id`` took under ``key`` to the earliest step that gave it.

        Follows incoming edges whose target key is the key, ASCII case ignored; at each producer
        the edge's source key and, where that output equals an input of the producer,
        this input's key. ``path`` begins with (``step_id``, ``key``) and ends with the root; an
        input that a producer passed through stands in it after the output it became. Of a path with
        more than 200 stops the first and the last 100 are told.
        ``step_id`` of the answer is None when no edge carries the key.
        """
        return _RootCauseSearch(self._graph, self._steps).from_input(step_id, key)

    def find_root_behind(self, step_id: int, key: str) -> RootCause:
        """Trace a value that ``step_id`` gave under ``key`` to the earliest step that gave it; at least itself."""
        return _RootCauseSearch(self._graph, self._steps).from_output(step_id, key)

    def inputs_behind(self, step_id: int, key: str) -> list[tuple[int, str]]:
        """Return each (step, input key, folded) that the value which ``step_id`` took under ``key`` may have come by."""
        search = _RootCauseSearch(self._graph, self._steps)
        found: list[tuple[int, str]] = []
        search.followed = found
        search.from_input(step_id, key)
        return found

    def edges(self) -> tuple[Edge, ...]:
        """All edges, sorted."""
        return tuple(sorted(self._graph.edges()))

    def edges_of(self, step_id: int) -> tuple[Edge, ...]:
        """What a step depends on: its incoming edges, sorted; none for an unknown step."""
        step = self._steps.get(step_id)
        return () if step is None else tuple(sorted(edge for _, _, edge in self._graph.in_edges(step.index)))

    def step_ids(self) -> tuple[int, ...]:
        """The live steps, ascending."""
        return tuple(sorted(self._steps))

    def snapshot(self) -> GraphSnapshot:
        """All that the graph knows; walks everything, so it is for tests and diagnosis."""
        live = sorted(self._steps.items())
        return GraphSnapshot(
            steps=self.step_ids(),
            edges=self.edges(),
            outputs=tuple(
                (leaf, tuple((step, self._steps[step].spelling(leaf)) for step in _as_steps(found)))
                for leaf, found in sorted(self._producers.items())
            ),
            passed_through=tuple(
                (step_id, key, tuple(sorted({name for group in groups for name in group})))
                for step_id, step in live
                for key, groups in sorted((step.passed_through or {}).items())
            ),
            open_inputs=tuple(
                (
                    step_id,
                    tuple(
                        sorted((key, value) for key, values in step.open_inputs.items() for value in values)
                    ),
                )
                for step_id, step in live
                if step.open_inputs is not None
            ),
        )

    # --- the parts

    def _add_node(self, step_id: int, edges: tuple[Edge, ...], inputs: _Leaves) -> None:
        if step_id in self._steps:
            raise ValueError(f"step {step_id} is in the graph already")
        sources = [self._steps[edge.from_step].index for edge in edges]
        index = self._graph.add_node(step_id)
        self._steps[step_id] = _Step(index, inputs)
        if edges:
            self._graph.add_edges_from(
                [(source, index, edge) for source, edge in zip(sources, edges, strict=True)]
            )
        self._last_step = max(self._last_step, step_id)

    def _forget(self, step_ids: list[int]) -> None:
        removed = [(step_id, self._steps.pop(step_id)) for step_id in step_ids]
        self._graph.remove_nodes_from([step.index for _, step in removed])
        if len(self._steps) < len(removed):  # less is to be kept than taken out
            self._producers.clear()
            for step_id in sorted(self._steps):
                self._index_outputs(step_id, self._steps[step_id])
            return
        producers = self._producers
        # The newest first: it stands last among those that gave a leaf, so none behind it moves up.
        for step_id, step in reversed(removed):
            for leaf in step.outputs:
                found = producers.pop(leaf)
                if not isinstance(found, int):
                    del found[bisect_left(found, step_id)]
                    producers[leaf] = found if len(found) > 1 else found[0]

    def _latest_producers(
        self, key: _KnownKey, values: Collection[str], before_step: int
    ) -> list[tuple[int, str]]:
        """For each value the latest earlier step that gave it under a fitting key, and that key."""
        latest_of_each = []
        producers = self._producers
        for value in values:
            latest, latest_leaf = 0, ""
            for prefix in key.fitting_prefixes:
                leaf = prefix + value
                if leaf in producers and (step := _last_before(producers[leaf], before_step)) > latest:
                    latest, latest_leaf = step, leaf
            if latest:
                latest_of_each.append((latest, self._steps[latest].spelling(latest_leaf)))
        return latest_of_each

    def _index_outputs(self, step_id: int, step: _Step) -> None:
        producers = self._producers
        for leaf in step.outputs:
            if leaf in producers:
                self._add_producer(leaf, step_id)
            else:
                producers[leaf] = step_id

    def _add_producer(self, leaf: str, step_id: int) -> None:
        """Add one more step to those that gave a leaf."""
        found = self._producers[leaf]
        if isinstance(found, int):
            self._producers[leaf] = sorted((found, step_id))
        elif step_id > found[-1]:
            found.append(step_id)
        else:
            insort(found, step_id)


class _Step:
    """What is known of a live step besides its edges.

    ``open_inputs`` are its input leaves, and ``made`` what its sub-steps gave, until its output is recorded; then
    only what it passed through is kept. ``spellings`` holds the keys of output leaves that are not all lower case.
    """

    __slots__ = ("index", "made", "open_inputs", "outputs", "passed_through", "spellings")

    def __init__(self, index: int, inputs: _Leaves) -> None:
        self.index = index
        self.open_inputs: _Leaves | None = inputs
        self.made: _Leaves = _NO_LEAVES
        self.outputs: tuple[str, ...] = ()
        self.spellings: dict[str, str] | None = None
        self.passed_through: _PassedThrough | None = None

    def spelling(self, leaf: str) -> str:
        """The key of an output leaf as the step wrote it."""
        if self.spellings is not None and leaf in self.spellings:
            return self.spellings[leaf]
        length, _, rest = leaf.partition(":")
        return intern(rest[: int(length)])


# --- leaves -------------------------------------------------------------------------------
#
# A value is known by a text: "s" and the string, "h" and its digest, "n" and the number, so
# that 1 and 1.0 are one and "1" is another. A leaf is a folded key and a value in one text,
# "7:user_idsu-7": half the memory of a pair, and there are many.

_Leaves: TypeAlias = Mapping[str, Set[str]]
_NO_LEAVES: Final[_Leaves] = {}  # one for all: nearly no step has sub-steps

# Output key → groups of input keys whose value the output holds; all folded. Never changed: steps share them.
_PassedThrough: TypeAlias = Mapping[str, tuple[tuple[str, ...], ...]]


def _leaves(value: JsonValue) -> _Leaves:
    """The linkable scalars by the key, as written, of the field that holds them."""
    few = _few_leaves(value)
    return _many_leaves(value) if few is None else few


def _merged(some: _Leaves, more: _Leaves) -> _Leaves:
    merged = {key: set(values) for key, values in some.items()}
    for key, values in more.items():
        merged.setdefault(key, set()).update(values)
    return merged


def _few_leaves(value: JsonValue) -> _Leaves | None:
    """What :func:`_many_leaves` finds, in one pass; None for a value of more than 256 items."""
    found: dict[str, set[str]] = {}
    room = 256
    open_containers: list[tuple[JsonValue, str | None]] = [(value, None)]
    while open_containers:
        container, field = open_containers.pop()
        if isinstance(container, dict):
            fields: Iterable[tuple[str | None, JsonValue]] = container.items()
        elif isinstance(container, list):
            fields = zip(repeat(field), container)
        else:
            continue
        room -= len(container)
        if room < 0:
            return None
        for key, item in fields:
            kind = type(item)
            if kind is dict or kind is list:
                open_containers.append((item, key))
            elif key is not None and (kind is str or kind is int or kind is float) and item != "":
                identity = _identity(item)  # type: ignore[arg-type]
                if key in found:
                    found[key].add(identity)
                else:
                    found[key] = {identity}
    return found


def _many_leaves(value: JsonValue) -> _Leaves:
    found: defaultdict[str | None, set[str | float]] = defaultdict(set)
    # Pairs of a container and the key that its own scalars carry; None at the top.
    open_containers: list[tuple[JsonValue, str | None]] = [(value, None)]
    while open_containers:
        container, field = open_containers.pop()
        if isinstance(container, dict):
            fields: Iterable[tuple[str | None, JsonValue]] = container.items()
        elif isinstance(container, list):
            fields = zip(repeat(field), container)
        else:
            continue
        for key, item in fields:
            # Exact types, as values read from JSON have them: a quarter million leaves may come through here.
            kind = type(item)
            if kind is str:
                if item:
                    found[key].add(item)  # type: ignore[arg-type]
            elif kind is int or kind is float:
                found[key].add(item)  # type: ignore[arg-type]
            elif kind is dict or kind is list:
                open_containers.append((item, key))
    leaves = {key: values for key, values in found.items() if key is not None}
    if sum(map(len, leaves.values())) > _MOST_LEAVES:
        leaves = _fair_shares(leaves)
    return {key: {_identity(value) for value in values} for key, values in leaves.items()}


def _fair_shares(leaves: dict[str, set[str | float]]) -> dict[str, set[str | float]]:
    # The same whatever the order of keys and items: a graph rebuilt from sorted text must be equal.
    kept: dict[str, set[str | float]] = {}
    room = _MOST_LEAVES
    fields = sorted(leaves, key=lambda key: (len(leaves[key]), key))
    for done, key in enumerate(fields):
        share = room // (len(fields) - done)
        if share > 0:
            kept[key] = leaves[key] if len(leaves[key]) <= share else _smallest(share, leaves[key])
            room -= len(kept[key])
    return kept


def _smallest(count: int, values: set[str | float]) -> set[str | float]:
    # Numbers before texts. heapq.nsmallest is slower than a sort for counts like these.
    texts = {value for value in values if isinstance(value, str)}
    return set([*sorted(values - texts)[:count], *sorted(texts)][:count])


def _identity(value: str | float) -> str:
    if isinstance(value, str):
        return f"s{value}" if len(value) <= _LONGEST_TEXT else f"h{_digest(value)}"
    if isinstance(value, int):
        return f"n{value}"
    number = int(value)
    return f"n{number}" if number == value else f"n{value!r}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def fold(key: str) -> str:
    """The key with A–Z lowered and nothing else; the Kelvin sign is no k, as in databases."""
    return key.lower() if key.isascii() else key.translate(_ASCII_LOWER)


_ASCII_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _leaf_prefix(folded_key: str) -> str:
    if len(folded_key) > _LONGEST_KEY:
        folded_key = f"#{_digest(folded_key)}"
    return f"{len(folded_key)}:{folded_key}"


class _KnownKey:
    """What follows from a key alone: the same few keys come with every step.

    ``fitting_prefixes`` are those of the output keys that it fits as an input key, ``alone`` the one group of input keys
    that a value passes through which came under this key only, ``spelled`` the key as it was written, None where
    its leaves tell it.
    """

    __slots__ = ("alone", "fitting_prefixes", "folded", "prefix", "spelled")

    def __init__(self, key: str) -> None:
        self.folded = intern(fold(key))
        self.prefix = _leaf_prefix(self.folded)
        self.fitting_prefixes = tuple([_leaf_prefix(candidate) for candidate in _fitting_keys(self.folded)])
        self.alone = ((self.folded,),)
        self.spelled = None if key == self.folded and len(key) <= _LONGEST_KEY else intern(key)


_known_key: Final = lru_cache(maxsize=4096)(_KnownKey)


def _fitting_keys(folded_key: str) -> list[str]:
    """Output keys that an input key fits, longest first: ``a_b_c``, ``b_c``, ``c``."""
    suffixes: list[str] = []
    at = len(folded_key)
    while len(suffixes) < _MOST_SUFFIXES:
        at = folded_key.rfind("_", 0, at)
        if at < 0:
            break
        suffixes.append(folded_key[at + 1 :])
    return [folded_key, *reversed(suffixes)]


def _indexed(outputs: _Leaves) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """The output's leaves, and how those whose key has capitals spelled it."""
    leaves: dict[str, None] = {}
    spellings: dict[str, str] = {}
    for key in sorted(outputs):
        known = _known_key(key)
        for value in outputs[key]:
            leaf = known.prefix + value
            if leaf not in leaves:
                leaves[leaf] = None
                if known.spelled is not None:
                    spellings[leaf] = known.spelled
    return tuple(leaves), spellings or None


def _passed_through(inputs: _Leaves, outputs: _Leaves) -> _PassedThrough | None:
    """What a step passed through, None for nothing; a group holds the inputs of one value.

    Output keys share their groups, so the size stays that of inputs and outputs.
    """
    given: dict[str, tuple[tuple[str, ...], ...]] = {}
    shared: dict[str, set[str]] = {}
    for key, values in inputs.items():
        known = _known_key(key)
        for value in values:
            if value not in given:
                given[value] = known.alone
            elif known.folded not in given[value][0]:
                shared.setdefault(value, {*given[value][0]}).add(known.folded)
    if not given:
        return None
    for value, keys in shared.items():
        given[value] = (tuple(keys),)
    passed: dict[str, tuple[tuple[str, ...], ...]] = {}
    for key, values in outputs.items():
        for value in values:
            if value in given:
                folded = _known_key(key).folded
                passed[folded] = passed[folded] + given[value] if folded in passed else given[value]
    return passed or None


def _passed_on(leaves: _Leaves) -> _PassedThrough | None:
    """What a step passed through that gave what it took, if each of a few short keys has a value of its own; else None.

    It follows from the keys alone then, which come again and again: steps share it, instead of a dictionary each that
    the garbage collector walks.
    """
    if not 0 < len(leaves) <= _MOST_SHARED_KEYS or sum(map(len, leaves)) > _LONGEST_SHARED_KEYS:
        return None
    if not sum(map(len, leaves.values())) == len(leaves) == len(set().union(*leaves.values())):
        return None
    return _passed_on_under(tuple(leaves))


@lru_cache(maxsize=4096)
def _passed_on_under(keys: tuple[str, ...]) -> _PassedThrough | None:
    each_its_own = {key: {str(number)} for number, key in enumerate(keys)}
    return _passed_through(each_its_own, each_its_own)


def _last_before(found: int | list[int], before_step: int) -> int:
    """The last of ascending steps that is below ``before_step``; 0 if none is."""
    if isinstance(found, int):
        return found if found < before_step else 0
    at = bisect_left(found, before_step)
    return found[at - 1] if at else 0


def _as_steps(found: int | list[int]) -> tuple[int, ...]:
    return (found,) if isinstance(found, int) else tuple(found)


# --- the search ---------------------------------------------------------------------------


class _FoldedKeys(dict[str, str]):
    """Folds each key once; a long walk meets the same few keys over and over."""

    def __missing__(self, key: str) -> str:
        folded = self[key] = fold(key)
        return folded


# How an output was reached: hops, its key as written, the step that took it, the folded key of that
# step's own output (for the first step: of the error), the input key it was taken as, and the kind of
# that edge ("" for the error). The smallest of several is kept, so the path shown is the shortest and
# always the same.
_Reached: TypeAlias = tuple[int, str, int, str, str, str]


class _RootCauseSearch:
    """One walk upstream, from the latest step to the earliest.

    Edges lead from lower steps to higher ones, so when a step's turn comes every output of it that
    is wanted is known, and it is looked at once. The walk is linear in the edges it meets.
    """

    def __init__(self, graph: rustworkx.PyDiGraph[int, Edge], steps: Mapping[int, _Step]) -> None:
        self._graph = graph
        self._steps = steps
        self._folded = _FoldedKeys()
        self._reached: dict[int, dict[str, _Reached]] = {}
        self.followed: list[tuple[int, str]] | None = None

    def from_input(self, failed_step: int, error_key: str) -> RootCause:
        if failed_step not in self._steps:
            return RootCause(None)
        root = self._walk(failed_step, error_key, taken_by=failed_step)
        return RootCause(None) if root == failed_step else RootCause(root, self._path(root))

    def from_output(self, step_id: int, key: str) -> RootCause:
        if step_id not in self._steps:
            return RootCause(None)
        root = self._walk(step_id, key, taken_by=None)
        return RootCause(root, self._path(root))

    def _walk(self, start: int, key: str, taken_by: int | None) -> int:
        """Go upstream as far as edges lead and return the earliest step reached."""
        folded, reached, in_edges = self._folded, self._reached, self._graph.in_edges
        reached[start] = {folded[key]: (0, key, 0, "", "", "")}
        waiting = [-start]
        step_id = start
        while waiting:
            step_id = -heappop(waiting)
            step = self._steps[step_id]
            passed_through = None if step_id == taken_by else step.passed_through
            followed = self._followed_inputs(reached[step_id], passed_through)
            if self.followed is not None:
                self.followed += [(step_id, input_key) for input_key in followed]
            for _, _, edge in in_edges(step.index):
                behind = followed.get(folded[edge.target_key])
                if behind is None:
                    continue
                way = (behind[0] + 1, edge.source_key, step_id, behind[1], edge.target_key, edge.kind)
                outputs = reached.get(edge.from_step)
                if outputs is None:
                    reached[edge.from_step] = {folded[edge.source_key]: way}
                    heappush(waiting, -edge.from_step)
                    continue
                known = outputs.get(folded[edge.source_key])
                if known is None or way < known:
                    outputs[folded[edge.source_key]] = way
        return step_id

    def _followed_inputs(
        self, outputs: dict[str, _Reached], passed_through: _PassedThrough | None
    ) -> dict[str, tuple[int, str]]:
        """Folded input key → hops so far, and the output it stands behind."""
        followed: dict[str, tuple[int, str]] = {}
        if len(outputs) == 1:  # nearly always, and most of a long walk's time is spent here
            ((key, way),) = outputs.items()
            followed[key] = behind = (way[0], key)
            if passed_through is not None:
                for group in passed_through.get(key, ()):
                    for input_key in group:
                        followed[input_key] = behind
            return followed
        expanded: set[int] = set()
        # The nearest output first: what it takes is nobody else's. Outputs share groups.
        for key, way in sorted(outputs.items(), key=_BY_WAY):
            behind = (way[0], key)
            followed.setdefault(key, behind)
            for group in passed_through.get(key, ()) if passed_through else ():
                if id(group) not in expanded:
                    expanded.add(id(group))
                    for input_key in group:
                        followed.setdefault(input_key, behind)
        return followed

    def _path(self, root: int) -> tuple[PathElement, ...]:
        output_key = min(self._reached[root].items(), key=_BY_WAY)[0]
        step_id, taken_as = root, output_key
        near_root: list[_Stop] = []
        near_failure: deque[_Stop] = deque(maxlen=LONGEST_PATH - LONGEST_PATH // 2)
        while step_id:
            _, key, taker, taken_by, next_taken_as, kind = self._reached[step_id][output_key]
            kept = near_root if len(near_root) < LONGEST_PATH // 2 - 1 else near_failure  # room for two
            if self._folded[taken_as] != output_key:
                kept.append((step_id, taken_as, _PASSED_THROUGH))
            kept.append((step_id, key, kind))
            step_id, output_key, taken_as = taker, taken_by, next_taken_as
        stops = (*reversed(near_failure), *reversed(near_root))
        return tuple(PathElement(step, key, _source(kind)) for step, key, kind in stops)


_BY_WAY: Final = itemgetter(1)


# A step, a key, and how the search came there: the edge's kind, "" for the error.
_Stop: TypeAlias = tuple[int, str, str]
_PASSED_THROUGH: Final = "passed through"


def _source(kind: str) -> PathSource:
    if kind is _PASSED_THROUGH:
        return PathSource.PASS_THROUGH
    if kind is DependencyKind.EXPLICIT:
        return PathSource.EXPLICIT_EDGE
    return PathSource.IMPLICIT_EDGE if kind else PathSource.ERROR_KEY

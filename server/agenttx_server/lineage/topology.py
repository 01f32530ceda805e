"""What is upstream of what. ``source`` is upstream of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agenttx_server.lineage.definition import SOURCE, Action

__all__ = ["Topology", "cycle_in"]


class Topology:
    """The order of a pipeline's actions and their ancestry. Actions must be free of cycles and dangling names."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.dependencies: Mapping[str, tuple[str, ...]] = {
            action.name: action.dependencies or (SOURCE,) for action in actions
        }
        self.waves: tuple[tuple[str, ...], ...] = tuple(_in_waves(actions, self.dependencies))
        """Actions that do not depend on one another, in the order in which they can run."""
        self.order: tuple[str, ...] = tuple(name for wave in self.waves for name in wave)
        self.upstream: dict[str, frozenset[str]] = {SOURCE: frozenset()}
        for name in self.order:
            above = self.dependencies[name]
            self.upstream[name] = frozenset(above).union(*(self.upstream[item] for item in above))
        self._consumers: dict[str, tuple[str, ...]] = {
            name: tuple(other for other in self.order if name in self.dependencies[other])
            for name in (SOURCE, *self.order)
        }
        self._forks: dict[tuple[str, ...], tuple[str, ...]] = {}

    def consumers(self, action: str) -> tuple[str, ...]:
        """The actions that depend on this one, in order."""
        return self._consumers[action]

    def is_upstream(self, action: str, of: str) -> bool:
        """Whether records of ``of`` come through ``action``."""
        return action in self.upstream.get(of, frozenset())

    def forks(self, *actions: str) -> tuple[str, ...]:
        """The nearest actions that all of these come through or are: those with no other one below them."""
        if actions not in self._forks:
            common = frozenset.intersection(*(self.upstream[item] | {item} for item in actions))
            self._forks[actions] = tuple(
                name
                for name in (SOURCE, *self.order)
                if name in common and not any(name in self.upstream[other] for other in common)
            )
        return self._forks[actions]

    def below(self, action: str) -> tuple[str, ...]:
        """All actions that an action is upstream of, in order."""
        return tuple(name for name in self.order if action in self.upstream[name])


def cycle_in(actions: Iterable[Action]) -> tuple[str, ...]:
    """A path that leads back to where it began, as (a, b, a); empty if there is none. Who names itself is no cycle here."""
    dependencies = {
        action.name: tuple(name for name in action.dependencies if name != action.name) for action in actions
    }
    done: set[str] = set()
    for start in dependencies:
        if start in done:
            continue
        path: list[str] = [start]
        waiting = [iter(dependencies[start])]
        on_path = {start}
        while waiting:
            name = next(waiting[-1], None)
            if name is None:
                waiting.pop()
                ended = path.pop()
                on_path.discard(ended)
                done.add(ended)
            elif name in on_path:
                # Followed from consumer to dependency: turned round, it is the way that records would go.
                return (*reversed([*path[path.index(name) :], name]),)
            elif name in dependencies and name not in done:
                path.append(name)
                on_path.add(name)
                waiting.append(iter(dependencies[name]))
    return ()


def _in_waves(
    actions: Sequence[Action], dependencies: Mapping[str, tuple[str, ...]]
) -> Iterable[tuple[str, ...]]:
    after = {action.name: action.after for action in actions}
    placed = {SOURCE}
    left = [action.name for action in actions]
    while left:
        ready = [
            name
            for name in left
            if all(item in placed for item in dependencies[name])
            and (not after[name] or after[name] in placed)
        ]
        assert ready, "a cycle or a dangling name"
        yield tuple(ready)
        placed.update(ready)
        left = [name for name in left if name not in placed]

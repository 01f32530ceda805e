"""The world on which the tools act, with a log of its own: the truth against which the engine is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agenttx_server.engine.records import EffectClass, TransactionId

__all__ = ["Entry", "PlannedCall", "Run", "World"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened. ``number`` is its place in the history."""

    number: int
    time: float
    kind: str
    process: str
    transaction_id: str = ""
    step_id: int = 0
    attempt: int = 0
    name: str = ""
    key: str = ""
    text: str = ""

    def __str__(self) -> str:
        where = (
            f"{self.transaction_id} {self.step_id}.{self.attempt}" if self.step_id else self.transaction_id
        )
        words = (f"{self.time:9.3f}", f"{self.process:10}", f"{self.kind:9}", where, self.name, self.text)
        return " ".join(word for word in words if word)


@dataclass(slots=True)
class PlannedCall:
    """A tool call that a client made up: what its runs do, one after another, then they just succeed.

    ``undo`` is what the runs of its undo do.
    """

    name: str
    tool_name: str
    behaviours: list[str]
    undo: list[str]
    retries_allowed: int = 0


@dataclass(eq=False, slots=True)
class Run:
    """One execution of a tool. ``reads`` is what it saw, ``puts`` what it wrote; ``ended`` how it ended."""

    number: int
    process: str
    transaction_id: str
    step_id: int
    attempt: int
    call: PlannedCall
    key: str
    reads: dict[str, str | None] = field(default_factory=dict)
    puts: dict[str, str | None] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    ended: str = ""


class World:
    """Effects that stand, by name and key, each with the runs that caused it.

    ``completed`` is which process first made it durable that an attempt succeeded, and when. ``stirred`` is the last time
    after which something may be reported: a long run ended, or a server that stood still went on.
    """

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.calls: dict[str, PlannedCall] = {}
        self.runs: list[Run] = []
        self.running: list[Run] = []
        self.standing: dict[tuple[str, str], list[Run]] = {}
        self.undone: dict[tuple[str, str], list[Run]] = {}
        self.completed: dict[tuple[str, int, int], tuple[str, int]] = {}
        self.stirred = -10.0
        self.time: Callable[[], float] = lambda: 0.0

    def note(
        self,
        kind: str,
        process: str,
        transaction_id: str = "",
        step_id: int = 0,
        attempt: int = 0,
        name: str = "",
        key: str = "",
        text: str = "",
    ) -> Entry:
        """Add to the log."""
        entry = Entry(
            len(self.log), self.time(), kind, process, transaction_id, step_id, attempt, name, key, text
        )
        self.log.append(entry)
        return entry

    def begin(
        self, process: str, call: PlannedCall, transaction_id: str, step_id: int, attempt: int, key: str
    ) -> Run:
        """A tool begins to run."""
        entry = self.note("run", process, transaction_id, step_id, attempt, call.name, key, call.tool_name)
        run = Run(entry.number, process, transaction_id, step_id, attempt, call, key)
        self.runs.append(run)
        self.running.append(run)
        return run

    def end(self, run: Run, how: str) -> None:
        """A tool has ended."""
        run.ended = how
        self.running.remove(run)
        if self.time() > self.log[run.number].time + 0.5:
            self.stirred = self.time()
        self._note_run("ended", run, how)

    def effect(self, run: Run) -> None:
        """A tool has its effect; under one key an effect is there once."""
        self.standing.setdefault((run.call.name, run.key), []).append(run)
        self._note_run("effect", run)

    def _note_run(self, kind: str, run: Run, text: str = "") -> None:
        self.note(
            kind, run.process, run.transaction_id, run.step_id, run.attempt, run.call.name, run.key, text
        )

    def undo(self, name: str, key: str) -> None:
        """An effect is taken back."""
        runs = self.standing.pop((name, key), None)
        if runs is not None:
            self.undone.setdefault((name, key), []).extend(runs)

    def kill(self, process: str) -> None:
        """What runs in a process is no more."""
        for run in self.running:
            if run.process == process:
                run.ended = "killed"
        self.running = [run for run in self.running if run.process != process]

    def is_running(self, transaction_id: TransactionId, step_id: int) -> bool:
        """Whether a tool still runs for a step, wherever."""
        return any((run.transaction_id, run.step_id) == (transaction_id, step_id) for run in self.running)

    def happened(self, transaction_id: TransactionId, step_id: int, attempt: int) -> bool:
        """Whether an attempt's effect stands."""
        return any(
            (run.transaction_id, run.step_id, run.attempt) == (transaction_id, step_id, attempt)
            for runs in self.standing.values()
            for run in runs
        )

    def runs_of(self, names: Iterable[str]) -> Counter[str]:
        """How often the tool ran for each of these calls."""
        wanted = set(names)
        return Counter(run.call.name for run in self.runs if run.call.name in wanted)


EFFECT_CLASSES = {
    "lookup": EffectClass.READ_ONLY,
    "note": EffectClass.TRANSACTIONAL,
    "upload": EffectClass.IDEMPOTENT,
    "book": EffectClass.COMPENSATABLE,
    "pay": EffectClass.IRREVERSIBLE,
    "wire": EffectClass.IRREVERSIBLE,
}
UNDO_NAMES = {"book": "unbook", "wire": "unwire"}

"""What the demonstration prints."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agenttx import CommitResult, Step, StepOutcome
from order_desk.facts import Facts
from order_desk.surroundings import Surroundings

PLAIN_WIDTH = 110
REFERENCE = re.compile(r"\$\{[^}]*\}")


class Narrator:
    """Tells the story on stdout: in colour on a terminal, as plain text into a pipe or a file."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without ✓ and → gets question marks
        width = None if sys.stdout.isatty() else PLAIN_WIDTH
        self._console = Console(width=width, highlight=False, markup=False, emoji=False)

    def opening(self, address: str, folder: Path) -> None:
        self._heading("An agent takes an order")
        self._say(f"A real server serves on {address}; its database, files and outbox are in {folder}.\n")

    def step(self, step: Step, outcome: StepOutcome) -> None:
        mark, style = ("✓", "green") if outcome.succeeded else ("✗", "bold red")
        self._row(
            (2, Text(f"{outcome.step_id:>2}", "bold")),
            (1, Text(mark, style)),
            (13, Text(step.tool)),
            (25, Text(about(step))),
            (None, Text(step.raw_context, "dim")),
        )
        if not outcome.succeeded:
            self._failure(outcome)

    def undone(self, before: Surroundings, after: Surroundings) -> None:
        gone = [path for path in before.paths if path not in after.paths]
        restored = [path for path, text in after.paths.items() if before.paths.get(path) != text]
        self._detail("on disk", f"gone: {', '.join(gone)}; as before: {', '.join(restored)}")
        self._detail("mails", f"{before.staged} staged before, {after.staged} now")

    def goes_on(self, step_id: int) -> None:
        self._say(f"\nThe agent is told so, heeds it, and goes on at step {step_id}:\n")

    def committed(self, commit: CommitResult) -> None:
        self._say(
            f"\nCommitted: {commit.steps_committed} steps, {commit.keys_published} keys published, "
            f"{commit.effects_dispatched} mails delivered.\n"
        )

    def graph_follows(self) -> None:
        self._heading("Where everything came from, as `agenttx tx graph --cause 10 customer_id` draws it")

    def facts(self, facts: Facts) -> None:
        self._heading("\nWhat was checked")
        for fact in facts:
            mark, style = ("✓", "green") if fact.holds else ("✗", "bold red")
            self._console.print(Text.assemble((f" {mark} ", style), fact.statement))
            if not fact.holds:
                self._detail("found", repr(fact.found))
                self._detail("expected", repr(fact.expected))
        broken = sum(not fact.holds for fact in facts)
        if broken:
            self._say(f"\n{broken} of {len(facts)} facts do not hold.")
        elif not facts.all_hold:
            self._say(f"\nOnly {len(facts)} facts were checked: a part of the story was not played.")
        else:
            self._say(f"\nAll {len(facts)} facts hold.")

    def failed(self, failure: Exception) -> None:
        self._console.print(Text(f"\nThe demonstration could not be played: {failure}", "bold red"))
        for note in getattr(failure, "__notes__", ()):
            self._say(note)

    def _failure(self, outcome: StepOutcome) -> None:
        self._say("")
        self._row((3, Text()), (None, Text(outcome.hint, "red")))
        if outcome.decision is None:
            return
        decision = outcome.decision
        path = " ← ".join(f"{element.step_id}.{element.key}" for element in decision.path)
        self._detail("decision", f"{decision.strategy} to step {decision.target_step}")
        self._detail("because", f"the value came from there: {path}" if path else "no earlier step was found")
        self._detail(
            "undone",
            f"steps {decision.target_step} to {outcome.step_id}, in {outcome.rollback_latency_ms:.0f} ms",
        )
        self._detail(
            "budget",
            f"{decision.cost} steps to run again, {decision.budget_left} of {decision.budget_total} left",
        )

    def _detail(self, name: str, text: str) -> None:
        self._row((3, Text()), (8, Text(name, "dim")), (None, Text(text, "yellow")))

    def _row(self, *cells: tuple[int | None, Text]) -> None:
        """Print cells side by side, each wrapped within its own width."""
        taken = sum(width + 1 for width, _ in cells if width is not None)
        columns = []
        for width, text in cells:
            width = width or self._console.width - taken
            columns.append((width, list(text.wrap(self._console, width))))
        for number in range(max(len(lines) for _, lines in columns)):
            line = Text()
            for width, lines in columns:
                cell = lines[number].copy() if number < len(lines) else Text()
                cell.align("left", width)
                line = Text.assemble(line, cell, " ")
            line.rstrip()
            self._console.print(line)

    def _heading(self, text: str) -> None:
        self._console.print(Text(text, "bold"))

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def about(step: Step) -> str:
    """Return what a call is about, in a word or two."""
    arguments = step.arguments
    if "record" in arguments:
        return f"{arguments['table']} {arguments['record']['id']}"
    if "payload" in arguments:
        return REFERENCE.sub("…", f"{arguments['channel']}: {arguments['payload']['subject']}")
    return str(arguments.get("path") or arguments.get("key"))

"""What the compiler finds: ``{code, where, message}``, errors and warnings."""

from __future__ import annotations

from enum import Enum

from agenttx_server.engine.frozen import dataclass

__all__ = ["Finding", "Severity", "errors_in", "found"]


class Severity(Enum):
    """Whether a finding refuses the graph."""

    ERROR = "error"
    WARNING = "warning"


WARNINGS = frozenset(
    {
        "DEAD_END",
        "NO_PATH_TO_END",
        "CYCLE_WITHOUT_EXIT",
        "PARALLEL_WRITERS",
        "JOIN_MAY_STARVE",
        "UNEQUAL_FAN_IN",
        "UNDECLARED_GOTO",
        "UNBOUND",
    }
)
"""All other codes are errors."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    Attributes:
        code: an ErrorReason without its prefix.
        where: ``graph``, ``node a``, ``edge a -> b``, ``join a, b -> c``, ``conditional a``, ``channel log``.
        message: one sentence that names what is wrong.
    """

    code: str
    where: str
    message: str

    @property
    def severity(self) -> Severity:
        """Whether it refuses the graph."""
        return Severity.WARNING if self.code in WARNINGS else Severity.ERROR


def found(code: str, where: str, message: str) -> Finding:
    """Return a finding; names in its texts are cut and kept on one line, whatever they hold."""
    return Finding(code, _one_line(where, 300), _one_line(message, 500))


def errors_in(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings that refuse the graph."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def _one_line(text: str, limit: int) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"

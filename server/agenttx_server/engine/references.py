"""References: ``${steps.N.a.b.0}`` in a step's arguments, and the explicit edges they make.

The grammar, whole::

    reference = "${steps." step ("." segment)* "}"
    step      = a number from 1, no leading zero
    segment   = [A-Za-z0-9_-]+        digits index arrays; of objects every segment is a key
    escape    = "$${"                 the text "${", whatever follows

Text is read from the left. An unescaped ``${`` followed by ``steps`` (blanks before it or
not) that is no reference, ``${steps}``, ``${steps.one.id}``, ``${steps.1.a b}``, is a mistake and
fails; sent on as text it would end up in somebody's database. Any other ``${…}`` is text.
The keys of objects are never references, and a value put in is not read again.

Some tools read templates of their own, such as ``${secret.NAME}``, in their arguments. They must read
them in what the agent wrote, and never in what a reference put in: that was written by whoever a step asked.
For these tools what is put in, and what the escape stands for, is written with ``${$}`` for each dollar sign
that could begin a template. It stands so in the resolved arguments, so that recovery and approval, which
keep and compare those, tell the two apart as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, canonical
from agenttx_server.engine.records import DependencyKind, Edge, HintCategory

__all__ = ["OutputOf", "Resolution", "UnresolvedReference", "contains_reference", "resolve"]

OutputOf: TypeAlias = Callable[[int], JsonValue | Missing]
"""The output of a completed, live step; ``MISSING`` for any other step number."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Arguments with every reference replaced, and one explicit edge for each, sorted.

    ``value`` shares objects with the outputs it was taken from: whoever hands it to code
    that may change it hands over a copy (its canonical text read again).
    """

    value: JsonValue
    edges: tuple[Edge, ...]


class UnresolvedReference(Exception):
    """A reference that has no value.

    ``reference`` is its text as written, cut to 60 characters; ``message`` the hint, one line
    of at most 240 characters that begins with ``Hint: ``. ``key`` and ``producer`` are set when
    a completed step lacks what was asked for: then ``edges`` holds, beside those of the
    references before it, an explicit edge from that step under that key.
    ``category`` is ``unresolved_reference``, or ``resource_exhausted`` when the values
    put in would be too large in all.
    """

    def __init__(
        self,
        reference: str,
        message: str,
        *,
        key: str | None = None,
        producer: int | None = None,
        edges: tuple[Edge, ...] = (),
        category: HintCategory = HintCategory.UNRESOLVED_REFERENCE,
    ) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.key = key
        self.producer = producer
        self.edges = edges
        self.category = category


def contains_reference(text: str) -> bool:
    """Whether :func:`resolve` could change or refuse this text.

    ``text`` is canonical JSON or a string of it; in JSON as sent the characters may be
    escaped. False is certain, True is not.
    """
    return "${" in text


def resolve(
    arguments: JsonValue,
    *,
    step_id: int,
    first_invisible_step: int,
    output_of: OutputOf,
    max_resolved_size: int = 8 * 1024 * 1024,
    reads_templates: bool = False,
) -> Resolution:
    """Replace the references in ``arguments`` of step ``step_id`` by what they refer to.

    A string that is one reference becomes the value, of whatever type; inside a longer
    string a string is put in as it is, any other value as canonical JSON. Steps from
    ``first_invisible_step`` on (the first of the step's own group) can't be referred to.

    Each reference makes an edge: its source key is the last segment that is no number (else
    the target key), its target key the field that holds it (for items of arrays the array's
    field; for arguments that are no object, where no field holds anything, the empty key,
    which hints don't name). ``max_resolved_size`` limits, in characters of canonical JSON,
    what is put in altogether: a short text can ask for a large output many times. The
    result may be nested deeper than either part was allowed to be. ``reads_templates`` says
    that the tool reads templates, so that what is put in has to be written as data.

    Raises:
        UnresolvedReference: at the first reference, in order, that has no value.
    """
    resolver = _Resolver(step_id, first_invisible_step, output_of, max_resolved_size, reads_templates)
    return resolver.resolution(arguments)


# --- the work -----------------------------------------------------------------------------

_PLACE: Final = re.compile(
    r"\$\$\{"
    r"|\$\{steps\.(?P<step>[1-9][0-9]{0,9})(?P<path>(?:\.[A-Za-z0-9_-]+)*)\}"
    r"|\$\{\s*steps(?![A-Za-z0-9_-])[^}]{0,200}\}?"
)
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_LONGEST_QUOTE: Final = 60
# At the end too: a brace may follow in the text that it is put into.
_OPENING_DOLLAR: Final = re.compile(r"\$(?=\{|\Z)")


class _Resolver:
    def __init__(
        self,
        step_id: int,
        first_invisible_step: int,
        output_of: OutputOf,
        size_left: int,
        reads_templates: bool,
    ) -> None:
        self._written: Callable[[JsonValue], JsonValue] = _as_data if reads_templates else _as_it_is
        self._step_id = step_id
        self._first_invisible_step = first_invisible_step
        self._output_of = output_of
        self._size_left = size_left
        self._outputs: dict[int, JsonValue | Missing] = {}
        self._texts: dict[str, str] = {}
        self._edges: set[Edge] = set()

    def resolution(self, arguments: JsonValue) -> Resolution:
        return Resolution(self._resolved(arguments, ""), tuple(sorted(self._edges)))

    def _resolved(self, value: JsonValue, field: str) -> JsonValue:
        # Recursion is safe: arguments are at most 100 deep.
        if isinstance(value, str):
            return self._resolved_text(value, field) if "${" in value else value
        if isinstance(value, dict):
            return {key: self._resolved(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item, field) for item in value]
        return value

    def _resolved_text(self, text: str, field: str) -> JsonValue:
        whole = _PLACE.fullmatch(text)
        if whole and whole["step"]:
            return self._written(self._referenced(whole, field)[0])
        return _PLACE.sub(lambda place: self._inserted(place, field), text)

    def _inserted(self, place: re.Match[str], field: str) -> str:
        text = "${" if place.group() == "$${" else self._referenced(place, field)[1]
        return str(self._written(text))

    def _referenced(self, place: re.Match[str], field: str) -> tuple[JsonValue, str]:
        reference = place.group()
        if not place["step"]:
            self._fail(
                reference, f"{_quoted(reference)} is not a reference. Write ${{steps.N}} or ${{steps.N.key}}."
            )
        producer = int(place["step"])
        segments = place["path"].split(".")[1:]
        value = self._output(reference, producer)
        for depth, segment in enumerate(segments, start=1):
            member = _member(value, segment)
            if isinstance(member, Missing):
                self._fail_missing(reference, producer, segments[:depth], field)
            value = member
        self._link(producer, _source_key(segments) or field, field)
        return value, self._text(reference, value)

    def _output(self, reference: str, producer: int) -> JsonValue:
        if producer not in self._outputs:
            visible = producer < self._first_invisible_step
            self._outputs[producer] = self._output_of(producer) if visible else MISSING
        output = self._outputs[producer]
        if isinstance(output, Missing):
            self._fail(reference, f"{_quoted(reference)} {self._why_invisible(producer)}")
        return output

    def _why_invisible(self, producer: int) -> str:
        if producer == self._step_id:
            return "refers to its own step. Refer to a step that completed before it."
        if producer >= self._first_invisible_step:
            return (
                f"refers to step {producer}, and step {self._step_id} sees only steps before step "
                f"{self._first_invisible_step}. Refer to a completed one of those."
            )
        return f"refers to step {producer}, which has not completed. Refer to a completed step."

    def _text(self, reference: str, value: JsonValue) -> str:
        text = self._texts.get(reference)
        if text is None:
            text = value if isinstance(value, str) else canonical(value)
            self._texts[reference] = text
        self._size_left -= len(text)
        if self._size_left < 0:
            self._fail(
                reference,
                f"The values referred to are too large in all, at {_quoted(reference)}. Refer to smaller parts.",
                HintCategory.RESOURCE_EXHAUSTED,
            )
        return text

    def _link(self, producer: int, source_key: str, target_key: str) -> None:
        self._edges.add(Edge(producer, self._step_id, source_key, target_key, DependencyKind.EXPLICIT))

    def _fail_missing(self, reference: str, producer: int, walked: list[str], field: str) -> NoReturn:
        # The index of an array names nothing that a step could return; the array's own key does.
        key = _source_key(walked) or field or walked[-1]
        self._link(producer, key, key)
        path = _cut(".".join(walked))
        raise UnresolvedReference(
            _cut(reference),
            f"Hint: Step {producer} output has no '{path}'. "
            f"Re-run step {producer} so it returns '{path}', or fix the reference.",
            key=key,
            producer=producer,
            edges=tuple(sorted(self._edges)),
        )

    def _fail(
        self, reference: str, sentence: str, category: HintCategory = HintCategory.UNRESOLVED_REFERENCE
    ) -> NoReturn:
        raise UnresolvedReference(
            _cut(reference), f"Hint: {sentence}", edges=tuple(sorted(self._edges)), category=category
        )


def _as_it_is(value: JsonValue) -> JsonValue:
    return value


def _as_data(value: JsonValue) -> JsonValue:
    """Return a value in whose texts no template begins; keys of objects are never templates."""
    # Recursion is safe: outputs are at most 100 deep.
    if isinstance(value, str):
        return _OPENING_DOLLAR.sub("${$}", value) if "$" in value else value
    if isinstance(value, dict):
        return {key: _as_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_data(item) for item in value]
    return value


def _member(value: JsonValue, segment: str) -> JsonValue | Missing:
    if isinstance(value, dict):
        return value.get(segment, MISSING)
    if isinstance(value, list) and _INDEX.fullmatch(segment) and int(segment) < len(value):
        return value[int(segment)]
    return MISSING


def _source_key(segments: list[str]) -> str:
    return next((segment for segment in reversed(segments) if not segment.isdigit()), "")


def _quoted(reference: str) -> str:
    return f"'{_cut(reference)}'"


def _cut(text: str) -> str:
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"

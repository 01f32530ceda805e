"""A pipeline as it was sent, checked whole: what is wrong with its text, its shape and its sense."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue, ValueRefused, canonical
from agenttx_server.lineage.definition import PipelineDefinition
from agenttx_server.lineage.document import read_document, to_document
from agenttx_server.lineage.validation import KnowsTool, check_pipeline
from agenttx_server.lineage.violations import Violation, violation
from agenttx_server.lineage.yaml_text import YamlRefused, read_yaml

__all__ = ["CheckedPipeline", "SentPipeline", "check_can_run", "check_sent", "refused", "version_of"]


@dataclass(frozen=True, slots=True)
class SentPipeline:
    """A pipeline as text (YAML or JSON), or as the value of one. ``name`` is its where it has none."""

    text: str = ""
    document: JsonValue = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class CheckedPipeline:
    """What was read, and everything that is wrong with it."""

    definition: PipelineDefinition
    violations: Sequence[Violation]

    @property
    def is_valid(self) -> bool:
        """Whether it may run."""
        return all(item.is_warning for item in self.violations)


def check_sent(sent: SentPipeline, knows_tool: KnowsTool | None = None) -> CheckedPipeline:
    """Read a pipeline and check it; takes long enough for a large one to be done off the loop."""
    document = sent.document
    if sent.text:
        try:
            document = read_yaml(sent.text)
        except YamlRefused as wrong:
            found = violation("INVALID_DOCUMENT", "pipeline", wrong.message)
            return CheckedPipeline(PipelineDefinition("", ()), (found,))
    reading = read_document(document, sent.name)
    found_all = list(reading.violations)
    for item in check_pipeline(reading.definition, knows_tool):
        if item.code != "NO_ACTIONS" or not reading.lost_actions:
            found_all.append(item)
    if not any(not item.is_warning for item in found_all):
        try:
            canonical(to_document(reading.definition))
        except ValueRefused as wrong:
            found_all.append(violation("INVALID_DOCUMENT", "pipeline", str(wrong)))
    return CheckedPipeline(
        reading.definition, tuple(sorted(dict.fromkeys(found_all), key=lambda item: item.is_warning))
    )


def check_can_run(definition: PipelineDefinition) -> None:
    """Raise InvalidRequest with every violation."""
    errors = [item for item in check_pipeline(definition) if not item.is_warning]
    if errors:
        raise refused(errors)


def refused(errors: Sequence[Violation]) -> InvalidRequest:
    """The refusal of a pipeline with these errors."""
    return InvalidRequest(tuple(FieldViolation(item.where, item.message) for item in errors))


def version_of(definition: str) -> str:
    """The version of a document's canonical JSON."""
    return hashlib.sha256(definition.encode()).hexdigest()

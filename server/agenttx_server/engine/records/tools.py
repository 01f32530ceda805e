"""What a tool promises, where it runs, and what stays of it."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from agenttx_server.engine.frozen import dataclass

__all__ = ["EffectClass", "KeptEffect", "ToolDescription", "ToolLocation"]


class EffectClass(StrEnum):
    """What a tool promises about its effects outside the transaction."""

    READ_ONLY = "READ_ONLY"
    TRANSACTIONAL = "TRANSACTIONAL"
    IDEMPOTENT = "IDEMPOTENT"
    COMPENSATABLE = "COMPENSATABLE"
    IRREVERSIBLE = "IRREVERSIBLE"

    @property
    def acts_outside(self) -> bool:
        """Whether the tool may change the world, so that its intent is written ahead."""
        return self not in (EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL)


class ToolLocation(StrEnum):
    """Where a tool's code runs."""

    SERVER = "SERVER"
    WORKER = "WORKER"
    MCP = "MCP"
    HTTP = "HTTP"


@dataclass(frozen=True, slots=True)
class KeptEffect:
    """An effect that a rewind or an abort could not take back, named to the caller."""

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    reason: str
    sub_step: int = 0


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """What is known about a tool before it is called.

    ``arguments_schema`` is a JSON Schema as text; ``timeout_us`` None means the
    transaction's; ``retries`` are repeats in place (0-5) after transient failures; ``blocking``
    ones hold a thread, so nothing can interrupt them. ``needs_approval``: a person is asked before each call.
    ``restartable`` ones do all that they do outside in sub-steps, so that they may be started again from their
    first line. ``reads_templates``: what references put into its arguments is written as data (references.py).
    ``prompt`` ones have no effect but through their context and wait for nothing, so that they run in one go.
    ``emits_records``: it answers ``{"records": [...]}``, each a record of its own.
    """

    name: str
    description: str
    arguments_schema: str
    effect_class: EffectClass
    location: ToolLocation = ToolLocation.SERVER
    timeout_us: int | None = None
    retries: int = 0
    undo_names: tuple[str, ...] = field(default=())
    blocking: bool = False
    needs_approval: bool = False
    restartable: bool = False
    reads_templates: bool = False
    prompt: bool = False
    emits_records: bool = False

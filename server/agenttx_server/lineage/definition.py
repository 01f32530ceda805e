"""A pipeline as written: actions, what each depends on, and how it treats records. Frozen; nothing is checked here.

The names are the ones users write. ``source`` is the pseudo-action whose records are the ingested rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from agenttx_server.engine.json_values import JsonValue

__all__ = [
    "SOURCE",
    "Action",
    "ContextScope",
    "Granularity",
    "Guard",
    "OnEmpty",
    "OnFailedBranch",
    "OnFailure",
    "OnFalse",
    "OnMultiple",
    "PipelineDefinition",
    "Reduce",
    "TransactionScope",
    "VersionMode",
    "Versions",
]

SOURCE: Final = "source"


class OnFalse(StrEnum):
    """What a guard that does not hold does with the record."""

    SKIP = "skip"
    FILTER = "filter"
    WARN = "warn"


class Granularity(StrEnum):
    """Whether a tool gets one record a call or all records of a file."""

    RECORD = "record"
    FILE = "file"


class OnMultiple(StrEnum):
    """How branches that fanned out each are merged."""

    PRODUCT = "product"
    COLLECT = "collect"


class OnEmpty(StrEnum):
    """What an empty output for an input means."""

    FAIL = "fail"
    SKIP = "skip"
    WARN = "warn"


class OnFailedBranch(StrEnum):
    """What a record that failed upstream means: no call, or a call with that namespace null."""

    BLOCK = "block"
    CONTINUE = "continue"


class OnFailure(StrEnum):
    """What a failed call means: the record has failed, or the rollback controller decides."""

    STOP = "stop"
    ROLLBACK = "rollback"


class VersionMode(StrEnum):
    """Whether the versions of an action run side by side for an input, or one after the other."""

    PARALLEL = "parallel"
    SEQUENTIAL = "sequential"


class TransactionScope(StrEnum):
    """Whether each root with all that comes of it is a transaction, or the whole run is one."""

    ROOT = "root"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Guard:
    """``condition`` is CEL over the namespaces upstream."""

    condition: str
    on_false: OnFalse = OnFalse.FILTER


@dataclass(frozen=True, slots=True)
class Reduce:
    """Call the action once a group: ``by`` is ``root`` or a field as ``namespace.field``."""

    by: str

    @property
    def is_by_root(self) -> bool:
        """Whether a group is a root's records."""
        return self.by == "root"


@dataclass(frozen=True, slots=True)
class Versions:
    """Makes ``name_first`` … ``name_last`` of an action; ``param`` is its number's name in arguments and prompt."""

    param: str
    first: int
    last: int
    mode: VersionMode = VersionMode.PARALLEL


@dataclass(frozen=True, slots=True)
class ContextScope:
    """Fields as ``namespace.field`` or ``namespace.*``: what is seen, what is copied unseen, what is withheld.

    ``observe`` None means everything upstream.
    """

    observe: tuple[str, ...] | None = None
    passthrough: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        name: its name and that of its namespace.
        tool: the tool that is called; empty: one named like the action.
        dependencies: the actions whose records it takes; none: the ingested ones.
        arguments: the tool's arguments with ``${namespace.path}``; None: the observed namespaces.
        prompt: a Jinja template that becomes the argument ``prompt``; empty: none.
        metadata: what the tool is told besides (``kind``, ``model_vendor``).
        base: the action as written that this is a version of; empty: it is none.
        version: its number among the versions.
        after: the version that runs before this one, for ``mode: sequential``.
    """

    name: str
    tool: str = ""
    dependencies: tuple[str, ...] = ()
    arguments: Mapping[str, JsonValue] | None = None
    prompt: str = ""
    guard: Guard | None = None
    context_scope: ContextScope = ContextScope()
    granularity: Granularity = Granularity.RECORD
    reduce: Reduce | None = None
    versions: Versions | None = None
    on_multiple: OnMultiple | None = None
    on_empty: OnEmpty = OnEmpty.FAIL
    on_failed_branch: OnFailedBranch = OnFailedBranch.BLOCK
    on_failure: OnFailure = OnFailure.STOP
    timeout_us: int | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    base: str = ""
    version: int = 0
    after: str = ""

    @property
    def tool_name(self) -> str:
        """The tool that is called."""
        return self.tool or self.base or self.name

    @property
    def is_barrier(self) -> bool:
        """Whether a call may need the records of several roots."""
        return self.granularity is Granularity.FILE or (
            self.reduce is not None and not self.reduce.is_by_root
        )


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """A pipeline. ``max_concurrency`` roots run side by side; None: as many as the server says."""

    name: str
    actions: tuple[Action, ...]
    description: str = ""
    transaction: TransactionScope = TransactionScope.ROOT
    max_concurrency: int | None = None

"""Registered pipelines: checking, keeping and reading them. They are everybody's, as graphs are."""

from __future__ import annotations

import asyncio

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, NotFound
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.ports import Clock
from agenttx_server.lineage.document import to_document
from agenttx_server.lineage.expansion import expand
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.validation import KnowsTool
from agenttx_server.pipelines.checking import CheckedPipeline, SentPipeline, check_sent, refused, version_of
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import PipelineVersionPage, PipelineVersionRecord

__all__ = ["PipelineLibrary", "Registered", "Validation"]


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found; ``version`` and ``order`` of a pipeline that could run."""

    checked: CheckedPipeline
    version: str = ""
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration."""

    record: PipelineVersionRecord
    checked: CheckedPipeline
    existed: bool


class PipelineLibrary:
    """Serves what is asked about pipelines."""

    def __init__(self, store: PipelineStore, clock: Clock, knows_tool: KnowsTool) -> None:
        self._store = store
        self._clock = clock
        self._knows_tool = knows_tool

    async def validate(self, sent: SentPipeline) -> Validation:
        """Check a pipeline."""
        # Off the loop: a pipeline of many guards takes long enough to be noticed by everybody.
        return await asyncio.to_thread(self._validated, sent)

    def _validated(self, sent: SentPipeline) -> Validation:
        checked = check_sent(sent, self._knows_tool)
        if not checked.is_valid:
            return Validation(checked)
        text = canonical(to_document(checked.definition))
        return Validation(checked, version_of(text), tuple(Plan(checked.definition).order))

    async def checked(self, sent: SentPipeline) -> CheckedPipeline:
        """Check a pipeline that is to run. Raises InvalidRequest with every error."""
        checked = await asyncio.to_thread(check_sent, sent, self._knows_tool)
        if not checked.is_valid:
            raise refused([item for item in checked.violations if not item.is_warning])
        return checked

    async def register(self, sent: SentPipeline) -> Registered:
        """Keep a sound pipeline. Raises InvalidRequest with every error."""
        checked = await self.checked(sent)
        definition = checked.definition
        text = canonical(to_document(definition))
        record = PipelineVersionRecord(
            definition.name,
            version_of(text),
            0,
            self._clock.now(),
            definition.description,
            len(expand(definition.actions)),
            text,
        )
        kept, existed = await self._store.register(record)
        return Registered(kept, checked, existed)

    async def get(self, name: str, version: str) -> PipelineVersionRecord:
        """Read a version; the newest where none is named. Raises NotFound."""
        found = await self._store.find_version(name, version)
        if found is None:
            raise NotFound(
                f"there is no pipeline '{name}'" + (f" in version '{version}'" if version else ""),
                reason="PIPELINE_NOT_FOUND",
                metadata={"pipeline": name},
            )
        return found

    async def list(self, name: str, cursor: str, limit: int) -> PipelineVersionPage:
        """A page of the versions of a pipeline, or of the newest of each."""
        try:
            return await self._store.list_versions(name, cursor, limit)
        except ValueError:
            violation = FieldViolation("page_token", "was not given out for this list")
            raise InvalidRequest((violation,)) from None

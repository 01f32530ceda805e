"""Registered pipelines: checking, keeping and reading them. They are their tenant's, as graphs are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, LimitExceeded, NotFound
from agenttx_server.engine.frozen import changed, dataclass
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.ports import Clock
from agenttx_server.engine.visibility import in_tenant, name_in_tenant
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
    """Serves what is asked about pipelines. ``check_stored`` raises LimitExceeded for an owner that may store no more."""

    def __init__(
        self,
        store: PipelineStore,
        clock: Clock,
        knows_tool: Callable[[str], KnowsTool],
        check_stored: Callable[[str], None] = lambda owner: None,
    ) -> None:
        self._check_stored = check_stored
        self._store = store
        self._clock = clock
        self._knows_tool = knows_tool

    async def validate(self, owner: str, sent: SentPipeline) -> Validation:
        """Check a pipeline."""
        # Off the loop: a pipeline of many guards takes long enough to be noticed by everybody.
        return await asyncio.to_thread(self._validated, owner, sent)

    def _validated(self, owner: str, sent: SentPipeline) -> Validation:
        checked = check_sent(sent, self._knows_tool(owner))
        if not checked.is_valid:
            return Validation(checked)
        text = canonical(to_document(checked.definition))
        return Validation(checked, version_of(text), tuple(Plan(checked.definition).order))

    async def checked(self, owner: str, sent: SentPipeline) -> CheckedPipeline:
        """Check a pipeline that is to run. Raises InvalidRequest with every error."""
        checked = await asyncio.to_thread(check_sent, sent, self._knows_tool(owner))
        if not checked.is_valid:
            raise refused([item for item in checked.violations if not item.is_warning])
        return checked

    async def register(self, owner: str, sent: SentPipeline) -> Registered:
        """Keep a sound pipeline.

        Raises:
            InvalidRequest: with every error.
            LimitExceeded: the owner may store no more, and the definition isn't registered yet.
        """
        checked = await self.checked(owner, sent)
        definition = checked.definition
        text = canonical(to_document(definition))
        record = PipelineVersionRecord(
            in_tenant(owner, definition.name),
            version_of(text),
            0,
            self._clock.now(),
            definition.description,
            len(expand(definition.actions)),
            text,
        )
        try:
            self._check_stored(owner)
        except LimitExceeded:
            # Who registers at every start what is there already stores nothing.
            if await self._store.find_version(record.name, record.version) is None:
                raise
        kept, existed = await self._store.register(record)
        return Registered(_named(owner, kept), checked, existed)

    async def get(self, owner: str, name: str, version: str) -> PipelineVersionRecord:
        """Read a version; the newest where none is named. Raises NotFound."""
        found = await self._store.find_version(in_tenant(owner, name), version)
        if found is None:
            raise NotFound(
                f"there is no pipeline '{name}'" + (f" in version '{version}'" if version else ""),
                reason="PIPELINE_NOT_FOUND",
                metadata={"pipeline": name},
            )
        return _named(owner, found)

    async def list(self, owner: str, name: str, cursor: str, limit: int) -> PipelineVersionPage:
        """A page of the versions of a pipeline, or of the newest of each."""
        try:
            stored = in_tenant(owner, name) if name else ""
            page = await self._store.list_versions(stored, cursor, limit, in_tenant(owner, ""))
        except ValueError:
            violation = FieldViolation("page_token", "was not given out for this list")
            raise InvalidRequest((violation,)) from None
        return PipelineVersionPage([_named(owner, item) for item in page.versions], page.next_cursor)


def _named(owner: str, record: PipelineVersionRecord) -> PipelineVersionRecord:
    """Return a record under the name that an owner's tenant knows it by."""
    return changed(record, {"name": name_in_tenant(owner, record.name)})

"""The registered graphs: validating, registering, reading, drawing and comparing them.

Here the pure rules meet the store. Compiled graphs are kept by version, which never changes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, LimitExceeded, NotFound
from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import load
from agenttx_server.engine.ports import Clock, DuplicateRequestId
from agenttx_server.engine.recorded_answers import check_same_request, fingerprint, record_response
from agenttx_server.engine.visibility import in_tenant, name_in_tenant, tenant_of
from agenttx_server.graphs.catalog import KnownGraphs
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import Compilation, compile_graph
from agenttx_server.graphs.definition import GraphDefinition, SubgraphBinding
from agenttx_server.graphs.definition_json import from_json, to_json
from agenttx_server.graphs.diff import Change, breaking_nodes, changes_between
from agenttx_server.graphs.findings import Finding
from agenttx_server.graphs.ports import GraphPage, GraphRecord, GraphStore, RegisteredGraph
from agenttx_server.graphs.reducers import ReducerRegistry

__all__ = ["Difference", "GraphLibrary", "RegisteredGraphs", "Registration", "StoredGraph"]

KEPT_COMPILED = 256
SHORTEST_PREFIX = 8
METHOD = "RegisterGraph"


@dataclass(frozen=True, slots=True)
class Registration:
    """The answer to a registration. ``findings`` are warnings."""

    record: GraphRecord
    findings: tuple[Finding, ...]
    existed: bool


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A registered version, read."""

    record: GraphRecord
    definition: GraphDefinition
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two versions; ``to_version`` is empty for a definition that was sent.

    ``new`` is the second one compiled; None for a definition with errors.
    """

    from_version: str
    to_version: str
    changes: tuple[Change, ...]
    breaking_nodes: tuple[str, ...]
    new: CompiledGraph | None = None


class GraphLibrary:
    """Serves what is asked about graphs. Those of a tenant are all its principals', and there for nobody else.

    ``check_stored`` raises LimitExceeded for an owner that may store no more.
    """

    def __init__(
        self,
        store: GraphStore,
        clock: Clock,
        reducers: ReducerRegistry,
        check_stored: Callable[[str], None] = lambda owner: None,
    ) -> None:
        self._store = store
        self._check_stored = check_stored
        self._clock = clock
        self._reducers = reducers
        self._compiled: OrderedDict[tuple[str, str], CompiledGraph] = OrderedDict()

    async def validate(self, owner: str, definition: GraphDefinition) -> Compilation:
        """Compile a definition against what is registered."""
        catalog = await self._catalog(owner, definition)
        # Off the loop: a graph of a thousand nodes takes long enough to be noticed by everybody.
        return await asyncio.to_thread(compile_graph, definition, catalog, self._reducers)

    async def register(self, principal: str, request_id: str, definition: GraphDefinition) -> Registration:
        """Keep a sound definition.

        Raises:
            InvalidRequest: with the first error's code as reason and all of them as violations; RequestIdReused.
            LimitExceeded: the owner may store no more, and the definition isn't registered yet.
        """
        scope = f"principal:{principal}"
        identity = fingerprint(METHOD, to_json(definition))
        if request_id and (known := await self._recorded(principal, request_id, identity)):
            return known
        compilation = await self.validate(principal, definition)
        graph = compilation.graph
        if graph is None:
            raise _refusal(compilation)
        record = GraphRecord(
            name=in_tenant(principal, graph.name),
            version=graph.version,
            description=graph.definition.description,
            node_count=len(graph.nodes),
            channel_count=len(graph.channels),
            registered_at=self._clock.now(),
            definition=to_json(graph.definition, compilation.findings),
        )
        try:
            self._check_stored(principal)
        except LimitExceeded:
            # Who registers at every start what is there already stores nothing.
            if not await self._store.find_graph(record.name, record.version):
                raise
        answer = {"name": graph.name, "version": record.version}
        response = record_response(scope, request_id, METHOD, identity, answer) if request_id else None
        try:
            kept: RegisteredGraph = await self._store.register_graph(record, response)
        except DuplicateRequestId:
            known = await self._recorded(principal, request_id, identity)
            assert known is not None, "the answer that was in the way is gone"
            return known
        self._keep(principal, graph)
        return Registration(_named(principal, kept.record), compilation.findings, kept.existed)

    async def get(self, owner: str, name: str, version: str = "") -> StoredGraph:
        """Read a version: whole, by its first 8 or more characters, or the newest.

        Raises:
            NotFound: GRAPH_NOT_FOUND.
            InvalidRequest: the characters are too few, or two versions begin with them.
        """
        if version and len(version) < SHORTEST_PREFIX:
            raise _bad_version(f"has fewer than {SHORTEST_PREFIX} characters")
        found = await self._store.find_graph(in_tenant(owner, name), version)
        if not found:
            what = f"version {version} of graph '{name}'" if version else f"graph '{name}'"
            raise NotFound(
                f"{what} is not registered",
                reason="GRAPH_NOT_FOUND",
                metadata={"graph": name, "version": version},
            )
        if len(found) > 1:
            raise _bad_version("is the beginning of more than one version")
        return _stored(_named(owner, found[0]))

    async def list(self, owner: str, name: str, cursor: str, limit: int) -> GraphPage:
        """List the newest version of every graph, by name, or the versions of one, the newest first.

        Raises:
            InvalidRequest: the cursor is another's.
        """
        space = in_tenant(owner, "")
        try:
            page = await self._store.list_graphs(in_tenant(owner, name) if name else "", cursor, limit, space)
        except ValueError as error:
            raise InvalidRequest((FieldViolation("page_token", str(error)),)) from None
        return replace(page, graphs=[_named(owner, record) for record in page.graphs])

    async def compiled(self, owner: str, name: str, version: str = "") -> CompiledGraph:
        """Return a registered version, ready to run.

        Raises:
            NotFound: GRAPH_NOT_FOUND.
            InvalidRequest: this server can't run it: a reducer or an embedded graph of it isn't there any more.
        """
        tenant = tenant_of(owner)
        if (tenant, version) in self._compiled:
            self._compiled.move_to_end((tenant, version))
            return self._compiled[tenant, version]
        stored = await self.get(owner, name, version)
        if (tenant, stored.record.version) in self._compiled:
            return self._compiled[tenant, stored.record.version]
        compilation = await self.validate(owner, stored.definition)
        if compilation.graph is None:
            raise _refusal(compilation)
        self._keep(owner, compilation.graph)
        return compilation.graph

    async def diff(
        self, owner: str, name: str, from_version: str, to_version: str, sent: GraphDefinition | None = None
    ) -> Difference:
        """Compare two versions, or a version with a definition that was sent.

        Without a ``to_version`` the newest is meant; without a ``from_version`` the one before ``to``, or the newest
        where a definition was sent.

        Raises:
            NotFound: GRAPH_NOT_FOUND.
            InvalidRequest: a version is no version.
        """
        if sent is not None:
            old = await self.get(owner, name, from_version)
            return _difference(old, "", sent, (await self.validate(owner, sent)).graph)
        new = await self.get(owner, name, to_version)
        old = await self.get(owner, name, from_version) if from_version else await self._before(owner, new)
        return _difference(
            old, new.record.version, new.definition, await self._compiled_now(owner, new.record)
        )

    async def _compiled_now(self, owner: str, record: GraphRecord) -> CompiledGraph | None:
        """A version compiled; None if that can't be done any more, as where a reducer of the deployment is gone."""
        try:
            return await self.compiled(owner, record.name, record.version)
        except InvalidRequest:
            return None

    async def _before(self, owner: str, new: StoredGraph) -> StoredGraph:
        cursor = ""
        while True:
            page = await self.list(owner, new.record.name, cursor, 100)
            for record in page.graphs:
                if record.sequence < new.record.sequence:
                    return await self.get(owner, record.name, record.version)
            cursor = page.next_cursor
            if not cursor:
                return new

    async def _recorded(self, principal: str, request_id: str, identity: str) -> Registration | None:
        recorded = await self._store.find_response(f"principal:{principal}", request_id)
        if recorded is None:
            return None
        check_same_request(request_id, recorded.fingerprint, identity)
        values = load(recorded.response)
        assert isinstance(values, dict)
        stored = await self.get(principal, str(values["name"]), str(values["version"]))
        return Registration(stored.record, stored.findings, bool(values["existed"]))

    async def _catalog(self, owner: str, definition: GraphDefinition) -> KnownGraphs:
        known: dict[str, tuple[CompiledGraph, ...]] = {}
        for name, version in _embedded(definition):
            if name == definition.name:
                continue
            try:
                graph = await self.compiled(owner, name, version)
            except (NotFound, InvalidRequest):
                continue
            known[name] = (*known.get(name, ()), graph)
        return KnownGraphs(known)

    def _keep(self, owner: str, graph: CompiledGraph) -> None:
        # By tenant too: a version is the hash of a definition, and whether somebody has one is told to nobody else.
        place = tenant_of(owner), graph.version
        self._compiled[place] = graph
        self._compiled.move_to_end(place)
        while len(self._compiled) > KEPT_COMPILED:
            self._compiled.popitem(last=False)


class RegisteredGraphs:
    """The library as runs ask it (runs.ports.GraphCatalog)."""

    def __init__(self, library: GraphLibrary) -> None:
        self._library = library

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        """Return a version, "" for the newest; None if it isn't registered. Raises InvalidRequest as `compiled` does."""
        try:
            return await self._library.compiled(owner, name, version)
        except NotFound:
            return None


def _embedded(definition: GraphDefinition) -> Iterator[tuple[str, str]]:
    bindings = {
        (node.binding.graph, node.binding.version)
        for node in definition.nodes
        if isinstance(node.binding, SubgraphBinding)
    }
    # Those without a version last: of a catalog's versions the last is the newest.
    yield from sorted(bindings, key=lambda binding: (binding[0], binding[1] == "", binding[1]))


def _named(owner: str, record: GraphRecord) -> GraphRecord:
    """Return a record under the name that an owner's tenant knows it by."""
    return replace(record, name=name_in_tenant(owner, record.name))


def _stored(record: GraphRecord) -> StoredGraph:
    content = load(record.definition)
    assert isinstance(content, dict)
    findings = content.get("findings")
    assert isinstance(findings, list)
    return StoredGraph(
        record,
        from_json(record.definition),
        tuple(
            Finding(str(finding["code"]), str(finding["where"]), str(finding["message"]))
            for finding in findings
            if isinstance(finding, dict)
        ),
    )


def _difference(
    old: StoredGraph, to_version: str, new: GraphDefinition, compiled: CompiledGraph | None
) -> Difference:
    return Difference(
        old.record.version,
        to_version,
        changes_between(old.definition, new),
        breaking_nodes(old.definition, new),
        compiled,
    )


def _refusal(compilation: Compilation) -> InvalidRequest:
    first = compilation.errors[0]
    return InvalidRequest(
        tuple(
            FieldViolation(finding.where, f"{finding.code}: {finding.message}")
            for finding in compilation.errors
        ),
        reason=first.code,
        metadata={"where": first.where},
    )


def _bad_version(why: str) -> InvalidRequest:
    return InvalidRequest((FieldViolation("version", why),))

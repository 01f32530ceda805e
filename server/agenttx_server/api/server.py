"""The gRPC server: its options, its chain, its start and its orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2_grpc

from agenttx.v1 import audit_pb2, graph_pb2, lineage_pb2, tool_pb2_grpc, transaction_pb2
from agenttx_server.api.agenttx_servicer import AgentTxServicer
from agenttx_server.api.answer_sizes import AnswerSizes
from agenttx_server.api.audit_servicer import AuditServicer
from agenttx_server.api.certificate_files import CertificateFiles
from agenttx_server.api.drain_signal import DrainSignal
from agenttx_server.api.graph_event_servicer import GraphEventServicer
from agenttx_server.api.graph_library_servicer import GraphLibraryServicer
from agenttx_server.api.graph_run_servicer import GraphRunning, GraphRunServicer
from agenttx_server.api.graph_thread_servicer import GraphThreadServicer
from agenttx_server.api.health import Health
from agenttx_server.api.interceptors import (
    AccessLog,
    Admission,
    Arrivals,
    Authentication,
    CallClass,
    CallTracer,
    Deadline,
    ErrorMapping,
    Interceptor,
    InterceptorChain,
    Metrics,
    RequestContext,
    Shedding,
    Tracing,
)
from agenttx_server.api.lineage_servicer import LineageServicer
from agenttx_server.api.listeners import AddressRefused, listen
from agenttx_server.api.methods import describe
from agenttx_server.api.pipeline_servicer import PipelineRunning, PipelineServicer
from agenttx_server.api.reflection import add_reflection
from agenttx_server.api.service_handlers import handlers
from agenttx_server.api.step_rates import StepRates
from agenttx_server.api.stream_writing import StreamWriting
from agenttx_server.api.thread_names import ThreadNames
from agenttx_server.api.tool_service import ToolServicer, WorkerAccess
from agenttx_server.audit.reading import AuditTrail
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.library import GraphLibrary
from agenttx_server.graphs.runs.run_life import RunLife
from agenttx_server.listen_address import ListenAddress
from agenttx_server.pipelines.run_life import PipelineLife

if TYPE_CHECKING:
    from agenttx_server.api.certificates import RotatingCertificate

__all__ = ["AddressRefused", "ApiServer", "ApiSettings", "open_api_server"]

KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
LEAST_PING_INTERVAL_MS = 5_000
LAST_ANSWERS_SECONDS = 1.0
ROOM_FOR_ENVELOPE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What can be set about the edge. ``bounds`` are the calls of each class served at once,
    ``principal_bounds`` those of one caller (0: as many as of all), ``tenant_bounds`` those of a tenant, likewise.
    """

    address: ListenAddress
    bounds: dict[CallClass, int]
    unix_socket_mode: int = 0o660
    max_message_bytes: int = 8 << 20
    struct_output_bytes: int = 2 << 20
    call_limit_seconds: float = 3600.0
    lame_duck_seconds: float = 0.0
    stream_stall_seconds: float = 30.0
    overload_step_seconds: float = 0.0
    overload_callers: int = 0
    drain_timeout_seconds: float = 30.0
    principal_bounds: Mapping[CallClass, int] = field(default_factory=dict)
    tenant_bounds: Callable[[str], Mapping[CallClass, int]] | None = None
    rates: StepRates | None = None
    reflection: bool = True
    certificate: CertificateFiles | None = None
    shares_port: bool = False


class ApiServer:
    """A server that listens. ``address`` has the real port."""

    def __init__(
        self,
        server: grpc.aio.Server,
        coordinator: TransactionCoordinator,
        settings: ApiSettings,
        address: ListenAddress,
        chain: InterceptorChain,
        admission: Admission,
        metrics: Metrics,
        drain: DrainSignal,
        workers_end: asyncio.Event,
        health: Health,
        run_life: RunLife | None = None,
        pipeline_life: PipelineLife | None = None,
        certificate: RotatingCertificate | None = None,
    ) -> None:
        self.address = address
        self.certificate = certificate
        self.chain = chain
        self.health = health
        self.metrics = metrics
        self._server = server
        self._coordinator = coordinator
        self._settings = settings
        self.admission = admission
        self._drain = drain
        self._workers_end = workers_end
        self._run_life = run_life
        self._pipeline_life = pipeline_life
        self._log = structlog.get_logger()

    async def drain(self) -> int:
        """End in order; return how many steps were still running when the time for that was up.

        First the health service says NOT_SERVING, and for the lame duck time calls are still
        served. Then new ones are UNAVAILABLE, streams end themselves, running steps go on
        to their end, and runs of graphs to their next boundary. What runs longer than the drain timeout is left as it is, to be settled
        after the next start.
        """
        self.health.begin_drain()
        await asyncio.sleep(self._settings.lame_duck_seconds)
        self.admission.begin_drain()
        self._coordinator.begin_drain()
        self._drain.begin_drain()
        started = asyncio.get_running_loop().time()
        if self._pipeline_life is not None:
            self._pipeline_life.begin_drain()
        if self._run_life is not None:
            self._run_life.begin_drain()
            await self._run_life.drain(self._settings.drain_timeout_seconds)
        left = self._settings.drain_timeout_seconds - (asyncio.get_running_loop().time() - started)
        if self._pipeline_life is not None:
            await self._pipeline_life.drain(max(left, 0.0))
        left = self._settings.drain_timeout_seconds - (asyncio.get_running_loop().time() - started)
        running = await self._coordinator.drain(max(left, 0.0))
        # Not before: steps that ended just now may have had calls and undo actions for them.
        self._workers_end.set()
        left = self._settings.drain_timeout_seconds - (asyncio.get_running_loop().time() - started)
        try:
            async with asyncio.timeout(max(left, LAST_ANSWERS_SECONDS)):
                await self.admission.drained()
        except TimeoutError:
            self._log.warning("calls cut", calls=self.admission.in_flight)
        if running:
            self._log.warning("steps still running", steps=running)
        return running


@asynccontextmanager
async def open_api_server(
    coordinator: TransactionCoordinator,
    settings: ApiSettings,
    workers: WorkerAccess | None = None,
    graphs: GraphLibrary | None = None,
    runs: GraphRunning | None = None,
    pipelines: PipelineRunning | None = None,
    authentication: Authentication | None = None,
    tracer: CallTracer | None = None,
    trail: AuditTrail | None = None,
) -> AsyncIterator[ApiServer]:
    """Serve a coordinator, the workers that it gives calls to, and graphs, until the context is left.

    What is running then is cut off. Drain before. Without ``authentication`` everybody is anonymous, without ``tracer``
    no call is traced.

    Health says NOT_SERVING until :meth:`.Health.set_serving`.

    Raises:
        AddressRefused: in one line, why the address can't be had.
    """
    drain = DrainSignal()
    health = Health()
    metrics = Metrics()
    arrivals = Arrivals()
    shedding = Shedding(settings.overload_step_seconds, arrivals=arrivals, callers=settings.overload_callers)
    admission = Admission(settings.bounds, settings.principal_bounds, shedding, settings.tenant_bounds)
    chain = InterceptorChain(
        stages(metrics, admission, settings, health.doubt.set, authentication, tracer),
        describe,
        settings.max_message_bytes,
        arrivals,
    )
    sizes = AnswerSizes(settings.struct_output_bytes, settings.max_message_bytes - ROOM_FOR_ENVELOPE_BYTES)
    server = grpc.aio.server(interceptors=(chain,), options=_options(settings))
    arrivals.begin()
    services = transaction_pb2.DESCRIPTOR.services_by_name
    writing = StreamWriting(settings.stream_stall_seconds)
    agenttx = AgentTxServicer(coordinator, drain, sizes, writing, settings.rates, shedding)
    server.add_generic_rpc_handlers((handlers(services["AgentTxService"], agenttx),))
    if graphs is not None:
        events = None if runs is None else GraphEventServicer(runs, drain, writing, sizes.message_bytes)
        service = graph_pb2.DESCRIPTOR.services_by_name["GraphService"]
        servicers = _graph_servicers(graphs, runs, events)
        names = None if runs is None else ThreadNames(runs.reading.is_there)
        server.add_generic_rpc_handlers((handlers(service, *servicers, names=names),))
    if pipelines is not None:
        _add_pipelines(server, pipelines, drain)
    if trail is not None:
        service = audit_pb2.DESCRIPTOR.services_by_name["AuditService"]
        server.add_generic_rpc_handlers((handlers(service, AuditServicer(trail)),))
    workers_end = asyncio.Event()
    if workers is not None:
        servicer = ToolServicer(workers, workers_end)
        tool_pb2_grpc.add_ToolServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if settings.reflection:
        add_reflection(server)
    certificate = _certificate(settings.certificate)
    address, held = listen(
        server,
        settings.address,
        settings.unix_socket_mode,
        shares_port=settings.shares_port,
        credentials=None if certificate is None else certificate.credentials(),
    )
    with held:
        await server.start()
        try:
            yield ApiServer(
                server,
                coordinator,
                settings,
                address,
                chain,
                admission,
                metrics,
                drain,
                workers_end,
                health,
                None if runs is None else runs.life,
                None if pipelines is None else pipelines.life,
                certificate,
            )
        finally:
            health.close()
            # Idle after a drain, this returns at once.
            await server.stop(LAST_ANSWERS_SECONDS)


def _certificate(files: CertificateFiles | None) -> RotatingCertificate | None:
    if files is None:
        return None
    # Only now: most servers speak no TLS.
    from agenttx_server.api.certificates import CertificateRefused, RotatingCertificate

    try:
        return RotatingCertificate(files)
    except CertificateRefused as refused:
        raise AddressRefused(f"TLS can't be served: {refused}") from refused


def _add_pipelines(server: grpc.aio.Server, pipelines: PipelineRunning, drain: DrainSignal) -> None:
    services = lineage_pb2.DESCRIPTOR.services_by_name
    server.add_generic_rpc_handlers(
        (
            handlers(services["PipelineService"], PipelineServicer(pipelines, drain)),
            handlers(services["LineageService"], LineageServicer(pipelines.reading, drain)),
        )
    )


def _graph_servicers(
    graphs: GraphLibrary, runs: GraphRunning | None, events: GraphEventServicer | None
) -> list[object]:
    servicers: list[object] = [GraphLibraryServicer(graphs, None if runs is None else runs.broken)]
    if runs is not None:
        servicers += [
            GraphRunServicer(runs),
            events,
            GraphThreadServicer(runs.coordinator, runs.reading, runs.threads),
        ]
    return servicers


def stages(
    metrics: Metrics,
    admission: Admission,
    settings: ApiSettings,
    on_database_error: Callable[[], None] = lambda: None,
    authentication: Authentication | None = None,
    tracer: CallTracer | None = None,
) -> tuple[Interceptor, ...]:
    """Return the chain's stages, outermost first."""
    return (
        RequestContext(),
        *(() if tracer is None else (Tracing(tracer),)),
        AccessLog(),
        metrics,
        ErrorMapping(on_database_error),
        Deadline(settings.call_limit_seconds),
        authentication or Authentication(),
        admission,
    )


def _options(settings: ApiSettings) -> tuple[tuple[str, int], ...]:
    return (
        # Else a second server on the port would start without a word and take a share of the connections.
        ("grpc.so_reuseport", int(settings.shares_port)),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Finds dead connections under open streams; and lets clients ping as often as the SDK does.
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # What gRPC's header calls MIN_RECV_PING_INTERVAL; a name that it doesn't know is passed over in silence.
        ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_INTERVAL_MS),
    )

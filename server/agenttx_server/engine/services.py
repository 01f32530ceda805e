"""What the parts of the engine share: the ports, the limits and the settings in force."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agenttx_server.engine.change_observer import ChangeObserver
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import (
    ApprovalPolicy,
    Clock,
    EffectSink,
    IdSource,
    ToolRunner,
    TransactionStore,
)
from agenttx_server.engine.records import Hint, ServerId
from agenttx_server.engine.run_owner import CommitRecorder, RunOwner
from agenttx_server.engine.visibility import DEFAULT_TENANT, tenant_of

__all__ = ["EngineServices", "EngineSettings", "TenantPorts"]

_UNNAMED_SERVER = ServerId("server")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Durations in seconds, counts as integers; each is a setting.

    ``long_step_seconds``: a step that runs longer gets its EXECUTING row, so that others see it.
    ``stop_grace_seconds``: how long a cancelled tool may take to end before its undo starts.
    ``effect_retry_base_seconds``: the longest wait after an effect's first failed delivery; it doubles
    with each further one, up to ``effect_retry_max_seconds``, until ``effect_max_attempts`` were made.
    ``max_concurrent_deliveries``: transactions whose effects are on their way out at once.
    ``lease_seconds``: how long a server that shares its database is taken to be alive after its last word.
    ``recovery_wait_seconds``: how long a start waits for unsettled work of dead servers before it serves.
    ``idle_timeout_seconds``: after which an idle transaction that does not say otherwise is rolled back; 0 never.
    ``retention_seconds``: how long ended transactions are kept.
    """

    step_timeout_seconds: float = 30.0
    long_step_seconds: float = 1.0
    step_retries: int = 0
    retry_base_seconds: float = 0.1
    stop_grace_seconds: float = 10.0
    idempotent_reruns: int = 3
    compensation_retries: int = 3
    compensation_timeout_seconds: float = 30.0
    compensation_backoff_seconds: float = 0.2
    dispatch_wait_seconds: float = 2.0
    effect_retry_base_seconds: float = 1.0
    effect_retry_max_seconds: float = 600.0
    effect_max_attempts: int = 20
    max_concurrent_deliveries: int = 256
    cached_transactions: int = 10_000
    lease_seconds: float = 15.0
    recovery_wait_seconds: float = 7.0
    idle_timeout_seconds: float = 900.0
    retention_seconds: float = 7 * 86_400.0
    reap_interval_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class TenantPorts:
    """What each tenant has of its own."""

    tools: ToolRunner
    sink: EffectSink


@dataclass(frozen=True, slots=True)
class EngineServices:
    """The ports and settings every part of the engine works with.

    ``of_tenant`` gives the tools and the sink of a tenant other than the default one, which has ``tools`` and ``sink``;
    ``open_per_tenant`` how many open transactions one may have, 0 for any number. ``check_stored`` raises LimitExceeded for an owner
    that stores as much as it may, ``step_turn`` counts a step that a run of an owner's makes and returns what waits for its turn.
    """

    store: TransactionStore
    tools: ToolRunner
    sink: EffectSink
    clock: Clock
    ids: IdSource
    clean: Callable[[str], Hint]
    run_owner: RunOwner | None = None
    server_id: ServerId = _UNNAMED_SERVER
    limits: Limits = field(default_factory=Limits)
    settings: EngineSettings = field(default_factory=EngineSettings)
    approval_policy: ApprovalPolicy | None = None
    observer: ChangeObserver | None = None
    recorder: CommitRecorder | None = None
    of_tenant: Callable[[str], TenantPorts] | None = None
    open_per_tenant: Callable[[str], int] | None = None
    check_stored: Callable[[str], None] = lambda owner: None
    step_turn: Callable[[str], Awaitable[None] | None] = lambda owner: None

    def tools_of(self, owner: str) -> ToolRunner:
        """Return the tools that there are for an owner."""
        of_tenant = self.of_tenant
        tenant = tenant_of(owner)
        return self.tools if tenant == DEFAULT_TENANT or of_tenant is None else of_tenant(tenant).tools

    def sink_of(self, owner: str) -> EffectSink:
        """Return who delivers the effects of an owner."""
        of_tenant = self.of_tenant
        tenant = tenant_of(owner)
        return self.sink if tenant == DEFAULT_TENANT or of_tenant is None else of_tenant(tenant).sink

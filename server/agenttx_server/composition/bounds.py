"""The bounds that the settings and the tenants' rules set: of the engine, of the API, of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agenttx_server.access.tenant_rules import TenantRules
from agenttx_server.api.interceptors.call import CallClass
from agenttx_server.api.server import ApiSettings
from agenttx_server.api.step_rates import StepRates
from agenttx_server.composition.callers import certificate_of
from agenttx_server.composition.cannot_start import CannotStart
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import Policy, RejectedCalls
from agenttx_server.engine.services import EngineSettings
from agenttx_server.settings import Settings
from agenttx_server.store import SqlTransactionStore
from agenttx_server.stored_quotas import StoredQuotas
from agenttx_server.system_ports import SystemClock
from agenttx_server.worker_processes import shared_address

__all__ = ["api_settings", "engine_settings", "limits_of", "nothing_limited", "quotas_of", "rates_of"]


def limits_of(settings: Settings) -> Limits:
    """Return what a transaction may cost."""
    return Limits(
        open_transactions=settings.max_open_transactions,
        open_per_principal=settings.max_open_per_principal,
        agent_id_bytes=settings.max_agent_id_bytes,
        metadata_entries=settings.max_metadata_entries,
        metadata_value_bytes=settings.max_metadata_value_bytes,
        tool_name_bytes=settings.max_tool_name_bytes,
        arguments_bytes=settings.max_arguments_bytes,
        raw_context_bytes=settings.max_raw_context_bytes,
        output_bytes=settings.max_output_bytes,
        struct_output_bytes=settings.max_struct_output_bytes,
        constraints=settings.max_constraints,
        steps_per_transaction=settings.max_steps_per_transaction,
        group_size=settings.max_group_size,
        context_bytes=settings.max_context_bytes,
        group_output_bytes=settings.max_group_output_bytes,
        default_policy=Policy(
            max_local_depth=settings.max_local_depth,
            max_global_resets=settings.max_global_resets,
            replay_budget_factor=settings.replay_budget_factor,
            rejected_calls=RejectedCalls(settings.rejected_calls),
        ),
    )


def engine_settings(settings: Settings) -> EngineSettings:
    """Return the engine's times and numbers."""
    return EngineSettings(
        step_timeout_seconds=settings.step_timeout_seconds,
        stop_grace_seconds=settings.stop_grace_seconds,
        compensation_retries=settings.compensation_retries,
        compensation_timeout_seconds=settings.undo_timeout_seconds,
        dispatch_wait_seconds=settings.dispatch_wait_seconds,
        effect_retry_base_seconds=settings.effect_retry_base_seconds,
        effect_retry_max_seconds=settings.effect_retry_max_seconds,
        effect_max_attempts=settings.effect_max_attempts,
        max_concurrent_deliveries=settings.max_concurrent_deliveries,
        cached_transactions=settings.cached_transactions,
        lease_seconds=settings.lease_seconds,
        recovery_wait_seconds=settings.recovery_wait_seconds,
        idle_timeout_seconds=settings.idle_timeout_seconds,
        retention_seconds=settings.retention_seconds,
        reap_interval_seconds=settings.reap_interval_seconds,
    )


async def quotas_of(
    settings: Settings, rules: TenantRules, store: SqlTransactionStore, clock: SystemClock
) -> StoredQuotas | None:
    """Return what counts the bytes that are stored, None where nothing is bounded. Raises CannotStart."""
    of_principal = settings.max_stored_bytes_per_principal
    if not of_principal and not rules.limit_bytes:
        return None
    quotas = StoredQuotas(
        of_principal, lambda tenant: rules.of(tenant).max_stored_bytes, store, clock, rules.names
    )
    try:
        await quotas.learn()
    except StoreUnavailable as error:
        raise CannotStart(f"the database did not answer: {error}") from error
    return quotas


def rates_of(settings: Settings, rules: TenantRules, clock: SystemClock) -> StepRates | None:
    """Return what gives steps their turn, None where nothing is bounded."""
    of_principal = settings.max_steps_per_second_per_principal
    if not of_principal and not rules.limit_anything:
        return None
    return StepRates(
        of_principal,
        lambda tenant: rules.of(tenant).max_steps_per_second,
        clock.monotonic,
        clock.sleep,
    )


def nothing_limited(owner: str) -> None:
    """Let everything through."""
    return None


def _tenant_bounds(rules: TenantRules) -> Callable[[str], Mapping[CallClass, int]]:
    def bounds(tenant: str) -> Mapping[CallClass, int]:
        rule = rules.of(tenant)
        return {
            CallClass.STEP: rule.max_concurrent_steps,
            CallClass.STREAM: rule.max_concurrent_streams,
            CallClass.WORKER: rule.max_workers,
        }

    return bounds


def api_settings(
    settings: Settings, rules: TenantRules, rates: StepRates | None, quotas: StoredQuotas | None
) -> ApiSettings:
    """Return what the API is served with."""
    shared = shared_address()
    return ApiSettings(
        address=shared or settings.address,
        shares_port=shared is not None,
        bounds={
            CallClass.STEP: settings.max_concurrent_steps,
            CallClass.CHANGE: settings.max_concurrent_changes,
            CallClass.READ: settings.max_concurrent_reads,
            CallClass.STREAM: settings.max_concurrent_streams,
            CallClass.WORKER: settings.max_workers,
        },
        principal_bounds={
            CallClass.STEP: settings.max_concurrent_steps_per_principal,
            CallClass.STREAM: settings.max_concurrent_streams_per_principal,
            CallClass.WORKER: settings.max_workers_per_principal,
        },
        tenant_bounds=_tenant_bounds(rules) if rules.limit_anything else None,
        rates=rates,
        unix_socket_mode=settings.unix_socket_mode,
        max_message_bytes=settings.max_message_bytes,
        struct_output_bytes=settings.max_struct_output_bytes,
        call_limit_seconds=settings.call_limit_seconds,
        lame_duck_seconds=settings.lame_duck_seconds,
        stream_stall_seconds=settings.stream_stall_seconds,
        overload_step_seconds=settings.overload_step_seconds,
        overload_callers=settings.overload_callers,
        drain_timeout_seconds=settings.drain_timeout_seconds,
        reflection=settings.serves_reflection,
        certificate=certificate_of(settings),
    )

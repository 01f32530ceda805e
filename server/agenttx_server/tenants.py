"""What each tenant has of its own on a server: its workers, and the tools, functions and channels that these host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from agenttx_server.access.tenant_rules import TenantRules
from agenttx_server.engine.ports import EffectSink
from agenttx_server.engine.services import TenantPorts
from agenttx_server.engine.visibility import DEFAULT_TENANT
from agenttx_server.tool_secrets import ToolSecrets
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.hosted_tools import HostedTools, Mounted
from agenttx_server.tools.registry import ToolRegistry
from agenttx_server.tools.remote_workers import RemoteWorkers
from agenttx_server.tools.secret_references import SecretReferences
from agenttx_server.tools.tools_offered_before import ToolsOfferedBefore

__all__ = ["Tenants"]


class Tenants:
    """Makes them when they are first asked for; a tenant is known by credentials, so there are as many as those name.

    ``new_hub`` makes the hub of a tenant's workers, ``new_sink`` what delivers its effects.
    """

    def __init__(
        self,
        own_tools: ToolRegistry,
        mounted: Mounted | None,
        rules: TenantRules,
        new_hub: Callable[[], RemoteWorkers],
        new_sink: Callable[[RemoteWorkers], EffectSink],
        secrets: ToolSecrets,
        offered_before: ToolsOfferedBefore,
    ) -> None:
        self._own_tools = own_tools
        self._mounted = mounted
        self._rules = rules
        self._new_hub = new_hub
        self._new_sink = new_sink
        self._secrets = secrets
        self._offered_before = offered_before
        self._hubs: dict[str, RemoteWorkers] = {}
        self._ports: dict[str, TenantPorts] = {}
        self._functions: dict[str, HostedFunctions] = {}

    @property
    def workers(self) -> RemoteWorkers:
        """The default tenant's."""
        return self.hub_of(DEFAULT_TENANT)

    def hub_of(self, tenant: str) -> RemoteWorkers:
        """Return the hub of a tenant's workers."""
        if tenant not in self._hubs:
            self._hubs[tenant] = self._new_hub()
        return self._hubs[tenant]

    def offered(self) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the tools that each tenant's workers offer now."""
        return [(tenant, [tool.name for tool in hub.describe_all()]) for tenant, hub in self._hubs.items()]

    def ports_of(self, tenant: str) -> TenantPorts:
        """Return a tenant's tools, and who delivers its effects."""
        if tenant not in self._ports:
            hub = self.hub_of(tenant)
            secrets = SecretReferences(self._secrets, tenant) if self._secrets else None
            tools = HostedTools(
                self._own_tools,
                hub,
                self._mounted,
                self._rules.of(tenant).allows,
                secrets,
                partial(self._offered_before.was_offered, tenant),
            )
            self._ports[tenant] = TenantPorts(tools, self._new_sink(hub))
        return self._ports[tenant]

    def functions_of(self, tenant: str) -> HostedFunctions:
        """Return the functions of graphs that a tenant's workers host."""
        if tenant not in self._functions:
            self._functions[tenant] = HostedFunctions(self.hub_of(tenant))
        return self._functions[tenant]

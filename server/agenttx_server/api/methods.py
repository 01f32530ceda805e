"""What kind of call each method is."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2
from agenttx_server.api.interceptors.call import CallClass, Method

__all__ = ["AGENT_TX_SERVICE", "HEALTH_SERVICE", "REFLECTION_SERVICES", "REFLECTION_V1ALPHA", "describe"]

AGENT_TX_SERVICE: str = transaction_pb2.DESCRIPTOR.services_by_name["AgentTxService"].full_name
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", REFLECTION_V1ALPHA)

STEPS = frozenset({"ExecuteStep", "ExecuteStepGroup"})
READS = ("Get", "List", "Find", "Scan")
OTHER = Method("", "other", CallClass.READ, is_stream=True)


def _agent_tx_methods() -> dict[str, Method]:
    described = {}
    for method in transaction_pb2.DESCRIPTOR.services_by_name["AgentTxService"].methods:
        is_stream = method.client_streaming or method.server_streaming
        if is_stream:
            call_class = CallClass.STREAM
        elif method.name in STEPS:
            call_class = CallClass.STEP
        elif method.name.startswith(READS):
            call_class = CallClass.READ
        else:
            call_class = CallClass.CHANGE
        path = f"/{AGENT_TX_SERVICE}/{method.name}"
        described[path] = Method(path, method.name, call_class, is_stream)
    return described


def _other_methods() -> dict[str, Method]:
    described = {}
    for name, is_stream in (("Check", False), ("List", False), ("Watch", True)):
        path = f"/{HEALTH_SERVICE}/{name}"
        described[path] = Method(path, f"Health.{name}", CallClass.EXEMPT, is_stream)
    for service in REFLECTION_SERVICES:
        path = f"/{service}/ServerReflectionInfo"
        described[path] = Method(path, "ServerReflectionInfo", CallClass.STREAM, is_stream=True)
    return described


METHODS = _agent_tx_methods() | _other_methods()


def describe(path: str) -> Method:
    """Return what is known of the method at ``path``; all unknown ones are ``other``."""
    return METHODS.get(path, OTHER)

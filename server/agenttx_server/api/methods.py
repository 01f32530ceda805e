"""What kind of call each method is."""

from __future__ import annotations

from google.protobuf.descriptor import ServiceDescriptor

from agenttx.v1 import audit_pb2, graph_pb2, lineage_pb2, tool_pb2, transaction_pb2
from agenttx_server.access.identity import Role
from agenttx_server.api.interceptors.call import CallClass, Method
from agenttx_server.api.method_roles import METHOD_ROLES

__all__ = [
    "AGENT_TX_SERVICE",
    "AUDIT_SERVICE",
    "GRAPH_SERVICE",
    "HEALTH_SERVICE",
    "LINEAGE_SERVICE",
    "PIPELINE_SERVICE",
    "REFLECTION_SERVICES",
    "REFLECTION_V1ALPHA",
    "TOOL_SERVICE",
    "describe",
]

AUDIT_SERVICE: str = audit_pb2.DESCRIPTOR.services_by_name["AuditService"].full_name
AGENT_TX_SERVICE: str = transaction_pb2.DESCRIPTOR.services_by_name["AgentTxService"].full_name
GRAPH_SERVICE: str = graph_pb2.DESCRIPTOR.services_by_name["GraphService"].full_name
LINEAGE_SERVICE: str = lineage_pb2.DESCRIPTOR.services_by_name["LineageService"].full_name
PIPELINE_SERVICE: str = lineage_pb2.DESCRIPTOR.services_by_name["PipelineService"].full_name
TOOL_SERVICE: str = tool_pb2.DESCRIPTOR.services_by_name["ToolService"].full_name
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", REFLECTION_V1ALPHA)

STEPS = frozenset({"ExecuteStep", "ExecuteStepGroup"})
READS = ("Get", "List", "Find", "Scan", "Validate", "Export", "Diff", "Trace", "Verify")
# Its answer is UNIMPLEMENTED, for callers whose credentials are good.
OTHER = Method("", "other", CallClass.READ, is_stream=True, roles=None)
NOBODY: frozenset[Role] = frozenset()


def _methods_of(service: ServiceDescriptor) -> dict[str, Method]:
    described = {}
    for method in service.methods:
        is_stream = method.client_streaming or method.server_streaming
        if is_stream:
            call_class = CallClass.STREAM
        elif method.name in STEPS:
            call_class = CallClass.STEP
        elif method.name.startswith(READS):
            call_class = CallClass.READ
        else:
            call_class = CallClass.CHANGE
        path = f"/{service.full_name}/{method.name}"
        roles = METHOD_ROLES.get(f"{service.name}/{method.name}", NOBODY)
        described[path] = Method(path, method.name, call_class, is_stream, roles)
    return described


def _other_methods() -> dict[str, Method]:
    path = f"/{TOOL_SERVICE}/Connect"
    # A class of its own: however many agents stream steps, workers that run them get in.
    roles = METHOD_ROLES["ToolService/Connect"]
    described = {path: Method(path, "Connect", CallClass.WORKER, is_stream=True, roles=roles)}
    for name, is_stream in (("Check", False), ("List", False), ("Watch", True)):
        path = f"/{HEALTH_SERVICE}/{name}"
        described[path] = Method(path, f"Health.{name}", CallClass.EXEMPT, is_stream, roles=None)
    for service in REFLECTION_SERVICES:
        path = f"/{service}/ServerReflectionInfo"
        described[path] = Method(path, "ServerReflectionInfo", CallClass.STREAM, is_stream=True, roles=None)
    return described


METHODS = (
    _methods_of(transaction_pb2.DESCRIPTOR.services_by_name["AgentTxService"])
    | _methods_of(graph_pb2.DESCRIPTOR.services_by_name["GraphService"])
    | _methods_of(lineage_pb2.DESCRIPTOR.services_by_name["LineageService"])
    | _methods_of(lineage_pb2.DESCRIPTOR.services_by_name["PipelineService"])
    | _methods_of(audit_pb2.DESCRIPTOR.services_by_name["AuditService"])
    | _other_methods()
)


def describe(path: str) -> Method:
    """Return what is known of the method at ``path``; all unknown ones are ``other``."""
    return METHODS.get(path, OTHER)

"""What happens around every call, in this order:

request_context → tracing → access_log → metrics → error_mapping → deadline → authentication → admission

tracing is there only where traces are on.

The first is outermost: what a stage sees on the way out was settled by the ones after it.
A stage is a pair of plain functions, ``enter`` and ``leave``, and not a coroutine around the
next one: seven nested coroutines cost more than the rest of a small call.
"""

from agenttx_server.api.interceptors.access_log import AccessLog
from agenttx_server.api.interceptors.admission import Admission
from agenttx_server.api.interceptors.arrivals import Arrivals
from agenttx_server.api.interceptors.authentication import Authentication
from agenttx_server.api.interceptors.call import CallClass, Interceptor, Method, RpcCall, current_call
from agenttx_server.api.interceptors.chain import InterceptorChain
from agenttx_server.api.interceptors.deadline import Deadline
from agenttx_server.api.interceptors.error_mapping import ErrorMapping
from agenttx_server.api.interceptors.metrics import Metrics
from agenttx_server.api.interceptors.request_context import RequestContext
from agenttx_server.api.interceptors.shedding import Shedding
from agenttx_server.api.interceptors.tracing import CallTracer, Tracing

__all__ = [
    "AccessLog",
    "Admission",
    "Arrivals",
    "Authentication",
    "CallClass",
    "CallTracer",
    "Deadline",
    "ErrorMapping",
    "Interceptor",
    "InterceptorChain",
    "Method",
    "Metrics",
    "RequestContext",
    "RpcCall",
    "Shedding",
    "Tracing",
    "current_call",
]

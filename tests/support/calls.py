"""Short forms of calls over the raw stub, and what an RPC error says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agenttx.v1 import transaction_pb2 as pb

_KINDS = {
    "ErrorInfo": error_details_pb2.ErrorInfo,
    "BadRequest": error_details_pb2.BadRequest,
    "RetryInfo": error_details_pb2.RetryInfo,
}


@dataclass(frozen=True)
class Refusal:
    """An RPC error with its details taken apart."""

    code: grpc.StatusCode
    message: str
    reason: str
    domain: str
    metadata: Mapping[str, str]
    violations: Mapping[str, str]
    retry_after_seconds: float | None


async def begin(stub: Any, agent_id: str = "agent", **fields: Any) -> str:
    """Open a transaction; return its id."""
    begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id=agent_id, **fields))
    return str(begun.transaction_id)


def step_request(
    transaction_id: str, step_id: int, tool_name: str, arguments: Any = None, **fields: Any
) -> pb.ExecuteStepRequest:
    """Return a step's request; arguments as plain JSON values."""
    return pb.ExecuteStepRequest(
        transaction_id=transaction_id,
        step_id=step_id,
        tool_name=tool_name,
        arguments_json="" if arguments is None else json.dumps(arguments),
        **fields,
    )


async def step(stub: Any, *request: Any, timeout: float | None = None, **fields: Any) -> Any:
    """Run a step; return its response."""
    return await stub.ExecuteStep(step_request(*request, **fields), timeout=timeout)


async def commit(stub: Any, transaction_id: str, **fields: Any) -> Any:
    """Commit; return the response."""
    return await stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=transaction_id, **fields))


async def get(stub: Any, transaction_id: str) -> Any:
    """Read a transaction."""
    return await stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction_id))


async def wait_until_executing(stub: Any, transaction_id: str) -> None:
    """Return once a step of the transaction runs."""
    while (await get(stub, transaction_id)).status != "EXECUTING":  # noqa: ASYNC110 — it runs in the server
        await asyncio.sleep(0.005)


async def refused(call: Awaitable[Any]) -> Refusal:
    """Wait for a call that ends in an error; return the error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    status = rpc_status.from_call(error.value)  # type: ignore[arg-type]
    return refusal_of(error.value.code(), error.value.details() or "", status.details if status else ())


def refusal_of(code: grpc.StatusCode, message: str, details: Any) -> Refusal:
    """Take an error's details apart."""
    found = {}
    packed: any_pb2.Any
    for packed in details:
        name = packed.type_url.rpartition(".")[2]
        found[name] = _KINDS[name]()
        assert packed.Unpack(found[name])
    info = found.get("ErrorInfo", error_details_pb2.ErrorInfo())
    bad_request = found.get("BadRequest", error_details_pb2.BadRequest())
    retry = found.get("RetryInfo")
    return Refusal(
        code=code,
        message=message,
        reason=info.reason,
        domain=info.domain,
        metadata=dict(info.metadata),
        violations={violation.field: violation.description for violation in bad_request.field_violations},
        retry_after_seconds=retry.retry_delay.ToMilliseconds() / 1000 if retry else None,
    )

"""What both clients need to begin a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from agenttx import message_conversion as conversion
from agenttx.records import CrashPolicy, Isolation, Policy
from agenttx.sendable_text import sends_text
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import member

__all__ = ["DEFAULT_CONNECT_TIMEOUT_SECONDS", "begin_request"]

DEFAULT_CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""Long enough for a server that is just being started, short enough for a wrong port."""


@sends_text
def begin_request(
    *,
    agent_id: str,
    metadata: Mapping[str, str] | None,
    policy: Policy | None,
    isolation: Isolation | str | None,
    crash_policy: CrashPolicy | str | None,
    idle_timeout: float | timedelta | None,
    step_timeout: float | timedelta | None,
    deadline: float | timedelta | None,
    keep_records: bool,
) -> pb.BeginTransactionRequest:
    """Return the request that opens a transaction; see `Client.transaction` for what its parts mean.

    Raises:
        InvalidValue: a word, a count or a time is none that can be sent.
        TypeError: a label isn't a string.
    """
    for name, value in (metadata or {}).items():
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"metadata: {text!r} is not a string; labels are strings, names and values")
    return pb.BeginTransactionRequest(
        agent_id=agent_id,
        metadata=metadata,
        policy=conversion.policy_message(policy) if policy else None,
        request_id=new_request_id(),
        isolation=conversion.number_of(
            pb.Isolation, "ISOLATION_", member("isolation", Isolation, isolation or "UNSPECIFIED")
        ),
        crash_policy=conversion.number_of(
            pb.CrashPolicy,
            "CRASH_POLICY_",
            member("crash_policy", CrashPolicy, crash_policy or "UNSPECIFIED"),
        ),
        idle_timeout=conversion.duration("idle_timeout", idle_timeout),
        step_timeout=conversion.duration("step_timeout", step_timeout),
        deadline=conversion.duration("deadline", deadline),
        keep_records=keep_records,
    )

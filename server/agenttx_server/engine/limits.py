"""Sizes and ranges of what callers may send, and their check.

Pure. A check collects every violation, so that a caller mends a request in one go.
Sizes are bytes of UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, LimitExceeded
from agenttx_server.engine.records import Policy, StepResolution
from agenttx_server.engine.requests import (
    BeginRequest,
    DecideApprovalRequest,
    PolicyOverride,
    ResolveStepRequest,
    StepCall,
)

__all__ = [
    "Limits",
    "Violations",
    "check_acknowledgement",
    "check_begin",
    "check_call",
    "check_decision",
    "check_reason",
    "check_resolution",
    "check_step_number",
    "check_step_resolution",
    "policy_in_force",
    "utf8_size",
]

MAX_REQUEST_ID_BYTES = 128
MAX_REASON_BYTES = 4096
MAX_DECIDED_BY_BYTES = 256
MAX_METADATA_KEY_BYTES = 128
LARGEST_DURATION_US = 10 * 365 * 86_400 * 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in force, each a setting; docs/guarantees.md lists the defaults."""

    agent_id_bytes: int = 256
    metadata_entries: int = 64
    metadata_value_bytes: int = 1024
    tool_name_bytes: int = 128
    arguments_bytes: int = 1 << 20
    raw_context_bytes: int = 1 << 20
    output_bytes: int = 4 << 20
    struct_output_bytes: int = 2 << 20
    constraints: int = 32
    steps_per_transaction: int = 100_000
    group_size: int = 64
    sub_steps_per_step: int = 10_000
    context_bytes: int = 1 << 20
    group_output_bytes: int = 4 << 20
    state_key_bytes: int = 1024
    open_transactions: int = 1_000_000
    open_per_principal: int = 1_000_000
    default_policy: Policy = field(default_factory=Policy)


def utf8_size(text: str) -> int:
    """Return the bytes that a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Violations:
    """What is wrong with a request, field by field; ``found_before`` is what was found elsewhere."""

    def __init__(self, found_before: Iterable[FieldViolation] = ()) -> None:
        self.found: list[FieldViolation] = list(found_before)

    def add(self, name: str, description: str) -> None:
        """Note a violation."""
        self.found.append(FieldViolation(name, description))

    def size(self, name: str, text: str, limit: int) -> None:
        """Check a text's size."""
        actual = utf8_size(text)
        if actual > limit:
            self.add(name, f"is {actual} bytes long; the limit is {limit}")

    def plain(self, name: str, text: str, limit: int) -> None:
        """Check a short identifier: bounded, and without U+0000, which no SQL text column keeps."""
        self.size(name, text, limit)
        if "\x00" in text:
            self.add(name, "contains the character U+0000")

    def duration(self, name: str, microseconds: int | None, *, zero_allowed: bool) -> None:
        """Check a duration's range."""
        if microseconds is None:
            return
        if microseconds < 0 or (microseconds == 0 and not zero_allowed):
            self.add(name, "must be positive" if not zero_allowed else "must not be negative")
        elif microseconds > LARGEST_DURATION_US:
            self.add(name, "is longer than ten years")

    def call(self, call: StepCall, limits: Limits, prefix: str = "") -> None:
        """Check the sizes and ranges of one tool call."""
        if not call.tool_name:
            self.add(f"{prefix}tool_name", "is empty; ListTools names the tools")
        self.plain(f"{prefix}tool_name", call.tool_name, limits.tool_name_bytes)
        self.plain(f"{prefix}request_id", call.request_id, MAX_REQUEST_ID_BYTES)
        self.size(f"{prefix}arguments_json", call.arguments_json, limits.arguments_bytes)
        self.size(f"{prefix}raw_context", call.raw_context, limits.raw_context_bytes)
        self.duration(f"{prefix}timeout", call.timeout_us, zero_allowed=False)

    def compensation(self, compensation_id: str, request_id: str) -> None:
        """Check what names an undo action and a request about it."""
        self.plain("request_id", request_id, MAX_REQUEST_ID_BYTES)
        self.plain("compensation_id", compensation_id, MAX_REQUEST_ID_BYTES)
        if not compensation_id:
            self.add("compensation_id", "is empty")

    def raise_if_any(self) -> None:
        """Raise InvalidRequest with all that was found."""
        if self.found:
            raise InvalidRequest(tuple(self.found))


def _check_policy(found: Violations, policy: PolicyOverride) -> None:
    for name, value in (
        ("max_local_depth", policy.max_local_depth),
        ("max_global_resets", policy.max_global_resets),
    ):
        if value is not None and not 0 <= value <= 16:
            found.add(f"policy.{name}", f"is {value}; the range is 0 to 16")
    factor = policy.replay_budget_factor
    if factor is not None and not (math.isfinite(factor) and 0.1 <= factor <= 1000):
        found.add("policy.replay_budget_factor", f"is {factor}; the range is 0.1 to 1000")


def check_begin(request: BeginRequest, limits: Limits) -> None:
    """Raise InvalidRequest with every violation of a request to begin."""
    found = Violations()
    if not request.agent_id:
        found.add("agent_id", "is empty; name the agent that runs this transaction")
    found.plain("agent_id", request.agent_id, limits.agent_id_bytes)
    found.plain("request_id", request.request_id, MAX_REQUEST_ID_BYTES)
    if len(request.metadata) > limits.metadata_entries:
        found.add("metadata", f"has {len(request.metadata)} entries; the limit is {limits.metadata_entries}")
    for key, value in request.metadata:
        found.plain(f"metadata[{key[:64]}]", key, MAX_METADATA_KEY_BYTES)
        found.plain(f"metadata[{key[:64]}]", value, limits.metadata_value_bytes)
    _check_policy(found, request.policy)
    found.duration("idle_timeout", request.idle_timeout_us, zero_allowed=True)
    found.duration("step_timeout", request.step_timeout_us, zero_allowed=False)
    found.duration("deadline", request.deadline_us, zero_allowed=False)
    found.raise_if_any()


def check_step_resolution(request: ResolveStepRequest, limits: Limits) -> None:
    """Raise InvalidRequest with every violation of what a person says of a step."""
    found = Violations()
    found.size("output_json", request.output_json, limits.output_bytes)
    found.size("error", request.error, limits.raw_context_bytes)
    if request.output_json and request.resolution is not StepResolution.SUCCEEDED:
        found.add("output_json", "belongs to the resolution SUCCEEDED")
    if request.error and request.resolution is not StepResolution.FAILED:
        found.add("error", "belongs to the resolution FAILED")
    found.raise_if_any()


def policy_in_force(override: PolicyOverride, default: Policy) -> Policy:
    """Merge a transaction's own policy over the server's. The factor is the decimal as it was written."""
    factor = override.replay_budget_factor
    return Policy(
        max_local_depth=default.max_local_depth
        if override.max_local_depth is None
        else override.max_local_depth,
        max_global_resets=(
            default.max_global_resets if override.max_global_resets is None else override.max_global_resets
        ),
        replay_budget_factor=default.replay_budget_factor if factor is None else Decimal(repr(factor)),
        on_conflict=override.on_conflict or default.on_conflict,
        on_undo_failure=override.on_undo_failure or default.on_undo_failure,
        rejected_calls=override.rejected_calls or default.rejected_calls,
    )


def check_call(call: StepCall, limits: Limits, prefix: str = "") -> None:
    """Raise InvalidRequest for one tool call; ``prefix`` names the group member (``calls[2].``)."""
    if _is_surely_small(call, limits):
        return
    found = Violations()
    found.call(call, limits, prefix)
    found.raise_if_any()


def _is_surely_small(call: StepCall, limits: Limits) -> bool:
    """Whether nothing is wrong with a call, told at a glance: no character has more than four bytes."""
    return (
        call.timeout_us is None
        and 0 < len(call.tool_name) * 4 <= limits.tool_name_bytes
        and len(call.request_id) <= MAX_REQUEST_ID_BYTES
        and call.request_id.isascii()
        and len(call.arguments_json) * 4 <= limits.arguments_bytes
        and len(call.raw_context) * 4 <= limits.raw_context_bytes
        and "\x00" not in call.tool_name
        and "\x00" not in call.request_id
    )


def check_reason(reason: str, request_id: str) -> None:
    """Raise InvalidRequest for the texts of a rewind, a rollback or a commit."""
    found = Violations()
    found.plain("request_id", request_id, MAX_REQUEST_ID_BYTES)
    found.size("reason", reason, MAX_REASON_BYTES)
    found.raise_if_any()


def check_resolution(compensation_id: str, note: str, request_id: str) -> None:
    """Raise InvalidRequest for the texts of RetryCompensation and ResolveCompensation."""
    found = Violations()
    found.compensation(compensation_id, request_id)
    found.plain("note", note, MAX_REASON_BYTES)
    found.raise_if_any()


def check_acknowledgement(compensation_id: str, error: str, request_id: str, limits: Limits) -> None:
    """Raise InvalidRequest for the texts of AcknowledgeUndo."""
    found = Violations()
    found.compensation(compensation_id, request_id)
    found.size("error", error, limits.raw_context_bytes)
    found.raise_if_any()


def check_decision(request: DecideApprovalRequest) -> None:
    """Raise InvalidRequest for the texts of Approve and Reject."""
    found = Violations()
    found.plain("request_id", request.request_id, MAX_REQUEST_ID_BYTES)
    found.plain("approval_id", request.approval_id, MAX_REQUEST_ID_BYTES)
    if not request.approval_id:
        found.add("approval_id", "is empty; ListApprovals names those that wait")
    found.plain("decided_by", request.claimed_by, MAX_DECIDED_BY_BYTES)
    found.plain("comment", request.comment, MAX_REASON_BYTES)
    found.raise_if_any()


def check_step_number(step_id: int, size: int, limits: Limits) -> None:
    """Raise LimitExceeded when a transaction would grow past its number of steps."""
    last = step_id + size - 1
    if last > limits.steps_per_transaction:
        raise LimitExceeded(
            f"step {last} is past the limit of {limits.steps_per_transaction} steps a transaction; "
            "commit and go on in a new transaction",
            reason="STEP_LIMIT",
            metadata={"limit": str(limits.steps_per_transaction)},
        )

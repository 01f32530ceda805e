"""From request messages to what the engine is asked.

Every function raises InvalidRequest with all violations of the message.
"""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import (
    DEFAULT_PAGE,
    LONGEST_ID_BYTES,
    PageRequest,
    RequestReader,
)
from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.engine.records import (
    CrashPolicy,
    Isolation,
    OnConflict,
    OnUndoFailure,
    RejectedCalls,
    TransactionId,
    TransactionStatus,
)
from agenttx_server.engine.requests import (
    BeginRequest,
    CommitRequest,
    GroupRequest,
    PolicyOverride,
    RewindRequest,
    RollbackRequest,
    StepCall,
    StepRequest,
)

__all__ = [
    "PageRequest",
    "begin_request",
    "check_state_key",
    "commit_request",
    "graph_request",
    "group_request",
    "page_request",
    "rewind_request",
    "rollback_request",
    "root_cause_request",
    "scan_request",
    "step_request",
    "transaction_filter",
    "transaction_id_of",
    "transaction_page",
]

LONGEST_KEY_BYTES = 4096


def transaction_id_of(
    message: pb.GetTransactionRequest | pb.GetDependencyGraphRequest | pb.WatchTransactionRequest,
) -> TransactionId:
    """Return the id of a request whose other fields can't be wrong."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id)
    reader.check()
    return transaction_id


def page_request(size: int, token: str, default: int = DEFAULT_PAGE) -> PageRequest:
    """Return the page that a list without other fields asks for."""
    reader = RequestReader()
    page = reader.page(size, token, default)
    reader.check()
    return page


def begin_request(message: pb.BeginTransactionRequest, principal: str) -> BeginRequest:
    """Return what BeginTransaction asks."""
    reader = RequestReader()
    request = BeginRequest(
        agent_id=message.agent_id,
        principal=principal,
        metadata=tuple(sorted(message.metadata.items())),
        policy=_policy_override(message.policy, reader) if message.HasField("policy") else PolicyOverride(),
        request_id=message.request_id,
        isolation=reader.enumeration("isolation", Isolation, message.isolation),
        crash_policy=reader.enumeration("crash_policy", CrashPolicy, message.crash_policy),
        idle_timeout_us=reader.duration(message, "idle_timeout"),
        step_timeout_us=reader.duration(message, "step_timeout"),
        deadline_us=reader.duration(message, "deadline"),
        keep_records=message.keep_records,
    )
    reader.check()
    return request


def _policy_override(message: pb.RollbackPolicy, reader: RequestReader) -> PolicyOverride:
    return PolicyOverride(
        max_local_depth=message.max_local_depth if message.HasField("max_local_depth") else None,
        max_global_resets=message.max_global_resets if message.HasField("max_global_resets") else None,
        replay_budget_factor=(
            message.replay_budget_factor if message.HasField("replay_budget_factor") else None
        ),
        on_conflict=reader.enumeration("policy.on_conflict", OnConflict, message.on_conflict),
        on_undo_failure=reader.enumeration("policy.on_undo_failure", OnUndoFailure, message.on_undo_failure),
        rejected_calls=reader.enumeration("policy.rejected_calls", RejectedCalls, message.rejected_calls),
    )


def step_request(
    message: pb.ExecuteStepRequest,
    principal: str,
    struct_output_bytes: int,
    *,
    generation_required: bool = False,
) -> StepRequest:
    """Return what ExecuteStep asks. ``struct_output_bytes`` bounds an output that is answered as a Struct too."""
    if _is_plainly_right(message):
        return StepRequest(
            transaction_id=TransactionId(message.transaction_id),
            step_id=message.step_id,
            call=StepCall(
                tool_name=message.tool_name,
                arguments_json=message.arguments_json or "{}",
                raw_context=message.raw_context,
                request_id=message.request_id,
            ),
            generation=message.generation,
            principal=principal,
        )
    reader = RequestReader()
    generation = message.generation if message.HasField("generation") else None
    if generation_required and generation is None:
        reader.refuse("generation", "is required on a stream; the answer before gives it")
    request = StepRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        step_id=message.step_id,
        call=_step_call(message, reader, struct_output_bytes),
        generation=generation,
        principal=principal,
    )
    if reader.violations:
        reader.check()
    return request


def _is_plainly_right(message: pb.ExecuteStepRequest) -> bool:
    """Whether, at a glance, a step has nothing to be converted and nothing that could be refused here."""
    name = message.transaction_id
    return (
        0 < len(name) <= LONGEST_ID_BYTES
        and name.isascii()
        and "\0" not in name
        and message.HasField("generation")
        and not message.HasField("arguments")
        and not message.HasField("timeout")
    )


def _step_call(
    message: pb.ExecuteStepRequest | pb.GroupMember,
    reader: RequestReader,
    struct_output_bytes: int,
    prefix: str = "",
) -> StepCall:
    return StepCall(
        tool_name=message.tool_name,
        arguments_json=reader.arguments(message, prefix),
        raw_context=message.raw_context,
        request_id=message.request_id,
        timeout_us=reader.duration(message, "timeout", shown=f"{prefix}timeout"),
        output_limit_bytes=struct_output_bytes if message.HasField("arguments") else None,
    )


def group_request(
    message: pb.ExecuteStepGroupRequest, principal: str, struct_output_bytes: int
) -> GroupRequest:
    """Return what ExecuteStepGroup asks."""
    reader = RequestReader()
    if not message.members:
        reader.refuse("members", "is empty; a group has at least one member")
    request = GroupRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        step_id=message.step_id,
        calls=tuple(
            _step_call(member, reader, struct_output_bytes, f"members[{index}].")
            for index, member in enumerate(message.members)
        ),
        generation=message.generation if message.HasField("generation") else None,
        principal=principal,
    )
    reader.check()
    return request


def rewind_request(message: pb.RewindRequest, principal: str) -> RewindRequest:
    """Return what Rewind asks."""
    reader = RequestReader()
    request = RewindRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        to_step=message.to_step,
        reason=message.reason,
        dry_run=message.dry_run,
        accept_irreversible=message.accept_irreversible,
        request_id=message.request_id,
        generation=message.generation if message.HasField("generation") else None,
        principal=principal,
    )
    reader.check()
    return request


def rollback_request(message: pb.RollbackTransactionRequest, principal: str) -> RollbackRequest:
    """Return what RollbackTransaction asks."""
    reader = RequestReader()
    request = RollbackRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        to_step=message.to_step if message.HasField("to_step") else None,
        reason=message.reason,
        accept_irreversible=message.accept_irreversible,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def commit_request(message: pb.CommitTransactionRequest, principal: str) -> CommitRequest:
    """Return what CommitTransaction asks."""
    reader = RequestReader()
    request = CommitRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def transaction_filter(
    message: pb.ListTransactionsRequest, principal: str
) -> tuple[TransactionFilter, PageRequest]:
    """Return what ListTransactions asks."""
    reader = RequestReader()
    statuses = set()
    for index, word in enumerate(message.statuses):
        if word in TransactionStatus.__members__:
            statuses.add(TransactionStatus[word])
        else:
            known = ", ".join(TransactionStatus)
            reader.refuse(f"statuses[{index}]", f"is {word[:64]!r}, which is none of {known}")
    reader.name("agent_id", message.agent_id, LONGEST_KEY_BYTES)
    for key, value in message.metadata.items():
        reader.name(f"metadata[{key[:64]}]", key, LONGEST_KEY_BYTES)
        reader.name(f"metadata[{key[:64]}]", value, LONGEST_KEY_BYTES)
    which = TransactionFilter(
        principal=principal,
        statuses=frozenset(statuses),
        agent_id=message.agent_id,
        metadata=tuple(sorted(message.metadata.items())),
        created_from=reader.timestamp(message, "created_from"),
        created_to=reader.timestamp(message, "created_before"),
    )
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return which, page


def transaction_page(message: pb.ListStepsRequest) -> tuple[TransactionId, PageRequest]:
    """Return whose attempts ListSteps asks for, and which page of them."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id)
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return transaction_id, page


def graph_request(message: pb.GetDependencyGraphRequest) -> TransactionId:
    """Return whose graph is asked for, the rest of the request being in order."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id)
    if message.format not in pb.DependencyGraphFormat.values():
        reader.refuse("format", f"is {message.format}, which is no value of DependencyGraphFormat")
    if message.last_step and message.first_step > message.last_step:
        reader.refuse("first_step", f"is {message.first_step}, after last_step {message.last_step}")
    reader.check()
    return transaction_id


def root_cause_request(message: pb.FindRootCauseRequest) -> TransactionId:
    """Return whose graph is to be searched, the rest of the request being in order."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id)
    if not message.step_id:
        reader.refuse("step_id", "is 0; steps are numbered from 1")
    if not message.key:
        reader.refuse("key", "is empty")
    reader.name("key", message.key, LONGEST_KEY_BYTES)
    reader.check()
    return transaction_id


def check_state_key(namespace: str, key: str) -> None:
    """Raise InvalidRequest for a key that no state can have."""
    reader = RequestReader()
    _check_namespace(reader, namespace)
    if not key:
        reader.refuse("key", "is empty")
    reader.name("key", key, LONGEST_KEY_BYTES)
    reader.check()


def scan_request(message: pb.ScanStateRequest, namespace: str) -> PageRequest:
    """Return which page of a namespace is asked for, the rest of the request being in order."""
    reader = RequestReader()
    _check_namespace(reader, namespace)
    reader.name("prefix", message.prefix, LONGEST_KEY_BYTES)
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return page


def _check_namespace(reader: RequestReader, namespace: str) -> None:
    reader.name("namespace", namespace, LONGEST_KEY_BYTES)
    if namespace.startswith("@"):
        reader.refuse("namespace", 'begins with "@", which is reserved')
    if "/" in namespace:
        reader.refuse("namespace", 'contains "/", which ends a namespace')

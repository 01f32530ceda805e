"""A stand-in for the server, in process: just enough transaction to test a client against, and able to fail on cue.

It keeps positions, generations and request_ids as the contract says, runs plain functions as tools and records every
request. What it does on a failure is scripted by the test: the rollback controller is the real server's business.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc as services

__all__ = ["Refusal", "StubServer"]


class Refusal(Exception):
    """An RPC error to answer with."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str = "",
        message: str = "refused",
        *,
        metadata: dict[str, str] | None = None,
        retry_after: float | None = None,
        violations: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        details: list[Message] = []
        if reason:
            details.append(
                error_details_pb2.ErrorInfo(domain="agenttx", reason=reason, metadata=metadata or {})
            )
        if violations:
            request = error_details_pb2.BadRequest()
            for field, description in violations.items():
                request.field_violations.add(field=field, description=description)
            details.append(request)
        if retry_after is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(round(retry_after * 1e9))
            details.append(retry)
        self.status = status_pb2.Status(code=code.value[0], message=message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            self.status.details.append(packed)


class StubServer(services.AgentTxServiceServicer, health_pb2_grpc.HealthServicer):
    """The stub, its script and its memory."""

    def __init__(
        self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.tools: dict[str, Callable[..., Any]] = {"echo": lambda **arguments: arguments}
        self.refusals: dict[str, deque[Refusal]] = defaultdict(deque)
        """Errors to answer the next calls of an RPC with, before they have any effect."""
        self.calls: list[tuple[str, Any]] = []
        """Every request, in order, with the name of its RPC."""
        self.metadata: list[dict[str, str]] = []
        self.runs: list[tuple[int, str, dict[str, Any]]] = []
        """Every execution of a tool: step, tool, arguments."""
        self.gates: dict[str, threading.Event] = {}
        """Tools that wait for their event before they run."""
        self.events: list[event_pb2.TransactionEvent] = []
        self.watch_cuts: deque[int] = deque()
        """After how many events each next watch is cut with UNAVAILABLE."""
        self.health_status = health_pb2.HealthCheckResponse.SERVING
        self.next_step = 1
        self.generation = 1
        self.status = "ACTIVE"
        self.constraints: list[str] = []
        self.recorded: dict[str, pb.ExecuteStepResponse] = {}
        self.answers: dict[str, Message] = {}
        self.transactions_begun = 0
        self._lock = threading.RLock()
        self._log_lock = threading.Lock()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(16),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.max_receive_message_length", 8 * 1024 * 1024),
                ("grpc.max_send_message_length", 8 * 1024 * 1024),
            ],
        )
        services.add_AgentTxServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self, self._server)
        self.port: int = (
            self._server.add_secure_port(address, credentials)
            if credentials
            else self._server.add_insecure_port(address)
        )
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.stop(None).wait()

    def requests(self, rpc: str) -> list[Any]:
        """The requests of one RPC, in order."""
        return [request for name, request in self.calls if name == rpc]

    # What tools return to say how a step ends otherwise than in success.

    def rolled_back(self, to_step: int, hint: str, **fields: Any) -> pb.ExecuteStepResponse:
        return pb.ExecuteStepResponse(
            status=pb.STEP_STATUS_ROLLBACK_TRIGGERED,
            strategy=fields.pop("strategy", pb.ROLLBACK_STRATEGY_LOCAL_BACKTRACK),
            clean_hint=hint,
            rollback_to_step=to_step,
            next_step_id=to_step,
            **fields,
        )

    def aborted(self, hint: str, reason: str) -> pb.ExecuteStepResponse:
        return pb.ExecuteStepResponse(
            status=pb.STEP_STATUS_FAILED,
            strategy=pb.ROLLBACK_STRATEGY_ABORT,
            clean_hint=hint,
            abort_reason=reason,
        )

    # RPCs.

    def Check(self, request: Any, context: Any) -> Any:
        self._enter("Check", request, context)
        if request.service == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=self.health_status)

    def BeginTransaction(self, request: Any, context: Any) -> Any:
        self._enter("BeginTransaction", request, context)

        def begin() -> Message:
            self.transactions_begun += 1
            return pb.BeginTransactionResponse(
                transaction_id=f"tx-{self.transactions_begun}", next_step_id=1, generation=1
            )

        return self._once(request.request_id, begin)

    def ExecuteStep(self, request: Any, context: Any) -> Any:
        self._enter("ExecuteStep", request, context)
        return self._answered(lambda: self._step(request), context)

    def ExecuteStepGroup(self, request: Any, context: Any) -> Any:
        self._enter("ExecuteStepGroup", request, context)
        return self._answered(lambda: self._group(request), context)

    def ExecuteSteps(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for message in request_iterator:
            try:
                self._enter("ExecuteSteps", message.step, context, abort=False)
                response = pb.ExecuteStepsResponse(response=self._step(message.step))
            except Refusal as refusal:
                if refusal.status.message == "cut":
                    context.abort_with_status(rpc_status.to_status(refusal.status))
                status = refusal.status
                response = pb.ExecuteStepsResponse(
                    error=pb.StepError(code=status.code, message=status.message, details=status.details)
                )
            yield response

    def CommitTransaction(self, request: Any, context: Any) -> Any:
        self._enter("CommitTransaction", request, context)

        def commit() -> Message:
            self._require_open()
            self.status = "COMMITTED"
            return pb.CommitTransactionResponse(
                committed=True, steps_committed=self.next_step - 1, effects_dispatched=2, commit_version=9
            )

        return self._answered(lambda: self._once(request.request_id, commit), context)

    def RollbackTransaction(self, request: Any, context: Any) -> Any:
        self._enter("RollbackTransaction", request, context)

        def rollback() -> Message:
            self._require_open()
            self.status = "ROLLED_BACK"
            return pb.RollbackTransactionResponse(rolled_back=True, compensations_run=1, generation=2)

        return self._answered(lambda: self._once(request.request_id, rollback), context)

    def Rewind(self, request: Any, context: Any) -> Any:
        self._enter("Rewind", request, context)

        def rewind() -> Message:
            self._require_open()
            if request.dry_run:
                plan = pb.RewindPlan(steps_total=self.next_step - request.to_step)
                plan.steps.add(step_id=request.to_step, attempt=1, tool_name="echo")
                return pb.RewindResponse(next_step_id=self.next_step, generation=self.generation, plan=plan)
            self.next_step = request.to_step
            self.generation += 1
            return pb.RewindResponse(next_step_id=self.next_step, generation=self.generation)

        return self._answered(lambda: self._once(request.request_id, rewind), context)

    def GetTransaction(self, request: Any, context: Any) -> Any:
        self._enter("GetTransaction", request, context)
        return pb.GetTransactionResponse(
            transaction_id=request.transaction_id,
            status=self.status,
            next_step_id=self.next_step,
            generation=self.generation,
            constraints=self.constraints,
            agent_id="a",
        )

    def ListTransactions(self, request: Any, context: Any) -> Any:
        self._enter("ListTransactions", request, context)
        start = int(request.page_token or 0)
        response = pb.ListTransactionsResponse(next_page_token=str(start + 2) if start < 4 else "")
        for number in range(start, min(start + 2, 5)):
            response.transactions.add(transaction_id=f"tx-{number}", status="ACTIVE")
        return response

    def ListSteps(self, request: Any, context: Any) -> Any:
        self._enter("ListSteps", request, context)
        response = pb.ListStepsResponse()
        for number, (step, tool, arguments) in enumerate(self.runs, 1):
            if request.step_id in (0, step):
                response.attempts.add(
                    step_id=step,
                    attempt=number,
                    tool_name=tool,
                    arguments_json=json.dumps(arguments),
                    output_json=json.dumps(arguments),
                    state=pb.STEP_ATTEMPT_STATE_COMPLETED,
                )
        return response

    def WatchTransaction(self, request: Any, context: Any) -> Iterator[Any]:
        self._enter("WatchTransaction", request, context)
        cut = self.watch_cuts.popleft() if self.watch_cuts else None
        for count, event in enumerate(e for e in self.events if e.sequence >= request.from_sequence):
            if count == cut:
                break
            yield pb.WatchTransactionResponse(event=event)
        if cut is not None:
            context.abort_with_status(
                rpc_status.to_status(Refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING").status)
            )

    def GetState(self, request: Any, context: Any) -> Any:
        self._enter("GetState", request, context)
        return pb.GetStateResponse(
            entry=pb.StateEntry(
                namespace="kv",
                key=request.key,
                value_json='{"a":18446744073709551615}',
                version=3,
                found=True,
            )
        )

    # The rest.

    def _enter(self, rpc: str, request: Any, context: Any, *, abort: bool = True) -> None:
        with self._log_lock:
            copy = type(request)()
            copy.CopyFrom(request)
            self.calls.append((rpc, copy))
            self.metadata.append(dict(context.invocation_metadata()))
            refusal = self.refusals[rpc].popleft() if self.refusals[rpc] else None
        if refusal is not None:
            if not abort:
                raise refusal
            context.abort_with_status(rpc_status.to_status(refusal.status))

    def _answered(self, answer: Callable[[], Any], context: Any) -> Any:
        try:
            return answer()
        except Refusal as refusal:
            context.abort_with_status(rpc_status.to_status(refusal.status))

    def _once(self, request_id: str, make: Callable[[], Message]) -> Message:
        with self._lock:
            if request_id not in self.answers:
                self.answers[request_id] = make()
            return self.answers[request_id]

    def _step(self, request: pb.ExecuteStepRequest) -> pb.ExecuteStepResponse:
        with self._lock:
            if (recorded := self._recorded(request.request_id)) is not None:
                return recorded
            self._require_position(request.step_id, request.generation)
            response = self._run(
                request.step_id, request.tool_name, request.arguments_json, self.next_step + 1
            )
            self.recorded[request.request_id] = response
            return response

    def _group(self, request: pb.ExecuteStepGroupRequest) -> pb.ExecuteStepGroupResponse:
        with self._lock:
            answers = []
            recorded = [self._recorded(member.request_id) for member in request.members]
            if all(answer is not None for answer in recorded):
                return pb.ExecuteStepGroupResponse(responses=[a for a in recorded if a is not None])
            self._require_position(request.step_id, request.generation)
            end = request.step_id + len(request.members)
            for number, member in enumerate(request.members):
                answers.append(
                    self._run(request.step_id + number, member.tool_name, member.arguments_json, end)
                )
            failed = [a for a in answers if a.status != pb.STEP_STATUS_SUCCESS]
            for answer, member in zip(answers, request.members, strict=True):
                if failed:
                    self.next_step = failed[0].next_step_id
                    answer.next_step_id = failed[0].next_step_id
                    answer.generation = failed[0].generation
                    answer.rewound = answer.status == pb.STEP_STATUS_SUCCESS
                self.recorded[member.request_id] = answer
            return pb.ExecuteStepGroupResponse(responses=answers)

    def _run(self, step: int, tool: str, arguments_json: str, next_step: int) -> pb.ExecuteStepResponse:
        if tool in self.gates:
            self.gates[tool].wait(10)
        arguments = json.loads(arguments_json)
        self.runs.append((step, tool, arguments))
        result = self.tools[tool](**arguments)
        if isinstance(result, pb.ExecuteStepResponse):
            response = result
            if response.status in (pb.STEP_STATUS_ROLLBACK_TRIGGERED, pb.STEP_STATUS_FAILED):
                self.generation += 1
                self.next_step = response.next_step_id
                self.constraints.append(response.clean_hint)
                if response.status == pb.STEP_STATUS_FAILED:
                    self.status = "FAILED"
        else:
            response = pb.ExecuteStepResponse(
                status=pb.STEP_STATUS_SUCCESS,
                strategy=pb.ROLLBACK_STRATEGY_NONE,
                output_json=json.dumps(result),
                next_step_id=next_step,
            )
            self.next_step = next_step
        response.generation = self.generation
        response.attempt = len(self.runs)
        response.constraints[:] = self.constraints
        return response

    def _recorded(self, request_id: str) -> pb.ExecuteStepResponse | None:
        if request_id not in self.recorded:
            return None
        replay = pb.ExecuteStepResponse()
        replay.CopyFrom(self.recorded[request_id])
        replay.replayed = True
        return replay

    def _require_position(self, step: int, generation: int) -> None:
        self._require_open()
        if generation != self.generation:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "STALE_GENERATION",
                metadata={
                    "expected_generation": str(self.generation),
                    "received_generation": str(generation),
                    "expected_step": str(self.next_step),
                },
            )
        if step != self.next_step:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "STEP_OUT_OF_ORDER",
                metadata={"expected_step": str(self.next_step), "step_id": str(step)},
            )

    def _require_open(self) -> None:
        if self.status in ("COMMITTED", "ROLLED_BACK", "FAILED"):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "TRANSACTION_ENDED", metadata={"status": self.status}
            )

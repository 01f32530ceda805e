"""ExecuteSteps: the steps of one transaction on one stream, answered in order."""

from __future__ import annotations

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api import step_calls
from agenttx_server.api.answer_sizes import AnswerSizes
from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.api.error_status import is_our_fault, status_of
from agenttx_server.api.interceptors.admission import take_step
from agenttx_server.api.interceptors.call import RpcCall, RpcContext
from agenttx_server.api.interceptors.shedding import Shedding, StepStay
from agenttx_server.api.message_conversion import answers, requests
from agenttx_server.api.step_rates import StepRates
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = ["StepStream"]


class StepStream:
    """One stream. It reads a step when the one before is answered, so gRPC's flow control bounds what waits.

    A refusal is the answer to its step and the stream goes on; a fault of ours ends it.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        drain: DrainSignal,
        call: RpcCall,
        sizes: AnswerSizes,
        rates: StepRates | None = None,
        shedding: Shedding | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._drain = drain
        self._call = call
        self._scope = call.scope
        self._sizes = sizes
        self._rates = rates
        self._shedding = shedding or Shedding(0)
        self._transaction_id = ""
        self._answered = 0

    async def serve(self, context: RpcContext) -> None:
        """Answer steps until the client has closed its side."""
        with Interruptible(
            self._drain, "steps not answered may be sent again with their request_id"
        ) as waits:
            try:
                while True:
                    message = await waits.wait(context.read())
                    if message is grpc.aio.EOF:
                        return
                    await context.write(await self._answer(message.step))
                    self._answered += 1
            finally:
                self._call.note(transaction=self._transaction_id, steps=self._answered)

    async def _answer(self, step: pb.ExecuteStepRequest) -> pb.ExecuteStepsResponse:
        stay: StepStay | None = None
        try:
            stay = take_step(self._shedding, self._call.principal)
            if self._rates is not None:
                self._rates.take(self._call.principal)
            has_struct = step.HasField("arguments")
            if has_struct:
                asked = await step_calls.read_step(step, self._scope, self._sizes, generation_required=True)
            else:
                asked = requests.step_request(step, self._scope, 0, generation_required=True)
            if not self._transaction_id:
                self._transaction_id = asked.transaction_id
            elif self._transaction_id != asked.transaction_id:
                raise _another_transaction(self._transaction_id)
            answer = await self._coordinator.execute_step(asked)
            message = pb.ExecuteStepsResponse()
            if has_struct or not answers.fill_plain_success(message.response, answer):
                message.response.CopyFrom(await step_calls.answer_step(step, answer, self._sizes))
            return message
        except Exception as error:
            if is_our_fault(error):
                raise
            return pb.ExecuteStepsResponse(error=answers.step_error(status_of(error)))
        finally:
            if stay is not None:
                stay.end()


def _another_transaction(transaction_id: str) -> InvalidRequest:
    return InvalidRequest(
        (
            FieldViolation(
                "transaction_id",
                f"differs from {transaction_id}, whose steps this stream carries; open a stream a transaction",
            ),
        )
    )

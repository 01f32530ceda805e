"""AgentTxService: each method turns its request into the engine's, asks, and turns the answer back.

A handler only waits: what it asked for is finished by the coordinator whether or not the caller
stays. Methods that this class doesn't have are answered UNIMPLEMENTED (see :func:`handlers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.access.identity import ANONYMOUS
from agenttx_server.api import step_calls
from agenttx_server.api.answer_sizes import AnswerSizes, page_that_fits
from agenttx_server.api.drain_signal import DrainSignal
from agenttx_server.api.event_stream import follow_events
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.interceptors.shedding import Shedding
from agenttx_server.api.message_conversion import (
    answers,
    approvals,
    compensations,
    effects,
    history_answers,
    reported_steps,
    requests,
    settlement,
)
from agenttx_server.api.step_rates import StepRates
from agenttx_server.api.step_stream import StepStream
from agenttx_server.api.stream_writing import StreamWriting
from agenttx_server.engine import graph_rendering
from agenttx_server.engine.requests import GraphView
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = ["AgentTxServicer"]

DEFAULT_NAMESPACE = "kv"
TOOLS_PAGE = 1000

_RENDERED: Mapping[int, Callable[[GraphView], str]] = {
    pb.DEPENDENCY_GRAPH_FORMAT_MERMAID: graph_rendering.mermaid,
    pb.DEPENDENCY_GRAPH_FORMAT_DOT: graph_rendering.dot,
    pb.DEPENDENCY_GRAPH_FORMAT_JSON: graph_rendering.to_json,
}


class AgentTxServicer:
    """Serves the coordinator."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        drain: DrainSignal,
        sizes: AnswerSizes,
        writing: StreamWriting,
        rates: StepRates | None = None,
        shedding: Shedding | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._drain = drain
        self._sizes = sizes
        self._writing = writing
        self._rates = rates
        self._shedding = shedding

    # --- changing calls ---------------------------------------------------------------------

    async def BeginTransaction(
        self, request: pb.BeginTransactionRequest, context: RpcContext
    ) -> pb.BeginTransactionResponse:
        answer = await self._coordinator.begin(requests.begin_request(request, _scope()))
        return answers.begin_response(answer)

    async def ExecuteStep(
        self, request: pb.ExecuteStepRequest, context: RpcContext
    ) -> pb.ExecuteStepResponse:
        if self._rates is not None:
            self._rates.take(current_call().principal)
        asked = await step_calls.read_step(request, _scope(), self._sizes)
        return await step_calls.answer_step(request, await self._coordinator.execute_step(asked), self._sizes)

    async def ExecuteStepGroup(
        self, request: pb.ExecuteStepGroupRequest, context: RpcContext
    ) -> pb.ExecuteStepGroupResponse:
        if self._rates is not None:
            self._rates.take(current_call().principal, len(request.members))
        asked = await step_calls.read_group(request, _scope(), self._sizes)
        return await step_calls.answer_group(
            request, await self._coordinator.execute_group(asked), self._sizes
        )

    async def ExecuteSteps(
        self, request_iterator: AsyncIterator[pb.ExecuteStepsRequest], context: RpcContext
    ) -> None:
        stream = StepStream(
            self._coordinator, self._drain, current_call(), self._sizes, self._rates, self._shedding
        )
        await stream.serve(context)

    async def Rewind(self, request: pb.RewindRequest, context: RpcContext) -> pb.RewindResponse:
        asked = requests.rewind_request(request, _scope())
        return history_answers.rewind_response(asked.transaction_id, await self._coordinator.rewind(asked))

    async def RollbackTransaction(
        self, request: pb.RollbackTransactionRequest, context: RpcContext
    ) -> pb.RollbackTransactionResponse:
        answer = await self._coordinator.rollback(requests.rollback_request(request, _scope()))
        return answers.rollback_response(answer)

    async def CommitTransaction(
        self, request: pb.CommitTransactionRequest, context: RpcContext
    ) -> pb.CommitTransactionResponse:
        answer = await self._coordinator.commit(requests.commit_request(request, _scope()))
        return answers.commit_response(answer)

    async def CancelStep(self, request: pb.CancelStepRequest, context: RpcContext) -> pb.CancelStepResponse:
        asked = settlement.cancel_request(request, _scope())
        return settlement.cancel_response(await self._coordinator.cancel_step(asked))

    async def ResolveStep(
        self, request: pb.ResolveStepRequest, context: RpcContext
    ) -> pb.ResolveStepResponse:
        asked = settlement.resolve_request(request, _scope())
        return settlement.resolve_response(await self._coordinator.resolve_step(asked))

    async def RetryCompensation(
        self, request: pb.RetryCompensationRequest, context: RpcContext
    ) -> pb.RetryCompensationResponse:
        asked = compensations.retry_request(request, _scope())
        return compensations.retry_response(await self._coordinator.retry_compensation(asked))

    async def ResolveCompensation(
        self, request: pb.ResolveCompensationRequest, context: RpcContext
    ) -> pb.ResolveCompensationResponse:
        asked = compensations.resolve_request(request, _scope())
        return compensations.resolve_response(await self._coordinator.resolve_compensation(asked))

    async def ReportStep(self, request: pb.ReportStepRequest, context: RpcContext) -> pb.ReportStepResponse:
        if self._rates is not None:
            self._rates.take(current_call().principal)
        asked, refused = reported_steps.report_request(request, _scope())
        return reported_steps.report_response(await self._coordinator.report_step(asked, refused))

    async def AcknowledgeUndo(
        self, request: pb.AcknowledgeUndoRequest, context: RpcContext
    ) -> pb.AcknowledgeUndoResponse:
        asked = reported_steps.acknowledge_request(request, _scope())
        return reported_steps.acknowledge_response(await self._coordinator.acknowledge_undo(asked))

    async def RequeueEffect(
        self, request: pb.RequeueEffectRequest, context: RpcContext
    ) -> pb.RequeueEffectResponse:
        asked = effects.requeue_request(request, _scope())
        return effects.requeue_response(await self._coordinator.requeue_effect(asked))

    async def DiscardEffect(
        self, request: pb.DiscardEffectRequest, context: RpcContext
    ) -> pb.DiscardEffectResponse:
        asked = effects.discard_request(request, _scope())
        return effects.discard_response(await self._coordinator.discard_effect(asked))

    async def Approve(self, request: pb.ApproveRequest, context: RpcContext) -> pb.ApproveResponse:
        asked = approvals.approve_request(request, _scope(), _decider(request.decided_by, context))
        return approvals.approve_response(await self._coordinator.decide_approval(asked))

    async def Reject(self, request: pb.RejectRequest, context: RpcContext) -> pb.RejectResponse:
        asked = approvals.reject_request(request, _scope(), _decider(request.decided_by, context))
        return approvals.reject_response(await self._coordinator.decide_approval(asked))

    # --- reads --------------------------------------------------------------------------------

    async def GetTransaction(
        self, request: pb.GetTransactionRequest, context: RpcContext
    ) -> pb.GetTransactionResponse:
        view = await self._coordinator.get(_scope(), requests.transaction_id_of(request))
        return history_answers.transaction_response(view)

    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: RpcContext
    ) -> pb.ListTransactionsResponse:
        which, page = requests.transaction_filter(request, _scope())

        async def ask(limit: int) -> tuple[pb.ListTransactionsResponse, int]:
            found = await self._coordinator.list_transactions(which, page.cursor, limit)
            summaries = history_answers.transaction_summaries(found)
            response = pb.ListTransactionsResponse(transactions=summaries, next_page_token=found.next_cursor)
            return response, len(found.transactions)

        return await page_that_fits(ask, page.limit)

    async def ListSteps(self, request: pb.ListStepsRequest, context: RpcContext) -> pb.ListStepsResponse:
        transaction_id, page = requests.transaction_page(request)
        include_rewound = request.include_rewound if request.HasField("include_rewound") else True

        async def ask(limit: int) -> tuple[pb.ListStepsResponse, int]:
            found = await self._coordinator.list_steps(
                _scope(),
                transaction_id,
                page.cursor,
                limit,
                step_id=request.step_id or None,
                include_rewound=include_rewound,
            )
            attempts = [
                history_answers.step_attempt(attempt, rewound=rewound)
                for attempt, rewound in zip(found.attempts, found.rewound, strict=True)
            ]
            response = pb.ListStepsResponse(attempts=attempts, next_page_token=found.next_cursor)
            return response, len(attempts)

        return await page_that_fits(ask, page.limit)

    async def ListCompensations(
        self, request: pb.ListCompensationsRequest, context: RpcContext
    ) -> pb.ListCompensationsResponse:
        transaction_id, states, page = compensations.list_request(request)

        async def ask(limit: int) -> tuple[pb.ListCompensationsResponse, int]:
            found = await self._coordinator.list_compensations(
                _scope(), transaction_id, states, page.cursor, limit
            )
            return compensations.list_response(found), len(found.undo)

        return await page_that_fits(ask, page.limit)

    async def ListEffects(
        self, request: pb.ListEffectsRequest, context: RpcContext
    ) -> pb.ListEffectsResponse:
        transaction_id, states, page = effects.list_request(request)

        async def ask(limit: int) -> tuple[pb.ListEffectsResponse, int]:
            found = await self._coordinator.list_effects(
                _scope(), transaction_id, states, request.channel, page.cursor, limit
            )
            return effects.list_response(found), len(found.effects)

        return await page_that_fits(ask, page.limit)

    async def ListApprovals(
        self, request: pb.ListApprovalsRequest, context: RpcContext
    ) -> pb.ListApprovalsResponse:
        transaction_id, states, page = approvals.list_request(request)

        async def ask(limit: int) -> tuple[pb.ListApprovalsResponse, int]:
            found = await self._coordinator.list_approvals(
                _scope(), transaction_id, states, page.cursor, limit
            )
            return approvals.list_response(found), len(found.approvals)

        return await page_that_fits(ask, page.limit)

    async def GetDependencyGraph(
        self, request: pb.GetDependencyGraphRequest, context: RpcContext
    ) -> pb.GetDependencyGraphResponse:
        transaction_id = requests.graph_request(request)
        whole = await self._coordinator.graph(_scope(), transaction_id)
        graph = _between(whole, request.first_step, request.last_step)
        # Off the event loop: a graph of a hundred thousand steps takes long enough to be noticed by everybody.
        return await asyncio.to_thread(_drawn, graph, request.format)

    async def FindRootCause(
        self, request: pb.FindRootCauseRequest, context: RpcContext
    ) -> pb.FindRootCauseResponse:
        transaction_id = requests.root_cause_request(request)
        cause = await self._coordinator.find_root_cause(
            _scope(), transaction_id, request.step_id, request.key
        )
        return answers.root_cause_response(cause)

    async def ListTools(self, request: pb.ListToolsRequest, context: RpcContext) -> pb.ListToolsResponse:
        page = requests.page_request(request.page_size, request.page_token, TOOLS_PAGE)
        # A page token is the last name of the page before: tools may come and go in between.
        tools = [
            tool
            for tool in self._coordinator.describe_tools(current_call().principal)
            if tool.name > page.cursor
        ]

        async def ask(limit: int) -> tuple[pb.ListToolsResponse, int]:
            shown = tools[:limit]
            response = pb.ListToolsResponse(
                tools=map(answers.tool_description, shown),
                next_page_token=shown[-1].name if len(tools) > len(shown) else "",
            )
            return response, len(shown)

        return await page_that_fits(ask, page.limit)

    async def GetState(self, request: pb.GetStateRequest, context: RpcContext) -> pb.GetStateResponse:
        namespace = request.namespace or DEFAULT_NAMESPACE
        requests.check_state_key(namespace, request.key)
        entry = await self._coordinator.read_committed(current_call().principal, f"{namespace}/{request.key}")
        return pb.GetStateResponse(entry=history_answers.state_entry(namespace, entry))

    async def ScanState(self, request: pb.ScanStateRequest, context: RpcContext) -> pb.ScanStateResponse:
        namespace = request.namespace or DEFAULT_NAMESPACE
        page = requests.scan_request(request, namespace)

        async def ask(limit: int) -> tuple[pb.ScanStateResponse, int]:
            prefix = f"{namespace}/{request.prefix}"
            found = await self._coordinator.scan_committed(
                current_call().principal, prefix, page.cursor, limit
            )
            entries = [history_answers.state_entry(namespace, entry) for entry in found.entries]
            response = pb.ScanStateResponse(entries=entries, next_page_token=found.next_cursor)
            return response, len(entries)

        return await page_that_fits(ask, page.limit)

    async def WatchTransaction(self, request: pb.WatchTransactionRequest, context: RpcContext) -> None:
        transaction_id = requests.transaction_id_of(request)
        events = follow_events(
            self._coordinator, self._drain, _scope(), transaction_id, request.from_sequence
        )
        async with aclosing(events):
            async for event, waits in events:
                message = pb.WatchTransactionResponse(event=answers.transaction_event(transaction_id, event))
                await self._writing.write(context, waits, message, {"last_sequence": str(event.sequence - 1)})


def _decider(named: str, context: RpcContext) -> str:
    """Who decides: the caller, whatever the request says; where nobody is known, whom it names or where it came from."""
    call = current_call()
    return named or str(context.peer()) if call.identity is ANONYMOUS else call.principal


def _scope() -> str:
    return current_call().scope


def _between(graph: GraphView, first_step: int, last_step: int) -> GraphView:
    if not first_step and not last_step:
        return graph
    wanted = range(first_step, (last_step or 2**32) + 1)
    return GraphView(
        nodes=tuple(node for node in graph.nodes if node.step_id in wanted),
        edges=tuple(edge for edge in graph.edges if edge.from_step in wanted and edge.to_step in wanted),
    )


def _drawn(graph: GraphView, form: int) -> pb.GetDependencyGraphResponse:
    render = _RENDERED.get(form)
    if render is not None:
        return pb.GetDependencyGraphResponse(text=render(graph))
    return answers.graph_response(graph)

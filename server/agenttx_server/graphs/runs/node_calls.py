"""From a task to the step that carries it out, and from the step's output to the node's answer."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.engine.ports import AdoptedStep, StepFunction, StepWaits, ToolContext, ToolFailure
from agenttx_server.engine.records import HintCategory, TransactionId
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import (
    FunctionBinding,
    FunctionRouter,
    Node,
    NothingBinding,
    ToolBinding,
)
from agenttx_server.graphs.errors import InvalidNodeResult
from agenttx_server.graphs.fold import ChannelOrigin
from agenttx_server.graphs.node_results import read_result
from agenttx_server.graphs.runs.position import Position
from agenttx_server.graphs.runs.records import InterruptRecord, TaskRecord
from agenttx_server.graphs.runs.step_port import FunctionReport, NodeFunctions, StepEdge, StepMember
from agenttx_server.graphs.templates import TemplateUnresolved, at_path, channels_read, fill, output_path

__all__ = ["answer_of", "function_arguments", "functions_of", "member_of", "sketched_member"]


def sketched_member(graph: CompiledGraph, task: TaskRecord) -> StepMember:
    """The step of a task as far as a group must know it to be opened: what tool it calls, or that it calls none."""
    binding = graph.nodes[task.node].binding
    if isinstance(binding, ToolBinding):
        return StepMember(binding.tool)
    return StepMember(task.node, function=_not_given)


async def _not_given(arguments: JsonValue, context: ToolContext) -> str:
    raise AssertionError("the step was not given before it was run")


def member_of(
    graph: CompiledGraph,
    task: TaskRecord,
    position: Position,
    constraints: tuple[str, ...],
    functions: NodeFunctions,
    answered: Sequence[InterruptRecord] = (),
    remaining_steps: int = 0,
) -> StepMember:
    """The step of a task. What the node sees is a copy: it shares nothing with the state."""
    node = graph.nodes[task.node]
    match node.binding:
        case ToolBinding() as binding:
            edges = _edges(position, list(channels_read(dict(binding.arguments))))
            arg = MISSING if task.arg is None else load(task.arg)
            try:
                filled = fill(dict(binding.arguments), state=position.state, arg=arg, constraints=constraints)
            except TemplateUnresolved as error:
                return StepMember(task.node, edges=edges, function=_refusing(error))
            return StepMember(binding.tool, canonical(filled), edges, timeout_us=node.run_timeout_us)
        case FunctionBinding(function):
            arguments = function_arguments(task, position, constraints, answered, remaining_steps, node.reads)
            edges = _edges(position, [(name, (), name) for name in node.reads])
            report = FunctionReport()

            def learned() -> tuple[StepEdge, ...]:
                # What it may read is what it declares; else it depends on what it looked at.
                return edges if node.reads else _edges(position, [(name, (), name) for name in report.reads])

            # The step keeps where its state is, and not the state.
            kept: dict[str, JsonValue] = {"superstep": task.superstep, "checkpoint": position.told_number}
            if task.arg is not None:
                kept["arg"] = load(task.arg)
            return StepMember(
                task.node,
                canonical(kept),
                edges,
                _calling(functions, function, arguments, report, node.idle_timeout_us),
                node.run_timeout_us,
                None if task.adopts is None else AdoptedStep(TransactionId(task.adopts[0]), task.adopts[1]),
                report,
                learned,
                partial(_until_hosted, functions, function),
            )
        case _:
            assert isinstance(node.binding, NothingBinding), "embedded graphs are run by subgraph_run"
            return StepMember(task.node, function=_nothing)


def function_arguments(
    task: TaskRecord,
    position: Position,
    constraints: tuple[str, ...],
    answered: Sequence[InterruptRecord],
    remaining_steps: int,
    reads: Sequence[str] = (),
) -> str:
    """What a worker's function is told: state, arg, constraints, and the answers to what it asked before.

    Of the state it is told the channels that its node declares to read, all where it declares none.
    """
    state = position.state
    told: dict[str, JsonValue] = {
        "state": {name: state[name] for name in reads if name in state} if reads else dict(state),
        "constraints": list(constraints),
        "remaining_steps": remaining_steps,
    }
    if answered:
        told["answers"] = [
            {"asked": item.payload_hash, "value": load(item.answer or "null")} for item in answered
        ]
    if task.arg is not None:
        told["arg"] = load(task.arg)
    return canonical(told)


def functions_of(graph: CompiledGraph) -> dict[str, str]:
    """The functions that workers are to host for a graph and those it embeds, each with a node that needs it."""
    routers = {
        edge.router.function: node
        for node, edge in graph.conditional_of.items()
        if isinstance(edge.router, FunctionRouter)
    }
    inside: dict[str, str] = {}
    for child in graph.subgraphs.values():
        inside |= functions_of(child)
    own = {
        node.binding.function: node.name
        for node in graph.definition.nodes
        if isinstance(node.binding, FunctionBinding)
    }
    return inside | routers | own


def answer_of(node: Node, output: str) -> str:
    """The node's answer, as JSON: its step's output, or what its binding takes of it.

    Raises:
        InvalidNodeResult: a part that a channel is to get isn't there.
    """
    if not isinstance(node.binding, ToolBinding) or not node.binding.output:
        return output
    result = load(output)
    update: dict[str, JsonValue] = {}
    for channel, template in node.binding.output.items():
        value = at_path(result, output_path(template) or ())
        if value is MISSING:
            raise InvalidNodeResult(f"{template}, for channel '{channel}', isn't in what the tool answered")
        update[channel] = value
    return canonical(update)


def _edges(position: Position, reads: Sequence[tuple[str, tuple[str, ...], str]]) -> tuple[StepEdge, ...]:
    edges: dict[StepEdge, None] = {}
    for channel, path, target in reads:
        origin = position.origins.get(channel)
        from_step = None if origin is None else _origin_at(origin, path)
        if from_step is not None:
            edges.setdefault(StepEdge(from_step, path[-1] if path else channel, target))
    return tuple(edges)


def _origin_at(origin: ChannelOrigin, path: tuple[str, ...]) -> int | None:
    if path and path[0].isdecimal() and origin.elements is not None and int(path[0]) < len(origin.elements):
        return origin.elements[int(path[0])]
    return origin.last


def _refusing(error: TemplateUnresolved) -> StepFunction:
    async def refuse(arguments: Any, context: ToolContext) -> Any:
        raise ToolFailure(HintCategory.MISSING_KEY, str(error), (error.key,))

    return refuse


async def _nothing(arguments: Any, context: ToolContext) -> Any:
    return None


def _until_hosted(functions: NodeFunctions, function: str) -> Awaitable[None] | None:
    return None if functions.is_hosted(function) else functions.until_hosted(function)


def _calling(
    functions: NodeFunctions, function: str, arguments: str, report: FunctionReport, idle_us: int | None
) -> StepFunction:
    idle_seconds = None if idle_us is None else idle_us / 1_000_000

    async def call(kept: Any, context: ToolContext) -> Any:
        report.clear()
        answer = load(await functions.call(function, arguments, context, report, idle_seconds))
        try:
            result = read_result(answer)
        except InvalidNodeResult as error:
            raise ToolFailure(HintCategory.INVALID_VALUE, error.message) from error
        if result.interrupt is not MISSING:
            raise StepWaits(result.interrupt)
        return answer

    return call

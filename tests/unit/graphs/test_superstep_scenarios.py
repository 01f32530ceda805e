"""Scenarios about order, routing and joins, run superstep by superstep without a server: X…, R…, D6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW, SUM, PlainRun, compiled, definition, goto, send

from agenttx_server.engine.json_values import MISSING, JsonValue
from agenttx_server.graphs.boundary import first_work, next_work
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    Channel,
    ConditionalEdge,
    ExpressionRouter,
    FunctionRouter,
    PathRouter,
    Route,
)
from agenttx_server.graphs.errors import InvalidNodeResult, RouteError
from agenttx_server.graphs.fold import TaskWrites, fold
from agenttx_server.graphs.joins import JoinRound
from agenttx_server.graphs.node_results import NodeResult, Target, read_result
from agenttx_server.graphs.routing import FinishedTask, needs_router_call
from agenttx_server.graphs.tasks import (
    Activation,
    Task,
    child_namespace,
    collapse,
    interrupt_id,
    order_tasks,
    task_id,
)


def logs(*names: str) -> dict[str, JsonValue]:
    return {name: {"log": [name]} for name in names}


def adds(**numbers: int) -> dict[str, JsonValue]:
    return {name: {"value": number} for name, number in numbers.items()}


def test_x1_a_node_sees_what_the_one_before_wrote() -> None:
    graph = compiled("START->inc, inc->double", channels=(*SUM, *APP))
    run = PlainRun(
        graph,
        {
            "inc": {"value": 1, "log": ["+1"]},
            "double": lambda state, arg: {"value": state["value"], "log": [f"+{state['value']}"]},
        },
        {"value": 0},
    ).finish()

    assert run.state == {"value": 2, "log": ["+1", "+1"]}
    assert run.superstep == 2
    assert run.visited == ["inc", "double"]


def test_x2_a_router_decides() -> None:
    whole = definition("START->start, start?->{even: even, odd: odd}", channels=OW)
    router = ExpressionRouter("state.value % 2 == 0 ? 'even' : 'odd'")
    whole = replace(whole, conditional_edges=(replace(whole.conditional_edges[0], router=router),))
    graph = compile_graph(whole).graph
    assert graph is not None

    run = PlainRun(graph, {"start": {"value": 0}, "even": {"value": 100}}).finish()

    assert run.state["value"] == 100
    assert run.visited == ["start", "even"]


@pytest.mark.parametrize("text", ["START->loop, loop->loop", "START->loop, loop=>[loop]"], ids=["X4", "X5"])
def test_a_loop_has_work_for_ever(text: str) -> None:
    graph = compiled(text)
    run = PlainRun(graph, {"loop": goto("loop") if "=>" in text else None}).finish(limit=3)

    assert run.visited == ["loop"] * 3
    assert not run.work.is_done


def test_x6_a_chain_is_done_at_its_limit() -> None:
    run = PlainRun(compiled("START->a, a->b, b->c", channels=SUM), adds(a=1, b=1, c=1)).finish(limit=3)

    assert run.work.is_done
    assert [state.get("value") for state in run.states] == [None, 1, 2, 3]


def test_x11_updates_fold_in_task_order_and_the_join_runs_once() -> None:
    graph = compiled("START->super, super=>[a, b, c], a->join, b->join, c->join", channels=(*SUM, *APP))
    answers = {
        "super": goto("a", "b", "c"),
        **{name: {"value": value, "log": [value]} for name, value in (("a", 1), ("b", 2), ("c", 4))},
        "join": lambda state, arg: {"log": [f"saw {state['value']}"]},
    }
    run = PlainRun(graph, answers).finish()

    assert run.state == {"value": 7, "log": [1, 2, 4, "saw 7"]}
    assert run.superstep == 3
    assert run.visited == ["super", "a", "b", "c", "join"]


def test_x14_start_edges_are_in_order_of_declaration() -> None:
    run = PlainRun(compiled("START->b, START->a, START->Z", channels=APP), logs("a", "b", "Z")).finish()

    assert run.state["log"] == ["b", "a", "Z"]


def test_x15_sends_run_once_each() -> None:
    graph = compiled("START->dispatch, dispatch=>[worker]", channels=SUM)
    run = PlainRun(
        graph,
        {
            "dispatch": goto(*(send("worker", number) for number in (10, 20, 30))),
            "worker": lambda state, arg: {"value": arg},
        },
    ).finish()

    assert run.state["value"] == 60
    assert run.visited.count("worker") == 3


def test_x16_each_send_goes_its_own_way() -> None:
    graph = compiled("START->d, d=>[worker], worker=>[sink_a, sink_b]", channels=SUM)
    run = PlainRun(
        graph,
        {
            "d": goto(send("worker", 1), send("worker", 2)),
            "worker": lambda state, arg: goto("sink_a" if arg == 1 else "sink_b"),
            **adds(sink_a=10, sink_b=20),
        },
    ).finish()

    assert run.state["value"] == 30


def with_router(text: str, source: str, function: str = "route", **options: Any) -> Any:
    whole = definition(text, **options)
    edge = ConditionalEdge(source, FunctionRouter(function))
    graph = compile_graph(replace(whole, conditional_edges=(*whole.conditional_edges, edge))).graph
    assert graph is not None
    return graph


def test_x17_sends_of_a_router_and_what_follows_collapses() -> None:
    graph = with_router("START->n1, n2->n3", "n1", channels=APP)
    run = PlainRun(graph, logs("n1", "n2", "n3"), {"log": ["0"]})
    (task,) = order_tasks("run", "", 1, run.work.activations)
    asked = FinishedTask(task, read_result({"log": ["n1"]}))
    assert needs_router_call(graph, asked) == "route"
    answered = replace(asked, router_answer=[send("n2", 1), send("n2", 2)])
    assert needs_router_call(graph, answered) is None

    state = fold(graph, run.state, [TaskWrites("n1", ({"log": ["n1"]},))]).state
    run.work, run.state = next_work(graph, run.work, state, [answered]), state
    run.finish()

    assert run.state["log"] == ["0", "n1", "n2", "n2", "n3"]


def test_x19_a_join_waits_for_the_longer_branch() -> None:
    graph = compiled("START->start, start=>[p1, inter], inter->p2, [p1, p2]|>join", channels=SUM)
    run = PlainRun(graph, {"start": goto("p1", "inter"), **adds(p1=1, inter=1, p2=1, join=10)}).finish()

    assert run.state["value"] == 13
    assert run.visited[-1] == "join"
    assert run.visited.count("join") == 1


def test_x20_without_a_join_it_runs_twice() -> None:
    graph = compiled("START->start, start=>[p1, inter], inter->p2, p1->join, p2->join", channels=SUM)
    run = PlainRun(graph, {"start": goto("p1", "inter"), **adds(p1=1, inter=1, p2=1, join=10)}).finish()

    assert run.state["value"] == 23


SKIPPED = "START->start, start=>[condition, c], condition?->{go: a, skip: END}, [a, c]|SKIP>m"


def test_x21_a_member_that_nothing_reaches_is_not_waited_for() -> None:
    graph = compiled(SKIPPED, channels=APP)
    answers = {"start": goto("condition", "c"), **logs("condition", "c", "m", "a")}

    run = PlainRun(graph, answers, {"route": "skip"}).finish()
    gone = PlainRun(graph, answers, {"route": "go"}).finish()

    assert run.state["log"] == ["condition", "c", "m"]
    assert gone.state["log"] == ["condition", "c", "a", "m"]


def test_x22_a_join_that_starves() -> None:
    graph = compiled(SKIPPED.replace("|SKIP>", "|>"), channels=APP)

    with pytest.raises(RouteError, match="'m' still waits for a") as error:
        PlainRun(graph, {"start": goto("condition", "c")}, {"route": "skip"}).finish()

    assert error.value.reason == "STARVED_JOIN"
    assert error.value.metadata == {"node": "m", "missing": "a"}


DOCS = {
    "r1": {"log": ["doc1", "doc2"]},
    "r2": {"log": ["doc3", "doc4"]},
    "qa": lambda state, arg: {"seen": [len(state.get("log", []))]},
}
SEEN = (*APP, Channel("seen", reducer="append"))


def test_x24_a_deferred_node_runs_last_and_once() -> None:
    graph = compiled(
        "START->r1, START->mid, mid->r2, r1->qa, r2->qa", channels=SEEN, nodes={"qa": {"deferred": True}}
    )
    run = PlainRun(graph, DOCS).finish()

    assert run.state["seen"] == [4]
    assert run.visited == ["r1", "mid", "r2", "qa"]


def test_x25_an_edge_and_a_join_are_two_ways() -> None:
    graph = compiled("START->rewrite, rewrite->r1, rewrite->r2, rewrite->qa, [r1, r2]|>qa", channels=SEEN)

    assert PlainRun(graph, DOCS).finish().state["seen"] == [0, 4]


def test_x31_later_supersteps_win() -> None:
    run = PlainRun(compiled("START->a, a->b", channels=OW), {"a": {"value": 1}, "b": {"value": 2}}).finish()

    assert run.state["value"] == 2


@pytest.mark.parametrize("answer", ["text", 1, True, ["text"], [[{}]], {"__command__": 1}], ids=str)
def test_x35_what_is_no_result(answer: Any) -> None:
    with pytest.raises(InvalidNodeResult) as error:
        read_result(answer)

    assert error.value.reason == "INVALID_NODE_RESULT"


@pytest.mark.parametrize("answer", [None, {}, []])
def test_x36_nothing_is_no_update(answer: Any) -> None:
    assert read_result(answer) == NodeResult()


def test_x39_input_may_be_sends() -> None:
    graph = compiled("START->worker", channels=APP)
    run = PlainRun(
        graph,
        {"worker": lambda state, arg: {"log": [f"item:{arg}"]}},
        goto=[Target("worker", number) for number in (1, 2, 3)],
    ).finish()

    assert run.state["log"] == ["item:1", "item:2", "item:3"]
    assert run.superstep == 1


def test_x40_a_goto_brings_no_argument() -> None:
    graph = compiled("START->a, a=>[b]")
    run = PlainRun(graph, {"a": goto("b")})
    run.step()

    assert run.work.activations == (Activation("b"),)
    assert run.work.activations[0].arg is MISSING


def test_x45_a_plan_is_worked_through() -> None:
    channels = (Channel("plan"), Channel("messages", reducer="append"))
    steps = ["step1", "step2", "step3", "step4"]
    text = "START->plan, plan=>[step1, step2, step3, step4], " + ", ".join(f"{s}=>[plan]" for s in steps)

    def plan(state: dict[str, Any], arg: object) -> JsonValue:
        if not state["plan"]:
            return None
        first, *rest = state["plan"]
        return goto(*(first if isinstance(first, list) else [first]), update={"plan": rest})

    answers = {"plan": plan, **{s: goto("plan", update={"messages": [s]}) for s in steps}}
    given = {"plan": ["step1", ["step2", "step3"], "step4"], "messages": ["start"]}

    run = PlainRun(compiled(text, channels=channels), answers, given).finish()

    assert run.state == {"plan": [], "messages": ["start", *steps]}


# --- commands and routes -----------------------------------------------------------------


def test_r1_a_command_updates_and_goes() -> None:
    graph = compiled("START->router, router=>[target]", channels=OW)
    answers = {
        "router": goto("target", update={"value": 5}),
        "target": lambda state, arg: {"value": state["value"] + 1},
    }

    assert PlainRun(graph, answers, {"value": 0}).finish().state["value"] == 6


@pytest.mark.parametrize("target", ["missing", "__start__"])
def test_r2_a_target_that_is_not_there(target: str) -> None:
    with pytest.raises(RouteError) as error:
        PlainRun(compiled("START->router, router=>[]"), {"router": goto(target)}).finish()

    assert error.value.reason == "UNKNOWN_TARGET"
    assert error.value.metadata == {"node": "router", "target": target}


def test_r6_a_label_without_a_route() -> None:
    with pytest.raises(RouteError) as error:
        PlainRun(compiled("START->a, a?->{x: b}"), given={"route": "y"}).finish()

    assert error.value.reason == "MISSING_ROUTE"
    assert error.value.metadata == {"node": "a", "label": "y"}


@pytest.mark.parametrize("value", [None, 1, [], {}])
def test_a_path_that_leads_to_no_label(value: JsonValue) -> None:
    with pytest.raises(RouteError, match="not to a string or a bool"):
        PlainRun(compiled("START->a, a?->{x: b}"), given={"route": value}).finish()


def test_a_bool_is_looked_up_by_its_word() -> None:
    run = PlainRun(compiled("START->a, a?->{true: b, false: END}"), given={"route": True}).finish()

    assert run.visited == ["a", "b"]


def test_r9_sends_and_a_goto_of_one_node() -> None:
    graph = compiled("START->a, a=>[b]")
    run = PlainRun(graph, {"a": goto(send("b", 1), "b", send("b", 2), "b")}).finish()

    assert run.visited == ["a", "b", "b", "b"]


@pytest.mark.parametrize(
    "text", ["START->a, a->b, START->c", "START->a, a=>[b], START->c", "START->a, a?->{x: b}, START->c"]
)
def test_r10_a_command_goes_where_it_may_only(text: str) -> None:
    with pytest.raises(RouteError) as error:
        PlainRun(compiled(text), {"a": goto("c")}, {"route": "x"} if "?" in text else None).finish()

    assert error.value.reason == "UNDECLARED_COMMAND"


def test_r11_a_command_for_the_embedding_graph() -> None:
    child = compiled("START->b_child", channels=APP)
    result = read_result(
        {"__command__": {"update": {"log": ["b_child_state"]}, "goto": "node_b_parent", "graph": "PARENT"}}
    )
    (task,) = order_tasks("run", "b#1.0", 1, first_work(child).activations)
    folded = fold(child, {"log": ["init_state"]}, [TaskWrites("b_child", result.updates)])

    work = next_work(child, first_work(child), folded.state, [FinishedTask(task, result)], is_root=False)

    assert work.is_done
    assert work.parent is not None
    assert work.parent.goto == (Target("node_b_parent"),)
    delta = (*folded.effective, *work.parent.updates)
    parent = fold(child, {"log": ["init_state"]}, [TaskWrites("embedding", delta)])
    assert parent.state == {"log": ["init_state", "b_child_state"]}


def test_r12_the_root_has_no_parent() -> None:
    with pytest.raises(RouteError) as error:
        PlainRun(compiled("START->a"), {"a": {"__command__": {"goto": "x", "graph": "PARENT"}}}).finish()

    assert error.value.reason == "NO_PARENT_GRAPH"


def test_r14_a_request_adds_targets_behind() -> None:
    graph = compiled("START->a, START->b, a->x")
    (a,) = order_tasks("run", "", 1, (Activation("a"),))

    work = next_work(graph, first_work(graph), {}, [FinishedTask(a, NodeResult())], goto=[Target("b")])

    assert [activation.node for activation in work.activations] == ["x", "b"]


def test_r16_a_router_sees_what_siblings_wrote() -> None:
    whole = definition("START->a, START->b, a?->{three: c, other: END}", channels=SUM)
    router = ExpressionRouter("state.value == 3 ? 'three' : 'other'")
    graph = compile_graph(
        replace(whole, conditional_edges=(replace(whole.conditional_edges[0], router=router),))
    ).graph
    assert graph is not None

    assert "c" in PlainRun(graph, adds(a=1, b=2)).finish().visited


def test_a_router_sees_the_result_of_its_node() -> None:
    whole = definition("START->a, a?->{yes: b, no: END}", channels=SUM)
    router = ExpressionRouter("has(result.value) ? 'yes' : 'no'")
    graph = compile_graph(
        replace(whole, conditional_edges=(replace(whole.conditional_edges[0], router=router),))
    ).graph
    assert graph is not None

    assert "b" in PlainRun(graph, adds(a=1)).finish().visited


def test_an_expression_without_an_answer_is_no_route() -> None:
    whole = definition("START->a, a?->{x: b}")
    router = ExpressionRouter("state.nothing")
    graph = compile_graph(
        replace(whole, conditional_edges=(replace(whole.conditional_edges[0], router=router),))
    ).graph
    assert graph is not None

    with pytest.raises(RouteError, match="no answer"):
        PlainRun(graph).finish()


def test_resume_in_a_result_is_refused() -> None:
    with pytest.raises(InvalidNodeResult, match="resume"):
        read_result({"__command__": {"resume": 1}})


def test_a_list_of_updates_and_commands_is_one_write_set() -> None:
    result = read_result([{"v": 1}, {"__command__": {"update": {"v": 2}, "goto": "b"}}, {"v": 3}])

    assert result.updates == ({"v": 1}, {"v": 2}, {"v": 3})
    assert result.goto == (Target("b"),)


def test_an_interrupt_stands_alone() -> None:
    assert read_result({"__interrupt__": None}).interrupt is None
    for answer in ({"__interrupt__": 1, "v": 1}, [{"__interrupt__": 1}]):
        with pytest.raises(InvalidNodeResult):
            read_result(answer)


def test_what_stands_in_for_a_failed_node_is_routed_as_that_node() -> None:
    graph = compiled("START->a, a->b, handler=>[after]", nodes={"a": {"error_handler": "handler"}})
    task = Task("t", "handler", 0)

    quiet = FinishedTask(task, NodeResult(), stands_in_for="a")
    going = FinishedTask(task, NodeResult(goto=(Target("after"),)), stands_in_for="a")

    assert next_work(graph, first_work(graph), {}, [quiet]).activations == (Activation("b"),)
    assert next_work(graph, first_work(graph), {}, [going]).activations == (Activation("after"),)


# --- joins ---------------------------------------------------------------------------------


def arrive(text: str, *supersteps: tuple[str, ...], pending: tuple[str, ...] = ()) -> list[list[str]]:
    """What fires after each superstep in which these nodes finish; those of later ones are pending until then."""
    graph = compiled(text)
    work = first_work(graph)
    fired = []
    for number, nodes in enumerate(supersteps, 1):
        done = [FinishedTask(Task(name, name, n), NodeResult()) for n, name in enumerate(nodes)]
        later = [name for names in supersteps[number:] for name in names]
        unfinished = [Activation(name) for name in (*later, *pending)]
        work = next_work(graph, replace(work, activations=()), {}, done, unfinished=unfinished)
        fired.append([activation.node for activation in work.activations])
    return fired


THREE = "START->a, START->b, START->c, "


@pytest.mark.parametrize(
    ("policy", "fired"),
    [
        ("", [[], [], ["j"]]),
        ("ANY", [["j"], [], []]),
        ("2", [[], ["j"], []]),
        ("SKIP", [[], [], ["j"]]),
    ],
)
def test_d6_joins_fire_when_they_are_met(policy: str, fired: list[list[str]]) -> None:
    assert arrive(f"{THREE}[a, b, c]|{policy}>j", ("a",), ("b",), ("c",)) == fired


def test_skip_unreachable_waits_for_what_may_still_come_only() -> None:
    join = f"{THREE}[a, b, c]|SKIP>j"

    assert arrive(join, ("a",), ("b",)) == [[], ["j"]]
    assert arrive(join, ("a",), ("b",), pending=("c",)) == [[], []]


def test_a_member_counts_once_a_round() -> None:
    assert arrive(f"{THREE}[a, b]|>j", ("a",), ("a",), ("b",), ("b",), ("a",)) == [[], [], ["j"], [], ["j"]]


def test_later_arrivals_of_a_round_that_fired_are_swallowed() -> None:
    assert arrive(f"{THREE}[a, b, c]|ANY>j", ("a",), ("b",), ("c",), ("b",), pending=("a", "b", "c")) == [
        ["j"], [], [], ["j"],
    ]  # fmt: skip


def test_a_round_that_fired_ends_when_nothing_can_reach_the_others() -> None:
    graph = compiled(f"{THREE}[a, b]|ANY>j")
    done = [FinishedTask(Task("a", "a", 0), NodeResult())]
    busy = next_work(graph, first_work(graph), {}, done, unfinished=[Activation("b")])
    idle = next_work(graph, first_work(graph), {}, done, unfinished=[Activation("c")])

    assert busy.rounds == {graph.joins[0].key: JoinRound(("a",), fired=True)}
    assert idle.rounds == {}


def test_c15_a_join_keeps_its_arrivals_over_an_update() -> None:
    graph = compiled("START->b, START->c, [b, c]|>merge")
    done = [FinishedTask(Task("b", "b", 0), NodeResult())]

    early = next_work(graph, first_work(graph), {}, done, unfinished=[Activation("c")])
    later = next_work(graph, early, {}, [FinishedTask(Task("c", "c", 1), NodeResult())])

    assert early.activations == ()
    assert not early.starved
    assert later.activations == (Activation("merge"),)


def test_a_way_through_the_join_itself_reaches_no_member_of_it() -> None:
    text = "START->p, START->x, x?->{a: a, stop: END}, [p, a]|SKIP>j, j?->{a: x, stop: END}"

    run = PlainRun(compiled(text), given={"route": "stop"}).finish()

    assert run.visited == ["p", "x", "j"]


def test_new_input_starts_rounds_anew() -> None:
    graph = compiled(f"{THREE}[a, b]|>j")
    work = next_work(graph, first_work(graph), {}, [FinishedTask(Task("a", "a", 0), NodeResult())])
    assert work.starved

    assert first_work(graph).rounds == {}


def test_a_deferred_join_target_waits_for_everything() -> None:
    graph = compiled(
        "START->a, START->b, a->c, c->d, [a, b]|>j", nodes={"j": {"deferred": True}}, channels=APP
    )

    assert PlainRun(graph, logs("a", "b", "c", "d", "j")).finish().state["log"] == ["a", "b", "c", "d", "j"]


# --- order and names -----------------------------------------------------------------------


def test_c16_pending_sends_keep_their_arguments() -> None:
    graph = compiled("START->worker, START->side, side->tail")
    sends = tuple(Activation("worker", number) for number in (1, 2, 3))
    side = [FinishedTask(Task("s", "side", 3), NodeResult())]

    work = next_work(graph, first_work(graph), {}, side, unfinished=sends)

    assert work.activations == (Activation("tail"),)
    assert collapse((*sends, *work.activations)) == (*sends, Activation("tail"))


def test_task_ids_are_stable_and_differ_by_everything() -> None:
    parts = ("run", "ns", 1, "a", 0)
    others = [("run2", "ns", 1, "a", 0), ("run", "", 1, "a", 0), ("run", "ns", 2, "a", 0), ("run", "ns", 1, "b", 0), ("run", "ns", 1, "a", 1)]  # fmt: skip

    assert task_id(*parts) == task_id(*parts)
    assert len({task_id(*parts), *(task_id(*other) for other in others)}) == 6
    assert interrupt_id("t", "", "x", 0) != interrupt_id("t", "", "x", 1)


def test_namespaces() -> None:
    assert child_namespace("", "gate", 3, 0) == "gate#3.0"
    assert child_namespace("gate#3.0", "inner", 1, 2) == "gate#3.0/inner#1.2"
    assert child_namespace("", "gate", 3, 0, "memory") == "gate#memory"


def test_more_tasks_than_a_superstep_may_have() -> None:
    with pytest.raises(RouteError, match="10000 tasks"):
        order_tasks("run", "", 1, [Activation("a", number) for number in range(10_001)])


def test_a_path_router_reads_below_a_channel() -> None:
    whole = definition("START->a, a?->{x: b}", channels=(Channel("decision"),))
    edge = ConditionalEdge("a", PathRouter("decision.items.0.kind"), (Route("x", "b"),))
    graph = compile_graph(replace(whole, conditional_edges=(edge,))).graph
    assert graph is not None

    given: dict[str, JsonValue] = {"decision": {"items": [{"kind": "x"}]}}
    assert PlainRun(graph, given=given).finish().visited == ["a", "b"]

"""LangChain tools as steps: in an agent of `create_agent` and in a graph with a `ToolNode`, under a scripted model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx.tools import ToolDefinitionError

pytest.importorskip("langchain", reason="the extra `langchain` is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition

from agenttx.integrations.effects import Promise
from agenttx.integrations.langchain import current_call, effects, host, protect

DONE: list[str] = []


def give_back(arguments: dict[str, Any], key: str) -> None:
    DONE.append(f"undo {arguments['room']}")


@tool
@effects("compensatable", undo=give_back)
def book(room: str, nights: int = 1) -> dict[str, Any]:
    """Book a room.

    Args:
        room: Which one.
        nights: For how long.
    """
    DONE.append(f"book {room}")
    return {"room": room, "nights": nights, "key": current_call().idempotency_key}


@tool
@effects("read_only")
async def look(room: str) -> str:
    """Look at a room."""
    if room == "attic":
        raise ToolException("room attic does not exist")
    return f"{room} is fine"


@tool
def tell(text: str) -> str:
    """Tell somebody, which nothing takes back."""
    DONE.append(f"tell {text}")
    return "told"


TOOLS: list[BaseTool] = [book, look, tell]


class Model(FakeMessagesListChatModel):
    """Says what it was given to say, and remembers what it was asked."""

    asked: list[list[AnyMessage]] = []

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **settings: Any) -> Any:
        self.asked.append(list(messages))
        return super()._generate(messages, *args, **settings)


def says(*turns: list[tuple[str, dict[str, Any]]] | str) -> Model:
    responses: list[Any] = []
    for number, turn in enumerate(turns):
        if isinstance(turn, str):
            responses.append(AIMessage(turn))
            continue
        calls = [
            {"name": name, "args": arguments, "id": f"call-{number}-{at}", "type": "tool_call"}
            for at, (name, arguments) in enumerate(turn)
        ]
        responses.append(AIMessage("", tool_calls=calls))
    return Model(responses=responses, asked=[])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


TASK = {"messages": [HumanMessage("Book it.")]}
ROLLBACK = says([("book", {"room": "attic"})], [("look", {"room": "attic"})])


def mistaken() -> Model:
    return says(
        [("look", {"room": "cellar"})],
        [("book", {"room": "attic"})],
        [("look", {"room": "attic"})],  # fails, and goes back to the booking
        [("book", {"room": "tower", "nights": 2})],
        "Done.",
    )


def test_names_and_schemas_are_those_of_the_originals(server):
    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        for original, protected in zip(TOOLS, protect(TOOLS, transaction), strict=True):
            assert protected.name == original.name
            assert convert_to_openai_tool(protected) == convert_to_openai_tool(original)
            assert set(protected.args) == set(original.args)


def test_an_agent_is_put_right(server):
    model = mistaken()
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        agent = create_agent(model, tools, middleware=[tools.middleware])
        ended = agent.invoke(TASK)

    assert DONE == ["book attic", "undo attic", "book tower"]
    note = model.asked[3][-1]
    assert isinstance(note, HumanMessage)
    assert "Step 3 (look) failed." in note.text
    assert "step 2 (book)" in note.text
    assert "room attic does not exist" in note.text
    assert [type(m) for m in model.asked[3]] == [HumanMessage, AIMessage, ToolMessage, HumanMessage]
    assert ended["messages"][-1].text == "Done."


async def test_an_agent_is_put_right_asynchronously_without_the_middleware(server):
    model = mistaken()
    async with (
        host(TOOLS, server.address),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as transaction,
    ):
        agent = create_agent(model, protect(TOOLS, transaction))
        ended = await agent.ainvoke(TASK)

    assert DONE == ["book attic", "undo attic", "book tower"]
    told = model.asked[3][-1]
    assert isinstance(told, ToolMessage)
    assert told.status == "error"
    assert "Undone, as if never called: step 2 (book)" in told.text
    assert ended["messages"][-1].text == "Done."


def test_a_graph_of_ones_own_with_a_tool_node(server):
    model = mistaken()
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        graph = StateGraph(MessagesState)
        graph.add_node("go_back", lambda state: {"messages": tools.go_back(state["messages"])})
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "go_back")
        graph.add_edge("go_back", "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "go_back")
        graph.compile().invoke(TASK)

    assert DONE == ["book attic", "undo attic", "book tower"]
    assert [type(m) for m in model.asked[3]] == [HumanMessage, AIMessage, ToolMessage, HumanMessage]


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
async def test_parallel_calls_are_one_group(server, kind: str):
    model = says([("look", {"room": "a"}), ("look", {"room": "b"}), ("book", {"room": "c"})], "Done.")
    async with host(TOOLS, server.address), agenttx.AsyncClient(server.address) as client:
        if kind == "asynchronous":
            async with client.transaction(agent_id="a") as transaction:
                await create_agent(model, protect(TOOLS, transaction)).ainvoke(TASK)
        else:

            def run() -> Any:
                with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
                    create_agent(model, protect(TOOLS, transaction)).invoke(TASK)
                    return transaction

            transaction = await asyncio.to_thread(run)
        attempts = [attempt async for attempt in client.list_steps(transaction.transaction_id)]
    assert [(a.tool_name, a.group_first_step) for a in attempts] == [("look", 1), ("look", 1), ("book", 1)]
    assert [a.arguments["room"] for a in attempts] == ["a", "b", "c"]


def test_a_call_that_other_middleware_refuses_is_never_run(server):
    class Guard(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            if request.tool_call["name"] == "book":
                return ToolMessage("not allowed", tool_call_id=request.tool_call["id"])
            return handler(request)

    model = says([("book", {"room": "a"}), ("look", {"room": "b"}), ("tell", {"text": "hi"})], "Done.")
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        create_agent(model, tools, middleware=[tools.middleware, Guard()]).invoke(TASK)
        assert transaction.next_step_id == 3
    assert DONE == ["tell hi"]


def test_nothing_goes_back_past_a_tool_that_promised_nothing(server):
    model = says(
        [("book", {"room": "a"})],
        [("tell", {"text": "booked"})],
        [("look", {"room": "attic"})],
        [("look", {"room": "b"})],
        "Done.",
    )
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        create_agent(model, tools, middleware=[tools.middleware]).invoke(TASK)
    assert DONE == ["book a", "tell booked"]


def test_tools_of_the_server_itself(server):
    model = says([("kv_put", {"key": "from-langchain", "value": {"n": 1}})], "Done.")
    with agenttx.Client(server.address) as client:
        listed = [one for one in client.tools() if one.name == "kv.put"]
        with client.transaction(agent_id="a") as transaction:
            tools = protect(listed, transaction)
            tools[0].name = "kv_put"
            tools = protect(tools, transaction, names={"kv_put": "kv.put"})
            ended = create_agent(model, tools).invoke(TASK)
        assert client.get_state("from-langchain").value == {"n": 1}
    assert '"n": 1' in ended["messages"][-2].text


def test_arguments_that_do_not_fit_fail_the_step_with_a_hint_and_the_function_is_not_called(server):
    model = says([("book", {"room": "a", "nights": "many"})], "Oh.")
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        create_agent(model, protect(TOOLS, transaction)).invoke(TASK)
        transaction.rollback()
    assert DONE == []
    assert "'nights' must be" in model.asked[1][-1].text


def test_a_program_that_calls_a_protected_tool_gets_the_output_or_the_exception(server):
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = {one.name: one for one in protect(TOOLS, transaction)}
        assert tools["look"].invoke({"room": "a"}) == "a is fine"
        with pytest.raises(agenttx.StepRolledBack, match="attic"):
            tools["look"].invoke({"room": "attic"})
        transaction.rollback()


def test_an_aborted_transaction_ends_the_agent(server):
    policy = agenttx.Policy(max_local_depth=0, max_global_resets=0)
    with (
        host(TOOLS, server.address),
        pytest.raises(agenttx.TransactionAborted),
        agenttx.Client(server.address).transaction(agent_id="a", policy=policy) as transaction,
    ):
        create_agent(ROLLBACK, protect(TOOLS, transaction)).invoke(TASK)
    assert DONE == ["book attic", "undo attic"]


def test_what_cannot_be_protected_or_hosted_is_refused_at_once(server):
    @tool
    def stateful(text: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Use the graph's state."""
        return text

    with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
        with pytest.raises(ToolDefinitionError, match="'state'"):
            protect([stateful], transaction)
        with pytest.raises(ToolDefinitionError, match="'state'"):
            host([stateful], server.address)
    with pytest.raises(ToolDefinitionError, match="nothing takes it back"):
        host([tell], server.address, effects={"tell": "compensatable"})
    with pytest.raises(ToolDefinitionError, match="no tool 'yell'"):
        host([tell], server.address, effects={"yell": Promise("read_only")})
    with pytest.raises(ValueError, match="begin the transaction"):
        protect(TOOLS, agenttx.Client(server.address).transaction(agent_id="a"))


def test_a_host_says_when_no_server_takes_its_tools(server):
    @tool
    def clashing(key: str) -> str:
        """Clash with a tool of the server."""
        return key

    with (
        pytest.raises(agenttx.RpcError, match=r"kv\.put"),
        host([clashing], server.address, names={"clashing": "kv.put"}),
    ):
        pass
    assert not [t for t in threading.enumerate() if t.name == "agenttx-in-process-worker"]


@pytest.mark.parametrize("change", ["without ids", "trimmed"])
def test_a_call_that_is_sent_again_out_of_a_changed_state_is_not_run_again(server, change: str):
    def asks(number: int) -> AIMessage:
        call = {"name": "tell", "args": {"text": "same"}, "id": f"told-{number}", "type": "tool_call"}
        return AIMessage("", tool_calls=[call])

    state = [HumanMessage("Go."), asks(1), ToolMessage("told", tool_call_id="told-1"), asks(2)]
    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode(protect(TOOLS, transaction)))
        graph.add_edge(START, "tools")
        compiled = graph.compile()
        compiled.invoke({"messages": [HumanMessage("Go."), asks(1)]})
        compiled.invoke({"messages": state})
        assert DONE == ["tell same", "tell same"]
        compiled.invoke(
            {"messages": [m.model_copy(update={"id": None}) for m in state][change == "trimmed" :]}
        )
    assert DONE == ["tell same", "tell same"]


def test_going_back_in_a_trimmed_state_removes_what_is_left_and_tells_of_the_rest(server):
    model = mistaken()

    class Trim(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> Any:
            asking = [m for m in state["messages"] if isinstance(m, AIMessage)]
            if len(asking) != 3:
                return None
            gone = state["messages"][: state["messages"].index(asking[2])]
            return {"messages": [RemoveMessage(id=m.id) for m in gone]}

    with (
        host(TOOLS, server.address),
        agenttx.Client(server.address).transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        create_agent(model, tools, middleware=[Trim(), tools.middleware]).invoke(TASK)
    assert [type(m) for m in model.asked[3]] == [HumanMessage]
    assert "except step 2 (book), which it no longer held" in model.asked[3][0].text

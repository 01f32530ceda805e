"""Function tools of the OpenAI Agents SDK as steps, in runs under a scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx.tools import ToolDefinitionError

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import (
    Agent,
    FunctionTool,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

from agenttx.integrations.effects import Promise
from agenttx.integrations.openai_agents import current_call, host, protect

DONE: list[str] = []


async def give_back(arguments: dict[str, Any], key: str) -> None:
    DONE.append(f"undo {arguments['room']}")


@function_tool
def book(room: str, nights: int = 1) -> dict[str, Any]:
    """Book a room."""
    DONE.append(f"book {room}")
    return {"room": room, "nights": nights, "key": current_call().idempotency_key}


@function_tool
async def look(room: str) -> str:
    """Look at a room."""
    if room == "attic":
        raise ValueError("room attic does not exist")
    return f"{room} is fine"


TOOLS = [book, look]
EFFECTS = {"book": Promise("compensatable", undo=give_back), "look": "read_only"}


class Scripted(Model):
    """Says what it was given to say, and remembers what it was asked."""

    def __init__(self, *turns: list[tuple[str, Any]] | str) -> None:
        self._turns = list(turns)
        self.asked: list[list[Any]] = []

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **settings: Any
    ) -> ModelResponse:
        number = len(self.asked)
        self.asked.append(list(input) if isinstance(input, list) else [{"role": "user", "content": input}])
        turn = self._turns[number]
        output: list[Any] = [ResponseReasoningItem(id=f"rs-{number}", summary=[], type="reasoning")]
        if isinstance(turn, str):
            text = ResponseOutputText(text=turn, type="output_text", annotations=[])
            output.append(
                ResponseOutputMessage(
                    id=f"m-{number}", content=[text], role="assistant", status="completed", type="message"
                )
            )
        else:
            output += [
                ResponseFunctionToolCall(
                    call_id=f"call-{number}-{at}",
                    name=name,
                    arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
                    type="function_call",
                )
                for at, (name, arguments) in enumerate(turn)
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=f"resp-{number}")

    def stream_response(self, *args: Any, **settings: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    set_tracing_disabled(True)
    with server_process(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


def mistaken() -> Scripted:
    return Scripted(
        [("look", {"room": "cellar"})],
        [("book", {"room": "attic"})],
        [("look", {"room": "attic"})],  # fails, and goes back to the booking
        [("book", {"room": "tower", "nights": 2})],
        "Done.",
    )


def kinds(items: list[Any]) -> list[str]:
    return [item.get("type") or item["role"] for item in items]


async def test_a_run_is_put_right(server):
    model = mistaken()
    async with (
        host(TOOLS, server.address, effects=EFFECTS),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as transaction,
    ):
        tools = protect(TOOLS, transaction)
        ended = await Runner.run(
            Agent(name="a", model=model, tools=[*tools]), "Book it.", **tools.run_options()
        )

    assert ended.final_output == "Done."
    assert DONE == ["book attic", "undo attic", "book tower"]
    assert kinds(model.asked[3]) == ["user", "reasoning", "function_call", "function_call_output", "user"]
    note = model.asked[3][-1]["content"]
    assert "Step 3 (look) failed." in note
    assert "room attic does not exist" in note
    assert "step 2 (book)" in note
    assert kinds(model.asked[4])[4:] == ["user", "reasoning", "function_call", "function_call_output"]


async def test_without_filter_and_hooks_the_results_tell_what_was_undone(server):
    model = mistaken()
    async with host(TOOLS, server.address, effects=EFFECTS):
        with agenttx.Client(server.address).transaction(agent_id="a") as transaction:
            tools = protect(TOOLS, transaction)
            await Runner.run(Agent(name="a", model=model, tools=[*tools]), "Book it.")
    assert DONE == ["book attic", "undo attic", "book tower"]
    assert "Undone, as if never called: step 2 (book)" in model.asked[3][-1]["output"]


async def test_the_calls_of_one_response_are_one_group(server):
    model = Scripted([("look", {"room": "a"}), ("book", {"room": "b"}), ("look", {"room": "c"})], "Done.")
    async with (
        host(TOOLS, server.address, effects=EFFECTS),
        agenttx.AsyncClient(server.address) as client,
    ):
        async with client.transaction(agent_id="a") as transaction:
            tools = protect(TOOLS, transaction)
            agent = Agent(name="a", model=model, tools=[*tools])
            await Runner.run(agent, "Go.", **tools.run_options(RunConfig(workflow_name="w")))
        attempts = [attempt async for attempt in client.list_steps(transaction.transaction_id)]
    assert [(a.group_first_step, a.arguments["room"]) for a in attempts] == [(1, "a"), (1, "b"), (1, "c")]


async def test_parallel_calls_without_hooks_run_nothing_after_a_rollback(server):
    model = Scripted([("look", {"room": "attic"}), ("book", {"room": "b"})], "Done.")
    async with (
        host(TOOLS, server.address, effects=EFFECTS),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as transaction,
    ):
        await Runner.run(Agent(name="a", model=model, tools=[*protect(TOOLS, transaction)]), "Go.")
        await transaction.rollback()
    assert "Not run" in model.asked[1][-1]["output"]
    assert DONE == []


async def test_what_cannot_be_read_is_told_and_no_step(server):
    model = Scripted([("book", '{"room": ')], "Done.")
    async with (
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as transaction,
    ):
        await Runner.run(Agent(name="a", model=model, tools=[*protect(TOOLS, transaction)]), "Go.")
        assert transaction.next_step_id == 1
    assert "not valid JSON" in model.asked[1][-1]["output"]


async def test_an_aborted_transaction_ends_the_run(server):
    policy = agenttx.Policy(max_local_depth=0, max_global_resets=0)
    async with (
        host(TOOLS, server.address, effects=EFFECTS),
        agenttx.AsyncClient(server.address) as client,
    ):
        transaction = await client.transaction(agent_id="a", policy=policy).begin()
        model = Scripted([("look", {"room": "attic"})], "Never said.")
        with pytest.raises(Exception, match="attic") as raised:
            await Runner.run(Agent(name="a", model=model, tools=[*protect(TOOLS, transaction)]), "Go.")
    causes = [raised.value, raised.value.__cause__]
    assert any(isinstance(cause, agenttx.TransactionAborted) for cause in causes)


async def test_tools_of_the_server_itself(server):
    model = Scripted([("kv_put", {"key": "from-agents", "value": 1})], "Done.")
    async with agenttx.AsyncClient(server.address) as client:
        listed = [one async for one in client.tools() if one.name == "kv.put"]
        async with client.transaction(agent_id="a") as transaction:
            (listed_tool,) = protect(listed, transaction)
            renamed = FunctionTool(
                "kv_put",
                listed_tool.description,
                listed_tool.params_json_schema,
                listed_tool.on_invoke_tool,
                strict_json_schema=False,
            )
            tools = protect([renamed], transaction, names={"kv_put": "kv.put"})
            await Runner.run(Agent(name="a", model=model, tools=[*tools]), "Go.", **tools.run_options())
        assert (await client.get_state("from-agents")).value == 1


async def test_names_and_schemas_are_those_of_the_originals_and_bad_promises_are_refused(server):
    async with agenttx.AsyncClient(server.address) as client, client.transaction(agent_id="a") as transaction:
        for original, protected in zip(TOOLS, protect(TOOLS, transaction), strict=True):
            assert protected.name == original.name
            assert protected.params_json_schema == original.params_json_schema
    with pytest.raises(ToolDefinitionError, match="no tool 'cook'"):
        host(TOOLS, server.address, effects={"cook": "read_only"})

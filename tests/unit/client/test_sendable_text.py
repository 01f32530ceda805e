"""Text that can't be sent is refused by the SDK before anything leaves, naming the argument: every method of every client."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import agenttx
from agenttx import GraphBuilder
from agenttx.sendable_text import sends_text
from agenttx.v1 import graph_pb2 as pb

LONE = "a\ud800b"
NOWHERE = "127.0.0.1:1"
RENAMED = {"default_name": {"name"}, "definition": {"x"}, "pipeline": {"x"}}
"""Where the path is that of the value inside, or the message's word."""


def _cases() -> Iterator[Any]:
    clients = {"sync": agenttx.Client(NOWHERE), "async": agenttx.AsyncClient(NOWHERE)}
    for kind, client in clients.items():
        parts = {"client": client, "graphs": client.graphs, "lineage": client.lineage}
        parts |= {"pipelines": client.pipelines}
        for part, found in parts.items():
            for name, method in inspect.getmembers(found, callable):
                if name.startswith("_") or name in ("connect", "close", "transaction"):
                    continue
                for parameter in inspect.signature(method).parameters.values():
                    if parameter.name == "rows":
                        continue  # they are read when they are sent, and refused as JSON
                    if "str" in str(parameter.annotation) and parameter.kind is not parameter.VAR_KEYWORD:
                        yield pytest.param(
                            method, parameter.name, id=f"{kind}-{part}.{name}-{parameter.name}"
                        )


def _given(method: Any, wrong: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for parameter in inspect.signature(method).parameters.values():
        is_mapping = "Mapping" in str(parameter.annotation)
        if parameter.name == wrong:
            given[wrong] = {"x": LONE} if is_mapping else LONE
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            given[parameter.name] = {} if is_mapping else _word(parameter.name)
    return given


def _word(name: str) -> Any:
    return {"resolution": "UNDONE", "step_id": 1, "keep_last": 1, "rows": []}.get(name, "x")


async def _ended(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer
    elif hasattr(answer, "__aenter__"):
        await answer.__aenter__()
    elif hasattr(answer, "__enter__"):
        answer.__enter__()
    elif hasattr(answer, "__aiter__"):
        await anext(aiter(answer))
    elif hasattr(answer, "__next__") or hasattr(answer, "__iter__"):
        next(iter(answer))


@pytest.mark.parametrize(("method", "name"), list(_cases()))
async def test_a_lone_surrogate_is_refused_by_name(method: Any, name: str) -> None:
    with pytest.raises(agenttx.InvalidValue) as refused:
        await _ended(method(**_given(method, name)))
    if refused.value.rule == "surrogate":
        assert refused.value.path in {name} | RENAMED.get(name, set())
    else:
        assert refused.value.rule == "not_a_choice"


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("name", lambda builder: builder.node(LONE)),
        ("name", lambda builder: builder.channel(LONE)),
        ("reads", lambda builder: builder.node("c", reads=["a", LONE])),
        ("source", lambda builder: builder.edge(LONE, "a")),
        ("targets", lambda builder: builder.edge("a", LONE)),
        ("members", lambda builder: builder.join(["a", LONE], "b")),
        ("before", lambda builder: builder.interrupt(before=[LONE])),
        ("policy", lambda builder: builder.join(["a"], "b", LONE)),
    ],
)
def test_a_builder_refuses_it_too(name: str, build: Any) -> None:
    with pytest.raises(agenttx.InvalidValue) as refused:
        build(GraphBuilder("g").node("a").node("b"))
    assert refused.value.path == name


def test_what_holds_it_may_be_anywhere_in_an_argument_or_unknown() -> None:
    @sends_text
    def make(target: Any) -> Any:
        return pb.GraphTarget(node=target.node)

    with pytest.raises(agenttx.InvalidValue, match="target: the text holds a lone surrogate"):
        make(agenttx.Send(LONE, 1))

    @sends_text
    def make_of_its_own() -> Any:
        return pb.GraphTarget(node=LONE)

    with pytest.raises(agenttx.InvalidValue, match=r"carry: 'a\\ud800b'"):
        make_of_its_own()

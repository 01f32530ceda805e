"""Both clients offer the same, under the same names, with the same parameters and the same words."""

import inspect

import pytest

from agenttx import (
    AsyncClient,
    AsyncGraph,
    AsyncRunStream,
    AsyncStepStream,
    AsyncSubmittedStep,
    AsyncTransaction,
    Client,
    Graph,
    RunStream,
    StepStream,
    SubmittedStep,
    Transaction,
)
from agenttx.async_audit import AsyncAudit
from agenttx.async_graphs import AsyncGraphs
from agenttx.async_lineage import AsyncLineage
from agenttx.async_pipelines import AsyncPipelines
from agenttx.audit import Audit
from agenttx.graphs import Graphs
from agenttx.lineage import Lineage
from agenttx.pipelines import Pipelines

PAIRS = [
    (Client, AsyncClient),
    (Transaction, AsyncTransaction),
    (StepStream, AsyncStepStream),
    (SubmittedStep, AsyncSubmittedStep),
    (Graph, AsyncGraph),
    (Graphs, AsyncGraphs),
    (Pipelines, AsyncPipelines),
    (Lineage, AsyncLineage),
    (Audit, AsyncAudit),
    (RunStream, AsyncRunStream),
]


def public(owner: type) -> dict[str, object]:
    return {name: member for name, member in vars(owner).items() if not name.startswith("_")}


@pytest.mark.parametrize(("synchronous", "asynchronous"), PAIRS)
def test_the_same_names_with_the_same_parameters(synchronous: type, asynchronous: type):
    ours, theirs = public(synchronous), public(asynchronous)

    assert ours.keys() == theirs.keys()
    for name, member in ours.items():
        if inspect.isfunction(member):
            other = theirs[name]
            assert inspect.isfunction(other)
            assert [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()] == [
                (p.name, p.kind, p.default) for p in inspect.signature(other).parameters.values()
            ], name


@pytest.mark.parametrize("owner", [one for pair in PAIRS for one in pair])
def test_every_public_member_says_what_it_means(owner: type):
    for name, member in public(owner).items():
        assert inspect.getdoc(member), f"{owner.__name__}.{name}"


@pytest.mark.parametrize(("synchronous", "asynchronous"), PAIRS)
def test_the_same_member_is_described_in_the_same_words(synchronous: type, asynchronous: type):
    def words(owner: type, name: str) -> str:
        text = inspect.getdoc(public(owner)[name]) or ""
        return text.partition("\n")[0].replace("Async", "").replace("async ", "")

    for name in public(synchronous):
        assert words(synchronous, name) == words(asynchronous, name), name

"""Map-reduce over documents as a graph: one task a document, side by side, and one that sums up.

    agenttx serve &
    python examples/map_reduce.py

```mermaid
flowchart LR
    START([START]) --> split
    split -. "one Send a document" .-> count
    count --> total --> END([END])
```

`split` sends each document to `count`; the sent ones run side by side, each with its own argument, and their answers are
folded in the order in which they were sent, whichever ends first. A document that can't be counted stops the run with the
others' results kept: `retry` counts that one alone.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

import agenttx
from agenttx import START, BlockingNodeContext, Command, GraphBuilder, RunOutcome, Send

DOCUMENTS = {
    "fable": "the fox and the grapes and the fox again",
    "proverb": "the early bird catches the worm",
    "letter": "dear fox the grapes were sour",
}
COUNTED: list[str] = []
"""The documents that were counted, each time that it was."""
UNREADABLE = {"letter"}
"""Documents that can't be read at first."""


def split(state: Mapping[str, Any]) -> Command:
    """Send every document to be counted."""
    return Command(goto=[Send("count", {"name": name}) for name in state["names"]])


def count(state: Mapping[str, Any], ctx: BlockingNodeContext) -> Command:
    """Count the words of one document."""
    name = ctx.arg["name"]
    COUNTED.append(name)
    if name in UNREADABLE:
        UNREADABLE.remove(name)
        raise RuntimeError(f"document '{name}' can't be read just now")
    words = Counter(DOCUMENTS[name].split())
    return Command(update={"counts": [{"name": name, "words": dict(words)}]}, goto="total")


def total(state: Mapping[str, Any]) -> dict[str, Any]:
    """Sum up."""
    words: Counter[str] = Counter()
    for counted in state["counts"]:
        words.update(counted["words"])
    return {"most": [[word, times] for word, times in words.most_common(3)]}


GRAPH = (
    GraphBuilder("word-count", "Counts the words of documents side by side")
    .channel("names")
    .channel("counts", reducer="append", default=[])
    .channel("most")
    .node("split", split, destinations=["count"])
    .node("count", count, destinations=["total"])
    .node("total", total)
    .edge(START, "split")
)


def main(address: str = "127.0.0.1:50051") -> RunOutcome:
    """Count; return how it ended."""
    thread = f"words-{uuid.uuid4()}"
    with agenttx.Client(address) as client:
        graph = client.graphs.register(GRAPH)
        outcome = graph.run({"names": sorted(DOCUMENTS)}, thread=thread)
        if outcome.error is not None:
            print(f"{outcome.status}: {outcome.error.hint}")
            outcome = graph.retry(thread)
    print(f"{outcome.status}: {outcome.state['most']}, counted {COUNTED}")
    return outcome


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A catalogue's texts as a pipeline: a diamond with a guarded branch, chunks of each text, and where each record came from.

    agenttx serve &
    python examples/catalog_pipeline.py

```mermaid
flowchart TD
    source([source]) --> validate
    validate --> keywords
    validate -. "only English" .-> level
    keywords --> score
    level --> score
    validate --> chunk --> summarize --> join
```

Each book is a transaction: the one without a text fails alone, and what was done for it is undone. The tools are in this
process, as a worker's.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import agenttx
from agenttx.worker import ToolFailure, Worker, tool

PIPELINE = """
pipeline: catalog
actions:
  - {name: validate, tool: catalog.validate, args: {book: "${source}"}, on_failure: rollback}
  - {name: keywords, tool: catalog.keywords, dependencies: [validate], args: {text: "${validate.text}"}}
  - {name: level, tool: catalog.level, dependencies: [validate], args: {text: "${validate.text}"},
     guard: {condition: "validate.language == 'en'", on_false: skip}}
  - {name: score, tool: catalog.score, dependencies: [keywords, level], args: {keywords: "${keywords.words}"}}
  - {name: chunk, tool: catalog.chunk, dependencies: [validate], args: {text: "${validate.text}"}}
  - {name: summarize, tool: catalog.summarize, dependencies: [chunk], args: {text: "${chunk.text}"}}
  - {name: join, tool: catalog.join, dependencies: [summarize], reduce: {by: root}}
"""
BOOKS = [
    {
        "title": "The Fox",
        "language": "en",
        "text": "the fox and the grapes. the fox again. the grapes were sour.",
    },
    {"title": "Der Fuchs", "language": "de", "text": "der fuchs und die trauben. der fuchs ging weg."},
    {"title": "Lost", "language": "en", "text": ""},
]


@tool("catalog.validate", effects="read_only")
def validate(book: dict[str, Any]) -> dict[str, Any]:
    """Let through what has a text."""
    if not book["text"]:
        raise ToolFailure("invalid_value", f"'{book['title']}' has no text", ["text"])
    return book


@tool("catalog.keywords", effects="read_only")
def keywords(text: str) -> dict[str, Any]:
    """The words that are there most often."""
    words = Counter(text.replace(".", "").split())
    return {"words": sorted(words, key=lambda word: (-words[word], word))[:2]}


@tool("catalog.level", effects="read_only")
def level(text: str) -> dict[str, Any]:
    """How hard it is to read."""
    return {"level": "easy" if len(text) < 100 else "hard"}


@tool("catalog.score", effects="read_only")
def score(keywords: list[str]) -> dict[str, Any]:
    """How good the entry is."""
    return {"score": len(keywords)}


@tool("catalog.chunk", effects="read_only")
def chunk(text: str) -> list[dict[str, str]]:
    """The sentences, each a record of its own."""
    return [{"text": part.strip()} for part in text.split(".") if part.strip()]


@tool("catalog.summarize", effects="read_only")
def summarize(text: str) -> dict[str, str]:
    """The first words."""
    return {"text": " ".join(text.split()[:2])}


@tool("catalog.join", effects="read_only")
def join(records: list[dict[str, Any]]) -> dict[str, str]:
    """One text again."""
    return {"text": "; ".join(record["data"]["summarize"]["text"] for record in records)}


TOOLS = [validate, keywords, level, score, chunk, summarize, join]


async def main(address: str) -> None:
    """Run the pipeline, and say where one of its records came from."""
    worker = Worker(address, tools=TOOLS)
    serving = asyncio.create_task(worker.serve())
    try:
        async with agenttx.AsyncClient(address) as client:
            while not worker.server_ids:  # noqa: ASYNC110 - until the server knows its tools
                await asyncio.sleep(0.05)
            checked = await client.pipelines.validate(PIPELINE)
            assert checked.valid, checked.violations
            run = await client.pipelines.run(PIPELINE, BOOKS)
            print(f"{run.status}: {run.rows_committed} of {run.rows} books; {run.reason}")
            async for record in client.lineage.records(run.run_id, "join"):
                print(f"{record.content['source']['title']}: {record.content['join']['text']}")
            levels = [record.content["level"] async for record in client.lineage.records(run.run_id, "score")]
            print(f"levels: {levels}")
            scored = await anext(client.lineage.records(run.run_id, "score"))
            trace = await client.lineage.trace(scored.target_id)
            print("score came of: " + ", ".join(record.action for record in trace.records))
            verified = await client.lineage.verify(run.run_id)
            print(f"{verified.records} records, {verified.breach_count} breaches")
    finally:
        worker.stop()
        await serving


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))

"""The asynchronous client as if it were the synchronous one, so that one test serves both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import agenttx

__all__ = ["Blocking", "BlockingLoop"]

_WRAPPED = (
    agenttx.AsyncClient,
    agenttx.AsyncTransaction,
    agenttx.AsyncStepStream,
    agenttx.AsyncSubmittedStep,
)


class BlockingLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


class Blocking:
    """Stands for an asynchronous object: its coroutines are run, what they give is wrapped likewise."""

    def __init__(self, loop: BlockingLoop, wrapped: Any) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        return self._blocking(value) if inspect.ismethod(value) else value

    def __enter__(self) -> Any:
        return self._given(self._loop.run(self._wrapped.__aenter__()))

    def __exit__(self, *exit_arguments: Any) -> Any:
        return self._loop.run(self._wrapped.__aexit__(*exit_arguments))

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._given(method(*arguments, **keywords))

        return call

    def _given(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._given(self._loop.run(value))
        if inspect.isasyncgen(value):
            return self._iterated(value)
        return Blocking(self._loop, value) if isinstance(value, _WRAPPED) else value

    def _iterated(self, generator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run(anext(generator))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run(generator.aclose())

"""``secret://NAME`` in arguments of tools: the value is put in as the tool is called, and stands nowhere else.

An argument, at any depth, that is such a text and nothing more is replaced by the secret, where the secret is for that tool.
What the engine keeps, shows and compares are the arguments with the reference. What comes back from the tool, its output, its errors, what it writes,
stages or registers for undo, is searched for the secret in every form (http_secret_forms.py), and has the reference in its place, or a mask
where that can't be. So an undo action that needs the secret gets the reference, and with it the value, when it is run.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from agenttx_server.engine.ports import (
    ArgumentsRefused,
    ContextClosed,
    OutcomeUnknown,
    ReportedFailure,
    StoreUnavailable,
    SubStepFailed,
    ToolContext,
    ToolFailure,
    UndoUnavailable,
)
from agenttx_server.engine.records import HintCategory
from agenttx_server.http_secrets import SecretRefused, Secrets
from agenttx_server.tool_secrets import ToolSecrets

__all__ = ["SecretReferences"]

_REFERENCE = re.compile(r"secret://([A-Za-z0-9_-]{1,64})")


class SecretReferences:
    """Puts a server's secrets into calls of a tenant's tools, and keeps them out of all that comes of these."""

    def __init__(self, secrets: ToolSecrets, tenant: str) -> None:
        self._of_server = secrets
        self._secrets = secrets.texts
        self._tenant = tenant

    def are_in(self, arguments: Any) -> bool:
        """Whether there is a reference in arguments."""
        if isinstance(arguments, str):
            return _REFERENCE.fullmatch(arguments) is not None
        if isinstance(arguments, dict):
            return any(self.are_in(value) for value in arguments.values())
        return isinstance(arguments, list) and any(self.are_in(value) for value in arguments)

    async def call(
        self,
        name: str,
        arguments: Any,
        context: ToolContext,
        run: Callable[[Any, ToolContext], Awaitable[Any]],
    ) -> Any:
        """Run a tool. Raises ArgumentsRefused for a reference to a secret that there is not, or not for this tool.

        What it says is searched also where it was given none: it may have read one from a file, or been given it before.
        """
        filled = self._filled(name, arguments)
        guarded = cast("ToolContext", _Guarded(context, self._secrets))
        try:
            output = await run(filled, guarded)
        except Exception as error:
            if filled is arguments and not self._is_in(error):
                raise
            raise self._masked(error) from None
        return _without(self._secrets, output)

    async def undo(self, name: str, arguments: Any, run: Callable[[Any], Awaitable[None]]) -> None:
        """Run an undo action, likewise."""
        filled = self._filled(name, arguments)
        try:
            await run(filled)
        except Exception as error:
            if filled is arguments and not self._is_in(error):
                raise
            raise self._masked(error) from None

    def mask(self, text: str) -> str:
        """Return a text without any secret."""
        return self._secrets.mask(text)

    def _filled(self, name: str, arguments: Any) -> Any:
        """Return arguments with values in place of references; the same object where there are none."""
        if isinstance(arguments, str):
            found = _REFERENCE.fullmatch(arguments)
            if found is None:
                return arguments
            try:
                return self._of_server.value_for(found[1], name, self._tenant)
            except SecretRefused as refused:
                raise ArgumentsRefused(HintCategory.PERMISSION_DENIED, str(refused)) from None
        if isinstance(arguments, dict):
            items = {key: self._filled(name, value) for key, value in arguments.items()}
            return items if any(items[key] is not value for key, value in arguments.items()) else arguments
        if isinstance(arguments, list):
            values = [self._filled(name, value) for value in arguments]
            return values if any(a is not b for a, b in zip(values, arguments, strict=True)) else arguments
        return arguments

    def _is_in(self, error: Exception) -> bool:
        """Whether an error, or what it came of, says a secret."""
        texts = ["".join(traceback.TracebackException.from_exception(error, compact=True).format())]
        texts += [text for text in vars(error).values() if isinstance(text, str)]
        texts += [key for key in getattr(error, "keys", ()) if isinstance(key, str)]
        return any(self._secrets.mask(text) != text for text in texts)

    def _masked(self, error: Exception) -> Exception:
        """Return an error that says the same without secrets. Whose text is the server's own stays as it is."""
        if isinstance(error, ContextClosed | StoreUnavailable | SubStepFailed):
            return error
        mask = self._secrets.mask
        if isinstance(error, ToolFailure):
            return type(error)(error.category, mask(error.message), [mask(key) for key in error.keys])
        if isinstance(error, ReportedFailure):
            return ReportedFailure(mask(error.raw_error))
        if isinstance(error, OutcomeUnknown | UndoUnavailable):
            return type(error)(mask(str(error)))
        printed = "".join(traceback.TracebackException.from_exception(error, compact=True).format())
        return ReportedFailure(mask(printed))


class _Guarded:
    """A tool's context, to which it may say the secret that it was given: what is kept has the reference."""

    def __init__(self, context: ToolContext, secrets: Secrets) -> None:
        self._context = context
        self._secrets = secrets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def _kept(self, text: str) -> str:
        return _named(self._secrets, text)

    async def get(self, key: str) -> str | None:
        return await self._context.get(self._kept(key))

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        return await self._context.scan(self._kept(prefix), self._kept(after), limit)

    async def put(self, key: str, value: str) -> None:
        await self._context.put(self._kept(key), self._kept(value))

    async def delete(self, key: str) -> None:
        await self._context.delete(self._kept(key))

    async def require_exists(self, key: str, error: str) -> None:
        await self._context.require_exists(self._kept(key), self._kept(error))

    async def require_none(self, prefix: str, error: str) -> None:
        await self._context.require_none(self._kept(prefix), self._kept(error))

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        await self._context.register_undo(undo_name, self._kept(arguments), self._kept(idempotency_key))

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        await self._context.update_undo(undo_name, self._kept(arguments))

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        return await self._context.stage_effect(channel, self._kept(payload), self._kept(idempotency_key))

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        return await self._context.step(tool_name, self._kept(arguments), timeout_us)

    async def touch(self, key: str, *, writes: bool) -> None:
        await self._context.touch(self._kept(key), writes=writes)


def _named(secrets: Secrets, text: str) -> str:
    named = secrets.named(text, "secret://{}")
    return secrets.mask(text) if named is None else named


def _without(secrets: Secrets, value: Any) -> Any:
    """Return a JSON-able value with references, or masks, in place of secrets."""
    if isinstance(value, str):
        return _named(secrets, value)
    if isinstance(value, dict):
        return {
            _named(secrets, key) if isinstance(key, str) else key: _without(secrets, item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without(secrets, item) for item in value]
    return secrets.mask_json(value)

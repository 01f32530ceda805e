"""Answers what a worker's tool asks of its transaction, through the engine's context of that call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import (
    ContextClosed,
    StaleRevision,
    StoreUnavailable,
    SubStepFailed,
    ToolContext,
    ToolFailure,
)
from agenttx_server.engine.records import EffectClass, HintCategory
from agenttx_server.worker_messages import (
    Answer,
    Closed,
    ContextRequest,
    Delete,
    Done,
    EffectId,
    Entries,
    Failure,
    Get,
    MakeStep,
    Output,
    Put,
    RegisterUndo,
    Scan,
    StageEffect,
    Touch,
    Value,
)

__all__ = ["answer_request"]

_LOGGER = logging.getLogger(__name__)

SCAN_BYTES = 4 << 20


async def answer_request(
    request: ContextRequest,
    context: ToolContext,
    effect_class: EffectClass,
    knows_undo: Callable[[str], bool],
) -> Answer:
    """Carry out one request and return its answer; never raises.

    A tool is held to the effect class that it declared, as recovery relies on it.
    """
    try:
        _check_allowed(request, effect_class, knows_undo)
        return await _carry_out(request, context)
    except ContextClosed as closed:
        return Closed(str(closed))
    except SubStepFailed as failure:
        return Failure(
            str(failure.category),
            failure.message,
            tuple(failure.keys),
            failed_sub_step=failure.sub_step,
        )
    except ToolFailure as failure:
        return Failure(str(failure.category), failure.message, tuple(failure.keys))
    except json_values.ValueRefused as refused:
        keys = (refused.key,) if refused.key else ()
        return Failure(HintCategory.INVALID_VALUE, f"the value is not plain JSON at {refused}", keys)
    except (StoreUnavailable, StaleRevision):
        # The engine settles the step as after a crash, whatever the tool makes of it.
        return Closed("the database could not serve the step")
    except Exception:
        _LOGGER.exception("a worker's request failed")
        return Closed("internal error")


def _check_allowed(
    request: ContextRequest, effect_class: EffectClass, knows_undo: Callable[[str], bool]
) -> None:
    changes_state = isinstance(request, (Put, Delete, StageEffect))
    if changes_state and effect_class is EffectClass.READ_ONLY:
        raise ToolFailure(
            HintCategory.PERMISSION_DENIED,
            "the tool is declared READ_ONLY and must not write or stage anything",
        )
    acts = isinstance(request, RegisterUndo) or (isinstance(request, Touch) and request.writes)
    if acts and not effect_class.acts_outside:
        raise ToolFailure(
            HintCategory.PERMISSION_DENIED,
            f"the tool is declared {effect_class}: it has no outside effects and registers no undo",
        )
    if isinstance(request, RegisterUndo) and not knows_undo(request.undo_name):
        raise ToolFailure(
            HintCategory.UNKNOWN_TOOL, f"nobody offers the undo action '{request.undo_name[:64]}'"
        )


async def _carry_out(request: ContextRequest, context: ToolContext) -> Answer:
    match request:
        case Get(key):
            return Value(await context.get(key))
        case Scan(prefix, after, limit):
            found = await context.scan(prefix, after, limit or 1000)
            return _that_fits(found)
        case Put(key, value):
            await context.put(key, _canonical(value))
        case Delete(key):
            await context.delete(key)
        case RegisterUndo(undo_name, arguments, idempotency_key):
            await context.register_undo(undo_name, _canonical(arguments), idempotency_key)
        case StageEffect(channel, payload, idempotency_key):
            return EffectId(await context.stage_effect(channel, _canonical(payload), idempotency_key))
        case Touch(key, writes):
            await context.touch(key, writes=writes)
        case MakeStep(tool_name, arguments, timeout_us):
            return Output(await context.step(tool_name, _canonical(arguments), timeout_us))
    return Done()


def _canonical(text: str) -> str:
    return json_values.canonical(json_values.parse(text))


def _that_fits(found: Sequence[tuple[str, str]]) -> Entries:
    size = 0
    for number, (key, value) in enumerate(found):
        size += len(key.encode()) + len(value.encode())
        if number and size > SCAN_BYTES:
            return Entries(found[:number], is_cut=True)
    return Entries(found, is_cut=False)

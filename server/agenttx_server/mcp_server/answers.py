"""The structured content of each tool's answer; its JSON Schema is the tool's output schema.

What is said in the text is here as fields too, so that a program needs no text and a model no fields.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Answer",
    "Begun",
    "CauseElement",
    "Committed",
    "Explained",
    "NextCall",
    "Refused",
    "Rewound",
    "RolledBack",
    "RootCause",
    "StepRan",
    "StepShown",
    "ToolShown",
    "ToolsListed",
    "TransactionShown",
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NextCall(_Part):
    """A call that makes sense next."""

    tool: str = Field(description="Which tool of this MCP server to call.")
    arguments: dict[str, Any] = Field(description="Its arguments, as far as they are known.")
    why: str = Field(description="When to make this call.")


class Answer(_Part):
    """What all answers have."""

    next: list[NextCall] = Field(default_factory=list, description="What to call next, the likeliest first.")


class Refused(Answer):
    """A call that was not carried out, or whose outcome is not known."""

    error: str = Field(description="What kind of error it is, one word.")
    message: str = Field(description="What is wrong, in one line.")
    advice: str = Field(description="What to do about it.")


class Begun(Answer):
    """Answer of begin_transaction."""

    transaction_id: str
    next_step: int


class CauseElement(_Part):
    """One step on the way from the failing step to the cause of its failure."""

    step: int
    key: str = Field(description="The field that carried the value.")


class RootCause(_Part):
    """Where the value that a step failed on came from."""

    step: int
    key: str
    path: list[CauseElement] = Field(description="From the failing step to the cause.")


class StepRan(Answer):
    """Answer of run_step."""

    transaction_id: str
    step: int
    tool: str
    status: str = Field(
        description="SUCCESS; ROLLBACK_TRIGGERED: it failed and the transaction was rewound; FAILED: it failed and the "
        "transaction was ended; IN_DOUBT: whether it took effect is unknown; AWAITING_APPROVAL: a person must approve."
    )
    output: Any = Field(default=None, description="What the tool returned; null where output_cut is set.")
    output_cut: str | None = Field(
        default=None, description="Where the output is too large to be shown: how it begins."
    )
    output_bytes: int = 0
    hint: str = Field(default="", description="What to fix, in one line.")
    error_category: str = ""
    root_cause: RootCause | None = None
    rolled_back_to: int | None = Field(
        default=None, description="This step and all after it were undone; 0 if the whole transaction was."
    )
    kept_effects: list[str] = Field(default_factory=list, description="Effects outside that were not undone.")
    failed_undo: list[str] = Field(default_factory=list, description="Undo actions that failed.")
    rollback_incomplete: bool = False
    context_reset: bool = Field(
        default=False, description="Whether to forget all that was learnt from this transaction's steps."
    )
    constraints: list[str] = Field(default_factory=list, description="What to keep to from now on.")
    next_step: int = Field(description="The step to run next; 0 if the transaction has ended.")
    approval_id: str = Field(default="", description="What a person decides on, where that is waited for.")
    repeated: bool = Field(
        default=False,
        description="Whether this call had been made before, and only its answer is given again.",
    )


class Rewound(Answer):
    """Answer of rewind."""

    transaction_id: str
    dry_run: bool
    steps_undone: list[int] = Field(description="The steps that were, or would be, undone; at most 100.")
    undo_actions: list[str] = Field(description="The undo actions that would run; only for a dry run.")
    compensations_run: int
    kept_effects: list[str]
    failed_undo: list[str]
    rollback_incomplete: bool
    next_step: int


class Committed(Answer):
    """Answer of commit_transaction."""

    transaction_id: str
    steps_committed: int
    effects_dispatched: int
    effects_pending: int
    dispatch_errors: list[str]
    repeated: bool = Field(default=False, description="Whether it had been committed before.")


class RolledBack(Answer):
    """Answer of rollback_transaction."""

    transaction_id: str
    compensations_run: int
    kept_effects: list[str]
    failed_undo: list[str]
    rollback_incomplete: bool
    repeated: bool = Field(default=False, description="Whether it had been rolled back before.")


class StepShown(_Part):
    """A step as get_transaction shows it; arguments and output only of the step that was asked for."""

    step: int
    tool: str
    state: str
    arguments: Any = None
    output: Any = None
    output_cut: str | None = None
    output_bytes: int = 0
    hint: str = ""


class TransactionShown(Answer):
    """Answer of get_transaction."""

    transaction_id: str
    status: str
    next_step: int
    steps_completed: int
    steps: list[StepShown] = Field(description="The newest steps that stand, at most 50.")
    constraints: list[str]
    failed_undo: list[str]
    kept_effects: list[str]
    pending_effects: int
    abort_reason: str


class ToolShown(_Part):
    """A tool that run_step can call."""

    name: str
    description: str
    effects: str = Field(description="What becomes of its effects when the transaction goes back.")
    arguments_schema: Any = Field(description="JSON Schema of its arguments; null where it is too large.")


class ToolsListed(Answer):
    """Answer of list_tools."""

    tools: list[ToolShown]
    more_after: str = Field(default="", description="Where there are more: give this as `after`.")


class Explained(Answer):
    """Answer of explain_failure."""

    transaction_id: str
    step: int
    attempt: int
    tool: str
    arguments: Any
    hint: str
    error_category: str
    error: str = Field(description="The error as the tool gave it, secrets masked, cut to 4 KiB.")
    root_cause: RootCause | None
    decision: str = Field(description="What was done about it, and why.")
    passed_over: list[str] = Field(description="What was considered first, and why it was not done.")
    constraints: list[str]

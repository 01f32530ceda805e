"""The arguments of each tool, as a model gives them: their JSON Schemas come from here, and so do the checks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BeginTransaction",
    "CommitTransaction",
    "ExplainFailure",
    "GetTransaction",
    "ListTools",
    "Request",
    "Rewind",
    "RollbackTransaction",
    "RunStep",
]

MOST_STEPS = 2**32 - 1
MOST_TEXT = 4096

TransactionId = Annotated[
    str,
    Field(min_length=1, max_length=128, description="The transaction, as begin_transaction answered it."),
]
Reason = Annotated[str, Field(max_length=MOST_TEXT, description="Why, for the transaction's history.")]
AcceptIrreversible = Annotated[
    bool,
    Field(
        description=(
            "Go back past effects that can't be undone; they stay. Only after the user has agreed to that in so "
            "many words."
        )
    ),
]


class Request(BaseModel):
    """What all have in common: unknown arguments are refused, so that a misspelt one is not passed over."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class BeginTransaction(Request):
    """Arguments of begin_transaction."""

    task: str = Field(
        default="",
        max_length=256,
        description="What the transaction is for, in a few words; a person finds it by that.",
    )
    agent_id: str = Field(
        default="",
        max_length=128,
        description="Name of the agent, for lists; leave it out to use the client's name.",
    )


class RunStep(Request):
    """Arguments of run_step."""

    transaction_id: TransactionId
    step: int = Field(
        ge=1,
        le=MOST_STEPS,
        description="Number of this step: the one that the last answer gave as next_step. The same number with "
        "the same tool and arguments is the same call, and takes effect once.",
    )
    tool: str = Field(min_length=1, max_length=256, description="Name of the tool, as list_tools gives it.")
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description='The tool\'s arguments. "${steps.2.id}" stands for the field id of the output of step 2: use '
        "such references for whatever came from an earlier step.",
    )
    note: str = Field(
        default="", max_length=MOST_TEXT, description="Why this step, in a sentence; kept with the step."
    )
    timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Longest the tool may run; leave it out for the tool's own.",
    )


class Rewind(Request):
    """Arguments of rewind."""

    transaction_id: TransactionId
    to_step: int = Field(
        ge=1, le=MOST_STEPS, description="This step and all after it are undone; it is the next step again."
    )
    reason: Reason = ""
    dry_run: bool = Field(default=False, description="Only say what would be undone.")
    accept_irreversible: AcceptIrreversible = False


class CommitTransaction(Request):
    """Arguments of commit_transaction."""

    transaction_id: TransactionId
    steps: int | None = Field(
        default=None,
        ge=0,
        le=MOST_STEPS,
        description="How many steps you take to be done; if it is another number, nothing is committed and the "
        "answer says what is missing.",
    )


class RollbackTransaction(Request):
    """Arguments of rollback_transaction."""

    transaction_id: TransactionId
    reason: Reason = ""
    accept_irreversible: AcceptIrreversible = False


class GetTransaction(Request):
    """Arguments of get_transaction."""

    transaction_id: TransactionId
    step: int | None = Field(
        default=None, ge=1, le=MOST_STEPS, description="Show this step's arguments and output too."
    )
    path: str = Field(
        default="",
        max_length=1024,
        description="With step: only this part of its output, such as items.0.name.",
    )


class ListTools(Request):
    """Arguments of list_tools."""

    search: str = Field(
        default="", max_length=256, description="Only tools with this text in their name or description."
    )
    after: str = Field(
        default="", max_length=256, description="Only tools after this name; the last answer says which."
    )


class ExplainFailure(Request):
    """Arguments of explain_failure."""

    transaction_id: TransactionId
    step: int | None = Field(
        default=None,
        ge=1,
        le=MOST_STEPS,
        description="The step whose last failure is meant; leave it out for the newest failure of all.",
    )

"""What can be set about a server: flags first, then ``AGENTTX_*`` variables, then the defaults here.

One frozen object with a description a setting, from which the command line draws its flags and
``--help``, and the documentation its table. A bad value is refused before anything is opened,
all bad values in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from agenttx_server.listen_address import ListenAddress

__all__ = ["BadSettings", "Settings", "load_settings"]

ENVIRONMENT_PREFIX = "AGENTTX_"
MIB = 1 << 20


class BadSettings(Exception):
    """Settings that can't be served with; the message is one line and names every bad one."""


class Settings(BaseSettings):
    """Everything that can be set. Units are in the names; sizes are bytes, times seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    # --- where things are -----------------------------------------------------------------
    listen: str = Field(
        "127.0.0.1:50051",
        description="Address to serve on: HOST:PORT, or unix:PATH. Port 0 takes a free one.",
    )
    unix_socket_mode: int = Field(
        0o660, description="Permissions of the Unix socket, in octal; who may write to it may connect."
    )
    data_dir: Path = Field(
        Path(".agenttx"),
        description="Directory for what is not placed elsewhere: database, sandbox, outbox. Created if absent.",
    )
    database_url: str = Field(
        "",
        repr=False,
        description="Database, as an SQLAlchemy URL. Default: the file agenttx.db in the data directory.",
    )
    fs_root: Path = Field(
        Path(),
        description="Directory that the fs.* tools are confined to. Default: sandbox in the data directory.",
    )
    outbox_file: Path = Field(
        Path(),
        description="File that committed effects are delivered to, a JSON line each. Default: outbox.jsonl in the data directory.",
    )
    tools: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Own tools to serve, module or module:object; may be given several times (as a variable: separated by commas).",
    )

    hint_rules_file: Path | None = Field(
        None,
        description="File of own rules for hints, TOML or JSON, tried before the built-in ones. Checked at start.",
    )

    # --- logging ----------------------------------------------------------------------------
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="Form of the log on stderr; auto is console on a terminal, else json."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged. An RPC is info, a health check debug."
    )

    # --- the rollback policy of a transaction that brings none ------------------------------
    max_local_depth: int = Field(
        2,
        ge=0,
        le=16,
        description="Failures of one step answered by going back locally, before the whole transaction starts over.",
    )
    max_global_resets: int = Field(
        1, ge=0, le=16, description="Times a transaction may start over before it is aborted."
    )
    replay_budget_factor: Decimal = Field(
        Decimal("2.0"),
        ge=Decimal("0.1"),
        le=1000,
        allow_inf_nan=False,
        description="Factor c of the replay budget c*N*log2(N+1), the steps that rollbacks may cause to run again.",
    )
    rejected_calls: Literal["BACKTRACK", "RETRY_STEP"] = Field(
        "BACKTRACK",
        description="Where a call goes back to that failed before its tool ran: like any failure, or only to itself.",
    )

    # --- times ------------------------------------------------------------------------------
    step_timeout_seconds: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="Time a tool may run where neither request, transaction nor tool says.",
    )
    stop_grace_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="Time a tool that was told to stop has to end, before it is undone while still running.",
    )
    undo_timeout_seconds: float = Field(
        30.0, gt=0, le=86_400, description="Time one try of an undo action may take."
    )
    compensation_retries: int = Field(
        3, ge=1, le=100, description="Tries of an undo action before its rollback is held."
    )
    dispatch_wait_seconds: float = Field(
        2.0, ge=0, le=600, description="Time a commit waits for the first delivery of its effects."
    )
    drain_timeout_seconds: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="Time that running steps have to end after SIGTERM. Keep it below the orchestrator's kill time.",
    )
    lame_duck_seconds: float = Field(
        0.0,
        ge=0,
        le=600,
        description="Time between NOT_SERVING and refusing calls after SIGTERM, for load balancers to notice.",
    )
    call_limit_seconds: float = Field(
        3600.0,
        gt=0,
        le=86_400,
        description="Longest a unary call may take; a longer or absent deadline of the caller is cut to it. The step itself goes on.",
    )

    # --- limits -------------------------------------------------------------------------------
    max_agent_id_bytes: int = Field(256, ge=1, le=65_536, description="Size of agent_id.")
    max_metadata_entries: int = Field(64, ge=0, le=1024, description="Labels of a transaction.")
    max_metadata_value_bytes: int = Field(1024, ge=1, le=65_536, description="Size of one label.")
    max_tool_name_bytes: int = Field(128, ge=1, le=1024, description="Size of a tool's name.")
    max_arguments_bytes: int = Field(MIB, ge=1024, le=64 * MIB, description="Size of a step's arguments.")
    max_raw_context_bytes: int = Field(MIB, ge=0, le=64 * MIB, description="Size of a step's raw_context.")
    max_output_bytes: int = Field(
        4 * MIB, ge=1024, le=64 * MIB, description="Size of a tool's output; over it the step fails."
    )
    max_struct_output_bytes: int = Field(
        2 * MIB,
        ge=1024,
        le=64 * MIB,
        description="Size of a tool's output where the request used `arguments`, which are answered twice.",
    )
    max_group_output_bytes: int = Field(
        4 * MIB,
        ge=1024,
        le=64 * MIB,
        description="Outputs in the answer of one group; the rest are left out of it.",
    )
    max_group_size: int = Field(64, ge=1, le=10_000, description="Steps of one group.")
    max_constraints: int = Field(
        32, ge=1, le=10_000, description="Constraints that a transaction keeps, newest."
    )
    max_context_bytes: int = Field(
        MIB, ge=0, le=64 * MIB, description="Context that GetTransaction answers, newest."
    )
    max_steps_per_transaction: int = Field(
        100_000, ge=1, le=10_000_000, description="Steps of one transaction."
    )
    max_message_bytes: int = Field(
        8 * MIB, ge=65_536, le=256 * MIB, description="Size of one gRPC message, both ways."
    )
    max_concurrent_steps: int = Field(
        4096, ge=1, description="Step calls served at once; more are refused with RESOURCE_EXHAUSTED."
    )
    max_concurrent_changes: int = Field(1024, ge=1, description="Other changing calls served at once.")
    max_concurrent_reads: int = Field(1024, ge=1, description="Reading calls served at once.")
    max_concurrent_streams: int = Field(
        4096, ge=1, description="Streams open at once: ExecuteSteps, WatchTransaction, reflection."
    )

    # --- resources --------------------------------------------------------------------------
    sqlite_synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL",
        description="FULL: an answered step is on disk. NORMAL: faster, and a power cut may lose the last steps answered.",
    )
    tool_threads: int = Field(32, ge=1, le=4096, description="Threads for tools that block.")
    cached_transactions: int = Field(
        4096, ge=1, description="Open transactions kept in memory; others are read again when used."
    )
    reflection: bool = Field(
        True, description="Whether clients such as grpcurl may ask the server for its protocol."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take flags and variables only: a stray ``.env`` file changes nothing."""
        return init_settings, env_settings

    @model_validator(mode="before")
    @classmethod
    def _place_the_rest_in_the_data_directory(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        try:
            data_dir = Path(given.get("data_dir") or ".agenttx").expanduser().absolute()
        except TypeError:
            return given
        defaults = {
            "database_url": f"sqlite:///{data_dir / 'agenttx.db'}",
            "fs_root": data_dir / "sandbox",
            "outbox_file": data_dir / "outbox.jsonl",
        }
        return defaults | given | {"data_dir": data_dir}

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        return str(ListenAddress.parse(value))

    @field_validator("unix_socket_mode", mode="before")
    @classmethod
    def _is_an_octal_mode(cls, value: object) -> object:
        if isinstance(value, str):
            digits = value.removeprefix("0o")
            if not digits or set(digits) - set("01234567") or int(digits, 8) > 0o777:
                raise ValueError(f"{value!r} is no octal mode such as 660")
            return int(digits, 8)
        return value

    @field_validator("fs_root", "outbox_file", "hint_rules_file")
    @classmethod
    def _is_absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _is_a_database_url(cls, value: str) -> str:
        if not value.partition(":")[2].startswith("//"):
            raise ValueError("is no database URL such as sqlite:////var/lib/agenttx/agenttx.db")
        return value

    @field_validator("tools", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @model_validator(mode="after")
    def _keep_tools_off_our_own_files(self) -> Self:
        ours = [self.outbox_file]
        if self.database_url.startswith("sqlite"):
            ours.append(Path(self.database_url.partition("///")[2]))
        for path in ours:
            if path.is_absolute() and path.is_relative_to(self.fs_root):
                raise ValueError(
                    f"fs_root {self.fs_root} holds {path}, which the fs.* tools could then overwrite"
                )
        return self

    @property
    def address(self) -> ListenAddress:
        """``listen``, taken apart."""
        return ListenAddress.parse(self.listen)


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge flags over ``AGENTTX_*`` variables over defaults; a flag that is None was not given.

    Raises:
        BadSettings: one line that names every setting that is unknown or out of range.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as refused:
        problems = [_problem(error, given) for error in refused.errors(include_url=False)]
    raise BadSettings("bad settings: " + "; ".join(problems))


def _problem(error: Any, flags: Mapping[str, Any]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "settings"
    shown = "--" + name.replace("_", "-") if name in flags else ENVIRONMENT_PREFIX + name.upper()
    reason = str(error["msg"]).removeprefix("Value error, ").replace("\n", " ")
    return f"{shown}: {reason[:1].lower()}{reason[1:]}"

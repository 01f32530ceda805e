"""What can be set about a server: flags first, then ``AGENTTX_*`` variables, then the defaults here.

One frozen object with a description a setting, from which the command line draws its flags and
``--help``, and the documentation its table. A bad value is refused before anything is opened,
all bad values in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agenttx_server import mcp_servers, setting_rules, webhook_targets
from agenttx_server.listen_address import ListenAddress
from agenttx_server.mcp_servers import McpServer
from agenttx_server.setting_rules import Misfit
from agenttx_server.setting_types import (
    AbsolutePath,
    Address,
    DatabaseUrl,
    Hosts,
    Lines,
    MetricsAddress,
    Networks,
    OctalMode,
    OtlpAddress,
    Texts,
    UrlsByChannel,
    ValuesByChannel,
)
from agenttx_server.webhook_targets import WebhookTarget

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
    listen: Address = Field(
        "127.0.0.1:50051",
        description="Address to serve on: HOST:PORT, or unix:PATH. Port 0 takes a free one.",
    )
    unix_socket_mode: OctalMode = Field(
        0o660, description="Permissions of the Unix socket, in octal; who may write to it may connect."
    )
    tls_certificate: AbsolutePath | None = Field(
        None,
        description="PEM file of the server's certificate and its chain: serve TLS. Read again when it or another of these files changes; a new one that is no good leaves the one of before in use.",
    )
    tls_key: AbsolutePath | None = Field(None, description="PEM file of the certificate's private key.")
    tls_client_ca: AbsolutePath | None = Field(
        None,
        description="PEM file of authorities: every client must show a certificate of theirs, and is known by its subject alternative name.",
    )
    certificates_file: AbsolutePath | None = Field(
        None,
        description="Whom clients' certificates stand for, and their roles, TOML. Default: each for itself, as an agent. Checked at start.",
    )
    jwt_issuer: str = Field(
        "",
        description="Serve callers with JWTs of this issuer: what their iss says. Needs jwt_audience and jwt_keys.",
    )
    jwt_audience: str = Field("", description="Whom JWTs must be for: what their aud says or holds.")
    jwt_keys: str = Field(
        "",
        description="The issuer's public keys as JWKS: a file, or an https address. Looked at again every 5 minutes and when a token names an unknown one.",
    )
    jwt_algorithms: Texts = Field(
        ("RS256", "ES256", "EdDSA"),
        description="Signatures of JWTs that are accepted; asymmetric ones only. May be given several times (as a variable: separated by commas).",
    )
    jwt_roles_claim: str = Field(
        "agenttx_roles", min_length=1, description="The claim of JWTs that names the roles."
    )
    jwt_tenant_claim: str = Field(
        "agenttx_tenant",
        min_length=1,
        description="The claim of JWTs that names the tenant; without it the caller is the default one's.",
    )
    tenants_file: AbsolutePath | None = Field(
        None,
        description="What each tenant may use, TOML: its tools of the server's own and its limits. Checked at start.",
    )
    allow_plaintext: bool = Field(
        False,
        description="Serve without TLS also on an address that others than this machine reach; what is sent can be read and changed on the way. Only where something else protects it.",
    )
    anonymous: Literal["local", "never", "anyone"] = Field(
        "local",
        description="Whom to serve without credentials: callers on loopback or a Unix socket, nobody, or anyone who reaches the address. All of them are one caller, who may do everything with what is theirs.",
    )
    data_dir: Path = Field(
        Path(".agenttx"),
        description="Directory for what is not placed elsewhere: database, sandbox, outbox. Created if absent.",
    )
    database_url: DatabaseUrl = Field(
        "",
        repr=False,
        description="Database: sqlite:////PATH or postgresql://USER:PASSWORD@HOST/NAME. Default: the file agenttx.db in the data directory.",
    )
    fs_tools: bool = Field(
        True,
        description="Offer the fs.* tools. Without them no directory is taken for files: for several servers that share a database and no file system.",
    )
    fs_root: AbsolutePath = Field(
        Path(),
        description="Directory that the fs.* tools are confined to. Default: sandbox in the data directory.",
    )
    fs_backup_dir: AbsolutePath = Field(
        Path(),
        description="Directory for what rewinds restore files from, outside fs_root. Servers that share fs_root must share it. Default: backups in the data directory.",
    )
    fs_adopt: bool = Field(
        False,
        description="Take fs_root and fs_backup_dir for this database, if they are no other one's yet, also where several servers share it: all of them must see the same directories.",
    )
    outbox_file: AbsolutePath = Field(
        Path(),
        description="File that committed effects are delivered to, a JSON line each. Default: outbox.jsonl in the data directory.",
    )
    webhooks: UrlsByChannel = Field(
        (),
        repr=False,
        description="CHANNEL=URL: effects of that channel are posted there instead; * is every other channel. May be given several times (as a variable: separated by commas).",
    )
    webhook_authorization: ValuesByChannel = Field(
        (),
        repr=False,
        description="CHANNEL=VALUE of the Authorization header for the webhook of that channel. May be given several times (as a variable, where others don't see it: separated by commas).",
    )
    tools: Texts = Field(
        (),
        description="Own tools to serve, module or module:object; may be given several times (as a variable: separated by commas).",
    )
    entry_point_tools: Texts = Field(
        (),
        description="Tools of installed packages to serve: names of entry points of the group agenttx.tools or of the distributions that have them, or all. May be given several times (as a variable: separated by commas).",
    )
    reducers: Texts = Field(
        (),
        description="Own reducers for the channels of graphs, module or module:object; may be given several times (as a variable: separated by commas).",
    )
    http_allow: Hosts = Field(
        (),
        description="Hosts that the http.* tools may send requests to: api.example.com, *.example.com, http://billing:8080 or *; https and its port unless written otherwise. Without any there are no http.* tools. May be given several times (as a variable: separated by commas).",
    )
    http_private_networks: Networks = Field(
        (),
        description="Networks such as 10.0.0.0/8 that the http.* tools may reach though they are not public. May be given several times (as a variable: separated by commas).",
    )
    http_idempotent_hosts: Hosts = Field(
        (),
        description="Hosts, written as in http_allow, that honour Idempotency-Key: sent a request twice under one key, they act once and answer the same. May be given several times (as a variable: separated by commas).",
    )
    http_secrets_file: AbsolutePath | None = Field(
        None,
        description="TOML file of the secrets that the http.* tools may send, and to whom. Read at start; mode 600 where it holds values.",
    )
    tool_secrets_file: AbsolutePath | None = Field(
        None,
        description="TOML file of the secrets that tools are given in place of secret://NAME, and which tools. Read at start; mode 600 where it holds values.",
    )
    encryption_keys_file: AbsolutePath | None = Field(
        None,
        description="TOML file of the keys that payloads are sealed with in the database; without it they are stored plain. Read at start; mode 600.",
    )
    http_ca_file: AbsolutePath | None = Field(
        None,
        description="PEM file of the authorities that the http.* tools trust instead of the system's.",
    )
    mcp: Lines = Field(
        (),
        repr=False,
        description="NAME=COMMAND or NAME=URL of an MCP server whose tools are served as NAME.tool. May be given several times (as a variable: one a line).",
    )
    mcp_rules_file: AbsolutePath | None = Field(
        None,
        description="What is to be held of the tools of MCP servers (effect classes, undo, times), TOML or JSON. Checked at start.",
    )

    hint_rules_file: AbsolutePath | None = Field(
        None,
        description="File of own rules for hints, TOML or JSON, tried before the built-in ones. Checked at start.",
    )

    approvals_file: AbsolutePath | None = Field(
        None,
        description="File of rules for calls that need a person's approval, TOML or JSON, beside tools that always do. Checked at start.",
    )

    # --- logging ----------------------------------------------------------------------------
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="Form of the log on stderr; auto is console on a terminal, else json."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged. An RPC is info, a health check debug."
    )

    # --- metrics ----------------------------------------------------------------------------
    metrics_listen: MetricsAddress = Field(
        "",
        description="Address, HOST:PORT, to serve metrics for Prometheus on, over plain HTTP and to whoever can connect; empty is nowhere. Of several workers the first has this port and each further one the next.",
    )

    otlp_endpoint: OtlpAddress = Field(
        "",
        description="Send traces there by OTLP, as http://HOST:4317; needs the extra otel. Empty: nothing is traced. What else OTLP needs is set by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_HEADERS.",
    )
    otlp_protocol: Literal["grpc", "http"] = Field(
        "grpc", description="How OTLP is spoken: gRPC (4317 by custom) or HTTP (4318)."
    )
    trace_sampling: float = Field(
        0.01,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the calls without a trace context of their own that are traced. Those with one go by its sampled flag.",
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
    idle_timeout_seconds: float = Field(
        900.0,
        ge=0,
        le=315_360_000,
        description="Time after which a transaction that is not used is rolled back, where it doesn't say itself; 0 is never.",
    )
    retention_seconds: float = Field(
        7 * 86_400.0,
        ge=0,
        le=315_360_000,
        description="Time that ended transactions, and runs of graphs without a thread, are kept; those with effects or undo that "
        "need somebody stay longer.",
    )
    lineage_retention_seconds: float = Field(
        0.0,
        ge=0,
        le=315_360_000,
        description="Time that ended pipeline runs are kept, with their records and what became of their inputs; 0 is for ever.",
    )
    reap_interval_seconds: float = Field(
        15.0,
        gt=0,
        le=86_400,
        description="Time between two looks for transactions that are idle, past their deadline, or to be deleted.",
    )
    lease_seconds: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="Time after which a server that shares its database and is silent is taken for dead.",
    )
    recovery_wait_seconds: float = Field(
        7.0,
        ge=0,
        le=3600,
        description="Time that a start waits for the recovery of unsettled work before it serves; the rest goes on in the background.",
    )
    webhook_timeout_seconds: float = Field(
        10.0, gt=0, le=600, description="Time one delivery to a webhook may take."
    )
    http_timeout_seconds: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Time one request of an http.* tool may take, redirects and body included.",
    )
    effect_retry_base_seconds: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="Longest wait after an effect's first failed delivery; it doubles with each further one.",
    )
    effect_retry_max_seconds: float = Field(
        600.0, gt=0, le=86_400, description="Longest wait between two deliveries of an effect."
    )
    effect_max_attempts: int = Field(
        20, ge=1, le=1000, description="Deliveries of an effect that may fail before it is given up as DEAD."
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
    stream_stall_seconds: float = Field(
        30.0,
        ge=0.1,
        le=86_400,
        description="Time that a client of an event stream may read nothing before it is cut; it goes on from its last event.",
    )
    call_limit_seconds: float = Field(
        3600.0,
        gt=0,
        le=86_400,
        description="Longest a unary call may take; a longer or absent deadline of the caller is cut to it. The step itself goes on.",
    )

    # --- limits -------------------------------------------------------------------------------
    max_open_transactions: int = Field(
        1_000_000,
        ge=1,
        description="Open transactions in all; beginning more is refused. A million is no limit.",
    )
    max_open_per_principal: int = Field(
        1_000_000, ge=1, description="Open transactions of one principal. A million is no limit."
    )
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
    http_max_response_bytes: int = Field(
        MIB, ge=1, le=64 * MIB, description="Size of an answer's body, decoded, that an http.* tool takes."
    )
    http_max_redirects: int = Field(5, ge=0, le=32, description="Redirects that an http.* tool follows.")
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
    overload_step_seconds: float = Field(
        0.02,
        ge=0,
        le=60,
        description="How long a step may be in the server's hands, the time of its tool left out, before the server counts as behind, or four times what one takes while the server has little to do, if that is longer. Behind, it takes as many steps at once as it does in that time, and refuses the rest with RESOURCE_EXHAUSTED and the time to come again. 0 refuses none for being behind.",
    )
    overload_callers: int = Field(
        256,
        ge=0,
        le=1_000_000,
        description="While no more callers than so many want something done at once, no step is refused for the server's being behind, however long they wait.",
    )
    max_concurrent_steps: int = Field(
        4096, ge=1, description="Step calls served at once; more are refused with RESOURCE_EXHAUSTED."
    )
    max_concurrent_changes: int = Field(1024, ge=1, description="Other changing calls served at once.")
    max_concurrent_reads: int = Field(1024, ge=1, description="Reading calls served at once.")
    max_concurrent_streams: int = Field(
        4096, ge=1, description="Streams open at once: ExecuteSteps, WatchTransaction, reflection."
    )
    max_concurrent_steps_per_principal: int = Field(
        0, ge=0, description="Steps and groups of one caller run at once; 0 is as many as of all."
    )
    max_concurrent_streams_per_principal: int = Field(
        0, ge=0, description="Streams of one caller open at once; 0 is as many as of all."
    )
    max_steps_per_second_per_principal: int = Field(
        0,
        ge=0,
        description="Steps that one caller may send in a second, one with the other; 0 is any number.",
    )
    max_stored_bytes_per_principal: int = Field(
        0,
        ge=0,
        description="Bytes that one caller may have stored in transactions, runs, pipelines and records; beyond it no new work of its own is begun. 0 is any number.",
    )
    max_workers_per_principal: int = Field(
        0, ge=0, description="Workers' connections of one caller; 0 is as many as of all."
    )

    # --- resources --------------------------------------------------------------------------
    sqlite_synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL",
        description="FULL: an answered step is on disk. NORMAL: faster, and a power cut may lose the last steps answered.",
    )
    postgres_writers: int = Field(
        4,
        ge=1,
        le=64,
        description="Connections that write to PostgreSQL at once; five more read and keep the lease.",
    )
    max_concurrent_deliveries: int = Field(
        256, ge=1, le=65_536, description="Transactions whose effects are delivered at once."
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Server processes on the port; more than one needs PostgreSQL. As many as there are cores is the most that helps.",
    )
    tool_threads: int = Field(32, ge=1, le=4096, description="Threads for tools that block.")
    max_workers: int = Field(1024, ge=1, description="Workers' connections served at once.")
    worker_silence_seconds: float = Field(
        15.0,
        ge=0.3,
        le=3600,
        description="Time a worker may say nothing before it is taken to be gone and its calls are settled without it; four times that while it runs nothing.",
    )
    worker_channels: Texts = Field(
        (),
        description="Channels whose effects wait for a worker that delivers them, also before one has connected. May be given several times (as a variable: separated by commas).",
    )
    cached_transactions: int = Field(
        4096, ge=1, description="Open transactions kept in memory; others are read again when used."
    )
    reflection: bool = Field(
        True,
        description="Whether clients such as grpcurl may ask the server for its protocol; not with TLS unless it is given.",
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
            "fs_backup_dir": data_dir / "backups",
            "outbox_file": data_dir / "outbox.jsonl",
        }
        return defaults | given | {"data_dir": data_dir}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        setting_rules.check(self)
        return self

    @property
    def address(self) -> ListenAddress:
        """``listen``, taken apart."""
        return ListenAddress.parse(self.listen)

    def metrics_address(self, worker: int = 1) -> ListenAddress | None:
        """Where the metrics of a process of ``workers`` are served, counted from 1; None for nowhere."""
        if not self.metrics_listen:
            return None
        first = ListenAddress.parse(self.metrics_listen)
        return ListenAddress(first.host, first.port + worker - 1 if first.port else 0)

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """The MCP servers to mount, with what is to be held of their tools."""
        return mcp_servers.mcp_servers(self.mcp, self.mcp_rules_file)

    @property
    def webhooks_by_channel(self) -> dict[str, WebhookTarget]:
        """Where the effects of each channel are posted; `*` is every other channel."""
        return webhook_targets.targets(
            webhook_targets.by_channel(self.webhooks, "URL"),
            webhook_targets.by_channel(self.webhook_authorization, "VALUE"),
        )

    @property
    def transport_problem(self) -> str:
        """Why nothing may be served as told, in one line; empty if it may."""
        if self.address.is_local or self.allow_plaintext or self.tls_certificate is not None:
            return ""
        return (
            f"--listen {self.listen} is reached from beyond this machine, where others could read and change what "
            "is sent: listen on 127.0.0.1 or a Unix socket, give --tls-certificate and --tls-key, or say --allow-plaintext"
        )

    @property
    def serves_reflection(self) -> bool:
        """Whether clients may ask for the protocol; what was not said is no under TLS."""
        return self.reflection and (self.tls_certificate is None or "reflection" in self.model_fields_set)

    @property
    def allows_anonymous(self) -> bool:
        """Whether calls without credentials are served."""
        return self.anonymous == "anyone" or (self.anonymous == "local" and self.address.is_local)


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
    cause = error.get("ctx", {}).get("error")
    name = cause.setting if isinstance(cause, Misfit) else str(error["loc"][0])
    shown = "--" + name.replace("_", "-") if name in flags else ENVIRONMENT_PREFIX + name.upper()
    reason = str(cause or error["msg"]).replace("\n", " ")
    return f"{shown}: {reason[:1].lower()}{reason[1:]}"

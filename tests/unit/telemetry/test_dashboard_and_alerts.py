"""The dashboard, the alerts, their runbooks and the page on metrics against what a server really tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2

from agenttx_server import command_line
from agenttx_server.api.methods import METHODS
from agenttx_server.engine.records import EffectState, HintCategory, Strategy, TransactionStatus, UndoState
from agenttx_server.settings import Settings
from agenttx_server.telemetry.exposition import Exposition
from agenttx_server.telemetry.metric_families import ALL_FAMILIES, Kind

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "agenttx.json"
RUNBOOKS = ROOT / "docs" / "operations"
METRICS_PAGE = RUNBOOKS / "metrics.md"

METRIC = re.compile(r"\b((?:agenttx|process|python)_[a-z0-9_]+)\b")
SELECTOR = re.compile(r"\b(agenttx_[a-z0-9_]+)\{([^{}]*)\}")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.COUNTER: ("",), Kind.GAUGE: ("",)}
# What labels that are closed lists may say.
VALUES = {
    ("agenttx_transactions_open", "status"): {status.value for status in TransactionStatus},
    ("agenttx_transactions_oldest_seconds", "status"): {status.value for status in TransactionStatus},
    ("agenttx_undo_waiting", "state"): {state.value for state in UndoState},
    ("agenttx_effects_waiting", "state"): {state.value for state in EffectState},
    ("agenttx_effects_oldest_seconds", "state"): {state.value for state in EffectState},
    ("agenttx_queue_depth", "queue"): {"commit", "read", "worker", "tool_thread"},
    ("agenttx_lease_renewals_total", "result"): {"renewed", "failed", "lost"},
    ("agenttx_compensations_total", "outcome"): {"done", "failed", "resolved", "late_effect"},
    ("agenttx_effects_total", "outcome"): {"delivered", "failed", "dead", "requeued", "discarded"},
    ("agenttx_hints_total", "category"): {category.value for category in HintCategory},
    ("agenttx_decisions_total", "strategy"): {strategy.value for strategy in Strategy},
}


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load(ALERTS.read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """Every query of the dashboard and the alerts, by where it stands."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    return found | {rule["alert"]: rule["expr"] for rule in rules()}


def runbooks() -> list[Path]:
    """The pages of alerts; others stand beside them."""
    return sorted(path for path in RUNBOOKS.glob("*.md") if re.search(r"^Alerts?: ", path.read_text(), re.M))


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """The names of all samples that a server may tell, from the text that it sends."""
    exposition = Exposition([])
    text = exposition.text("")[0].decode()
    names = {line.split()[0].partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names.update(name + suffix for suffix in SUFFIXES.get(Kind(kind), ()) if kind in set(Kind))
    return names


def test_every_metric_of_the_dashboard_and_the_alerts_is_told(exposed: set[str]) -> None:
    assert "agenttx_step_duration_seconds_bucket" in exposed
    unknown = {
        f"{where}: {name}"
        for where, expression in expressions().items()
        for name in METRIC.findall(expression)
        if name not in exposed
    }
    assert unknown == set()


def test_every_label_of_a_query_is_one_of_its_metric_and_says_what_that_may_say() -> None:
    families = {family.name + suffix: family for family in ALL_FAMILIES for suffix in SUFFIXES[family.kind]}
    checked = 0
    texts = [*expressions().values(), *(path.read_text() for path in [*runbooks(), METRICS_PAGE])]
    for text in texts:
        for name, matchers in SELECTOR.findall(text):
            for label, value in MATCHER.findall(matchers):
                if label in ("instance", "job", "le"):
                    continue
                family = families[name]
                assert label in family.labels, f"{name} has no label {label}"
                known = VALUES.get((family.name, label))
                if known is not None:
                    assert set(value.split("|")) <= known, f"{name}: {label} is never {value}"
                    checked += 1
    assert checked > 10


def test_everything_that_is_told_is_on_the_dashboard_or_an_alerts_business() -> None:
    used = " ".join(expressions().values())
    unused = [family.name for family in ALL_FAMILIES if family.name not in used]
    assert unused == []


def test_the_page_on_metrics_lists_every_one_as_it_is() -> None:
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in ALL_FAMILIES
    ]
    listed = [line for line in METRICS_PAGE.read_text().splitlines() if line.startswith("| `agenttx_")]
    assert listed == rows


def test_every_metric_that_a_page_names_is_told(exposed: set[str]) -> None:
    bare = {family.name for family in ALL_FAMILIES}
    pages = [*RUNBOOKS.glob("*.md"), ROOT / "docs" / "operations.md", ROOT / "docs" / "benchmarks.md"]
    unknown = {
        f"{page.name}: {name}"
        for page in pages
        for name in re.findall(
            r"\b(agenttx_[a-z0-9_]*[a-z0-9]|process_[a-z0-9_]*[a-z0-9])\b", page.read_text()
        )
        if name not in exposed | bare | {"agenttx_server"}
    }
    assert unknown == set()


def test_every_alert_says_what_it_is_and_has_a_runbook_that_names_it_and_no_runbook_is_left_over() -> None:
    pages = set()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        annotations = rule["annotations"]
        assert annotations["summary"]
        assert annotations["description"]
        page = ROOT / annotations["runbook_url"]
        text = page.read_text()
        severity = rule["labels"]["severity"]
        assert re.search(rf"`{rule['alert']}`, {severity}", text), f"{page.name} doesn't name {rule['alert']}"
        for heading in ("## What it means", "## How to see it", "## What to do"):
            assert heading in text
        pages.add(page)
    assert pages == set(runbooks())
    index = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"](operations/{page.name})" in index for page in pages)
    named = set(re.findall(r"`(AgentTx[A-Za-z]+)`", " ".join(page.read_text() for page in pages)))
    assert named == {rule["alert"] for rule in rules()}


def shell_lines(page: Path) -> Iterator[str]:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (part.strip() for part in re.split(r" ; | \| ", line.partition("  #")[0]))


def test_every_command_and_rpc_of_a_runbook_is_there() -> None:
    assert health_pb2.DESCRIPTOR.package == "grpc.health.v1"  # known to the pool from here on
    cli: Any = typer.main.get_command(command_line._app())
    seen = 0
    for page in [*runbooks(), METRICS_PAGE]:
        for line in shell_lines(page):
            words = line.split()
            if words[:1] == ["agenttx"]:
                command, rest = cli, words[1:]
                while hasattr(command, "commands") and rest:
                    assert rest[0] in command.commands, f"{page.name}: {line}"
                    command, rest = command.commands[rest[0]], rest[1:]
                context = command.make_context(words[-1], [], resilient_parsing=True)
                known = {name for option in command.get_params(context) for name in option.opts}
                known |= {name for option in command.get_params(context) for name in option.secondary_opts}
                flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
                assert flags <= known, f"{page.name}: {line}"
                seen += 1
            elif words[:1] == ["grpcurl"]:
                assert f"/{words[-1]}" in METHODS, f"{page.name}: {line}"
                service, _, method = words[-1].partition("/")
                asked = (
                    descriptor_pool.Default().FindServiceByName(service).methods_by_name[method].input_type
                )
                body = re.search(r"-d '([^']*)'", line)
                if body is not None:
                    json_format.Parse(body[1], message_factory.GetMessageClass(asked)())
                seen += 1
    assert seen > 30


def test_settings_that_a_runbook_names_are_there() -> None:
    known = set(Settings.model_fields)
    for page in [*runbooks(), METRICS_PAGE]:
        for name in re.findall(
            r"`((?:max|tls|jwt|postgres|effect|lame|drain|recovery|lease|tool|hint|sqlite)_\w+)`",
            page.read_text(),
        ):
            if name != "effect_class":  # a label
                assert name in known, f"{page.name}: {name}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*runbooks(), METRICS_PAGE]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def promtool(*arguments: str, stdin: str = "", fails: bool = False) -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [found, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(ROOT / "deploy" / "prometheus" / "prometheus.yml"))


def test_promtool_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    variables = {"$instance": ".*", "$__rate_interval": "5m"}
    queries = []
    for expression in expressions().values():
        for variable, value in variables.items():
            expression = expression.replace(variable, value)
        queries.append(expression)
    rule_file = tmp_path / "queries.yml"
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    rule_file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(rule_file))


# For each alert the series of a server in trouble; "x 40" is for forty minutes, a sample a minute.
TROUBLE: dict[str, dict[str, str]] = {
    "AgentTxDown": {"up": "0x40"},
    "AgentTxNotServing": {"agenttx_serving": "0x40"},
    "AgentTxDatabaseUnavailable": {"agenttx_writes_unavailable_total": "0+3x40"},
    "AgentTxDatabaseCountsStale": {"agenttx_database_sample_age_seconds": "0+60x40"},
    "AgentTxInternalErrors": {
        'agenttx_rpc_duration_seconds_count{method="ExecuteStep",code="INTERNAL"}': "0+1x40"
    },
    "AgentTxTransactionsInDoubt": {'agenttx_transactions_open{status="IN_DOUBT"}': "2x40"},
    "AgentTxRewindsHeld": {"agenttx_transactions_held": "1x40"},
    "AgentTxUndoFailed": {'agenttx_undo_waiting{state="FAILED"}': "1x40"},
    "AgentTxTransactionsUnrecovered": {"agenttx_transactions_unrecovered": "1x40"},
    "AgentTxEffectsDead": {'agenttx_effects_waiting{state="DEAD"}': "1x40"},
    "AgentTxEffectsLate": {'agenttx_effects_oldest_seconds{state="READY"}': "600+60x40"},
    "AgentTxApprovalsWait": {"agenttx_approvals_oldest_seconds": "3000+60x40"},
    "AgentTxWorkersMissing": {'agenttx_queue_depth{queue="worker"}': "5x40"},
    "AgentTxEventLoopLag": {
        'agenttx_event_loop_lag_seconds_bucket{le="0.25"}': "0+10x40",
        'agenttx_event_loop_lag_seconds_bucket{le="1.0"}': "0+240x40",
        'agenttx_event_loop_lag_seconds_bucket{le="+Inf"}': "0+240x40",
    },
    "AgentTxSlowCommits": {
        'agenttx_commit_batch_duration_seconds_bucket{le="0.5"}': "0+10x40",
        'agenttx_commit_batch_duration_seconds_bucket{le="2.5"}': "0+90x40",
        'agenttx_commit_batch_duration_seconds_bucket{le="+Inf"}': "0+90x40",
    },
    "AgentTxNearCallLimit": {
        'agenttx_calls_in_class{call_class="STEP"}': "4000x40",
        'agenttx_calls_in_class_limit{call_class="STEP"}': "4096x40",
    },
    "AgentTxRefusesWork": {'agenttx_work_refused_total{kind="step"}': "0+6000x40"},
    "AgentTxLeaseTrouble": {'agenttx_lease_renewals_total{result="lost"}': "0x20 1x20"},
    "AgentTxCallersRefused": {
        'agenttx_rpc_duration_seconds_count{method="GetTransaction",code="UNAUTHENTICATED"}': "0+120x40"
    },
    "AgentTxCertificateEnds": {"agenttx_certificate_expiry_timestamp_seconds": "86400x90"},
    "AgentTxFileDescriptors": {"process_open_fds": "900x40", "process_max_fds": "1024x40"},
    "AgentTxMuchIsRewound": {
        'agenttx_decisions_total{strategy="LOCAL_BACKTRACK"}': "0+5x90",
        'agenttx_step_duration_seconds_count{tool="t",outcome="failed"}': "0+5x90",
        'agenttx_step_duration_seconds_count{tool="t",outcome="completed"}': "0+10x90",
    },
}


def series(told: dict[str, str]) -> list[dict[str, str]]:
    at = 'job="agenttx",instance="a:9464"'
    found = []
    for name, values in told.items():
        base, brace, labels = name.partition("{")
        found.append({"series": f"{base}{{{at},{labels}" if brace else f"{base}{{{at}}}", "values": values})
    return found


def test_each_alert_fires_in_its_trouble_and_no_other_does(tmp_path: Path) -> None:
    assert set(TROUBLE) == {rule["alert"] for rule in rules()}
    late = {"AgentTxCertificateEnds", "AgentTxMuchIsRewound"}
    found = promtool_alerts(tmp_path, [(name, TROUBLE[name], 85 if name in late else 30) for name in TROUBLE])
    assert found == {name: {name} for name in TROUBLE}


def promtool_alerts(folder: Path, cases: list[tuple[str, dict[str, str], int]]) -> dict[str, set[str]]:
    """Return which alerts fire, by case. promtool says so only of what was not expected: nothing is."""
    fired = {}
    for name, told, minute in cases:
        case = {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": series(told),
                    "alert_rule_test": [
                        {"eval_time": f"{minute}m", "alertname": rule["alert"]} for rule in rules()
                    ],
                }
            ],
        }
        path = folder / f"{name}.yml"
        path.write_text(yaml.safe_dump(case))
        said = promtool("test", "rules", str(path), fails=True)
        fired[name] = set(re.findall(r"alertname: *(\w+), time", said))
    return fired


def test_promtool_finds_nothing_to_say_of_the_metrics() -> None:
    found = promtool("check", "metrics", stdin=Exposition([]).text("")[0].decode())
    assert [line for line in found.splitlines() if line.startswith("agenttx_")] == []


def test_the_dashboards_panels_do_not_overlap_and_ask_the_chosen_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])

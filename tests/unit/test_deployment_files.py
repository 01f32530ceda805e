"""deploy/ and docker/: what they say is valid, means settings that exist, and fits how a server drains."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agenttx_server.settings import ENVIRONMENT_PREFIX, Settings, load_settings

REPOSITORY = Path(__file__).resolve().parents[2]
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
UNIT = REPOSITORY / "deploy" / "systemd" / "agenttx.service"
OLDEST, NEWEST = "1.27", "1.34"  # gRPC probes are stable since 1.27
SELECTS = "app.kubernetes.io/name"


def environment(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def settings_of(variables: dict[str, str]) -> Settings:
    """As a server with these variables would have them; a name that means nothing is refused."""
    names = {name.removeprefix(ENVIRONMENT_PREFIX).lower(): value for name, value in variables.items()}
    return load_settings(
        {"database_url": "postgresql://agenttx@db/agenttx", "listen": "0.0.0.0:50051", **names}
    )


def kustomized(overlay: str) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    built = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES / overlay)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return list(yaml.safe_load_all(built.stdout))


def resources_of_base() -> Iterator[dict[str, Any]]:
    base = KUBERNETES / "base"
    for name in yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((base / name).read_text())


def of_kind(resources: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in resources if one["kind"] == kind]
    return found


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_manifests_are_what_kubernetes_knows(version: str) -> None:
    for resource in resources_of_base():
        kubernetes_validate.validate(resource, version, strict=True)
    # And the validator does notice.
    broken = next(one for one in resources_of_base() if one["kind"] == "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["grpcs"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("overlay", ["base", "tls"])
def test_what_kustomize_makes_of_them_is_valid_and_belongs_together(overlay: str) -> None:
    resources = kustomized(overlay)
    for resource in resources:
        kubernetes_validate.validate(resource, NEWEST, strict=True)
    pod = of_kind(resources, "Deployment")["spec"]["template"]
    assert SELECTS in pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert (
        container["envFrom"][0]["configMapRef"]["name"] == of_kind(resources, "ConfigMap")["metadata"]["name"]
    )
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_overlay_for_tls_serves_tls_and_probes_with_the_program() -> None:
    resources = kustomized("tls")
    settings = settings_of(of_kind(resources, "ConfigMap")["data"])
    assert (settings.allow_plaintext, settings.transport_problem) == (False, "")
    (container,) = of_kind(resources, "Deployment")["spec"]["template"]["spec"]["containers"]
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert all(
        "grpc" not in probe and probe["exec"]["command"][:2] == ["agenttx", "health"] for probe in probes
    )


def test_every_selector_finds_the_pods() -> None:
    resources = list(resources_of_base())
    labels = of_kind(resources, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        of_kind(resources, "Deployment")["spec"]["selector"]["matchLabels"],
        of_kind(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        of_kind(resources, "Service")["spec"]["selector"],
    ]
    assert all(selector == labels for selector in selectors)


def test_ports_are_those_that_are_served_and_each_is_for_labelled_namespaces_only() -> None:
    settings = settings_of(environment((KUBERNETES / "base" / "settings.env").read_text()))
    resources = list(resources_of_base())
    (container,) = of_kind(resources, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    metrics = settings.metrics_address()
    assert metrics is not None
    assert ports == {"grpc": settings.address.port, "metrics": metrics.port}
    rules = of_kind(resources, "NetworkPolicy")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules] == ["grpc", "metrics"]
    assert all(rule["from"][0]["namespaceSelector"]["matchLabels"] for rule in rules)


def test_the_pods_settings_exist_and_leave_time_to_drain() -> None:
    settings = settings_of(environment((KUBERNETES / "base" / "settings.env").read_text()))
    assert settings.transport_problem == ""
    assert (settings.anonymous, settings.fs_tools) == ("never", False)
    # A file in a pod would lose effects without a word.
    assert "*" in settings.webhooks_by_channel
    pod = of_kind(list(resources_of_base()), "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > settings.lame_duck_seconds + settings.drain_timeout_seconds
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert "USER 10001" in (REPOSITORY / "docker" / "Dockerfile").read_text()


# --- systemd --------------------------------------------------------------------------------------------


def unit_values(name: str) -> list[str]:
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.partition("=")[0] == name]


def test_the_units_command_is_one_and_leaves_time_to_drain() -> None:
    (command,) = unit_values("ExecStart")
    _, verb, *flags = shlex.split(command)
    given = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(*[iter(flags)] * 2, strict=True)
    }
    settings = load_settings(given)
    assert verb == "serve"
    assert int(unit_values("TimeoutStopSec")[0]) > settings.lame_duck_seconds + settings.drain_timeout_seconds


def test_systemd_takes_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "agenttx.service"
    # It looks for the program, which is nowhere but on a machine that serves.
    unit.write_text(UNIT.read_text().replace("/opt/agenttx/bin/agenttx", "/bin/true"))
    verified = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if "agenttx.service" in line]
    assert (verified.returncode, complaints) == (0, [])
    exposed = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert exposed.returncode == 0, exposed.stdout[-300:]

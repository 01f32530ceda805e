"""docker, kubectl and helm."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_code, category_of_complaint

__all__ = ["RULES"]


def _kubectl_reason(match: re.Match[str], cause: Cause) -> Facts | None:
    reason, detail = match["reason"], match["detail"]
    if "exceeded quota" in detail or "LimitRange" in detail:
        category = C.RESOURCE_EXHAUSTED
    else:
        category = (
            {
                "NotFound": C.MISSING_RECORD,
                "Invalid": C.INVALID_VALUE,
                "BadRequest": C.INVALID_VALUE,
                "InternalError": C.HTTP_SERVER_ERROR,
                "AlreadyExists": C.CONFLICT,
            }.get(reason)
            or category_of_code(reason)
            or C.UNKNOWN
        )
    return {"category": category.value, "advice": ADVICE[category]}


def _invalid_fields(match: re.Match[str], cause: Cause) -> Facts | None:
    complaints = match["detail"]
    first = re.match(
        r"\s{0,8}(?:\* |\[)?(?P<path>[a-z][\w.\[\]\-/]{0,200}): (?P<said>[^\n]{1,300})", complaints
    )
    if first is None:
        return {"name": None, "detail": complaints}
    return {
        "name": first["path"],
        "detail": " ".join(complaints.split()),
        "category": category_of_complaint(first["said"]).value,
    }


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "docker.pull_denied",
        "pull requested",
        r"pull access denied for (?P<target>[^\s,]{1,300})|(?P<detail>(?:denied: )?requested access to "
        r"the resource is denied)",
        C.PERMISSION_DENIED,
        ("pull access denied for {target}: it does not exist, or needs docker login", "{detail}"),
        "Check the image's name, or log in to the registry.",
    ),
    rule(
        "docker.unauthorized",
        "unauthorized",
        r"(?P<detail>unauthorized: [^\n]{1,200}|no basic auth credentials)",
        C.AUTHENTICATION,
        "{detail}",
        "Log in to the registry.",
        weight=LIKELY,
    ),
    rule(
        "docker.not_found",
        "manifest such image network reference",
        r"manifest for (?P<target>[^\s]{1,300}) not found|No such (?P<kind>container|image|network|"
        r"volume|object|service|plugin|node|secret): (?P<object>[^\s]{1,200})|(?:failed to resolve "
        r"reference|pull access denied, repository) \"?(?P<reference>[^\s\"]{1,300})\"?: "
        r"[^\n]{0,120}not found|network (?P<network>[\w.\-]{1,100}) (?:not found|declared as external, "
        r"but could not be found)|manifest unknown",
        C.MISSING_RECORD,
        (
            "manifest for {target} not found: manifest unknown",
            "no such {kind}: {object}",
            "{reference} not found",
            "network {network} not found",
            "manifest unknown",
        ),
        "Check the name and tag.",
    ),
    rule(
        "docker.name_conflict",
        "conflict",
        r"The (?P<kind>container )?name \"?(?P<object>[^\"\s]{1,200})\"? is already in use",
        C.CONFLICT,
        "the container name {object} is already in use",
        "Remove or rename that container, or use another name.",
    ),
    rule(
        "docker.port",
        "allocated bind listen",
        r"Bind for (?P<host>[\d.:\[\]]{1,60}) failed: port is already allocated|(?:exposing port TCP |"
        r"listen tcp[46]? ?)(?P<host2>[\d.:\[\]]{1,60})[^\n]{0,80}(?:address already in use|bind: "
        r"permission denied)",
        C.CONFLICT,
        ("port {host} is already allocated", "port {host2} is already in use"),
        "Stop what listens there, or use another port.",
    ),
    rule(
        "docker.daemon",
        "docker daemon",
        r"Cannot connect to the Docker daemon at (?P<host>[^\s]{1,200})|error during connect: "
        r"[^\n]{1,200}docker[^\n]{0,100}",
        C.CONNECTION,
        ("cannot connect to the Docker daemon at {host}", "{message}"),
        "Start the daemon, or correct DOCKER_HOST.",
        read=lambda match, cause: {"host": (match["host"] or "").rstrip(".") or None},
    ),
    rule(
        "docker.build_not_found",
        "checksum cache copy",
        r"failed to calculate checksum of ref [^\n]{1,200}: \"(?P<path>[^\"\n]{1,300})\": not found|"
        r"(?:COPY|ADD) failed: [^\n]{0,120}?(?P<path2>/?[\w./\-]{1,200}): (?:no such file or directory|"
        r"file does not exist)|COPY failed: file not found in build context[^\n]{0,40}: stat "
        r"(?P<path3>[^\s:]{1,300})",
        C.FILE_NOT_FOUND,
        (
            "{path} not found in the build context",
            "{path2} not found in the build context",
            "{path3} not found in the build context",
        ),
        "Check the path against the build context and .dockerignore.",
    ),
    rule(
        "docker.build_step",
        "solve complete returned",
        r"process \"(?P<detail>[^\"\n]{1,300})\" did not complete successfully: exit code: "
        r"(?P<exit>\d{1,3})|The command '(?P<detail2>[^'\n]{1,300})' returned a non-zero code: "
        r"(?P<exit2>\d{1,3})",
        C.UNKNOWN,
        (
            "build step `{detail}` failed with exit code {exit}",
            "build step `{detail2}` failed with exit code {exit2}",
        ),
        "Read that step's output and correct it.",
        weight=LIKELY,
    ),
    rule(
        "docker.oom",
        "oomkilled",
        r"OOMKilled[^\n]{0,100}",
        C.RESOURCE_EXHAUSTED,
        "the container was OOMKilled",
        "Give it more memory, or do less.",
    ),
    rule(
        "kubectl.forbidden",
        "forbidden",
        r"(?<![\w.\-])(?P<what>[\w.\-]{1,120})(?: \"(?P<object>[^\"\n]{1,200})\")? is forbidden: User "
        r"\"(?P<user>[^\"\n]{1,200})\" cannot (?P<verb>\w{1,20}) resource "
        r"\"(?P<resource>[^\"\n]{1,100})\" in API group \"(?P<group>[^\"\n]{0,100})\"(?: in the "
        r"namespace \"(?P<namespace>[^\"\n]{1,100})\"| (?P<scope>at the cluster scope))?",
        C.PERMISSION_DENIED,
        (
            "user {account} cannot {verb} {resource} {object} in namespace {namespace}",
            "user {account} cannot {verb} {resource} in namespace {namespace}",
            "user {account} cannot {verb} {resource} at the cluster scope",
        ),
        "Ask for the role, or use a namespace where you have it.",
        read=lambda match, cause: {"account": match["user"].removeprefix("system:"), "user": None},
    ),
    rule(
        "kubectl.invalid",
        "invalid",
        r"The (?P<kind>\w{1,60}) \"(?P<object>[^\"\n]{1,200})\" is invalid: "
        r"(?P<detail>[^\n]{0,600}(?:\n\* [^\n]{1,300}){0,4})",
        C.INVALID_VALUE,
        "{kind} {object}: {detail}",
        "Correct the field.",
        "name",
        read=_invalid_fields,
    ),
    rule(
        "kubectl.unknown_field",
        "decoding",
        r"strict decoding error: (?:unknown|duplicate) field \"(?P<name>[^\"\n]{1,160})\"",
        C.INVALID_VALUE,
        "unknown field {name}",
        "Leave it out, or correct its name.",
        "name",
    ),
    rule(
        "kubectl.server_error",
        "server",
        r"Error from server \((?P<reason>\w{1,40})\): (?P<detail>[^\n]{1,600})",
        C.UNKNOWN,
        "{reason}: {detail}",
        "{advice}",
        read=_kubectl_reason,
    ),
    rule(
        "kubectl.modified",
        "fulfilled",
        r"Operation cannot be fulfilled on (?P<object>[^:\n]{1,200}): (?P<detail>the object has been "
        r"modified|StorageError[^\n]{1,120}|[^\n]{1,160})",
        C.CONFLICT,
        "operation cannot be fulfilled on {object}: {detail}",
        "Read it again, then retry.",
    ),
    rule(
        "kubectl.connection",
        "connection server",
        r"The connection to the server (?P<host>[^\s]{1,200}) was refused|Unable to connect to the "
        r"server: (?P<detail>[^\n]{1,300})",
        C.CONNECTION,
        ("the connection to the server {host} was refused", "unable to connect to the server: {detail}"),
        "Check that the cluster is up and the context right.",
    ),
    rule(
        "kubectl.unauthorized",
        "unauthorized credentials",
        r"You must be logged in to the server \(Unauthorized\)|the server has asked for the client to "
        r"provide credentials",
        C.AUTHENTICATION,
        "you must be logged in to the server (Unauthorized)",
        "Renew the cluster credentials.",
    ),
    rule(
        "kubectl.no_kind",
        "kind resource",
        r"no matches for kind \"(?P<object>[^\"\n]{1,120})\" in version "
        r"\"(?P<version>[^\"\n]{1,120})\"|the server doesn't have a resource type "
        r"\"(?P<type>[^\"\n]{1,120})\"",
        C.MISSING_SCHEMA_OBJECT,
        (
            "no matches for kind {object} in version {version}",
            "the server doesn't have a resource type {type}",
        ),
        "Install its definition, or correct kind and version.",
    ),
    rule(
        "kubectl.context",
        "context",
        r"(?:no context exists with the name|context) \"?(?P<object>[^\"\n:]{1,120})\"?(?: does not "
        r"exist|:)?(?=[^\n]{0,40}(?:does not exist|not found|$))",
        C.MISSING_RECORD,
        "context {object} does not exist",
        "Use a context that exists.",
        weight=LIKELY - 1,
    ),
    rule(
        "kubectl.rollout",
        "waiting condition",
        r"timed out waiting for the condition(?: on (?P<object>[^\n]{1,160}))?",
        C.TIMEOUT,
        ("timed out waiting for the condition on {object}", "timed out waiting for the condition"),
        "Look at the pods' events, then retry.",
        weight=CERTAIN,
    ),
    rule(
        "kubectl.image",
        "imagepullbackoff errimagepull",
        r"(?:ImagePullBackOff|ErrImagePull)[^\n]{0,200}",
        C.MISSING_RECORD,
        "{message}",
        "Check the image's name and the pull secret.",
        weight=LIKELY,
    ),
    rule(
        "kubectl.crash",
        "crashloopbackoff scheduling insufficient",
        r"(?P<detail>\d{1,6}/\d{1,6} nodes are available: [^\n]{1,200})",
        C.RESOURCE_EXHAUSTED,
        "{detail}",
        "Ask for less, or add nodes.",
    ),
    rule(
        "kubectl.namespace",
        "namespace",
        r"the namespace from the provided object \"(?P<given>[^\"\n]{1,100})\" does not match the "
        r"namespace \"(?P<wanted>[^\"\n]{1,100})\"",
        C.INVALID_VALUE,
        "the object's namespace {given} does not match the namespace {wanted}",
        "Pass --namespace={given}.",
        "key",
        read=lambda match, cause: {"key": "namespace"},
    ),
    rule(
        "helm.schema",
        "schema specifications",
        r"values don't meet the specifications of the schema[^\n]{0,80}\n[^\n]{1,80}:\n- "
        r"(?P<name>[\w.()]{1,128}): (?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct the value.",
        "name",
    ),
    rule(
        "docker.mounts",
        "mounts",
        r"Mounts denied:\s{1,8}(?:The path )?(?P<path>[^\n]{1,200})",
        C.PERMISSION_DENIED,
        "mounts denied: {path}",
        "Mount a shared path.",
    ),
    rule(
        "helm.in_use",
        "use",
        r"cannot re-use a name that is still in use",
        C.CONFLICT,
        "cannot re-use a name that is still in use",
        "Upgrade the existing release, or use another name.",
    ),
    rule(
        "helm.not_found",
        "release chart",
        r"release: not found|Error: release \"?(?P<object>[\w.\-]{1,120})\"? not found|chart "
        r"\"(?P<chart>[^\"\n]{1,160})\" [^\n]{0,80}not found",
        C.MISSING_RECORD,
        ("release {object} not found", "chart {chart} not found", "release: not found"),
        "Check the name and the repository.",
    ),
    rule(
        "helm.in_progress",
        "progress",
        r"another operation \([^)\n]{1,60}\) is in progress",
        C.CONFLICT,
        "another operation on this release is in progress",
        "Wait for it, then retry.",
    ),
)

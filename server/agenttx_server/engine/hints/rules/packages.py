"""Package managers and builds: npm, yarn, pnpm, pip, cargo, go, make."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, WEAK, Rule, rule

__all__ = ["RULES"]

_UNRESOLVED: Final = re.compile(
    r"(?i)undeclared|undefined|not declared|cannot find|can't find|unresolved|not found in"
)


def _of_compiler(complaint: str) -> str | None:
    if "No such file" in complaint or "file not found" in complaint:
        return C.FILE_NOT_FOUND.value
    return C.UNRESOLVED_REFERENCE.value if _UNRESOLVED.search(complaint) else None


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "npm.not_found",
        "e404 registry",
        r"(?<![\w.\-@/])(?P<target>(?:@[\w.\-]{1,80}/)?[\w.\-]{1,120}(?:@[^'\s]{1,60})?)'? is not in "
        r"(?:this|the npm) registry|404 Not Found - GET (?P<url>https?://[^\s]{1,300})",
        C.MISSING_RECORD,
        ("{target} is not in this registry (404)", "404 Not Found: {url}"),
        "Check the package's name and version.",
    ),
    rule(
        "npm.version",
        "etarget matching",
        r"No matching version found for (?P<target>[^\s]{1,160}?)\.?(?=\s|$)",
        C.MISSING_RECORD,
        "no matching version found for {target}",
        "Use a version that exists.",
    ),
    rule(
        "npm.eresolve",
        "eresolve",
        r"ERESOLVE (?P<what>unable to resolve dependency tree|could not "
        r"resolve)(?:[\s\S]{0,600}?Found: (?P<found>[^\s]{1,120}))?(?:[\s\S]{0,600}?(?P<detail>peer "
        r"(?:dev |optional )?[^\s]{1,120} from [^\s]{1,120}))?",
        C.CONFLICT,
        ("ERESOLVE {what}: found {found}, but {detail}", "ERESOLVE {what}"),
        "Use versions that fit together.",
    ),
    rule(
        "npm.script",
        "script",
        r"Missing script: \"?(?P<object>[^\"\n]{1,100})\"?|Command \"(?P<object2>[^\"\n]{1,100})\" not "
        r"found\.",
        C.MISSING_RECORD,
        ('missing script: "{object}"', 'command "{object2}" not found'),
        "Use a script that package.json names.",
    ),
    rule(
        "npm.lock",
        "eusage sync lockfile",
        r"(?P<detail>`?npm ci`? can only install packages when[^\n]{0,160}|Your lockfile needs to be "
        r"updated[^\n]{0,100}|ERR_PNPM_OUTDATED_LOCKFILE[^\n]{0,160})",
        C.CONFLICT,
        "{detail}",
        "Update the lock file.",
    ),
    rule(
        "pip.no_match",
        "distribution satisfies",
        r"No matching distribution found for (?P<target>[^\s]{1,160})|Could not find a version that "
        r"satisfies the requirement (?P<target2>[^\s]{1,160})(?P<detail> \(from versions: "
        r"[^)\n]{1,120}\))?",
        C.MISSING_RECORD,
        ("no matching distribution found for {target}", "no version satisfies {target2}{detail}"),
        "Use a name and version that exist.",
        read=lambda match, cause: {},
    ),
    rule(
        "pip.conflict",
        "conflicting conflict resolutionimpossible requires",
        r"Cannot install (?P<detail>[^\n]{1,200}) because these package versions have conflicting "
        r"dependencies|ResolutionImpossible|(?<![\w.\-])(?P<detail2>[\w.\-]{1,80} [\w.\-]{1,40} "
        r"requires [^\n]{1,120}, but you have [^\n]{1,80})",
        C.CONFLICT,
        ("cannot install {detail}: conflicting dependencies", "{detail2}", "conflicting dependencies"),
        "Use versions that fit together.",
    ),
    rule(
        "pip.externally_managed",
        "externally",
        r"externally-managed-environment",
        C.PERMISSION_DENIED,
        "this Python environment is externally managed",
        "Install into a virtual environment.",
    ),
    rule(
        "pip.build",
        "building wheel metadata",
        r"(?P<detail>(?:Failed building wheel for|Failed to build|Could not build wheels for|"
        r"metadata-generation-failed)[^\n]{0,160})",
        C.UNKNOWN,
        "{detail}",
        "Read the build's output; a compiler or library may be missing.",
        weight=WEAK,
    ),
    rule(
        "cargo.no_match",
        "package crate version select",
        r"no matching package (?:named `(?P<target>[^`\n]{1,120})` )?found|failed to select a version "
        r"for (?:the requirement )?`(?P<target2>[^`\n]{1,120})`|can't find crate for "
        r"`(?P<target3>[^`\n]{1,120})`",
        C.MISSING_RECORD,
        (
            "no matching package named {target} found",
            "failed to select a version for {target2}",
            "can't find crate {target3}",
            "no matching package found",
        ),
        "Use a name and version that exist.",
    ),
    rule(
        "go.module",
        "module package revision",
        r"(?P<detail>no required module provides package [^\s;]{1,200}|module [^\s]{1,200}: (?:reading|"
        r"Get|not found)[^\n]{0,160}|package [^\s]{1,160} is not in (?:std|GOROOT)[^\n]{0,80}|unknown "
        r"revision [^\s]{1,80})",
        C.MISSING_RECORD,
        "{detail}",
        "Check the module's path and version.",
    ),
    rule(
        "compiler.error",
        "error",
        r"(?:(?<![\w./\-])[\w./\-]{1,200}\.\w{1,6}(?::\d{1,7}(?::\d{1,5})?:|\(\d{1,7},\d{1,5}\):) "
        r"(?:fatal )?error|(?:\A|\n)error(?=\[E\d{4}\]))(?: ?[A-Z]{2}\d{3,5}|\[E\d{4}\])?: "
        r"(?P<detail>[^\n]{1,200})",
        C.INVALID_VALUE,
        "{line}",
        "Correct the code.",
        weight=LIKELY,
        read=lambda match, cause: {"category": _of_compiler(match["detail"])},
    ),
    rule(
        "make.no_rule",
        "target",
        r"No rule to make target [`'](?P<target>[^'\n]{1,200})'(?:, needed by [`'](?P<by>[^'\n]{1,200})')?",
        C.FILE_NOT_FOUND,
        ("no rule to make target '{target}', needed by '{by}'", "no rule to make target '{target}'"),
        "Create that file, or correct the target's name.",
    ),
    rule(
        "make.failed",
        "make",
        r"make(?:\[\d{1,3}\])?: \*\*\* \[(?P<target>[^\]\n]{1,200})\] (?P<detail>Error \d{1,3}|Killed|"
        r"Terminated|Segmentation fault)",
        C.UNKNOWN,
        "make target {target} failed: {detail}",
        "Read that step's output and correct it.",
        weight=WEAK,
    ),
    rule(
        "apt.not_found",
        "package",
        r"Unable to locate package (?P<target>[^\s]{1,120})|Package '?(?P<target2>[^'\s]{1,120})'? has "
        r"no installation candidate",
        C.MISSING_RECORD,
        ("unable to locate package {target}", "package {target2} has no installation candidate"),
        "Check the name, or update the package lists.",
    ),
    rule(
        "apt.lock",
        "lock",
        r"Could not get lock (?P<path>[^\s]{1,200})",
        C.CONFLICT,
        "could not get lock {path}",
        "Wait for the other package manager.",
    ),
)

"""Shells, ssh, and programs known by their exit status only."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, WEAK, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["RULES"]

_SIGNALS: Final[dict[int, tuple[str, C, str]]] = {
    124: ("the command timed out", C.TIMEOUT, ADVICE[C.TIMEOUT]),
    126: (
        "the command is not executable",
        C.PERMISSION_DENIED,
        "Make it executable, or run it by its interpreter.",
    ),
    127: ("command not found", C.FILE_NOT_FOUND, "Install the program, or correct its name."),
    130: ("interrupted (SIGINT)", C.CANCELLED, ADVICE[C.CANCELLED]),
    134: ("aborted (SIGABRT)", C.UNKNOWN, "Read the program's output."),
    137: (
        "killed (SIGKILL), most likely out of memory",
        C.RESOURCE_EXHAUSTED,
        "Use less memory, or raise the limit.",
    ),
    139: ("segmentation fault (SIGSEGV)", C.UNKNOWN, "Try other input or another version of the program."),
    143: ("terminated (SIGTERM)", C.CANCELLED, ADVICE[C.CANCELLED]),
}
_KILLED: Final = re.compile(r"\bKilled\b {0,40}(?P<command>[^\n]{0,120})")


def _exit(match: re.Match[str], cause: Cause) -> Facts | None:
    status = int(match["status"])
    if status in (-9, 9) and match["status"].startswith("-"):
        status = 137
    if status == -15:
        status = 143
    known = _SIGNALS.get(status)
    if known is None:
        return None
    meaning, category, advice = known
    killed = _KILLED.search(cause.text)
    lines = [line for line in cause.text.split("\n") if match["status"] not in line and line.strip()]
    if not killed and not lines and len(cause.text) > len(match[0]) + 12:
        lines = [cause.text.replace(match[0], "").replace("()", "").replace(" :", ":")]
    said = (
        killed["command"].strip()
        if killed and killed["command"].strip()
        else lines[-1].strip()
        if lines
        else ""
    )
    return {"category": category.value, "advice": advice, "meaning": meaning, "detail": said or None}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "ssh.host_key",
        "host",
        r"Host key for (?P<host>[^\s]{1,200}) has changed",
        C.AUTHENTICATION,
        "host key for {host} has changed: host key verification failed",
        "Verify the host's new key before you trust it.",
    ),
    rule(
        "ssh.host_key_unknown",
        "host",
        r"(?:No (?P<type>\w{1,20}) host key is known for (?P<host>[^\s]{1,200}) "
        r"and[^\n]{0,100}\n)?Host key verification failed",
        C.AUTHENTICATION,
        (
            "host key verification failed: no {type} host key is known for {host}",
            "host key verification failed",
        ),
        "Verify the host's key and add it to known_hosts.",
    ),
    rule(
        "ssh.publickey",
        "denied",
        r"(?<![\w.\-@])(?:(?P<host>[\w.\-@]{1,200}): )?Permission denied \((?P<methods>[\w,\- /]{1,100})\)",
        C.AUTHENTICATION,
        ("{host}: Permission denied ({methods})", "permission denied ({methods})"),
        "Correct the key or the user of the connection.",
    ),
    rule(
        "ssh.no_method",
        "authenticate",
        r"ssh: unable to authenticate, attempted methods \[(?P<methods>[^\]\n]{1,100})\]|Too many "
        r"authentication failures",
        C.AUTHENTICATION,
        ("ssh: unable to authenticate, attempted methods {methods}", "too many authentication failures"),
        "Correct the key or the user of the connection.",
    ),
    rule(
        "ssh.connect",
        "ssh",
        r"ssh: connect to host (?P<host>[^\s]{1,200}) port (?P<port>\d{1,5}): (?P<detail>[^\n]{1,120})",
        C.CONNECTION,
        "ssh to {host} port {port}: {detail}",
        "Check the address and the network.",
        read=lambda match, cause: {"category": C.TIMEOUT.value if "timed out" in match["detail"] else None},
    ),
    rule(
        "ssh.resolve",
        "ssh",
        r"ssh: Could not resolve hostname (?P<host>[^\s:]{1,200})",
        C.CONNECTION,
        "ssh: could not resolve hostname {host}",
        "Check the host name.",
    ),
    rule(
        "shell.command_not_found",
        "command recognized recognised executable",
        r"(?:line \d{1,6}: |\b(?:ba|z|da|k)?sh: (?:\d{1,6}: |line \d{1,6}: )?|zsh: command not found: "
        r")?(?<![\w./+\-])(?P<command>[\w./+\-]{1,200}): (?:command )?not found(?=\s|$)|"
        r"'(?P<command2>[^'\n]{1,200})' is not recognized as|zsh: command not found: "
        r"(?P<command3>[^\s]{1,200})|exec: \"(?P<command4>[^\"\n]{1,200})\": executable file not found "
        r"in \$PATH|The term '(?P<command5>[^'\n]{1,200})' is not recognized",
        C.FILE_NOT_FOUND,
        "{name}: command not found",
        "Install {name}, or correct its name.",
        read=lambda match, cause: {
            "name": next(
                match[group]
                for group in ("command", "command2", "command3", "command4", "command5")
                if match[group]
            )
        },
    ),
    rule(
        "shell.unbound_variable",
        "unbound parameter",
        r"\b(?P<name>[A-Za-z_]\w{0,80}): (?:unbound variable|parameter not set|parameter null or not set)",
        C.MISSING_ARGUMENT,
        "{name}: unbound variable",
        "Set {name}.",
        "name",
    ),
    rule(
        "shell.syntax",
        "syntax",
        r"(?P<detail>syntax error near unexpected token [^\n]{1,80}|syntax error: unexpected (?:end of "
        r"file|\S{1,20})|unexpected EOF while looking for matching [^\n]{1,20}|Syntax error: "
        r"[^\n]{1,80})",
        C.INVALID_VALUE,
        "{detail}",
        "Correct the script.",
        weight=LIKELY,
    ),
    rule(
        "shell.exit_status",
        "exit exited code status",
        r"(?:exit(?:ed)?(?: with)?(?: (?:status|code|error code))?:? |returned (?:a )?non-zero (?:exit "
        r")?(?:status|code):? |exit(?:ed)? code )(?P<status>-?\d{1,3})\b",
        C.UNKNOWN,
        ("{detail}: exit status {status}: {meaning}", "exit status {status}: {meaning}"),
        "{advice}",
        read=_exit,
    ),
    rule(
        "shell.killed_by_signal",
        "signal died",
        r"(?:died with|killed by|terminated by)(?: signal)? <?(?:Signals\.)?(?P<signal>SIG[A-Z]{2,6})",
        C.UNKNOWN,
        "killed by {signal}",
        "{advice}",
        read=lambda match, cause: _signal(match["signal"]),
        weight=CERTAIN,
    ),
    rule(
        "shell.killed",
        "killed",
        r"(?m)(?:^|: |\d )Killed(?: {1,40}(?P<detail>[^\n]{1,120}))?$",
        C.RESOURCE_EXHAUSTED,
        ("killed, most likely out of memory: {detail}", "killed, most likely out of memory"),
        "Use less memory, or raise the limit.",
        weight=LIKELY,
    ),
    rule(
        "shell.segfault",
        "segmentation core",
        r"Segmentation fault(?: \(core dumped\))?|core dumped",
        C.UNKNOWN,
        "{message}",
        "Try other input or another version of the program.",
        weight=WEAK,
    ),
    rule(
        "shell.terminated",
        "terminated",
        r"(?m)(?:^|: |\d )Terminated(?: {1,40}(?P<detail>[^\n]{1,120}))?$",
        C.CANCELLED,
        ("terminated: {detail}", "terminated"),
        "Run it again if it is still wanted.",
        weight=LIKELY,
    ),
    rule(
        "process.failed",
        "returned failed",
        r"Command '?(?P<detail>[^\n]{1,300}?)'? returned non-zero exit status (?P<status>\d{1,3})|"
        r"Command failed(?: with exit code (?P<status2>\d{1,3}))?: (?P<detail2>[^\n]{1,300})",
        C.UNKNOWN,
        (
            "command {detail} returned non-zero exit status {status}",
            "command failed with exit code {status2}: {detail2}",
            "command failed: {detail2}",
        ),
        "Read the command's output and correct its arguments.",
        weight=WEAK,
    ),
    rule(
        "jq.index",
        "index iterate",
        r"Cannot (?P<what>index|iterate over) (?P<detail>[\w ]{1,60}?)(?: with (?:string "
        r")?\"(?P<name>[^\"\n]{1,128})\"|(?= \(|$|\n))",
        C.INVALID_VALUE,
        'cannot {what} {detail} with "{name}"',
        "Check the shape of the input.",
        "name",
    ),
)


def _signal(name: str) -> Facts:
    category, advice = {
        "SIGKILL": (C.RESOURCE_EXHAUSTED, "Most likely out of memory; use less."),
        "SIGTERM": (C.CANCELLED, ADVICE[C.CANCELLED]),
        "SIGINT": (C.CANCELLED, ADVICE[C.CANCELLED]),
    }.get(name, (C.UNKNOWN, "Read the program's output."))
    return {"category": category.value, "advice": advice}

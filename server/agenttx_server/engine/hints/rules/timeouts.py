"""Waits that ended: client and server timeouts, deadlines, cancellations."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, WEAK, Rule, rule

__all__ = ["RULES"]

_ADVICE: Final = "Retry, with a longer timeout or less work."

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "timeout.requests",
        "timed",
        r"HTTPS?ConnectionPool\(host='(?P<host>[^'\n]{1,200})', port=(?P<port>\d{1,5})\): "
        r"(?P<detail>Read timed out\.? ?(?:\(read timeout=[\w.]{1,20}\))?)",
        C.TIMEOUT,
        "{host}:{port}: {detail}",
        _ADVICE,
    ),
    rule(
        "timeout.connect_pool",
        "connecttimeouterror connecttimeout",
        r"host='(?P<host>[^'\n]{1,200})', port=(?P<port>\d{1,5})[\s\S]{0,400}?Connection to "
        r"[^\s]{1,200} timed out\. \(connect timeout=(?P<wait>[\w.]{1,20})\)",
        C.TIMEOUT,
        "connection to {host}:{port} timed out (connect timeout={wait})",
        _ADVICE,
    ),
    rule(
        "timeout.boto",
        "timeout",
        r"(?P<kind>Read|Connect) timeout on endpoint URL: \"(?P<url>[^\"\n]{1,300})\"",
        C.TIMEOUT,
        "{kind} timeout on {url}",
        _ADVICE,
    ),
    rule(
        "timeout.subprocess",
        "timed",
        r"Command '?(?P<detail>[^\n]{1,300}?)'? timed out after (?P<wait>[\d.]{1,20}) seconds",
        C.TIMEOUT,
        "command {detail} timed out after {wait} seconds",
        _ADVICE,
    ),
    rule(
        "timeout.deadline",
        "deadline",
        r"(?P<detail>(?:context )?[Dd]eadline[ _]?[Ee]xceeded[^\n]{0,160}|DEADLINE_EXCEEDED[^\n]{0,160})",
        C.TIMEOUT,
        "{message}",
        _ADVICE,
        weight=LIKELY,
    ),
    rule(
        "timeout.words",
        "timed timeout timeouterror timeoutexception readtimeout connecttimeout writetimeout pooltimeout",
        r"(?i:timed[ -]?out|time[ -]?out(?:error|exception)?\b|\b(?:Read|Connect|Write|"
        r"Pool)Timeout\b)[^\n]{0,160}",
        C.TIMEOUT,
        "{said}",
        _ADVICE,
        weight=LIKELY,
        read=lambda match, cause: {
            "said": cause.message.split("\n")[0] or cause.type_name.rpartition(".")[2] + ": timed out"
        },
    ),
    rule(
        "cancelled.words",
        "cancelled canceled aborted",
        r"(?i:\b(?:context|operation|request|task|job|call|query|run|workflow|step)\b[^\n]{0,60} "
        r"(?:was |were |is |has been |been )?cancell?ed\b|\bcontext canceled|"
        r"OperationCanceledException|TaskCanceledException|CancellationException)[^\n]{0,160}",
        C.CANCELLED,
        "{said}",
        "Run it again if it is still wanted.",
        weight=LIKELY,
        read=lambda match, cause: {"said": cause.message.split("\n")[0] or "cancelled"},
    ),
    rule(
        "cancelled.signal",
        "sigterm sigint terminated",
        r"(?P<detail>(?:SIGTERM|SIGINT)[^\n]{0,100}|\bTerminated\b[^\n]{0,80})",
        C.CANCELLED,
        "{detail}",
        "Run it again if it is still wanted.",
        weight=WEAK,
    ),
)

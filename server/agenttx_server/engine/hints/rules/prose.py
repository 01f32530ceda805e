"""What sentences of any system say: tried last, and outweighed by every rule that knows the system."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, WEAK, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_complaint

__all__ = ["RULES"]


def _line(match: re.Match[str], cause: Cause) -> Facts:
    """The line of the match, and the one after it where the match is a heading."""
    text = cause.message or cause.text
    offset = len(cause.text) - len(text)
    position = max(match.start() - offset, 0)
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end != -1 else len(text)].strip()
    for following in text[end if end != -1 else len(text) :].split("\n")[:4]:
        if len(line) > 60 or following.lstrip().startswith(("at ", "{", "}")):
            break
        line = f"{line} {following.strip()}".strip()
    name = cause.type_name.rpartition(".")[2]
    return {"said": f"{name}: {line}" if name and len(line) < 12 else line or cause.text}


def _constraint(name: str) -> Facts:
    """The kind of a constraint, by the prefixes and endings that people name constraints with."""
    words = set(re.split(r"[._]", name.lower()))
    kind = C.CHECK_VIOLATION
    if words & {"fk", "fkey"}:
        kind = C.FOREIGN_KEY_VIOLATION
    elif words & {"uq", "uk", "unique", "key", "pk", "pkey", "uniq"}:
        kind = C.UNIQUE_VIOLATION
    return {"category": kind.value, "advice": ADVICE[kind]}


def _complaint(match: re.Match[str], cause: Cause) -> Facts:
    return {"category": category_of_complaint(match["said"]).value}


def _prose(name: str, triggers: str, pattern: str, category: C, weight: int = WEAK) -> Rule:
    return rule(
        f"prose.{name}",
        triggers,
        pattern,
        category,
        "{said}",
        ADVICE[category],
        weight=weight,
        read=_line,
        folded=True,
    )


RULES: Final[tuple[Rule, ...]] = (
    _prose(
        "quota",
        "quota limit exceeded exhausted budget capacity memory space full large larger",
        r"quota[^\n]{0,60}(?:exceeded|exhausted|reached)|exceed(?:ed|s)?[^\n]{0,40}quota|(?:limit|"
        r"budget|capacity) (?:of [^\n]{1,40} )?(?:was |is |has been )?(?:exceeded|exhausted|reached)|"
        r"out of memory|insufficient (?:storage|memory|disk|capacity)|(?:disk|storage) (?:is )?full|"
        r"too large|larger than max|(?:over|above|beyond) the (?:\w{1,20} )?limit of|memory size of "
        r"\d{1,15} bytes exhausted",
        C.RESOURCE_EXHAUSTED,
        LIKELY,
    ),
    rule(
        "prose.constraint",
        "constraint",
        r"constraint [\"'`\[]?(?P<constraint>(?=[A-Za-z0-9.]{0,60}_)[\w.]{3,128})[\"'`\]]? (?:is |was |has been )?"
        r"(?:violated|failed|not satisfied)|(?:violat(?:es|ed|ing|ion of)|failed) (?:the )?(?:check )?constraint "
        r"[\"'`\[]?(?P<constraint2>(?=[A-Za-z0-9.]{0,60}_)[\w.]{3,128})",
        C.CHECK_VIOLATION,
        "{line}",
        "{advice}",
        weight=WEAK,
        read=lambda match, cause: _constraint(match["constraint"] or match["constraint2"]),
    ),
    _prose(
        "conflict",
        "version revision stale concurrent concurrently conflict modified updated changed locked lock",
        r"version mismatch|expected (?:version|revision)|(?:was |been )(?:modified|updated|changed) by "
        r"(?:another|someone|a different)|concurrent (?:modification|update|write)|modified "
        r"concurrently|stale (?:object|version|revision|read)|optimistic lock|edit conflict|(?:is |was "
        r")?locked by|etag|already (?:running|in progress|locked|claimed|processed)|precondition "
        r"failed",
        C.CONFLICT,
        LIKELY,
    ),
    _prose(
        "exists",
        "exists exist taken registered duplicate",
        r"already (?:exists?|been taken|taken|registered|in use)|duplicate (?:key|entry|value|record|id|row)\b",
        C.UNIQUE_VIOLATION,
        LIKELY,
    ),
    _prose(
        "authentication",
        "authentication authenticate credential credentials token login logged signature unauthorized "
        "expired password unauthenticated",
        r"authentication (?:failed|required|error)|(?:invalid|bad|incorrect|expired|missing|wrong) "
        r"(?:credentials?|token|access token|password|username|api[ -]?key|login)|(?:token|"
        r"credentials?|session|signature|certificate|jwt|login) (?:has |is |are |was |have )?(?:been "
        r")?(?:expired|invalid|revoked|not accepted)|(?:must|need to) (?:be logged in|log in|"
        r"authenticate)|login (?:failed|required)|not authenticated|unauthenticated|\bunauthorized\b|"
        r"credentials (?:were |was |are |is )?(?:not provided|required|missing|needed)|no valid "
        r"credential|unable to authenticate|could not authenticate|username and password not accepted|"
        r"signature (?:we calculated )?does not match",
        C.AUTHENTICATION,
        LIKELY,
    ),
    _prose(
        "permission",
        "permission access denied forbidden authorized allowed privileges role scope",
        r"permission (?:['\"`][^'\"`\n]{1,100}['\"`] )?denied|access (?:is |was )?denied|forbidden|not "
        r"(?:authorized|permitted|allowed) to|insufficient (?:permissions?|privileges?|scope)|"
        r"(?:lacks?|missing|requires?) (?:the )?(?:permission|privilege|scope|role)|do(?:es)? not have "
        r"(?:the )?(?:permission|access|authorization)",
        C.PERMISSION_DENIED,
        LIKELY,
    ),
    _prose(
        "required",
        "required missing provided",
        r"(?:is|are|was) required\b|missing required|required (?:field|parameter|argument|property)|"
        r"(?:must|should) be (?:provided|specified|set)|(?:was|were) not (?:provided|specified|"
        r"supplied)|missing (?:field|parameter|argument|property)",
        C.MISSING_ARGUMENT,
    ),
    rule(
        "prose.named_field",
        "field parameter argument property attribute column option header input key element",
        r"\b(?:[Ff]ield|[Pp]arameter|[Aa]rgument|[Pp]roperty|[Aa]ttribute|[Oo]ption|[Hh]eader|[Ii]nput|"
        r"[Ee]lement) [\"'`](?P<name>[\w.\[\]$-]{1,128})[\"'`]:? (?P<said>(?:must|should|expected|"
        r"is (?:required|invalid|missing|not|too|unknown|mandatory|empty|null|out|unsupported|malformed)\b|"
        r"are |has |cannot|can't|can not|does not|doesn't|was |requires|needs|may not|not "
        r")[^\n]{1,200})",
        C.INVALID_VALUE,
        "{name}: {said}",
        "Correct {name}.",
        "name",
        weight=LIKELY,
        read=_complaint,
    ),
    rule(
        "prose.quoted_field",
        "required must missing",
        r"(?:\A|[:,;.] |\n)[\"'`](?P<name>[A-Za-z_][\w.\[\]-]{0,128})[\"'`] (?P<said>(?:is (?:a "
        r")?required|are required|must (?:be|have|not be|match)|should be|is missing|cannot be "
        r"(?:empty|blank|null)|can't be (?:empty|blank|null))[^\n]{0,200})",
        C.INVALID_VALUE,
        "{name} {said}",
        "Correct {name}.",
        "name",
        weight=LIKELY,
        read=_complaint,
    ),
    _prose(
        "file",
        "file directory path",
        r"(?:file|directory|path|folder)[^\n]{0,120} (?:not found|does(?: not|n't) exist|could not be "
        r"found|cannot be found|is missing)|(?:no such|cannot find|can't find|could not find|unable to "
        r"open|cannot open) (?:the )?(?:file|directory|path)",
        C.FILE_NOT_FOUND,
    ),
    _prose(
        "not_found",
        "found exist such unknown exists find resolve registered matching matches no",
        r"\bnot found\b|does(?: not|n't) exist|no such|could not (?:be found|find|resolve to)|cannot "
        r"(?:be found|find)|not exist|unknown (?:id|record|user|customer|order|account|item)|is not "
        r"registered|no [\w-]{1,40} (?:with|for|named|matches|matching) ",
        C.MISSING_RECORD,
    ),
    _prose(
        "server_error",
        "server service unavailable internal",
        r"internal (?:server )?error|service (?:is )?(?:temporarily )?unavailable|temporarily "
        r"unavailable|server error|bad gateway|upstream",
        C.HTTP_SERVER_ERROR,
    ),
    _prose(
        "assertion",
        "assertion assert expected",
        r"assertion[^\n]{0,20}failed|expected .{1,120} (?:but (?:was|got)|to (?:equal|be)|received)",
        C.ASSERTION,
    ),
    _prose(
        "invalid",
        "invalid malformed must valid range format",
        r"\binvalid\b|\bmalformed\b|not (?:a )?valid|must (?:be|not|have|match|contain)|out of range|"
        r"not in (?:a |the )?(?:correct|valid|expected) format|(?:exceeds|greater than|less than|"
        r"longer than|shorter than) (?:the )?(?:maximum|minimum|max|min|limit)",
        C.INVALID_VALUE,
    ),
)

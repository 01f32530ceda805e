"""Secrets taken out of error texts: for hints, logs and the stored raw error.

Tokens and names are first looked for by their first letters (:mod:`.secret_beginnings`), and patterns
are tried there only. What a pattern repeats it either never gives back or repeats a bounded number of
times, so masking takes linear time on any input.
Over-masking is preferred to leaking in :func:`mask_secrets`; names of keys always stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from .secret_beginnings import DENSITY_LIMIT, Span, find_beginnings, moved

__all__ = ["MASK", "is_secret_name", "mask_secrets"]

MASK: Final = "***"

_SECRET_NAME: Final = re.compile(
    # Words that are secret at the end of any name, as in PGPASSWORD and accesstoken …
    r"(?:password|passwd|passphrase|secret|api[_-]?key|token)\Z"
    # … and those that are only as a word of their own; `max_tokens` is a number, `monkey` an animal.
    r"|(?:^|[_.\-])(?:pass(?:word|wd|phrase|code)?s?|pwd|secrets?|token|api[_-]?keys?|"
    r"access[_-]?key|account[_-]?key|shared[_-]?key"
    r"|auth(?:orization)?|cookies?|credentials?|private[_-]?key|encryption[_-]?key|signing[_-]?key|"
    r"signature|session[_-]?id"
    r"|jwt|otp|pin|cvv|cvc|ssn)(?:[_.\-](?:hash|value|id|key|base64|b64|text|plain))?\Z",
    re.IGNORECASE,
)
_CAMEL_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_PRIVATE_KEY: Final = re.compile(
    r"(?P<secret>-----BEGIN [A-Z ]{0,40}(?:PRIVATE KEY|CERTIFICATE)[A-Z ]{0,20}-----[^-]{0,16000}(?:-----END "
    r"[A-Z ]{0,60}-----)?)"
)
_USERINFO: Final = re.compile(r"://[^\s/@:?#'\"]{0,200}+:(?P<secret>[^\s/'\"<>]{1,400})@(?=[^\s@]|$)")
_TOKEN_USERINFO: Final = re.compile(r"://(?P<secret>[A-Za-z0-9_\-]{20,200}+)@")
# Each branch begins with its letter, which is what a search is quick at, then looks back for the word's start.
_KNOWN_TOKEN: Final = re.compile(
    r"s(?<!\ws)(?:k[-_](?:(?:live|test)_|(?:proj|ant|or|svcacct|admin)-)?[A-Za-z0-9_*\-]{8,}+|hp(?:at|ss|ca|pa)_[a-fA-F0-9]{16,}+)"
    r"|p(?<!\wp)(?:k[-_](?:live_|test_)?[A-Za-z0-9_*\-]{8,}+|ypi-[A-Za-z0-9_\-]{20,}+)"
    r"|r(?<!\wr)k[-_](?:live_|test_)?[A-Za-z0-9_*\-]{8,}+"
    r"|g(?<!\wg)(?:h[oprsu]_[A-Za-z0-9]{16,}+|ithub_pat_[A-Za-z0-9_]{16,}+|lpat-[A-Za-z0-9_\-]{16,}+|sk_[A-Za-z0-9]{16,}+)"
    r"|x(?<!\wx)(?:ox[abeoprs]-|app-)[A-Za-z0-9\-]{8,}+"
    r"|A(?<!\wA)(?:(?:KIA|SIA|ROA|IDA)[A-Z0-9]{12,}+|Iza[A-Za-z0-9_\-]{20,}+)"
    r"|y(?<!\wy)a29\.[A-Za-z0-9_\-.]{10,}+"
    r"|e(?<!\we)yJ[A-Za-z0-9_\-]{8,}+(?:\.[A-Za-z0-9_\-]{2,}+){0,4}"
    r"|n(?<!\wn)pm_[A-Za-z0-9]{20,}+"
    r"|h(?<!\wh)(?:f_[A-Za-z0-9]{16,}+|vs\.[A-Za-z0-9_\-]{16,}+)"
    r"|d(?<!\wd)(?:op_v1_[a-f0-9]{32,}+|ckr_pat_[A-Za-z0-9_\-]{16,}+)"
    r"|S(?<!\wS)G\.[A-Za-z0-9_\-]{16,}+\.[A-Za-z0-9_\-]{16,}+"
    r"|w(?<!\ww)hsec_[A-Za-z0-9+/=]{8,}+"
)
# The shortest of them; of one that is masked already (`sk_live_***`) its beginning stays.
_LONG_RUN: Final = re.compile(r"(?<![A-Za-z0-9_.\-])[A-Za-z0-9_.\-]{11}")
# In lower-cased text, up to where a value begins: a name that may be a secret's, or an Authorization scheme.
# Every branch begins with a letter, which is what a search is quick at.
_SECRET_FIELD: Final = re.compile(
    r"(?:p(?:ass|wd|in|rivate[_-]?key)|s(?:ecret|ession[_-]?id|i(?:gnature|gning[_-]?key)|sn|hared[_-]?key)|token|"
    r"a(?:uth|pi[_-]?key|cc(?:ess|ount)[_-]?key)|c(?:ookie|redential|v[vc])|jwt|otp|encryption[_-]?key|"
    r"b(?:earer|asic)|digest|negotiate)"
    r"(?:(?P<rest>[a-z]{0,9}+(?:[_.\-][a-z0-9]{1,8}+)?+)(?=[\\\"'` \t:=])"
    r"(?P<separator>(?:\\?[\"'`])?+[ \t]{0,3}+(?:=>|:=|=|:)[ \t]{0,3}+|[\"'][ \t]{0,2}+,[ \t]{0,2}+(?=[\"']))"
    r"(?=[^\s,;&)}\]{\[(])"
    r"|(?P<scheme>(?=[ :])(?:(?<=bearer)|(?<=basic)|(?<=digest)|(?<=token)|(?<=negotiate))[ :]{1,3}+)(?=[a-z0-9._~+/=\-]{6}))"
)
_SCHEMES: Final = frozenset(("bearer", "basic", "digest", "token", "negotiate"))
_NO_VALUES: Final = frozenset(("", MASK, "None", "null", "undefined"))
_SCHEME_VALUE: Final = re.compile(r"[A-Za-z0-9._~+/=\-]+")
_NAME_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_NAME_LIMIT: Final = 60
# No real error has so many secrets of one kind; what follows the last one is left out as a whole.
_SECRETS_LIMIT: Final = 500
# Without its closing quotation mark, as in a text that was cut, a value ends with its line.
_QUOTED_VALUE: Final = re.compile(
    r"\\?\"(?:[^\"\\\n]|\\[^\n\"])*+(?:\\?\")?|\\?'(?:[^'\\\n]|\\[^\n'])*+(?:\\?')?|[^\s\"',;&)}\]{\[(]+"
)
_BARE_VALUE: Final = re.compile(r"[^\s\"',;&)}\]{\[(]+")
_QUOTES: Final = frozenset("\"'\\")
_COOKIES: Final = re.compile(r"[^\s\"'\\][^\r\n]*")
# The look ahead and back to the word is only there because it fails sooner than what follows it.
_FLAG: Final = re.compile(
    r"--(?<![^\s\"'\[,(=]--)(?=[a-z0-9\-]{5,74}+[ =](?:(?<=password.)|(?<=passwd.)|(?<=token.)|(?<=secret.)|(?<=key.)))"
    r"(?:[a-z0-9]{1,20}+-){0,3}?(?:password|passwd|token|secret|api-key|access-key|private-key)"
    r"[ =](?P<secret>[^\s-]\S*+)"
)
# Words that follow `password:` or `token:` in a sentence about the field, not in its value.
_PROSE: Final = frozenset(
    (
        "a an and are at be been but by can cannot contains could did does doesn error expected "
        "expired expires failed field for from"
        " has have if in input invalid is it key length malformed may min minimum missing must no "
        "none not nil null of on only or"
        " please provided required revoked shall should string the this too type undefined unknown "
        "unset use value was wrong with"
        " you your true false unauthorized denied authentication enter ensure incorrect unexpected "
        "bad empty"
    ).split()
)
_PROSE_WORD: Final = re.compile(r"[A-Za-z]{1,20}[.,:;!]?")


def is_secret_name(name: str) -> bool:
    """Whether a field of this name could hold a secret: ``password``, ``apiKey``, ``X-Auth-Token`` …"""
    return _SECRET_NAME.search(_CAMEL_BOUNDARY.sub("_", name.strip()[-120:])) is not None


def mask_secrets(text: str) -> str:
    """``text`` with every passage that looks like a secret replaced by ``***``.

    Covered: credentials in URLs and DSNs, ``Authorization`` schemes, cookies, private keys, values
    under secret-looking names (``password=…``, ``"api_key": "…"``, ``--token …``) and the token formats
    of well-known providers. The names stay, so the text can still be read.
    """
    found = find_beginnings(text)
    if found.dense:
        text = text[:DENSITY_LIMIT] + MASK  # no error looks like this: so many characters of it are enough
        found = find_beginnings(text)
    lowered, tokens, names = found.lowered, found.tokens, found.names
    for pattern in _passages_in(text):
        spans = _spans(pattern.finditer(text), "secret")
        text, lowered = _masked(text, spans), _masked(lowered, spans)
        tokens, names = moved(tokens, spans, MASK), moved(names, spans, MASK)
    if tokens and _LONG_RUN.search(text):
        spans = _token_spans(text, tokens)
        text, lowered, names = _masked(text, spans), _masked(lowered, spans), moved(names, spans, MASK)
    if names:
        text = _without_named_secrets(text, lowered, names)
    return _masked(text, _spans(_FLAG.finditer(text), "secret")) if "--" in text else text


def _passages_in(text: str) -> Iterator[re.Pattern[str]]:
    """The patterns of secrets that stand between marks, those whose marks are in ``text``."""
    if "-----BEGIN" in text:
        yield _PRIVATE_KEY
    if "://" in text and "@" in text:
        yield _USERINFO
        yield _TOKEN_USERINFO


def _spans(matches: Iterable[re.Match[str]], secret: str) -> list[Span]:
    return [match.span(secret) for match in islice(matches, _SECRETS_LIMIT)]


def _token_spans(text: str, starts: Sequence[int]) -> list[Span]:
    """Where the known tokens among those that begin at ``starts`` stand."""
    spans: list[Span] = []
    done = 0
    for start in starts:
        token = _KNOWN_TOKEN.match(text, start) if start >= done else None
        if token is not None:
            spans.append(token.span())
            done = token.end()
            if len(spans) == _SECRETS_LIMIT:
                break
    return spans


def _masked(text: str, spans: Sequence[Span]) -> str:
    """``text`` with every span replaced by the mask, and nothing after the last that is looked at."""
    if not spans:
        return text
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += (text[done:start], MASK)
        done = end
    if len(spans) < _SECRETS_LIMIT:
        parts.append(text[done:])
    return "".join(parts)


def _without_named_secrets(text: str, lowered: str, names: Sequence[int]) -> str:
    """Mask the value in ``name = value`` wherever the name looks secret; ``names`` from left to right."""
    parts: list[str] = []
    secret: dict[str, bool] = {}  # judging a name costs as much as finding it
    fields = done = position = 0
    for start in names:
        field = _SECRET_FIELD.match(lowered, start) if start >= position else None
        if field is None:
            continue
        fields += 1
        position = field.end()
        _, separator, scheme = field.groups()
        if scheme is not None:
            value = _SCHEME_VALUE.match(text, position)
            masked = _masked_credentials(text[start : field.start("scheme")], value[0]) if value else None
        else:
            before = text[max(done, start - _NAME_LIMIT) : start]
            name = before[len(before.rstrip(_NAME_LETTERS)) :] + text[start : field.end("rest")]
            if name not in secret:
                secret[name] = is_secret_name(name)
            value = _value_at(text, position, name) if secret[name] else None
            masked = _masked_value(separator, value[0]) if value else None
        if value is not None and masked is not None:
            parts += (text[done : value.start()], masked)
            done = position = value.end()
        elif value is not None and value[0].startswith(MASK):
            position = value.end()
        if fields == _SECRETS_LIMIT:
            return "".join(parts) + text[done:position] + MASK
    return "".join(parts) + text[done:] if parts else text


def _value_at(text: str, position: int, name: str) -> re.Match[str] | None:
    cookies = _COOKIES.match(text, position) if name[-6:].lower() == "cookie" else None
    if cookies is not None:
        return cookies
    quoted = text[position : position + 1] in _QUOTES
    return (_QUOTED_VALUE if quoted else _BARE_VALUE).match(text, position)


def _masked_value(separator: str, value: str) -> str | None:
    """What to write instead of a secret's ``value``; None to leave it."""
    if value.strip("\\\"'`.") in _NO_VALUES or value.startswith(MASK):
        return None
    if value.lower() in _SCHEMES:
        return None  # of an Authorization header: what follows it is the secret
    if value[0] not in "\"'\\":
        return None if "=" not in separator.replace("=>", "") and _is_prose(value) else MASK
    if "=" not in separator and " " in value and _is_sentence(value):
        return None
    quote = value[: 2 if value[0] == "\\" else 1]
    return f"{quote}{MASK}{quote}"


def _masked_credentials(scheme: str, value: str) -> str | None:
    """What to write instead of an Authorization header's ``value``; None where it is a word of a sentence."""
    if scheme == "token" or (value.isalpha() and (value.islower() or len(value) < 12)):
        return None
    return MASK


def _is_prose(value: str) -> bool:
    return value.rstrip(".,:;!").lower() in _PROSE and _PROSE_WORD.fullmatch(value) is not None


def _is_sentence(value: str) -> bool:
    words = value.strip("\\\"'. ").lower().split()
    return len(words) >= 3 and sum(word in _PROSE for word in words) * 3 >= len(words)

"""Secrets taken out of error texts: for hints, logs and the stored raw error.

Every pattern begins with a literal or a letter, and what it repeats it either never gives back or
repeats a bounded number of times, so masking takes linear time on any input.
Over-masking is preferred to leaking in :func:`mask_secrets`; names of keys always stay.
"""

from __future__ import annotations

import re
from typing import Final

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
    r"-----BEGIN [A-Z ]{0,40}(?:PRIVATE KEY|CERTIFICATE)[A-Z ]{0,20}-----[^-]{0,16000}(?:-----END "
    r"[A-Z ]{0,60}-----)?"
)
_USERINFO: Final = re.compile(r"://[^\s/@:?#'\"]{0,200}+:(?P<secret>[^\s/'\"<>]{1,400})@(?=[^\s@]|$)")
_TOKEN_USERINFO: Final = re.compile(r"://(?P<secret>[A-Za-z0-9_\-]{20,200}+)@")
# Each branch begins with its letter, which is what a search is quick at, then looks back for the word's start.
_KNOWN_TOKENS: Final = re.compile(
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
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9_.\-]{11}")  # the shortest of them
_KNOWN_TOKEN_STARTS: Final = (
    "sk-", "sk_", "pk_", "pk-", "rk_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox",
    "xapp-",
    "AKIA", "ASIA", "AROA", "AIDA", "AIza", "ya29.", "eyJ", "npm_", "pypi-", "hf_", "gsk_", "dop_v1_", "SG.",
    "whsec_",
    "dckr_pat_", "hvs.", "shp",
)  # fmt: skip
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
# A text with more beginnings of secrets and their names than this is no error: only so many characters of it are kept.
_DENSITY_LIMIT: Final = 3000
_STEMS: Final = (
    "pass", "pwd", "pin", "ssn", "otp", "jwt", "cv", "token", "secret", "session", "sign", "auth", "key", "cookie",
    "credential", "bearer", "basic", "digest", "negotiate",
)  # fmt: skip
_SCHEMES: Final = ("bearer", "basic", "digest", "token", "negotiate")
_SCHEME_VALUE: Final = re.compile(r"[A-Za-z0-9._~+/=\-]++")
_NAME_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_NAME_LIMIT: Final = 60
# No real error has so many secrets of one kind; what follows the last one is left out as a whole.
_SECRETS_LIMIT: Final = 500
# Without its closing quotation mark, as in a text that was cut, a value ends with its line.
_VALUE: Final = re.compile(
    r"\\?\"(?:[^\"\\\n]|\\[^\n\"])*+(?:\\?\")?|\\?'(?:[^'\\\n]|\\[^\n'])*+(?:\\?')?|"
    r"[^\s\"',;&)}\]{\[(]++"
)
_COOKIES: Final = re.compile(r"[^\s\"'\\][^\r\n]*+")
_FLAG: Final = re.compile(
    r"--(?<![^\s\"'\[,(=]--)(?:[a-z0-9]{1,20}+-){0,3}?(?:password|passwd|token|secret|api-key|access-key|private-key)"
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
    return _SECRET_NAME.search(_CAMEL_BOUNDARY.sub("_", name[-120:])) is not None


def mask_secrets(text: str) -> str:
    """``text`` with every passage that looks like a secret replaced by ``***``.

    Covered: credentials in URLs and DSNs, ``Authorization`` schemes, cookies, private keys, values
    under secret-looking names (``password=…``, ``"api_key": "…"``, ``--token …``) and the token formats
    of well-known providers. The names stay, so the text can still be read.
    """
    known = [start for start in _KNOWN_TOKEN_STARTS if start in text]
    if len(text) > _DENSITY_LIMIT:
        begun = sum(map(text.lower().count, _STEMS)) + sum(map(text.count, known))
        if begun > _DENSITY_LIMIT:
            text = text[:_DENSITY_LIMIT] + MASK
    if "-----BEGIN" in text:
        text = _replaced(_PRIVATE_KEY, 0, text)
    if "://" in text and "@" in text:
        text = _replaced(_USERINFO, "secret", text)
        text = _replaced(_TOKEN_USERINFO, "secret", text)
    if known and _LONG_RUN.search(text):
        text = _replaced(_KNOWN_TOKENS, 0, text)
    text = _without_named_secrets(text)
    return _replaced(_FLAG, "secret", text) if "--" in text else text


def _replaced(pattern: re.Pattern[str], secret: str | int, text: str) -> str:
    """``text`` with the group ``secret`` of every match masked."""
    parts: list[str] = []
    done = 0
    for count, match in enumerate(pattern.finditer(text), 1):
        start, end = match.span(secret)
        parts += (text[done:start], MASK)
        done = end
        if count == _SECRETS_LIMIT:
            return "".join(parts)
    return "".join(parts) + text[done:] if parts else text


def _without_named_secrets(text: str) -> str:
    """Mask the value in ``name = value`` wherever the name looks secret; one pass from left to right."""
    lowered = text.replace("İ", "I").lower()  # the only letter that grows: positions would drift
    parts: list[str] = []
    secret: dict[str, bool] = {}  # judging a name costs as much as finding it
    done = position = 0
    for _ in range(_SECRETS_LIMIT):
        field = _SECRET_FIELD.search(lowered, position)
        if field is None:
            return "".join(parts) + text[done:] if parts else text
        position = field.end()
        if field["scheme"] is not None:
            value = _SCHEME_VALUE.match(text, position)
            masked = (
                _masked_credentials(text[field.start() : field.start("scheme")], value[0]) if value else None
            )
        else:
            before = text[max(done, field.start() - _NAME_LIMIT) : field.start()]
            named = len(before) - len(before.rstrip(_NAME_LETTERS))
            name = text[field.start() - named : field.end("rest")]
            if name not in secret:
                secret[name] = is_secret_name(name)
            if not secret[name]:
                continue
            value = _COOKIES.match(text, position) if name[-6:].lower() == "cookie" else None
            value = value or _VALUE.match(text, position)
            masked = _masked_value(field["separator"], value[0]) if value else None
        if value is None:
            continue
        if masked is not None:
            parts += (text[done : value.start()], masked)
            done = position = value.end()
        elif value[0].startswith(MASK):
            position = value.end()
    return "".join(parts) + text[done:position] + MASK


def _masked_credentials(scheme: str, value: str) -> str | None:
    """What to write instead of an Authorization header's ``value``; None where it is a word of a sentence."""
    if scheme == "token" or (value.isalpha() and (value.islower() or len(value) < 12)):
        return None
    return MASK


def _masked_value(separator: str, value: str) -> str | None:
    """What to write instead of a secret's ``value``; None to leave it."""
    if value.startswith(MASK) or value.strip("\\\"'`.") in ("", MASK, "None", "null", "undefined"):
        return None
    if value.lower() in _SCHEMES:
        return None  # of an Authorization header: what follows it is the secret
    if value[0] not in "\"'\\":
        return None if "=" not in separator.replace("=>", "") and _is_prose(value) else MASK
    if "=" not in separator and " " in value and _is_sentence(value):
        return None
    quote = value[: 2 if value[0] == "\\" else 1]
    return f"{quote}{MASK}{quote}"


def _is_prose(value: str) -> bool:
    return _PROSE_WORD.fullmatch(value) is not None and value.rstrip(".,:;!").lower() in _PROSE


def _is_sentence(value: str) -> bool:
    words = value.strip("\\\"'. ").lower().split()
    return len(words) >= 3 and sum(word in _PROSE for word in words) * 3 >= len(words)

"""Secrets taken out of error texts: for hints, logs and the stored raw error.

Every pattern starts from a literal that is looked for first, and repeats only single
character classes a bounded number of times, so masking takes linear time on any input.
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
_USERINFO: Final = re.compile(r"(://[^\s/@:?#'\"]{0,200}):([^\s/'\"<>]{1,400})@(?=[^\s@]|$)")
_TOKEN_USERINFO: Final = re.compile(r"(://)([A-Za-z0-9_\-]{20,200})@")
_SCHEME: Final = re.compile(
    r"\b([Bb]earer|BEARER|[Bb]asic|[Dd]igest|Token|Negotiate)([ :]{1,3})([A-Za-z0-9._~+/=\-]{6,4000})"
)
_COOKIE: Final = re.compile(r"\b((?:[Ss]et-)?[Cc]ookie:?[ \t]{0,4}[:=][ \t]{0,4})([^\r\n]{1,4000})")
_KNOWN_TOKENS: Final = re.compile(
    r"\b(?:sk|pk|rk)[-_](?:live_|test_|proj-|ant-|or-|svcacct-|admin-)?[A-Za-z0-9_*\-]{8,200}"
    r"|\bgh[oprsu]_[A-Za-z0-9]{16,255}|\bgithub_pat_[A-Za-z0-9_]{16,255}|\bglpat-[A-Za-z0-9_\-]{16,64}"
    r"|\bxox[abeoprs]-[A-Za-z0-9\-]{8,200}|\bxapp-[A-Za-z0-9\-]{8,200}"
    r"|\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,32}\b|\bAIza[A-Za-z0-9_\-]{20,64}|"
    r"\bya29\.[A-Za-z0-9_\-.]{10,400}"
    r"|\beyJ[A-Za-z0-9_\-]{8,4000}(?:\.[A-Za-z0-9_\-]{2,4000}){0,4}"
    r"|\bnpm_[A-Za-z0-9]{20,64}|\bpypi-[A-Za-z0-9_\-]{20,300}|\bhf_[A-Za-z0-9]{16,64}|"
    r"\bgsk_[A-Za-z0-9]{16,100}"
    r"|\bdop_v1_[a-f0-9]{32,80}|\bSG\.[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,100}|"
    r"\bwhsec_[A-Za-z0-9+/=]{8,100}"
    r"|\bdckr_pat_[A-Za-z0-9_\-]{16,64}|\bhvs\.[A-Za-z0-9_\-]{16,200}|\bshp(?:at|ss|ca|"
    r"pa)_[a-fA-F0-9]{16,64}"
)
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9_.\-]{11}")  # the shortest of them
_KNOWN_TOKEN_STARTS: Final = (
    "sk-", "sk_", "pk_", "pk-", "rk_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox",
    "xapp-",
    "AKIA", "ASIA", "AROA", "AIDA", "AIza", "ya29.", "eyJ", "npm_", "pypi-", "hf_", "gsk_", "dop_v1_", "SG.",
    "whsec_",
    "dckr_pat_", "hvs.", "shp",
)  # fmt: skip
_SECRET_STEM: Final = re.compile(
    r"pass|pwd|secret|token|key|auth|cookie|credential|signature|session|jwt|otp|pin|cvv|cvc|ssn"
)
_NAME_BEFORE: Final = re.compile(r"[A-Za-z0-9_.\-]{0,60}\Z")
_NAME_AFTER: Final = re.compile(r"[A-Za-z0-9_.\-]{0,40}")
_SEPARATOR: Final = re.compile(
    r"(?:\\?[\"'`])?[ \t]{0,3}(?:=>|:=|=|:)[ \t]{0,3}|[\"'][ \t]{0,2},[ \t]{0,2}(?=[\"'])"
)
_VALUE: Final = re.compile(
    r"\\?\"(?:[^\"\\\n]|\\[^\n\"]){0,4000}\\?\"|\\?'(?:[^'\\\n]|\\[^\n']){0,4000}\\?'|"
    r"[^\s\"',;&)}\]{\[(]{1,4000}"
)
_FLAG: Final = re.compile(
    r"(--?(?:[a-z0-9]{1,20}-){0,3}(?:password|passwd|token|secret|api-key|access-key|private-key|"
    r"client-secret))([ =])([^\s-][^\s]{0,400})"
)
_AWS_SECRET: Final = re.compile(r"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
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
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    if "://" in text and "@" in text:
        text = _USERINFO.sub(rf"\1:{MASK}@", text)
        text = _TOKEN_USERINFO.sub(rf"\1{MASK}@", text)
    if _LONG_RUN.search(text) and any(start in text for start in _KNOWN_TOKEN_STARTS):
        text = _KNOWN_TOKENS.sub(MASK, text)
    lowered = text.lower()
    if "ookie" in text:
        text = _COOKIE.sub(rf"\1{MASK}", text)
    if (
        "bearer" in lowered
        or "basic" in lowered
        or "digest" in lowered
        or "token" in lowered
        or "negotiate" in lowered
    ):
        text = _SCHEME.sub(_masked_scheme, text)
    text = _without_named_secrets(text)
    return _FLAG.sub(rf"\1\2{MASK}", text) if "--" in text else text


def _without_named_secrets(text: str) -> str:
    """Mask the value in ``name = value`` wherever the name looks secret; one pass from left to right."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters change length: positions would drift
        lowered = "".join(c.lower() if c.isascii() else c for c in text)
    parts: list[str] = []
    secret: dict[str, bool] = {}  # judging a name costs as much as finding it
    done = 0
    stem = _SECRET_STEM.search(lowered)
    while stem is not None:
        position = stem.end()
        name_end = _end(_NAME_AFTER.match(text, position), position)
        separator = _SEPARATOR.match(text, name_end)
        if separator is not None and (value := _VALUE.match(text, separator.end())) is not None:
            before = _NAME_BEFORE.search(text, max(done, stem.start() - 60), stem.start())
            name = text[before.start() if before else stem.start() : name_end]
            if name not in secret:
                secret[name] = is_secret_name(name)
            masked = _masked_value(separator[0], value[0]) if secret[name] else None
            if masked is not None:
                parts += (text[done : value.start()], masked)
                done = position = value.end()
        stem = _SECRET_STEM.search(lowered, position)
    return "".join(parts) + text[done:] if parts else text


def _end(match: re.Match[str] | None, default: int) -> int:
    return default if match is None else match.end()


def _masked_scheme(match: re.Match[str]) -> str:
    value = match[3]
    if value.isalpha() and (value.islower() or len(value) < 12):
        return match[0]
    return f"{match[1]}{match[2]}{MASK}"


def _masked_value(separator: str, value: str) -> str | None:
    """What to write instead of a secret's ``value``; None to leave it."""
    if value.startswith(MASK) or value.strip("\\\"'`.") in ("", MASK, "None", "null", "undefined"):
        return None
    if value[0] not in "\"'\\":
        return None if "=" not in separator.replace("=>", "") and _is_prose(value) else MASK
    if " " in value and _is_sentence(value):
        return None
    quote = value[: 2 if value[0] == "\\" else 1]
    return f"{quote}{MASK}{quote}"


def _is_prose(value: str) -> bool:
    return _PROSE_WORD.fullmatch(value) is not None and value.rstrip(".,:;!").lower() in _PROSE


def _is_sentence(value: str) -> bool:
    words = value.strip("\\\"'. ").lower().split()
    return len(words) >= 3 and sum(word in _PROSE for word in words) * 3 >= len(words)

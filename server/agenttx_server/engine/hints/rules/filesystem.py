"""The operating system's errors on files: POSIX names and numbers, Windows, and what runtimes make of them."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["ERRNO", "RULES"]

# Name → phrase of strerror, category, what to do. The phrase is what other languages print.
ERRNO: Final[dict[str, tuple[str, C, str]]] = {
    "ENOENT": ("No such file or directory", C.FILE_NOT_FOUND, "Check the path, or create the file first."),
    "EACCES": ("Permission denied", C.PERMISSION_DENIED, "Use a path you may access, or ask for access."),
    "EPERM": ("Operation not permitted", C.PERMISSION_DENIED, "Ask for the permission."),
    "EROFS": ("Read-only file system", C.PERMISSION_DENIED, "Write to a writable place."),
    "EEXIST": ("File exists", C.CONFLICT, "Use another name, or change the existing one."),
    "ENOTEMPTY": ("Directory not empty", C.CONFLICT, "Empty the directory first."),
    "EISDIR": ("Is a directory", C.INVALID_VALUE, "Pass the path of a file."),
    "ENOTDIR": ("Not a directory", C.INVALID_VALUE, "Pass a path whose parents are directories."),
    "ENAMETOOLONG": ("File name too long", C.INVALID_VALUE, "Use a shorter name."),
    "ELOOP": ("Too many levels of symbolic links", C.INVALID_VALUE, "Break the cycle of links."),
    "EINVAL": ("Invalid argument", C.INVALID_VALUE, "Correct the argument."),
    "EXDEV": ("Invalid cross-device link", C.INVALID_VALUE, "Copy instead of renaming across devices."),
    "ENOSPC": ("No space left on device", C.RESOURCE_EXHAUSTED, "Free disk space, then retry."),
    "EDQUOT": ("Disk quota exceeded", C.RESOURCE_EXHAUSTED, "Free disk space, then retry."),
    "EMFILE": ("Too many open files", C.RESOURCE_EXHAUSTED, "Close files, or raise the limit."),
    "ENFILE": ("Too many open files in system", C.RESOURCE_EXHAUSTED, "Close files, or raise the limit."),
    "ENOMEM": ("Cannot allocate memory", C.RESOURCE_EXHAUSTED, "Work on less at a time."),
    "EFBIG": ("File too large", C.RESOURCE_EXHAUSTED, "Write a smaller file."),
    "EAGAIN": ("Resource temporarily unavailable", C.RESOURCE_EXHAUSTED, "Retry in a moment."),
    "EBUSY": ("Device or resource busy", C.CONFLICT, "Wait until it is free, then retry."),
    "ETXTBSY": ("Text file busy", C.CONFLICT, "Wait until it is free, then retry."),
    "EDEADLK": ("Resource deadlock avoided", C.CONFLICT, "Retry in a moment."),
    "EADDRINUSE": ("Address already in use", C.CONFLICT, "Stop what listens there, or use another port."),
    "EADDRNOTAVAIL": ("Cannot assign requested address", C.CONNECTION, "Use an address of this host."),
    "ECONNREFUSED": ("Connection refused", C.CONNECTION, ADVICE[C.CONNECTION]),
    "ECONNRESET": ("Connection reset by peer", C.CONNECTION, "Retry; the peer closed the connection."),
    "ECONNABORTED": ("Software caused connection abort", C.CONNECTION, "Retry; the connection was lost."),
    "EPIPE": ("Broken pipe", C.CONNECTION, "Retry; the peer closed the connection."),
    "EHOSTUNREACH": ("No route to host", C.CONNECTION, "Check the address and the network."),
    "EHOSTDOWN": ("Host is down", C.CONNECTION, "Check the address and the network."),
    "ENETUNREACH": ("Network is unreachable", C.CONNECTION, "Check the address and the network."),
    "ENETDOWN": ("Network is down", C.CONNECTION, "Check the network."),
    "ENOTFOUND": ("getaddrinfo ENOTFOUND", C.CONNECTION, "Check the host name."),
    "EAI_AGAIN": (
        "getaddrinfo EAI_AGAIN",
        C.CONNECTION,
        "Name resolution failed; check the host name and retry.",
    ),
    "ETIMEDOUT": ("Connection timed out", C.TIMEOUT, ADVICE[C.TIMEOUT]),
    "ESRCH": ("No such process", C.MISSING_RECORD, "Check the process id."),
    "ECHILD": ("No child processes", C.MISSING_RECORD, "Check the process id."),
    "EIO": ("Input/output error", C.UNKNOWN, "Check the device."),
    "ENOEXEC": ("Exec format error", C.INVALID_VALUE, "Use a program built for this system."),
    "ECANCELED": ("Operation canceled", C.CANCELLED, "Run it again if it is still wanted."),
    "ENOTCONN": ("Transport endpoint is not connected", C.CONNECTION, "Reconnect and retry."),
    "ESTALE": ("Stale file handle", C.CONFLICT, "Open it again."),
}

_BY_PHRASE: Final = {phrase.lower(): name for name, (phrase, _, _) in ERRNO.items()}
_PHRASES: Final = "|".join(
    re.escape(phrase) for phrase in sorted((phrase for phrase, _, _ in ERRNO.values()), key=len, reverse=True)
)
_NAMES: Final = "|".join(sorted(ERRNO, key=len, reverse=True))
_PHRASE_WORDS: Final = " ".join(
    sorted(
        {re.findall(r"[a-z]+", phrase.lower())[-1] for phrase, _, _ in ERRNO.values()}
        | {"such", "denied", "exists", "refused"}
    )
)


def _facts(name: str, message: str) -> Facts:
    _, category, advice = ERRNO[name]
    return {"category": category.value, "advice": advice, "text": message}


def _of_phrase(match: re.Match[str], cause: Cause) -> Facts | None:
    name = _BY_PHRASE.get(match["phrase"].lower())
    return None if name is None else _facts(name, cause.message)


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "os.python_errno",
        "errno",
        rf"\[Errno -?\d{{1,4}}\] (?P<phrase>{_PHRASES})(?:: (?P<path>'[^'\n]{{1,400}}'(?: -> "
        rf"'[^'\n]{{1,400}}')?|\"[^\"\n]{{1,400}}\"|b'[^'\n]{{1,400}}'))?",
        C.UNKNOWN,
        ("{phrase}: {path}", "{line}"),
        "{advice}",
        read=_of_phrase,
        weight=LIKELY,
    ),
    rule(
        "os.node_code",
        _NAMES.lower().replace("|", " "),
        rf"\b(?P<name>{_NAMES})\b(?P<detail>:? [^\n]{{1,300}})?",
        C.UNKNOWN,
        ("{name}{detail}", "{name}"),
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _node(match, cause),
    ),
    rule(
        "os.phrase",
        _PHRASE_WORDS,
        rf"(?P<phrase>{_PHRASES.lower()})",
        C.UNKNOWN,
        "{line}",
        "{advice}",
        weight=LIKELY,
        read=_of_phrase,
        phrases="|".join(_BY_PHRASE),
        folded=True,
    ),
    rule(
        "os.java_file",
        "nosuchfileexception filenotfoundexception accessdeniedexception directorynotemptyexception "
        "filesystemexception",
        r"(?P<type>NoSuchFileException|FileNotFoundException|AccessDeniedException|"
        r"DirectoryNotEmptyException): (?P<path>[^\n]{1,300})",
        C.FILE_NOT_FOUND,
        "{type}: {path}",
        "{advice}",
        read=lambda match, cause: _java_file(match),
    ),
    rule(
        "os.dotnet_file",
        "could access",
        r"Could not find (?:file|a part of the path) '(?P<path>[^'\n]{1,400})'|Access to the path "
        r"'(?P<denied>[^'\n]{1,400})' is denied|The process cannot access the file "
        r"'(?P<busy>[^'\n]{1,400})' because it is being used",
        C.FILE_NOT_FOUND,
        (
            "could not find '{path}'",
            "access to the path '{denied_path}' is denied",
            "the file '{busy_path}' is being used by another process",
        ),
        "{advice}",
        read=lambda match, cause: _dotnet_file(match["denied"], match["busy"]),
        weight=CERTAIN,
    ),
    rule(
        "os.windows",
        "system cannot access",
        r"\[WinError (?P<number>\d{1,6})\] (?P<detail>[^\n]{1,300})|The system cannot find the (?:file|"
        r"path) specified[^\n]{0,200}",
        C.FILE_NOT_FOUND,
        ("[WinError {number}] {detail}", "{message}"),
        "{advice}",
        read=lambda match, cause: _windows(match["number"]),
    ),
)


def _node(match: re.Match[str], cause: Cause) -> Facts | None:
    name = match["name"]
    if name == "ECONNABORTED" and "timeout" in cause.text:
        name = "ETIMEDOUT"
    lines = [
        line.strip() for line in cause.text.split("\n") if match["name"] in line and "code: '" not in line
    ]
    line = max(lines, key=len, default=match[0])
    detail = line.partition(match["name"])[2]
    if not detail.strip("]: "):
        path = re.search(r"path: '([^'\n]{1,300})'", cause.text)
        detail = f": {path[1]}" if path else ""
        first = cause.text.split("\n")[0]
        if name not in first and not detail:
            detail = f": {cause.message.split(chr(10))[0]}"
    return {
        **_facts(name, cause.message),
        "detail": detail if detail.startswith(":") else f" {detail.strip()}" if detail else None,
        "path": None,
    }


def _java_file(match: re.Match[str]) -> Facts:
    kind, path = match["type"], match["path"]
    if kind == "AccessDeniedException" or "(Permission denied)" in path or "(Access is denied)" in path:
        return {"category": C.PERMISSION_DENIED.value, "advice": ERRNO["EACCES"][2]}
    if kind == "DirectoryNotEmptyException":
        return {"category": C.CONFLICT.value, "advice": ERRNO["ENOTEMPTY"][2]}
    return {"advice": ERRNO["ENOENT"][2]}


def _dotnet_file(denied: str | None, busy: str | None) -> Facts:
    if denied:
        return {"category": C.PERMISSION_DENIED.value, "advice": ERRNO["EACCES"][2], "denied_path": denied}
    if busy:
        return {"category": C.CONFLICT.value, "advice": ERRNO["EBUSY"][2], "busy_path": busy}
    return {"advice": ERRNO["ENOENT"][2]}


def _windows(number: str | None) -> Facts:
    by_number = {
        "5": "EACCES",
        "32": "EBUSY",
        "33": "EBUSY",
        "112": "ENOSPC",
        "183": "EEXIST",
        "80": "EEXIST",
        "145": "ENOTEMPTY",
        "10061": "ECONNREFUSED",
        "10054": "ECONNRESET",
        "10060": "ETIMEDOUT",
        "10048": "EADDRINUSE",
    }
    name = by_number.get(number or "", "ENOENT")
    return {"category": ERRNO[name][1].value, "advice": ERRNO[name][2]}

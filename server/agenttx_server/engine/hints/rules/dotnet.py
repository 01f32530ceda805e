""".NET: what its runtime says of null, missing and ill-typed values."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "dotnet.null_reference",
        "object",
        r"Object reference not set to an instance of an object",
        C.NULL_REFERENCE,
        "Object reference not set to an instance of an object",
        "Make sure the value exists before it is used.",
        weight=LIKELY,
    ),
    rule(
        "dotnet.argument_null",
        "parameter",
        r"Value cannot be null\.?\s{1,4}\(?Parameter (?:name: )?'?(?P<name>\w{1,128})'?\)?",
        C.MISSING_ARGUMENT,
        "{name} cannot be null",
        "Pass {name}.",
        "name",
    ),
    rule(
        "dotnet.argument",
        "parameter",
        r"\(Parameter '(?P<name>\w{1,128})'\)",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct {name}.",
        "name",
        read=lambda match, cause: {
            "detail": " ".join(cause.message.replace(match[0], "").split()) or "is not valid"
        },
    ),
    rule(
        "dotnet.key_not_found",
        "key",
        r"The given key '(?P<name>[^'\n]{1,128})' was not present in the dictionary|The given key was "
        r"not present in the dictionary",
        C.MISSING_KEY,
        (
            "the given key '{name}' was not present in the dictionary",
            "the given key was not present in the dictionary",
        ),
        "Provide it, or read a key that exists.",
        "key",
        read=lambda match, cause: {
            "key": match["name"] if match["name"] and " " not in match["name"] else None
        },
    ),
    rule(
        "dotnet.format",
        "format",
        r"(?:The )?[Ii]nput string (?:'(?P<value>[^'\n]{0,200})' )?was not in a correct format|String "
        r"'(?P<value2>[^'\n]{0,200})' was not recognized as a valid (?P<type>\w{1,40})",
        C.INVALID_VALUE,
        (
            "the input string '{value}' was not in a correct format",
            "'{value2}' was not recognized as a valid {type}",
            "the input string was not in a correct format",
        ),
        "Pass a value in the right format.",
    ),
    rule(
        "dotnet.http_timeout",
        "timeout",
        r"The request was canceled due to the configured HttpClient\.Timeout of (?P<wait>[\d.]{1,12} "
        r"seconds)",
        C.TIMEOUT,
        "the request timed out: HttpClient.Timeout of {wait} elapsed",
        "Retry, with a longer timeout or less work.",
    ),
    rule(
        "dotnet.unresolved_service",
        "service",
        r"Unable to resolve service for type '(?P<type>[^'\n]{1,200})'(?P<detail> while attempting to "
        r"activate '[^'\n]{1,200}')?",
        C.UNRESOLVED_REFERENCE,
        "unable to resolve service for type {type}{detail}",
        "Register the service.",
    ),
    rule(
        "dotnet.sequence_empty",
        "sequence",
        r"Sequence contains (?P<what>no|more than one) (?:matching )?elements?",
        C.MISSING_RECORD,
        "sequence contains {what} element",
        "Check what it is looked up by.",
        read=lambda match, cause: {"category": C.CONFLICT.value if match["what"] != "no" else None},
    ),
    rule(
        "dotnet.concurrency",
        "affect affected",
        r"expected to affect (?P<wanted>\d{1,9} row\(s\)), but actually affected (?P<got>\d{1,9} row\(s\))",
        C.CONFLICT,
        "expected to affect {wanted}, but affected {got}: the data was changed or deleted meanwhile",
        "Read it again, then retry.",
    ),
)

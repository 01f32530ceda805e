"""Parsers that could not read JSON, YAML, TOML, XML or CSV: what was expected, and where."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_code, category_of_complaint

__all__ = ["RULES"]

_ADVICE: Final = "Send well-formed JSON."

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "json.python",
        "char",
        r"(?P<detail>(?:Expecting|Invalid|Extra data|Unterminated|Illegal|unexpected)[^\n]{0,120}: "
        r"line \d{1,9} column \d{1,9}(?: - line \d{1,9} column \d{1,9})? \(char \d{1,9})",
        C.INVALID_JSON,
        "invalid JSON: {detail})",
        _ADVICE,
    ),
    rule(
        "json.javascript",
        "json",
        r"(?P<detail>(?:Unexpected token|Unexpected end of JSON|Unexpected non-whitespace|Expected "
        r"[^\n]{1,60} in JSON|Bad control character|Unterminated string in JSON|Expected (?:property "
        r"name|',' or '[}\]]'|double-quoted)|Unexpected string in JSON|Unexpected number in JSON|Bad "
        r"escaped character|No number after minus)[^\n]{0,200})",
        C.INVALID_JSON,
        "invalid JSON: {detail}",
        _ADVICE,
    ),
    rule(
        "json.go",
        "character json",
        r"(?P<detail>invalid character [^\n]{1,100}|unexpected end of JSON input|json: cannot "
        r"unmarshal [^\n]{1,200}|json: unknown field [^\n]{1,80})",
        C.INVALID_JSON,
        "{detail}",
        _ADVICE,
        "name",
        read=lambda match, cause: _go_field(match["detail"]),
    ),
    rule(
        "json.serde",
        "eof trailing expected key control",
        r"(?P<detail>(?:EOF while parsing|trailing characters|trailing comma|expected (?:value|ident|"
        r"`[^`]{1,3}`(?: or `[^`]{1,3}`)?|comma)|key must be a string|control character|invalid escape|"
        r"invalid number|lone leading surrogate|recursion limit exceeded)[^\n]{0,60} at line \d{1,9} "
        r"column \d{1,9})",
        C.INVALID_JSON,
        "invalid JSON: {detail}",
        _ADVICE,
    ),
    rule(
        "json.java",
        "jsonparseexception jsonmappingexception malformedjsonexception jsonsyntaxexception "
        "jsoneofexception jsonexception",
        r"(?:JsonParseException|JsonEOFException|MalformedJsonException|JsonSyntaxException|"
        r"JSONException): (?P<detail>[^\n]{1,200})(?:\n[^\n]{0,200}(?P<place>line: \d{1,9}, column: "
        r"\d{1,9}))?",
        C.INVALID_JSON,
        ("invalid JSON: {detail} ({place})", "invalid JSON: {detail}"),
        _ADVICE,
    ),
    rule(
        "json.jackson_property",
        "unrecognized deserialize missing",
        r"(?:(?P<what>Unrecognized field) \"(?P<name>[^\"\n]{1,128})\"|Cannot deserialize value of "
        r"type `(?P<type>[\w.$<>]{1,120})` from (?P<detail>[^\n]{1,120})|Missing required creator "
        r"property '(?P<missing>[^'\n]{1,128})')",
        C.INVALID_VALUE,
        (
            "unrecognized field {name}",
            "missing required property {missing}",
            "{key}: cannot read a {type} from {detail}",
            "cannot read a {type} from {detail}",
        ),
        "Correct the field.",
        "key",
        read=lambda match, cause: {
            "category": "missing_argument" if match["missing"] else None,
            "key": match["name"] or match["missing"] or _chain_end(cause.text),
            "type": (match["type"] or "").rpartition(".")[2],
        },
    ),
    rule(
        "json.dotnet",
        "json",
        r"(?P<detail>The JSON value could not be converted to [\w.`\[\],<>]{1,120}?(?=\. |\.?$)|"
        r"'[^'\n]{1,4}' is (?:an invalid|invalid)[^\n]{1,120}|The input does not contain any JSON "
        r"tokens[^\n]{0,120}|JSON deserialization for type '[^'\n]{1,120}' was missing required "
        r"properties[^\n]{0,120})(?:[^\n]{0,100}?Path: (?P<path>\$[\w.\[\]$]{0,128}))?(?P<place> \| "
        r"LineNumber: \d{1,9} \| BytePositionInLine: \d{1,9})?",
        C.INVALID_JSON,
        ("{detail} at {path}{place}", "{detail}{place}"),
        _ADVICE,
        "path",
    ),
    rule(
        "json.php_ruby",
        "syntax json unexpected",
        r"JsonException: (?P<detail>[^\n]{1,100})|JSON::ParserError[^\n]{0,10}|"
        r"(?P<detail2>(?:unexpected token at|unexpected character:?|expected object key)[^\n]{0,160})",
        C.INVALID_JSON,
        ("invalid JSON: {detail}", "invalid JSON: {detail2}", "{message}"),
        _ADVICE,
    ),
    rule(
        "json.jq",
        "jq parse",
        r"(?:jq: error[^\n]{0,30}|parse error): (?P<detail>[^\n]{1,160} at line \d{1,9}, column \d{1,9})",
        C.INVALID_JSON,
        "invalid JSON: {detail}",
        _ADVICE,
    ),
    rule(
        "yaml.syntax",
        "yaml mapping scanning parsing expected",
        r"(?P<detail>(?:mapping values are not allowed|could not find expected|found (?:character|"
        r"unknown|duplicate|undefined)|expected <?[\w ]{1,40}>?, but found|did not find expected|error "
        r"converting YAML to JSON|yaml: line \d{1,9})[^\n]{0,160})(?:[\s\S]{0,200}?(?P<place>line "
        r"\d{1,9}, column \d{1,9}))?",
        C.INVALID_VALUE,
        ("invalid YAML: {detail} ({place})", "invalid YAML: {detail}"),
        "Correct the YAML.",
    ),
    rule(
        "xml.syntax",
        "xml sax expat token tag element",
        r"(?P<detail>(?:not well-formed \(invalid token\)|mismatched tag|no element found|Start tag "
        r"expected|Opening and ending tag mismatch|The markup in the document|Content is not allowed "
        r"in prolog|unclosed token|junk after document element|XML document structures)[^\n]{0,160})",
        C.INVALID_VALUE,
        "invalid XML: {detail}",
        "Correct the XML.",
        weight=LIKELY,
    ),
    rule(
        "xml.body",
        "xml fault error response errorresponse",
        r"<(?:\w{1,20}:)?(?:faultstring|Message|message|Text|Reason|reason|detail|description|error_description)(?: [^<>]{0,80})?>"
        r"(?P<said>[^<>]{1,600})</",
        C.UNKNOWN,
        ("{code}: {said}", "{said}"),
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _xml_body(match, cause),
    ),
    rule(
        "toml.syntax",
        "toml tomldecodeerror",
        r"(?:TOMLDecodeError|TOML parse error)[: ](?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "invalid TOML: {detail}",
        "Correct the TOML.",
    ),
    rule(
        "csv.fields",
        "tokenizing",
        r"Error tokenizing data\. C error: (?P<detail>[^\n]{1,120})",
        C.INVALID_VALUE,
        "invalid CSV: {detail}",
        "Correct the row.",
    ),
)


_XML_CODE: Final = re.compile(
    r"<(?:\w{1,20}:)?(?:Code|code|ErrorCode|errorCode|Value|faultcode)>([^<>\s]{1,80})</"
)


def _xml_body(match: re.Match[str], cause: Cause) -> Facts:
    """The category that an answer in XML gives by its code, or by what it says."""
    code = found[1].rpartition(":")[2] if (found := _XML_CODE.search(cause.text)) else ""
    category = category_of_code(code) if code else None
    if category is None:
        category = category_of_complaint(match["said"]) if _JUDGES.search(match["said"]) else C.UNKNOWN
    told = code if code and code not in ("Client", "Server", "Sender", "Receiver") else None
    return {"category": category.value, "advice": ADVICE[category], "code": told}


_JUDGES: Final = re.compile(
    r"(?i)invalid|must|required|not valid|malformed|not found|does not exist|missing|already"
)


def _go_field(detail: str) -> dict[str, str | None]:
    if detail.startswith("json: cannot unmarshal"):
        place = detail.rpartition("Go struct field ")[2].split(" ")[0] if "Go struct field " in detail else ""
        return {"name": place.partition(".")[2] or None, "category": "invalid_value"}
    if detail.startswith("json: unknown field"):
        return {"name": detail.removeprefix("json: unknown field").strip(' "'), "category": "invalid_value"}
    return {"name": None}


def _chain_end(text: str) -> str | None:
    quoted = text.partition("(through reference chain: ")[2].partition(")")[0].split('"')
    return quoted[-2] if len(quoted) > 2 else None

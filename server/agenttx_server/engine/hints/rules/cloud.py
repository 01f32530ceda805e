"""Cloud SDKs: boto3 and the AWS command line, Google API core, Azure."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_code, category_of_status

__all__ = ["RULES"]

_MISSING_KEY: Final = re.compile(r"Missing the key (?P<name>[\w.\-]{1,80}) in the item")


def _aws(match: re.Match[str], cause: Cause) -> Facts | None:
    code, detail = match["code"], match["detail"]
    category = category_of_code(code) or C.UNKNOWN
    if code in ("ResourceNotFoundException",) and "Table" in detail:
        category = C.MISSING_SCHEMA_OBJECT
    missing = _MISSING_KEY.search(detail)
    if missing is not None:
        return {
            "category": C.MISSING_ARGUMENT.value,
            "advice": f"Add {missing['name']} to the item.",
            "name": missing["name"],
        }
    if category is C.UNKNOWN and code.isdigit():
        category = category_of_status(int(code)) or C.UNKNOWN
    return {"category": category.value, "advice": ADVICE[category], "name": None}


def _google(match: re.Match[str], cause: Cause) -> Facts | None:
    status, detail = int(match["status"]), match["detail"]
    category = category_of_status(status)
    if category is None:
        return None
    if category is C.HTTP_CLIENT_ERROR:
        by_name = category_of_code(match["name"])
        if status == 404:
            category = (
                C.MISSING_SCHEMA_OBJECT
                if re.search(r"\b(?:Table|Dataset|Routine)\b", detail)
                else C.FILE_NOT_FOUND
                if "No such object" in detail
                else C.MISSING_RECORD
            )
        elif by_name in (C.INVALID_VALUE, C.MISSING_ARGUMENT, C.CONFLICT):
            category = C.INVALID_VALUE if by_name is C.INVALID_VALUE else by_name
    if status == 503:
        category = C.HTTP_SERVER_ERROR
    if status == 504:
        category = C.TIMEOUT
    return {"category": category.value, "advice": ADVICE[category]}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "aws.access_denied",
        "authorized",
        r"(?:\((?P<code>\w{1,80})\) when calling the (?P<operation>\w{1,80}) operation: )?User: "
        r"(?P<user>\S{1,300}) is not authorized to perform: (?P<action>[\w:*\-]{1,120})(?: on "
        r"resource: \"?(?P<resource>[^\s\"]{1,300}?)\"?(?= |$|\.$|\n|,))?",
        C.PERMISSION_DENIED,
        (
            "{user} is not authorized to perform {action} on {resource}",
            "{user} is not authorized to perform {action}",
        ),
        "Ask for the permission, or use another resource.",
        read=lambda match, cause: {"user": _short_arn(match["user"])},
    ),
    rule(
        "aws.client_error",
        "calling",
        r"An error occurred \((?P<code>[\w.]{1,100})\) when calling the (?P<operation>\w{1,80}) "
        r"operation(?: \(reached max retries: \d{1,3}\))?: ?(?P<detail>[^\n]{0,600})",
        C.UNKNOWN,
        ("{operation}: {code}: {detail}", "{operation}: {code}"),
        "{advice}",
        "name",
        read=_aws,
    ),
    rule(
        "aws.parameters",
        "parameter",
        r"Parameter validation failed:\s{1,8}(?P<detail>(?:Missing required parameter in "
        r"(?P<place>[\w.\[\]]{1,120}): \"(?P<missing>[\w.\-]{1,120})\"|Unknown parameter in "
        r"[\w.\[\]]{1,120}: \"(?P<unknown>[\w.\-]{1,120})\"[^\n]{0,160}|Invalid (?:type|length|value|"
        r"range) for parameter (?P<invalid>[\w.\[\]\-]{1,120})[^\n]{0,200})[^\n]{0,10}(?:\n(?!\s{0,4}a"
        r"t )[^\n]{1,160}){0,3})",
        C.INVALID_VALUE,
        "{detail}",
        "Correct the parameters.",
        "key",
        read=lambda match, cause: {
            "key": match["missing"] or match["unknown"] or match["invalid"],
            "category": C.MISSING_ARGUMENT.value if match["missing"] else None,
        },
    ),
    rule(
        "aws.no_credentials",
        "credentials region nocredentialserror profile",
        r"Unable to locate credentials|NoCredentialsError|Partial credentials found[^\n]{0,120}|The "
        r"config profile \([^)\n]{1,80}\) could not be found|Could not load credentials from any "
        r"providers",
        C.AUTHENTICATION,
        "{message}",
        "Provide credentials.",
    ),
    rule(
        "aws.no_region",
        "region",
        r"You must specify a region",
        C.MISSING_ARGUMENT,
        "you must specify a region",
        "Pass a region.",
        weight=CERTAIN,
        keys="name",
        read=lambda match, cause: {"name": "region"},
    ),
    rule(
        "aws.endpoint",
        "endpoint",
        r"Could not connect to the endpoint URL: \"(?P<url>[^\"\n]{1,300})\"",
        C.CONNECTION,
        "could not connect to the endpoint {url}",
        "Check the region, the endpoint and the network.",
    ),
    rule(
        "google.api_core",
        "exceptions",
        r"google\.api_core\.exceptions\.(?P<name>\w{1,60}): (?P<status>[45]\d\d) (?P<detail>[^\n]{1,600})",
        C.UNKNOWN,
        "{status} {detail}",
        "{advice}",
        weight=LIKELY,
        read=_google,
    ),
    rule(
        "google.credentials",
        "credentials refresherror reauthentication",
        r"(?P<detail>Your default credentials were not found|Could not automatically determine "
        r"credentials|RefreshError[^\n]{0,200}|Reauthentication is needed[^\n]{0,80})",
        C.AUTHENTICATION,
        "{message}",
        "Renew the credentials.",
    ),
    rule(
        "azure.authorization",
        "authorization",
        r"The client '(?P<user>[^'\n]{1,120})'[^\n]{0,120} does not have authorization to perform "
        r"action '(?P<action>[^'\n]{1,160})' over scope '(?P<resource>[^'\n]{1,300})'",
        C.PERMISSION_DENIED,
        "no authorization to perform {action} over {resource}",
        "Ask for the role.",
    ),
    rule(
        "azure.aad",
        "aadsts50011 aadsts7000215 aadsts700016 aadsts50034 aadsts50126 aadsts65001 aadsts90002 "
        "aadsts700082 azure authentication",
        r"(?P<detail>AADSTS\d{4,8}[^\n]{0,300})",
        C.AUTHENTICATION,
        "{detail}",
        "Correct the credentials.",
    ),
    rule(
        "azure.error_code",
        "errorcode",
        r"\nErrorCode:\s?(?P<code>\w{1,80})",
        C.UNKNOWN,
        "{code}: {detail}",
        "{advice}",
        read=lambda match, cause: _azure(match["code"] or "", cause),
    ),
    rule(
        "azure.parenthesis",
        "code",
        r"\A[^\n]{0,120}?\((?P<code>[A-Z]\w{3,80})\) (?P<detail>[^\n]{1,400})\nCode: ",
        C.UNKNOWN,
        "{code}: {detail}",
        "{advice}",
        read=lambda match, cause: _azure(match["code"], cause),
    ),
)


def _azure(code: str, cause: Cause) -> Facts | None:
    category = C.CONFLICT if code in ("ConditionNotMet", "LeaseIdMissing") else category_of_code(code)
    if category is None:
        return None
    return {
        "category": category.value,
        "advice": ADVICE[category],
        "detail": (cause.message or cause.text).split("\n")[0],
    }


def _short_arn(arn: str) -> str:
    return arn.rpartition(":")[2] if arn.startswith("arn:") else arn

"""Error codes and class names read as words: ``ThrottlingException``, ``rate_limit_exceeded``, ``RESOURCE_EXHAUSTED``.

The words of a code are joined without separators, so one table serves every spelling.
"""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

__all__ = ["ADVICE", "category_of_code", "category_of_complaint", "category_of_status"]

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")

# In this order: the first stem found in the squeezed code decides.
_STEMS: Final[tuple[tuple[C, tuple[str, ...]], ...]] = (
    (C.RATE_LIMITED, ("ratelimit", "toomanyrequest", "throttl", "slowdown", "requestlimitexceeded",
        "provisionedthroughput",
                      "ratequota", "toofast", "floodwait", "userratelimit", "ratelimited",
                      "requestratetoolarge", "limitexceededrate")),
    (C.TIMEOUT, ("timeout", "timedout", "deadlineexceeded", "timelimitexceeded")),
    (C.AUTHENTICATION, ("unauthenticated", "invalidapikey", "apikeyinvalid", "authenticationfail",
        "authenticationerror", "authenticationrequired",
                        "expiredtoken", "tokenexpired", "invalidtoken", "invalidaccesstoken",
                        "invalidclienttoken", "signaturedoesnotmatch", "unrecognizedclient",
                        "invalidcredential", "badcredential", "loginfail", "notauthed", "invalidauth",
                        "invalidgrant", "invalidclient", "authfail",
                        "autherror", "unauthorizederror", "invalidsession", "sessionexpired", "missingauth",
                        "noauth", "incorrectapikey", "tokenrevoked", "expiredcredential")),
    (C.PERMISSION_DENIED, ("accessdenied", "forbidden", "permission", "notauthorized",
        "unauthorizedoperation", "insufficientprivilege",
                           "insufficientscope", "authorizationfailed", "missingscope", "notallowed",
                           "accountdisabled", "policyviolation", "insufficientaccess")),
    (C.AUTHENTICATION, ("unauthorized", "authentication", "credential")),
    (C.FOREIGN_KEY_VIOLATION, ("foreignkey",)),
    (C.UNIQUE_VIOLATION, ("uniqueviolation", "duplicatekey", "duplicatevalue", "duplicateentry", "notunique",
        "emailtaken", "nametaken", "integrityunique", "alreadytaken")),
    (C.NOT_NULL_VIOLATION, ("notnullviolation",)),
    (C.CONFLICT, ("conflict", "alreadyexist", "concurrent", "optimisticlock", "staleobject", "stalestate",
        "preconditionfailed", "conditionalcheckfailed", "versionmismatch",
                  "deadlock", "serializationfailure", "lockcontention", "etagmismatch", "transactioncancel",
                  "resourceinuse", "idempotency", "operationaborted", "failedprecondition",
                  "alreadyowned", "incompatiblestate", "invalidstate", "incorrectstate", "locked",
                  "leaselost", "revisionmismatch", "resourcelocked")),
    (C.UNKNOWN_TOOL, ("unknowntool", "methodnotfound", "toolnotfound", "unknownmethod", "functionnotfound",
        "nosuchtool", "unimplemented", "invalidtoolname")),
    (C.MISSING_SCHEMA_OBJECT, ("undefinedtable", "undefinedcolumn", "nosuchtable", "nosuchcolumn",
        "indexnotfound", "tablenotfound", "unknowncolumn", "unknowntable", "undefinedfunction",
        "collectionnotfound")),
    (C.RESOURCE_EXHAUSTED, ("quota", "resourceexhausted", "insufficientcapacity", "limitexceeded",
        "outofmemory", "nospace", "storagefull", "toolarge",
                            "contextlength", "contextwindow", "budgetexceeded", "insufficientstorage",
                            "maxtokens", "circuitbreaking", "toomanyconnections", "creditexhausted",
                            "insufficientcredit")),
    (C.FILE_NOT_FOUND, ("filenotfound", "nosuchfile", "enoent", "nosuchkey", "blobnotfound", "pathnotfound")),
    (C.MISSING_ARGUMENT, ("parametermissing", "missingparameter", "missingrequired", "requiredfield",
        "missingfield", "fieldrequired", "requiredparameter", "missingargument",
                          "missingproperty", "parameterrequired", "requiredproperty", "argumentnull",
                          "missingvalue", "argumentmissing", "fieldmissing", "missingdata")),
    (C.MISSING_RECORD, ("nosuch", "notfound", "resourcemissing", "doesnotexist", "unknownrecord",
        "recordmissing", "documentmissing", "gone", "notexist", "objectnotfound")),
    (C.INVALID_JSON, ("jsonparse", "parseerror", "jsondecode", "invalidjson", "malformedjson",
        "malformedrequest")),
    (C.CANCELLED, ("cancelled", "canceled", "abortederror")),
    (C.HTTP_SERVER_ERROR, ("internalserver", "internalerror", "servererror", "serviceunavailable",
        "overloaded", "badgateway", "internalfailure", "servicefailure", "serverbusy", "apierror",
        "gatewaytimeout")),
    (C.CONNECTION, ("nobroker", "unavailable", "connectionerror", "connectionrefused", "connectionreset",
        "econn", "enotfound", "hostunreachable", "networkerror", "sslerror", "certificate")),
    (C.INVALID_VALUE, ("invalid", "validation", "badrequest", "malformed", "unprocessable", "outofrange",
        "constraintviolation", "badinput", "baduserinput", "notvalid", "illegalargument",
                       "unsupported", "mismatch", "incorrect", "outofbounds", "toolong", "tooshort", "toosmall",
                       "toobig")),
)  # fmt: skip

_MISSING: Final = (
    "is required", "are required", "required field", "field required", "required property", "is missing",
    "missing data", "missing required", "must be provided",
    "was not provided", "not provided", "can't be blank", "cannot be blank", "may not be null",
    "must not be null", "cannot be null", "not be null", "required parameter",
    "must be present", "received undefined", "must be set", "must be specified", "is a required",
    "must have required", "required value", "must exist", "cannot be empty",
    "must not be blank", "must not be empty", "may not be blank", "may not be empty", "not be empty",
    "should not be null", "missing value", "value missing", "can't be empty", "should not be empty",
)  # fmt: skip
_TAKEN: Final = (
    "already been taken",
    "already exists",
    "already exist",
    "must be unique",
    "already in use",
    "already taken",
    "already registered",
    "duplicate",
    "not unique",
)
_ABSENT: Final = (
    "does not exist",
    "not found",
    "no such",
    "doesn't exist",
    "could not be found",
    "object does not exist",
    "unknown id",
)

ADVICE: Final[dict[C, str]] = {
    C.FOREIGN_KEY_VIOLATION: "Create the referenced row first, or pass the id of an existing one.",
    C.UNIQUE_VIOLATION: "Use another value, or update the existing one instead of creating it.",
    C.NOT_NULL_VIOLATION: "Give it a value.",
    C.CHECK_VIOLATION: "Pass a value the constraint allows.",
    C.MISSING_SCHEMA_OBJECT: "Check the name against the schema.",
    C.MISSING_RECORD: "Check the id, or create it first.",
    C.MISSING_ARGUMENT: "Pass it.",
    C.MISSING_KEY: "Provide that key, or read one that exists.",
    C.NULL_REFERENCE: "Make sure the value exists before it is used.",
    C.INVALID_VALUE: "Correct the value and retry.",
    C.INVALID_JSON: "Send well-formed JSON.",
    C.FILE_NOT_FOUND: "Check the path, or create the file first.",
    C.PERMISSION_DENIED: "Ask for access, or use something you may access.",
    C.AUTHENTICATION: "Renew or correct the credentials; the same call will fail again.",
    C.RATE_LIMITED: "Wait, then retry more slowly.",
    C.HTTP_CLIENT_ERROR: "Correct the request; the same one will fail again.",
    C.HTTP_SERVER_ERROR: "The server failed; retry later.",
    C.TIMEOUT: "Retry, with a longer timeout or less work.",
    C.CONNECTION: "Check that the service is up and the address right, then retry.",
    C.UNKNOWN_TOOL: "Use the name of a tool that exists.",
    C.UNRESOLVED_REFERENCE: "Declare it first, or correct the reference.",
    C.CONFLICT: "Read the current state, then retry.",
    C.RESOURCE_EXHAUSTED: "Ask for less, or free or raise the limit.",
    C.CANCELLED: "Run it again if it is still wanted.",
    C.ASSERTION: "Correct the inputs so that the condition holds.",
    C.UNKNOWN: "Check the inputs of this step.",
}

_STATUS: Final[dict[int, C]] = {
    401: C.AUTHENTICATION, 403: C.PERMISSION_DENIED, 407: C.AUTHENTICATION, 408: C.TIMEOUT, 409: C.CONFLICT,
    412: C.CONFLICT,
    423: C.CONFLICT, 425: C.CONFLICT, 428: C.CONFLICT, 429: C.RATE_LIMITED, 499: C.CANCELLED,
    507: C.RESOURCE_EXHAUSTED, 511: C.AUTHENTICATION,
}  # fmt: skip


def category_of_code(code: str) -> C | None:
    """What a code or class name says about the kind of error; None where it says nothing."""
    squeezed = _SEPARATORS.sub("", code[:200].lower())
    for category, stems in _STEMS:
        for stem in stems:
            if stem in squeezed:
                return category
    return None


def category_of_status(status: int) -> C | None:
    """The category of an HTTP status from 400 to 599."""
    if status in _STATUS:
        return _STATUS[status]
    if 400 <= status < 500:
        return C.HTTP_CLIENT_ERROR
    return C.HTTP_SERVER_ERROR if 500 <= status < 600 else None


def category_of_complaint(complaint: str, code: str = "") -> C:
    """The category of what a validator says about one field."""
    lowered = complaint.lower()
    squeezed = _SEPARATORS.sub("", code.lower())
    if squeezed in (
        "missing",
        "required",
        "valueerrormissing",
        "blank",
        "null",
        "notnull",
        "notblank",
        "notempty",
        "presence",
    ):
        return C.MISSING_ARGUMENT
    if any(phrase in lowered for phrase in _TAKEN) or squeezed in (
        "unique",
        "taken",
        "alreadyexists",
        "duplicate",
    ):
        return C.UNIQUE_VIOLATION
    if any(phrase in lowered for phrase in _MISSING) or lowered.strip(" .!") in ("required", "missing"):
        return C.MISSING_ARGUMENT
    if any(phrase in lowered for phrase in _ABSENT) or squeezed in (
        "doesnotexist",
        "notfound",
        "resourcemissing",
    ):
        return C.MISSING_RECORD
    return C.INVALID_VALUE

"""What the body of an error says, whoever wrote it: messages, codes, status, fields, waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from .fields import FieldError, dotted, field_errors, joined_path, judges_a_value, names_a_field

__all__ = ["Problem", "read_problem"]

_WRAPPERS: Final = (
    "error",
    "errors",
    "fault",
    "Error",
    "response",
    "data",
    "body",
    "detail",
    "ErrorResponse",
    "odata.error",
    "exception",
    "innererror",
    "err",
    "failure",
    "Fault",
)
_LISTS: Final = (
    "errors", "detail", "details", "invalid-params", "invalidParams", "invalid_params", "violations",
    "fieldErrors", "field_errors", "validationErrors", "validation_errors", "message", "issues", "causes",
    "fieldViolations", "field_violations", "subErrors", "problems", "constraintViolations",
    "parameterViolations", "userErrors", "user_errors", "error", "messages", "failures", "_errors", "modelState", "ModelState",
)  # fmt: skip
_MESSAGES: Final = (
    "message", "msg", "errmsg", "details", "error_description", "errorMessage", "error_message", "detail",
    "Message", "faultstring", "description", "reason", "text", "error", "err", "exception", "title", "cause",
    "MessageText", "summary", "errorSummary",
)  # fmt: skip
_CODES: Final = (
    "code",
    "error_code",
    "errorCode",
    "__type",
    "Code",
    "errorType",
    "sqlstate",
    "SQLSTATE",
    "type",
    "status",
    "reason",
    "error",
    "name",
    "errcode",
    "title",
)
_STATUSES: Final = (
    "status",
    "statusCode",
    "status_code",
    "httpStatus",
    "httpStatusCode",
    "http_status",
    "code",
    "error_code",
    "errorCode",
)
_PARAMETERS: Final = (
    "param",
    "field",
    "parameter",
    "argument",
    "property",
    "fieldName",
    "attribute",
    "target",
    "pointer",
)
_ANSWER_ERRORS: Final = ("userErrors", "user_errors")  # of a GraphQL mutation, beside its answer
_CLASS_NAMES: Final = ("errorType", "exception_type", "exc_type", "exceptionType", "exception_class")
_WAITS: Final = (
    "retryDelay",
    "retry_after",
    "retryAfter",
    "retry-after",
    "Retry-After",
    "retry_after_seconds",
    "retryAfterSeconds",
    "retry_in",
    "retry_after_ms",
    "retryAfterMs",
)
_REFERENCES: Final = (
    "ref",
    "request_id",
    "requestId",
    "RequestId",
    "traceId",
    "trace_id",
    "correlationId",
    "correlation_id",
    "incident",
    "incident_id",
    "error_id",
    "errorId",
    "reference",
)
_JSON_RPC: Final = {
    -32700: "parse_error",
    -32600: "invalid_request",
    -32601: "method_not_found",
    -32602: "invalid_params",
}
_WALK_DEPTH: Final = 6
_NODES_LIMIT: Final = 120
_DETAIL_LINE: Final = ("details", "detail", "Detail", "hint")


@dataclass(frozen=True, slots=True)
class Problem:
    """What was found while walking a body, outer levels first."""

    messages: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    status: int | None = None
    parameter: str = ""
    fields: tuple[FieldError, ...] = ()
    wait: str = ""
    reference: str = ""
    quota: str = ""
    texts: tuple[str, ...] = ()


def read_problem(value: object) -> Problem | None:
    """The problem that a parsed body states, inner levels included; None if it states none."""
    if isinstance(value, list):
        errors = field_errors(value)
        if errors:
            return Problem(fields=tuple(errors))
        dicts = [item for item in value if isinstance(item, dict)]
        if not dicts or len(dicts) != len(value):
            return None
        return _read_mapping(dicts[0], 0)
    if isinstance(value, dict):
        return _read_mapping(value, 0)
    return None


def _read_mapping(body: dict[str, object], depth: int) -> Problem | None:
    errors = field_errors(body)
    if errors and depth == 0:
        return Problem(fields=tuple(errors))
    problem = Problem()
    content = body.get("content")
    if isinstance(content, list) and (body.get("isError") or "isError" in body or body.get("is_error")):
        texts = tuple(
            str(item["text"])
            for item in content
            if isinstance(item, dict) and isinstance(item.get("text"), str)
        )
        return Problem(texts=texts[:4])
    problem = _own(body)
    for name in _LISTS:
        inner = body.get(name)
        found = field_errors(inner, named_errors=name != "error") if isinstance(inner, (list, dict)) else []
        if found and not problem.fields:
            problem = replace(problem, fields=tuple(found))
    if depth < _WALK_DEPTH:
        for name, inner in list(body.items())[:_NODES_LIMIT]:
            for child in _children(name, inner):
                below = _read_mapping(child, depth + 1)
                if below is not None:
                    problem = _merged(problem, below)
    if not (problem.messages or problem.codes or problem.fields or problem.texts):
        return None
    return problem


def _children(name: str, inner: object) -> list[dict[str, object]]:
    if isinstance(inner, dict) and (
        name in _WRAPPERS
        or name
        in ("details", "extensions", "params", "value", "result", "root_cause", "caused_by", "metadata")
        or any(inner.get(errors) for errors in _ANSWER_ERRORS)
    ):
        return [inner]
    if isinstance(inner, list) and (name in _LISTS or name in ("root_cause", "CancellationReasons")):
        return [item for item in inner[:4] if isinstance(item, dict)]
    return []


def _own(body: dict[str, object]) -> Problem:
    messages = [value for name in _MESSAGES if isinstance(value := body.get(name), str) and value.strip()]
    class_name = next(
        (
            value
            for name in _CLASS_NAMES
            if isinstance(value := body.get(name), str) and value.endswith(("Error", "Exception"))
        ),
        "",
    )
    if messages and class_name and class_name not in messages[0]:
        messages[0] = f"{class_name}: {messages[0]}"  # as the runtime prints it, for its rules to read
    detail = next(
        (value for name in _DETAIL_LINE if isinstance(value := body.get(name), str) and value), None
    )
    if messages and detail and detail not in messages[0]:
        messages[0] = f"{messages[0]}\nDETAIL:  {detail}" if "=(" in detail else messages[0]
    rpc_code = _JSON_RPC.get(code) if isinstance(code := body.get("code"), int) else None
    status = next((number for name in _STATUSES if (number := _status(body.get(name))) is not None), None)
    codes = (
        [rpc_code]
        if rpc_code
        else [
            str(value)
            for name in _CODES
            if isinstance(value := body.get(name), str)
            and 0 < len(value) <= 80
            and " " not in value.strip()
            and value != str(status)
        ]
    )
    validation = body.get("validation")  # celebrate and hapi: the keys that Joi refused
    refused = validation.get("keys") if isinstance(validation, dict) else None
    given = (
        body
        if not (isinstance(refused, list) and refused and isinstance(refused[0], str))
        else {"param": refused[0]}
    )
    parameter = next(
        (
            value
            for name in _PARAMETERS
            if isinstance(value := given.get(name), str)
            and names_a_field(value)
            and not (name == "target" and not _judged(messages, value))
        ),
        "",
    )
    path = body.get("path")
    if (
        not parameter
        and isinstance(path, list)
        and body.get("message")
        and not body.keys() & {"locations", "extensions"}
    ):
        parameter = joined_path(path)
    wait = next(
        (
            str(value)
            for name in _WAITS
            if isinstance(value := body.get(name), (str, int, float)) and not isinstance(value, bool)
        ),
        "",
    )
    if wait.replace(".", "").isdigit():
        wait += " ms" if "retry_after_ms" in body or "retryAfterMs" in body else " s"
    reference = next((str(value) for name in _REFERENCES if isinstance(value := body.get(name), str)), "")
    quota = next(
        (
            str(value)
            for name in ("quotaMetric", "quota_metric", "quotaId", "limit_name")
            if isinstance(value := body.get(name), str)
        ),
        "",
    )
    unique = list(dict.fromkeys(m for m in messages if m not in codes or len(messages) == 1 or " " in m))
    return Problem(
        tuple(unique[:3]), tuple(codes[:4][::-1]), status, dotted(parameter), (), wait, reference, quota
    )


def _judged(messages: list[str], name: str) -> bool:
    """Whether a message finds fault with a value given as ``name``; a `target` can also be what was asked for."""
    return any(judges_a_value(message, name) for message in messages)


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600 else None


def _merged(outer: Problem, inner: Problem) -> Problem:
    messages = tuple(dict.fromkeys((*inner.messages, *outer.messages)))
    return Problem(
        messages,
        (*outer.codes, *inner.codes),
        inner.status or outer.status,
        inner.parameter or outer.parameter,
        inner.fields or outer.fields,
        inner.wait or outer.wait,
        inner.reference or outer.reference,
        inner.quota or outer.quota,
        (*outer.texts, *inner.texts),
    )

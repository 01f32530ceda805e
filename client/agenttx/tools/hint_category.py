"""The kinds of mistake that a failed step can be: the closed list that hints are made from."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HintCategory"]


class HintCategory(StrEnum):
    """What kind of mistake a failed step was."""

    FOREIGN_KEY_VIOLATION = "foreign_key_violation"
    UNIQUE_VIOLATION = "unique_violation"
    NOT_NULL_VIOLATION = "not_null_violation"
    CHECK_VIOLATION = "check_violation"
    MISSING_SCHEMA_OBJECT = "missing_schema_object"
    MISSING_RECORD = "missing_record"
    MISSING_ARGUMENT = "missing_argument"
    MISSING_KEY = "missing_key"
    NULL_REFERENCE = "null_reference"
    INVALID_VALUE = "invalid_value"
    INVALID_JSON = "invalid_json"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    AUTHENTICATION = "authentication"
    RATE_LIMITED = "rate_limited"
    HTTP_CLIENT_ERROR = "http_client_error"
    HTTP_SERVER_ERROR = "http_server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    UNKNOWN_TOOL = "unknown_tool"
    UNRESOLVED_REFERENCE = "unresolved_reference"
    CONFLICT = "conflict"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"
    ASSERTION = "assertion"
    UNKNOWN = "unknown"

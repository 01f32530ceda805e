"""Go, Rust, .NET, Ruby, PHP and Kotlin: what their runtimes say of missing, null and ill-typed values."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Rule, rule
from ..vocabulary import category_of_complaint

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule("go.nil", "nil", r"invalid memory address or nil pointer dereference|assignment to entry in nil map", C.NULL_REFERENCE, "{detail}", "Make sure the value exists before it is used.", read=lambda match, cause: {"detail": match[0]}),
    rule("go.index", "index bounds", r"(?P<detail>(?:index|slice bounds) out of range \[[^\n]{1,80}|index out of bounds: the len is \d{1,12} but the index is \d{1,20})", C.MISSING_KEY, "{detail}", "Use an index within the bounds."),
    rule("go.strconv", "strconv", r"strconv\.(?P<function>\w{1,30}): parsing \"(?P<value>[^\"\n]{0,200})\": (?P<what>invalid syntax|value out of range)", C.INVALID_VALUE, ("strconv.{function}: parsing \"{value}\": {what}", "strconv.{function}: {what}"), "Pass a value of that type."),
    rule("go.no_rows", "rows", r"(?:sql: )?no rows in result set", C.MISSING_RECORD, "no rows in result set", "Check what it is looked up by, or create it first.", weight=LIKELY),
    rule(
        "go.validator", "validation", r"Key: '(?P<path>[\w.\[\]]{1,160})' Error:Field validation for '(?P<name>[\w.\[\]]{1,128})' failed on the '(?P<tag>\w{1,60})' tag(?P<detail>(?:\nKey: '[^\n]{1,300}){0,3})", C.INVALID_VALUE, "{path}: validation for '{name}' failed on the '{tag}' tag", "Correct {name}.", "name",
        read=lambda match, cause: {"category": C.MISSING_ARGUMENT.value if match["tag"].startswith("required") else None},
    ),
    rule("go.nil_interface", "nil", r"interface conversion: (?P<detail>interface \{[^}\n]{0,60}\} is nil, not [^\n]{1,80})|nil can't be coerced into (?P<type>\w{1,60})|no implicit conversion (?:from|of) nil (?:to|into) (?P<type2>\w{1,60})", C.NULL_REFERENCE, ("interface conversion: {detail}", "nil can't be coerced into {type}", "nil can't be converted to {type2}"), "Make sure the value exists before it is used."),
    rule("go.deadlock", "deadlock asleep", r"all goroutines are asleep - deadlock!", C.UNKNOWN, "all goroutines are asleep - deadlock", "Break the wait.", weight=LIKELY),
    rule("rust.unwrap_none", "option", r"called `Option::(?:unwrap|expect)\(\)` on a `None` value", C.NULL_REFERENCE, "called Option::unwrap() on a None value", "Make sure the value exists before it is used."),
    rule("rust.parse", "kind", r"(?P<detail>Parse(?:Int|Float|Bool)Error \{ kind: \w{1,40} \}|invalid digit found in string|cannot parse (?:integer|float) from empty string|invalid float literal|number too large to fit in target type)", C.INVALID_VALUE, "{detail}", "Pass a number.", weight=LIKELY),
    rule("rust.io", "kind", r"(?:Os|Custom) \{ (?:code: \d{1,6}, )?kind: (?P<kind>\w{1,40}), (?:message|error): \"(?P<detail>[^\"\n]{1,200})\"", C.UNKNOWN, "{kind}: {detail}", "{advice}", read=lambda match, cause: _rust_io(match["kind"]), weight=CERTAIN),
    rule("dotnet.null_reference", "object", r"Object reference not set to an instance of an object", C.NULL_REFERENCE, "Object reference not set to an instance of an object", "Make sure the value exists before it is used.", weight=LIKELY),
    rule(
        "dotnet.argument_null", "parameter", r"Value cannot be null\.?\s{1,4}\(?Parameter (?:name: )?'?(?P<name>\w{1,128})'?\)?", C.MISSING_ARGUMENT, "{name} cannot be null", "Pass {name}.", "name",
    ),
    rule(
        "dotnet.argument", "parameter", r"\(Parameter '(?P<name>\w{1,128})'\)", C.INVALID_VALUE, "{name}: {detail}", "Correct {name}.", "name",
        read=lambda match, cause: {"detail": " ".join(cause.message.replace(match[0], "").split()) or "is not valid"},
    ),
    rule(
        "dotnet.key_not_found", "key", r"The given key '(?P<name>[^'\n]{1,128})' was not present in the dictionary|The given key was not present in the dictionary", C.MISSING_KEY, ("the given key '{name}' was not present in the dictionary", "the given key was not present in the dictionary"), "Provide it, or read a key that exists.", "key",
        read=lambda match, cause: {"key": match["name"] if match["name"] and " " not in match["name"] else None},
    ),
    rule("dotnet.format", "format", r"(?:The )?[Ii]nput string (?:'(?P<value>[^'\n]{0,200})' )?was not in a correct format|String '(?P<value2>[^'\n]{0,200})' was not recognized as a valid (?P<type>\w{1,40})", C.INVALID_VALUE, ("the input string '{value}' was not in a correct format", "'{value2}' was not recognized as a valid {type}", "the input string was not in a correct format"), "Pass a value in the right format."),
    rule("dotnet.http_timeout", "timeout", r"The request was canceled due to the configured HttpClient\.Timeout of (?P<wait>[\d.]{1,12} seconds)", C.TIMEOUT, "the request timed out: HttpClient.Timeout of {wait} elapsed", "Retry, with a longer timeout or less work."),
    rule("dotnet.unresolved_service", "service", r"Unable to resolve service for type '(?P<type>[^'\n]{1,200})'(?P<detail> while attempting to activate '[^'\n]{1,200}')?", C.UNRESOLVED_REFERENCE, "unable to resolve service for type {type}{detail}", "Register the service."),
    rule("dotnet.sequence_empty", "sequence", r"Sequence contains (?P<what>no|more than one) (?:matching )?elements?", C.MISSING_RECORD, "sequence contains {what} element", "Check what it is looked up by.", read=lambda match, cause: {"category": C.CONFLICT.value if match["what"] != "no" else None}),
    rule("dotnet.concurrency", "affect affected", r"expected to affect (?P<wanted>\d{1,9} row\(s\)), but actually affected (?P<got>\d{1,9} row\(s\))", C.CONFLICT, "expected to affect {wanted}, but affected {got}: the data was changed or deleted meanwhile", "Read it again, then retry."),
    rule("ruby.nil_method", "nil", r"undefined method [`'](?P<name>[^'\n]{1,128})' for nil(?::NilClass)?", C.NULL_REFERENCE, "undefined method '{name}' for nil", "Make sure the value exists before it is used."),
    rule("ruby.undefined_method", "undefined", r"undefined (?P<kind>method|local variable or method) [`'](?P<name>[^'\n]{1,128})' for (?P<detail>[^\n]{1,120})", C.UNRESOLVED_REFERENCE, "undefined {kind} '{name}' for {detail}", "Use a method that exists."),
    rule("ruby.uninitialized", "uninitialized", r"uninitialized constant (?P<detail>[\w:]{1,120})", C.UNRESOLVED_REFERENCE, "uninitialized constant {detail}", "Require it, or correct its name."),
    rule("ruby.key_not_found", "key", r"key not found: :?\"?(?P<name>[\w\-]{1,128})\"?", C.MISSING_KEY, "key not found: {name}", "Provide {name}, or read a key that exists.", "name"),
    rule("ruby.missing_keyword", "keyword keywords", r"missing keywords?: :?(?P<name>\w{1,128})(?P<detail>(?:, :?\w{1,128}){0,8})", C.MISSING_ARGUMENT, "missing keyword: {name}{detail}", "Pass it.", "name"),
    rule("ruby.unknown_keyword", "keyword keywords", r"unknown keywords?: :?(?P<name>\w{1,128})(?P<detail>(?:, :?\w{1,128}){0,8})", C.INVALID_VALUE, "unknown keyword: {name}{detail}", "Leave it out, or correct its name.", "name"),
    rule("ruby.argument_count", "arguments", r"wrong number of arguments \((?P<detail>given \d{1,4}, expected [\d.+]{1,12})\)", C.MISSING_ARGUMENT, "wrong number of arguments ({detail})", "Pass the arguments it takes."),
    rule("ruby.record_not_found", "find", r"Couldn't find (?P<model>[A-Z][\w:]{0,100})(?P<detail> with(?:out)? [^\n(]{1,120})?", C.MISSING_RECORD, ("couldn't find {model} {detail}", "couldn't find {model}"), "Check the id, or create it first.", read=lambda match, cause: {"detail": (match["detail"] or "").strip() or None}),
    rule("rails.missing_parameter", "param", r"param is missing or the value is empty(?: or invalid)?: (?P<name>\w{1,128})", C.MISSING_ARGUMENT, "param is missing or the value is empty: {name}", "Pass {name}.", "name"),
    rule("php.undefined_key", "undefined", r"Undefined (?P<kind>array key|index|offset|property|variable):? (?:\"(?P<name>[^\"\n]{1,128})\"|'?\$?(?P<name2>[\w:$>\-]{1,128}))", C.MISSING_KEY, "undefined {kind} \"{key}\"", "Provide it, or read one that exists.", "key", read=lambda match, cause: {"key": match["name"] or (match["name2"] if not (match["name2"] or "0").isdigit() else None)}),
    rule("php.on_null", "null", r"(?P<detail>Call to a member function [\w()]{1,128} on null|Attempt to read property \"?[\w]{1,128}\"? on null|Trying to (?:get property|access array offset)[^\n]{0,80}(?:non-object|null))", C.NULL_REFERENCE, "{detail}", "Make sure the value exists before it is used."),
    rule("php.argument_type", "argument", r"(?<![\w:\\])(?P<function>[\w:\\]{1,128})\(\): Argument #(?P<number>\d{1,3}) \(\$(?P<name>\w{1,128})\) (?P<detail>must be [^\n]{1,120}?)(?:, called in[^\n]{0,200})?$", C.INVALID_VALUE, "{function}(): ${name} {detail}", "Correct {name}.", "name", flags=8),
    rule("php.argument_count", "arguments", r"Too few arguments to function (?P<function>[\w:\\]{1,128})\(\), (?P<given>\d{1,4}) passed[^\n]{0,300}? and (?P<detail>(?:exactly|at least) \d{1,4} expected)", C.MISSING_ARGUMENT, "too few arguments to {function}(): {given} passed, {detail}", "Pass the arguments it takes."),
    rule("php.memory", "memory", r"Allowed memory size of (?P<limit>\d{1,15}) bytes exhausted(?P<detail> \(tried to allocate \d{1,15} bytes\))?", C.RESOURCE_EXHAUSTED, "allowed memory size of {limit} bytes exhausted{detail}", "Work on less at a time."),
    rule("php.execution_time", "execution", r"Maximum execution time of (?P<limit>\d{1,9} seconds?) exceeded", C.TIMEOUT, "maximum execution time of {limit} exceeded", "Do less at a time, or raise the limit."),
    rule("php.undefined_function", "undefined", r"Call to undefined (?P<kind>function|method) (?P<name>[\w:\\]{1,160})\(\)|Class \"(?P<class>[\w\\]{1,160})\" not found", C.UNRESOLVED_REFERENCE, ("call to undefined {kind} {name}()", "class {class} not found"), "Use one that exists, or load it."),
    rule("laravel.model_not_found", "query", r"No query results for model \[(?P<model>[\w\\]{1,160})\](?P<detail> [^\n]{1,80})?", C.MISSING_RECORD, "no query results for model {model}{detail}", "Check the id, or create it first.", read=lambda match, cause: {"detail": " " + match["detail"].strip() if match["detail"] else None}),
    rule("kotlin.missing_field", "field", r"Field '(?P<name>\w{1,128})' is required for type with serial name '(?P<type>[\w.$]{1,160})', but it was missing", C.MISSING_ARGUMENT, "field '{name}' is required and was missing", "Pass {name}.", "name"),
    rule("protovalidate.field", "validation", r"validation errors?:\s{1,8}(?:- )?(?P<name>[\w.\[\]]{1,128}): (?P<detail>[^\n]{1,200})", C.INVALID_VALUE, "{name}: {detail}", "Correct {name}.", "name", weight=CERTAIN, read=lambda match, cause: {"category": category_of_complaint(match["detail"]).value}),
)  # fmt: skip


def _rust_io(kind: str) -> dict[str, str | None]:
    from .filesystem import ERRNO

    name = {
        "NotFound": "ENOENT",
        "PermissionDenied": "EACCES",
        "AlreadyExists": "EEXIST",
        "ConnectionRefused": "ECONNREFUSED",
        "ConnectionReset": "ECONNRESET",
        "BrokenPipe": "EPIPE",
        "AddrInUse": "EADDRINUSE",
        "TimedOut": "ETIMEDOUT",
        "StorageFull": "ENOSPC",
        "IsADirectory": "EISDIR",
        "NotADirectory": "ENOTDIR",
        "DirectoryNotEmpty": "ENOTEMPTY",
        "InvalidInput": "EINVAL",
    }.get(kind, "EIO")
    return {"category": ERRNO[name][1].value, "advice": ERRNO[name][2]}

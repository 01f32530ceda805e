"""Compiling an expression once and evaluating it over JSON values, through cel-expr-python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import orjson
from cel_expr_python import cel

from agenttx_server.expressions.errors import EvaluationFailed, ExpressionInvalid
from agenttx_server.expressions.limits import MAX_ITERATIONS, MAX_MACROS, MAX_TEXT_LENGTH, MAX_WORK
from agenttx_server.expressions.spelling import Read, Spelling, read_spelling
from agenttx_server.expressions.work import count_members, estimated_work

__all__ = ["Expression", "Kind", "Result", "compile_expression"]


class Kind(Enum):
    """What a variable is declared to be."""

    OBJECT = "an object"
    """A JSON object whose fields may be anything. A null counts as empty: ``has()`` is false, and
    comparing the variable itself with a value is refused when the expression is compiled."""

    ANY = "any value"
    """Any JSON value, null included."""


class Result(Enum):
    """What an expression must give."""

    BOOL = "a bool"
    """Known to be a bool when it is compiled: a bare field (``order.paid``) is refused, because it may
    be anything; ``order.paid == true`` is not."""

    LABEL = "a string or a bool"
    """Text or bool; where the type is known only when it is evaluated, it is judged then."""

    JSON = "a JSON value"
    """Whatever JSON can say: no bytes, times, durations, types, NaN or keys that are no strings."""


class Expression:
    """A compiled expression. Immutable; may be evaluated from any thread."""

    __slots__ = ("_program", "_result", "_spelling", "_variables", "text")

    def __init__(
        self,
        text: str,
        program: cel.Expression,
        variables: Mapping[str, Kind],
        spelling: Spelling,
        result: Result,
    ) -> None:
        self.text: Final = text
        self._program = program
        self._variables = variables
        self._spelling = spelling
        self._result = result

    @property
    def variables(self) -> frozenset[str]:
        """The declared variables that the text reads."""
        return frozenset(read.variable for read in self._spelling.reads)

    def fields_of(self, variable: str) -> frozenset[str] | None:
        """The fields that are read of a variable: none if it is not read, None if it is used whole."""
        return self._spelling.fields_of(variable) if variable in self.variables else frozenset()

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Answer for these values of the declared variables.

        Integers are exact from −2^63 to 2^64−1, other numbers doubles; an integer and a double are
        compared as doubles beyond 2^53. Values of variables, and of fields, that the text does not
        name are not looked at.

        Raises:
            EvaluationFailed: a missing variable or field, an operator that has no meaning for the
                values, an integer overflow, a result of another type, a text with U+0000 or a lone
                surrogate among the values read (CEL's library would cut it), or too much work.
        """
        bound = {name: self._bound(name, values) for name in self.variables}
        self._refuse_costly(bound)
        try:
            answer = self._program.eval(data=bound)
            if answer.type() == cel.Type.ERROR:
                raise EvaluationFailed(_evaluation_reason(str(answer.value())))
            return self._judged(answer.plain_value())
        except (RuntimeError, ValueError, TypeError) as error:
            raise EvaluationFailed(_evaluation_reason(str(error))) from None

    def _bound(self, name: str, values: Mapping[str, Any]) -> Any:
        if name not in values:
            raise EvaluationFailed(f"'{name}' has no value")
        value = values[name]
        if value is None and self._variables[name] is Kind.OBJECT:
            return {}
        if not isinstance(value, dict):
            if self._variables[name] is Kind.OBJECT:
                raise EvaluationFailed(f"'{name}' is not an object")
            return value
        fields = self._spelling.fields_of(name)
        return value if fields is None else {field: value[field] for field in fields if field in value}

    def _refuse_costly(self, bound: Mapping[str, Any]) -> None:
        sizes: dict[Read, int] = {}
        for read in set(self._spelling.reads):
            value = bound[read.variable]
            if read.field is not None and isinstance(value, dict):
                value = value.get(read.field)
            sizes[read] = _size_of(value, read)
        members = count_members(list(bound.values())) if self._spelling.macros else 0
        if estimated_work(self._spelling, sizes, members, len(self.text)) > MAX_WORK:
            raise EvaluationFailed("the values are too large for this expression: it may cost too much")

    def _judged(self, value: Any) -> Any:
        if self._result is Result.JSON:
            return _json_value(value)
        if isinstance(value, bool) or (self._result is Result.LABEL and isinstance(value, str)):
            return value
        raise EvaluationFailed(f"gives {_json_name(value)}, not {self._result.value}")


def compile_expression(text: str, variables: Mapping[str, Kind], result: Result = Result.BOOL) -> Expression:
    """Check an expression and keep it ready.

    Args:
        text: CEL, at most 4,096 characters, nested at most 32 deep, with at most 8 comprehensions.
        variables: the names it may read. They are CEL identifiers and none of CEL's own words.
        result: what it must give.

    Raises:
        ExpressionInvalid: with the place, where there is one.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ExpressionInvalid(f"longer than {MAX_TEXT_LENGTH:,} characters")
    if "\0" in text or not _is_encodable(text):
        raise ExpressionInvalid("holds U+0000 or a lone surrogate")
    program = _compiled(text, variables)
    _refuse_type(program.return_type(), result)
    spelling = read_spelling(text, variables.keys())
    if len(spelling.macros) > MAX_MACROS:
        raise ExpressionInvalid(f"more than {MAX_MACROS} comprehensions")
    return Expression(text, program, dict(variables), spelling, result)


def _compiled(text: str, variables: Mapping[str, Kind]) -> cel.Expression:
    types = {
        Kind.OBJECT: cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        Kind.ANY: cel.Type.DYN,
    }
    try:
        return cel.NewEnv(variables={name: types[kind] for name, kind in variables.items()}).compile(text)
    except RuntimeError as error:
        raise _invalid(str(error)) from None


def _refuse_type(found: cel.Type, wanted: Result) -> None:
    allowed = {
        Result.BOOL: (cel.Type.BOOL,),
        Result.LABEL: (cel.Type.BOOL, cel.Type.STRING, cel.Type.DYN),
        Result.JSON: (),
    }[wanted]
    if not allowed or any(found == kind for kind in allowed):
        return
    if wanted is Result.BOOL and found == cel.Type.DYN:
        raise ExpressionInvalid(
            "gives whatever the field holds, not a bool; compare it, as in `x.flag == true`"
        )
    raise ExpressionInvalid(f"gives {str(found.name()).lower()}, not {wanted.value}")


_PLACED: Final = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_CODE: Final = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_CONTAINER: Final = " (in container '')"


def _invalid(message: str) -> ExpressionInvalid:
    if "recursion" in message:
        return ExpressionInvalid("nested deeper than 32")
    placed = _PLACED.search(message)
    if placed is None:
        return ExpressionInvalid(_plain_reason(message))
    line, column, reason = int(placed[1]), int(placed[2]), _plain_reason(placed[3])
    return ExpressionInvalid(reason.replace("Syntax error: ", ""), max(line, 0), max(column, 0))


def _plain_reason(message: str) -> str:
    line = message.strip().partition("\n")[0]
    line = _CODE.sub("", _CODE.sub("", line)).replace(_CONTAINER, "")
    return line[:1].lower() + line[1:240]


def _evaluation_reason(message: str) -> str:
    if "Iteration budget" in message:
        return f"more than {MAX_ITERATIONS:,} iterations"
    if "out of range for" in message:
        return "an integer outside -2^63 … 2^64-1"
    reason = _plain_reason(message)
    # The library shows the key of a map, which is a name of the text or a value reached by one.
    return "a field or key that is read is missing" if reason.startswith("key not found") else reason


def _size_of(value: Any, read: Read) -> int:
    try:
        text = orjson.dumps(value)
    except TypeError:
        raise EvaluationFailed(f"'{_name_of(read)}' holds what is not JSON") from None
    if b"\\u0000" in text and _holds_nul(value):
        raise EvaluationFailed(f"'{_name_of(read)}' holds a text with U+0000")
    return len(text)


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))


def _name_of(read: Read) -> str:
    return read.variable if read.field is None else f"{read.variable}.{read.field}"


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value - value != 0.0:
            raise EvaluationFailed("gives NaN or Infinity, which are not JSON")
        return value
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _json_value(item) for key, item in value.items()}
    raise EvaluationFailed(f"gives {_json_name(value)}, which is not JSON")


def _json_name(value: Any) -> str:
    names = {bool: "a bool", str: "a string", int: "an integer", float: "a double", list: "a list"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

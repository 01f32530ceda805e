"""The arguments of a tool function: their JSON Schema, and their strict validation.

Read from the function's type hints by pydantic. Strict means that nothing is converted:
"5" is no integer, 1.0 is none either, and a number that a tool is given is the number that
was sent (1 stays an int where a float is asked for). Parameters of types that JSON does not
have (models, enums, dates) are built from their JSON form.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, Required, cast, get_args, get_origin

import annotated_types
import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import CoreSchema
from typing_extensions import get_type_hints, is_typeddict

from agenttx.tools.argument_problems import refuse_arguments, refuse_non_object
from agenttx.tools.docstrings import Docstring

__all__ = ["Parameters", "ToolDefinitionError", "read_output", "read_parameters"]

CONTEXT_NAME = "ctx"
# By name: they may be imported for type checking only.
CONTEXT_TYPES = ("ToolCallContext", "BlockingToolCallContext", "UndoContext")


class ToolDefinitionError(TypeError):
    """A function that can't be made a tool, or a declaration that contradicts itself."""


class _ArgumentsSchema(GenerateJsonSchema):
    """JSON Schema without the titles that pydantic makes of names: noise for a model that reads them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> dict[str, Any]:
        generated = super().generate(schema, mode)
        generated.pop("title", None)
        return generated


class Parameters:
    """What a function takes: validates JSON arguments into keyword arguments.

    ``context_name`` is the parameter that gets the call's context, None if there is none.
    """

    __slots__ = ("_attributes", "_from_json", "_model", "context_name", "names")

    def __init__(
        self, function_name: str, fields: Mapping[str, tuple[Any, FieldInfo]], context_name: str | None
    ) -> None:
        self.context_name = context_name
        self.names = tuple(fields)
        # Where the validated value of each is found; None: any JSON will do, and it is passed as it was sent.
        self._attributes = tuple(
            (name, None if _is_json(annotation) else f"argument_{position}")
            for position, (name, (annotation, _)) in enumerate(fields.items())
        )
        self._from_json = any(attribute is not None for _, attribute in self._attributes)
        # Fields carry the argument's name as alias, so that an argument may have any name (`schema`, `copy`).
        by_position: dict[str, Any] = {
            f"argument_{position}": field for position, field in enumerate(fields.values())
        }
        try:
            self._model: type[BaseModel] = create_model(
                function_name, __config__=ConfigDict(extra="forbid"), **by_position
            )
        except (PydanticUserError, NameError) as error:
            raise ToolDefinitionError(f"{function_name}: {str(error).splitlines()[0]}") from error

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return self._model.model_json_schema(schema_generator=_ArgumentsSchema)

    def validate(self, arguments: Any) -> dict[str, Any]:
        """Return the keyword arguments for the function; raise ArgumentsRefused with all that is wrong."""
        if not isinstance(arguments, dict):
            raise refuse_non_object(arguments)
        try:
            validator = self._model.__pydantic_validator__
            if self._from_json:
                validated = validator.validate_json(orjson.dumps(arguments), strict=True)
            else:
                validated = validator.validate_python(arguments, strict=True)
        except ValidationError as error:
            raise refuse_arguments(
                error.errors(include_url=False, include_context=False), arguments, self.names
            ) from None
        return {
            name: arguments[name] if attribute is None else getattr(validated, attribute)
            for name, attribute in self._attributes
            if name in arguments
        }


def read_parameters(function: Callable[..., Any], documentation: Docstring) -> Parameters:
    """Read a function's parameters. Raises ToolDefinitionError for those that can't be passed by name."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError) as error:
        raise ToolDefinitionError(f"{name}: its parameters can't be read ({error})") from error
    context_name: str | None = None
    fields: dict[str, tuple[Any, FieldInfo]] = {}
    for position, parameter in enumerate(parameters.values()):
        if position == 0 and _is_context(parameter):
            context_name = parameter.name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(
                f"{name}: parameter '{parameter.name}' can't be passed by name; arguments are a JSON object, so "
                "declare each by its name"
            )
        fields[parameter.name] = (
            _resolve_annotation(parameter.name, parameter.annotation, function, name),
            _field(parameter, documentation.arguments.get(parameter.name)),
        )
    return Parameters(name, fields, context_name)


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name == CONTEXT_NAME or name.rpartition(".")[2] in CONTEXT_TYPES


def _field(parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    default: Any = ... if parameter.default is parameter.empty else parameter.default
    if default is ... or isinstance(default, (type(None), bool, int, float, str, list, dict)):
        return cast("FieldInfo", Field(default=default, alias=parameter.name, description=description))
    # A default that JSON can't show (a sentinel): optional, and not in the schema.
    return cast(
        "FieldInfo", Field(default_factory=lambda: default, alias=parameter.name, description=description)
    )


def _resolve_annotation(label: str, annotation: Any, function: Callable[..., Any], name: str) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    # One by one: a context annotated with a name imported for type checking only must not matter.
    holder = types.SimpleNamespace(__annotations__={label: annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)[label]
    except (NameError, AttributeError, SyntaxError) as error:
        raise ToolDefinitionError(
            f"{name}: the type of '{label}' can't be resolved ({error}); import it at module level"
        ) from error


def _is_json(annotation: Any) -> bool:
    """Whether values of a type are JSON as they are, so that the tool can be given what was sent."""
    if annotation in (Any, JsonValue, None, type(None), bool, int, float, str, list, dict):
        return True
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is typing.Annotated:
        return _is_json(arguments[0]) and all(
            isinstance(extra, (str, annotated_types.BaseMetadata, FieldInfo)) for extra in arguments[1:]
        )
    if origin is Literal:
        return True
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(_is_json(argument) for argument in arguments)
    if origin in (Required, NotRequired):
        return _is_json(arguments[0])
    if is_typeddict(annotation):
        return all(_is_json(hint) for hint in get_type_hints(annotation, include_extras=True).values())
    return False


def read_output(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """Return what turns the function's declared result into JSON; None where it is JSON as it is."""
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return None
    name = getattr(function, "__qualname__", repr(function))
    resolved = _resolve_annotation("return", annotation, function, name)
    if _is_json(resolved):
        return None
    try:
        return TypeAdapter(resolved)
    except PydanticUserError:
        raise ToolDefinitionError(f"{name}: the result type {annotation} has no JSON form") from None

"""The JVM: Java, Kotlin, Spring, Hibernate, Jackson."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "java.null_pointer",
        "nullpointerexception",
        r"NullPointerException(?:: (?P<detail>[^\n]{1,300}))?",
        C.NULL_REFERENCE,
        ("{detail}", "NullPointerException: something is null"),
        "Make sure the value exists before it is used.",
        weight=LIKELY,
    ),
    rule(
        "kotlin.null",
        "null lateinit",
        r"Parameter specified as non-null is null: method [\w.$<>\-]{1,200}, parameter "
        r"(?P<name>\w{1,80})|null cannot be cast to non-null type (?P<type>[\w.]{1,120})|lateinit "
        r"property (?P<property>\w{1,80}) has not been initialized",
        C.NULL_REFERENCE,
        (
            "parameter {name} is null and must not be",
            "null cannot be cast to {type}",
            "lateinit property {property} has not been initialized",
        ),
        "Pass a value.",
        "name",
    ),
    rule(
        "java.no_such_element",
        "nosuchelementexception",
        r"NoSuchElementException(?:: (?P<detail>[^\n]{1,160}))?",
        C.MISSING_RECORD,
        ("{detail}", "no such element: the value or collection is empty"),
        "Check that it exists first.",
        weight=LIKELY,
    ),
    rule(
        "java.entity_not_found",
        "entitynotfoundexception objectnotfoundexception emptyresultdataaccessexception unable",
        r"(?P<detail>Unable to find (?P<entity>[\w.$]{1,160}) with id [^\n]{1,80}|No row with the "
        r"given identifier exists[^\n]{0,120}|Incorrect result size: expected \d{1,6}, actual 0|No "
        r"class [\w.]{1,160} entity with id [^\n]{1,60} exists)",
        C.MISSING_RECORD,
        "{detail}",
        "Check the id, or create it first.",
    ),
    rule(
        "java.optimistic_lock",
        "optimistic updated staleobjectstateexception",
        r"(?P<detail>Row was updated or deleted by another transaction[^\n]{0,160}|Batch update "
        r"returned unexpected row count[^\n]{0,120}|(?:Object of class|Optimistic lock)[^\n]{0,160})",
        C.CONFLICT,
        "{detail}",
        "Read it again, then retry.",
    ),
    rule(
        "java.number_format",
        "input",
        r"NumberFormatException: (?P<detail>For input string: \"(?P<value>[^\"\n]{0,120})\"|[^\n]{1,120})",
        C.INVALID_VALUE,
        ('"{value}" is not a number (For input string)', "{detail}"),
        "Pass a number.",
    ),
    rule(
        "java.enum_constant",
        "enum",
        r"No enum constant (?P<detail>[\w.$]{1,200})",
        C.INVALID_VALUE,
        "no enum constant {detail}",
        "Pass one of its constants.",
    ),
    rule(
        "java.date_time",
        "parsed",
        r"Text '(?P<value>[^'\n]{0,100})' could not be parsed(?P<detail>[^\n]{0,120})",
        C.INVALID_VALUE,
        "text '{value}' could not be parsed{detail}",
        "Pass a valid date or time.",
    ),
    rule(
        "java.cast",
        "cast classcastexception",
        r"class (?P<from>[\w.$\[\];]{1,160}) cannot be cast to class (?P<to>[\w.$\[\];]{1,160})",
        C.INVALID_VALUE,
        "{from} cannot be cast to {to}",
        "Pass a value of the right type.",
    ),
    rule(
        "java.index",
        "indexoutofboundsexception arrayindexoutofboundsexception stringindexoutofboundsexception",
        r"IndexOutOfBoundsException: (?P<detail>[^\n]{1,120})",
        C.MISSING_KEY,
        "{detail}",
        "Use an index within the bounds.",
        weight=LIKELY,
    ),
    rule(
        "java.out_of_memory",
        "outofmemoryerror stackoverflowerror",
        r"(?P<type>OutOfMemoryError|StackOverflowError)(?:: (?P<detail>[^\n]{1,120}))?",
        C.RESOURCE_EXHAUSTED,
        ("{type}: {detail}", "{type}"),
        "Work on less at a time.",
    ),
    rule(
        "java.class_not_found",
        "classnotfoundexception noclassdeffounderror nosuchmethoderror nosuchfieldexception "
        "nosuchmethodexception",
        r"(?P<type>ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|NoSuchFieldException|"
        r"NoSuchMethodException): (?P<detail>[^\n]{1,160})",
        C.UNRESOLVED_REFERENCE,
        "{type}: {detail}",
        "Add the missing library, or correct the name.",
        weight=LIKELY,
    ),
    rule(
        "spring.missing_parameter",
        "required",
        r"Required (?:request )?(?:\w{1,40} )?(?P<kind>parameter|header|part|path variable|URI "
        r"template variable|cookie|request attribute) '(?P<name>[^'\n]{1,128})'(?: for method "
        r"parameter type (?P<type>[\w.]{1,80}))? is not present",
        C.MISSING_ARGUMENT,
        "required {kind} '{name}' is not present",
        "Pass {name}.",
        "name",
    ),
    rule(
        "spring.body_missing",
        "body",
        r"Required request body is missing",
        C.MISSING_ARGUMENT,
        "the required request body is missing",
        "Send one.",
    ),
    rule(
        "spring.type_mismatch",
        "convert",
        r"Failed to convert (?:value|property value) of type '(?P<from>[\w.]{1,120})' to required "
        r"(?:property )?type '(?P<to>[\w.$]{1,120})'(?: for property "
        r"'(?P<name>[\w.\[\]]{1,128})')?[^\n]{0,300}",
        C.INVALID_VALUE,
        "{message}",
        "Pass a {to}.",
        "name",
    ),
    rule(
        "hibernate.null",
        "null",
        r"not-null property references a null or transient value:? ?:? (?P<place>[\w.$]{1,200})",
        C.NOT_NULL_VIOLATION,
        "{place} must not be null",
        "Pass a value for it.",
        "place",
    ),
    rule(
        "hibernate.transient",
        "unsaved",
        r"object references an unsaved transient instance[^:\n]{0,60}: (?P<detail>[\w.$]{1,160})",
        C.FOREIGN_KEY_VIOLATION,
        "the object refers to an unsaved {detail}",
        "Save the referred object first.",
    ),
    rule(
        "java.unsupported",
        "unsupportedoperationexception concurrentmodificationexception",
        r"(?P<type>UnsupportedOperationException|ConcurrentModificationException)(?:: "
        r"(?P<detail>[^\n]{1,120}))?",
        C.CONFLICT,
        ("{type}: {detail}", "{type}"),
        "Change the order of the calls.",
        weight=LIKELY,
    ),
    rule(
        "java.hikari",
        "connection",
        r"(?<![\w\-])(?P<pool>[\w\-]{1,60}) - Connection is not available, request timed out after "
        r"(?P<wait>\d{1,9})ms",
        C.TIMEOUT,
        "{pool} - connection is not available, request timed out after {wait}ms",
        "Close connections, or retry later.",
        phrases="connection is not available",
    ),
)

"""Terraform and OpenTofu. Their boxes' borders are dropped before; long lines are wrapped at any blank."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

_PLACE: Final = r"(?:[^\n]{0,100}\s{1,8}on (?P<place>[^\s]{1,200} line \d{1,6})[^\n]{0,160})?"

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "terraform.missing_argument",
        "argument",
        r"The argument\s\"(?P<name>[^\"\n]{1,120})\"\sis\srequired",
        C.MISSING_ARGUMENT,
        'the argument "{name}" is required, but is not set',
        "Set {name}.",
        "name",
    ),
    rule(
        "terraform.unsupported_argument",
        "argument",
        r"An\sargument\snamed\s\"(?P<name>[^\"\n]{1,120})\"\sis\snot\sexpected\shere\.(?:\s?Did\syou\s"
        r"mean\s\"(?P<other>[^\"\n]{1,120})\")?",
        C.INVALID_VALUE,
        ('argument "{name}" is not expected; did you mean "{other}"?', 'argument "{name}" is not expected'),
        "Leave it out, or correct its name.",
        "name",
    ),
    rule(
        "terraform.missing_variable",
        "variable",
        r"variable\s\"(?P<name>[^\"\n]{1,120})\"\sis\snot\sset",
        C.MISSING_ARGUMENT,
        'the input variable "{name}" is not set and has no default',
        "Set {name}.",
        "name",
    ),
    rule(
        "terraform.undeclared_resource",
        "declared",
        r"A\s(?P<kind>managed\sresource|"
        r"data\sresource)\s\"(?P<type>[^\"\n]{1,120})\"\s\"(?P<object>[^\"\n]{1,120})\"\shas\snot\sbee"
        r"n\sdeclared",
        C.UNRESOLVED_REFERENCE,
        '{kind} "{type}" "{object}" has not been declared',
        "Declare {type}.{object}, or correct the reference.",
    ),
    rule(
        "terraform.undeclared",
        "declared",
        r"(?P<kind>An\sinput\svariable|A\slocal\svalue|No\smodule\scall|An?\s[\w "
        r"]{1,30})\s(?:with\sthe\sname|named)\s\"(?P<object>[^\"\n]{1,120})\"\s(?:has\snot\sbeen\sdecl"
        r"ared|is\sdeclared)(?:[^\n]{0,60}Did\syou\smean\s\"(?P<other>[^\"\n]{1,120}))?",
        C.UNRESOLVED_REFERENCE,
        (
            '{kind} named "{object}" has not been declared; did you mean "{other}"?',
            '{kind} named "{object}" has not been declared',
        ),
        "Declare it, or correct the reference.",
    ),
    rule(
        "terraform.unsupported_attribute",
        "attribute",
        r"(?P<detail>This\sobject\sdoes\snot\shave\san\sattribute\snamed\s\"(?P<object>[^\"\n]{1,120})"
        r"\"|This\sobject\shas\sno\sargument,\snested\sblock,\sor\sexported\sattribute\snamed\s\"(?P<o"
        r"bject2>[^\"\n]{1,120})\")",
        C.UNRESOLVED_REFERENCE,
        "{detail}",
        "Use an attribute that exists.",
    ),
    rule(
        "terraform.state_lock",
        "lock",
        r"Error (?P<what>acquiring|locking|releasing) the state "
        r"lock(?:[\s\S]{0,400}?ID:\s{1,12}(?P<id>[\w\-]{1,60}))?(?:[\s\S]{0,400}?Who:\s{1,12}(?P<who>["
        r"^\n]{1,100}))?",
        C.CONFLICT,
        ("error {what} the state lock: held by {who} (lock {id})", "error {what} the state lock"),
        "Wait for the other run, then retry.",
    ),
    rule(
        "terraform.cycle",
        "cycle",
        r"Error: Cycle: (?P<detail>[^\n]{1,200})",
        C.UNRESOLVED_REFERENCE,
        "cycle: {detail}",
        "Break the cycle.",
    ),
    rule(
        "terraform.already_exists",
        "exists",
        r"(?P<detail>A resource with the ID \"[^\"\n]{1,300}\" already exists|resource already managed "
        r"by Terraform|Resource already managed by Terraform)",
        C.CONFLICT,
        "{detail}",
        "Import it, or use another name.",
    ),
    rule(
        "terraform.provider",
        "provider",
        r"(?P<detail>(?:Failed to query available provider packages|Inconsistent dependency lock file|"
        r"Missing required provider)[^\n]{0,200})(?:\s{1,8}Could not retrieve the list of available "
        r"versions for provider (?P<target>[^\s:]{1,160}))?",
        C.MISSING_RECORD,
        ("{detail}: {target}", "{detail}"),
        "Run init, or correct the provider.",
    ),
    rule(
        "terraform.invalid_value",
        "value variable",
        r"Error: Invalid value for (?P<what>variable|input variable|module "
        r"argument)[\s\S]{0,400}?(?:(?P<place>var\.(?P<name>\w{1,120})) is|variable "
        r"\"(?P<name2>[^\"\n]{1,120})\")[\s\S]{0,200}?\n\s{0,4}\n\s{0,4}(?P<detail>[^\n]{1,200})",
        C.INVALID_VALUE,
        "invalid value for {what} {key}: {detail}",
        "Correct {key}.",
        "key",
        read=lambda match, cause: {"key": match["name"] or match["name2"], "place": None},
    ),
)

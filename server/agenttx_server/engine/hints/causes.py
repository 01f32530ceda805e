"""The chain of errors in a text, deepest cause first, without stack frames.

Python prints the deepest cause first, Java, .NET, Node, Rust and Ruby last; the members of a
Python exception group stand side by side. What is left when frames, source excerpts and
carets are dropped is short, so everything after this works on little text.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from .rule import Cause

__all__ = ["ErrorText", "read_causes"]

_SALIENT_LIMIT: Final = 2600  # characters of all causes together; real chains without frames stay under 2,000
_CAUSES_LIMIT: Final = 12
_LINE_LIMIT: Final = 2000

_FRAME: Final = re.compile(
    r"\s*(?:"
    r"at (?!\[Source)(?:async |new |Object\.|Module\.)?(?:[\w$.<>\[\]`#/:@~^+=, -]{1,300}\(|/|"
    r"file:|node:|https?:|async |<anonymous>|[A-Z]:\\|[\w.$<>+]+/[\w.$<>+/]+:\d)"
    r"|\.\.\. \d+ (?:more|common|lines|frames|internal)"
    r"|--- End of (?:inner exception )?stack trace"
    r"|from [^\s:]{1,300}:\d+(?::in\b|$)"
    r"|#\d+ (?:/|\{main\}|\[internal|[A-Za-z_\\][\w\\]*(?:->|::)|0x)"
    r"|thrown in .{1,300} on line \d+"
    r"|goroutine \d+ \["
    r"|created by [\w./*()]+"
    r"|\[Previous line repeated \d+ more times?\]"
    r"|\d+:\s+(?:0x[0-9a-f]+ - )?[\w<>]+(?:::[\w<>{}$]+)+"
    r"|stack backtrace:|note: run with `RUST_BACKTRACE|Node\.js v\d+"
    r")"
)
# Node prints the place and the source line of an uncaught error before the error itself.
_SOURCE_EXCERPT: Final = re.compile(
    r"(?:file:///|node:|/|[A-Z]:\\)[^\s:]{1,400}:\d+\n(?:[^\n]{0,4000}\n){1,4}?[ \t]*[~^]+[ \t]*\n"
)
_GO_FRAME: Final = re.compile(
    r"\t(?:/|[A-Z]:)[^\s:]{1,300}\.go:\d+|[\w./*()\-]{1,200}\((?:0x[0-9a-f]+|\{0x|\.\.\.)"
)
_CARETS: Final = re.compile(r"[\s~^|]+\Z")
_PYTHON_FRAME: Final = re.compile(r'File "[^"\n]{0,400}", line \d+')
_GROUP_BAR: Final = re.compile(r"\s*\| ?|\s*\+ (?=Exception Group)")
_GROUP_RULE: Final = re.compile(r"\s*\+[-+]{3,}(?: (?:\d+|\.\.\.) )?-*")
_BOX_BORDER: Final = re.compile(r"^[│╷╵├┌└─ ]{1,80}")  # Terraform's boxes, nested ones too
_NOISE: Final = (
    "(Background on this error at:", "[parameters:", "[SQL:", "For more information", "Stack trace:",
    "Stacktrace:", "    For further information visit", "Help: https://", "Exception data:",
)  # fmt: skip

# What a line of each kind can begin with; most lines begin with none of it, and 1,200 lines have to be cheap.
_FRAME_HEADS: Final = frozenset("a.-f#tgc[snN0123456789")
_CARET_HEADS: Final = frozenset("~^|")
_NOISE_HEADS: Final = frozenset(noise.lstrip()[0] for noise in _NOISE)
_NODE_CAUSE_HEADS: Final = frozenset("[c")
_CAUSED_BY_HEADS: Final = frozenset("CcRW")
_OUTER_FRAME_HEADS: Final = frozenset("#.-gcfasntNSEH[(0")
_LINK_HEADS: Final = frozenset("TED")
_PLAIN_HEADS: Final = (
    frozenset(string.ascii_letters + string.digits + "\"'`<>{}*/\\$%&+=,;:!?@_|~^)]")
    - _OUTER_FRAME_HEADS
    - _CAUSED_BY_HEADS
    - _LINK_HEADS
)

_CAUSED_BY: Final = re.compile(r"\s*(?:Caused by|caused by|Root cause|Wrapped by): ?")
_NODE_CAUSE: Final = re.compile(r"\s*\[?cause\]?: (?=[A-Z\[{])")
_DOTNET_CAUSE: Final = " ---> "
_RUST_CAUSE: Final = re.compile(r"\s+(?:\d+: )?(?=\S)")
_PYTHON_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_TRACEBACKS: Final = ("Traceback (most recent call last)", "Exception Group Traceback")
_RUBY: Final = re.compile(
    r"(?:[^\s:]{1,300}:\d+:in [`'][^'\n]{1,200}': )(.*) \(([A-Z]\w*(?:::\w+)*)\)\s*\Z", re.DOTALL
)
_LEAD: Final = re.compile(
    r"(?:Exception in thread \"[^\"\n]{0,100}\" |Uncaught (?:\(in promise\) )?|Unhandled "
    r"[Ee]xception[.:] |PHP (?:Fatal|Parse) error: {1,2}"
    r"|Fatal error: |UnhandledPromiseRejection(?:Warning)?: |\[[\w:-]{1,40}\] "
    r"(?=[\w.]{1,80}(?:Error|Exception)\b))+"
)
_TYPED: Final = re.compile(
    r"((?:[A-Za-z_][\w$]*(?:\.|::|\\|/))*[A-Za-z_][\w$]*)(?: ?[\[(][^\])\n]{1,60}[\])])?(?:: ?|\Z)(.*)",
    re.DOTALL,
)
_TYPE_ENDING: Final = re.compile(
    r"(?:Error|Exception|Fault|Failure|Warning|Interrupt|Iteration|Timeout|Exit|Violation|"
    r"DoesNotExist|Rejection"
    r"|Denied|Conflict|NotFound|Exhausted|Unavailable|Exceeded|Cancelled|Canceled|Group)\Z"
)


@dataclass(frozen=True, slots=True)
class ErrorText:
    """``causes`` deepest first; ``siblings`` of them (from the start) failed side by side in a group."""

    causes: tuple[Cause, ...]
    siblings: int = 1


@dataclass(slots=True)
class _Part:
    lines: list[str]
    depth: int  # higher is deeper
    grouped: bool = False


def read_causes(text: str) -> ErrorText:
    """The errors of ``text``. At least one, whose text may be empty."""
    parts = _split(text)
    parts.sort(key=attrgetter("depth"), reverse=True)  # stable: equals stay in printed order
    causes: list[Cause] = []
    room = _SALIENT_LIMIT
    siblings = 0
    for part in parts:
        body = "\n".join(part.lines).strip("\n")
        if not body.strip():
            continue
        if len(body) > room:
            body = body[: room * 2 // 3] + "\n" + body[-(room // 3) :]
        room = max(room - len(body), 300)
        causes.append(_cause(body))
        siblings += part.grouped
        if len(causes) == _CAUSES_LIMIT:
            break
    return ErrorText(tuple(causes) or (Cause("", "", ""),), max(siblings, 1))


def _cause(body: str) -> Cause:
    body = body.strip()
    if '\\"' in body and '{"' not in body:
        body = body.replace('\\"', '"')  # a logger's quotes around a quoted message
    ruby = _RUBY.match(body) if body.endswith(")") and ":in " in body[:400] else None
    if ruby is not None:
        return Cause(ruby[2], ruby[1].strip(), f"{ruby[2]}: {ruby[1].strip()}")
    lead = _LEAD.match(body)
    if lead is not None:
        body = body[lead.end() :]
    typed = _TYPED.match(body)
    if typed is None:
        return Cause("", body, body)
    name, message = typed[1], typed[2].strip()
    if message in ("null", "None"):
        message = ""
    dotted = "." in name or "::" in name or "\\" in name
    last = re.split(r"[.:\\/]", name)[-1]
    if _TYPE_ENDING.search(last) or (dotted and last[:1].isupper() and " " not in name):
        return Cause(name, message, body)
    return Cause("", body, body)


def _split(text: str) -> list[_Part]:
    excerpt = _SOURCE_EXCERPT.match(text)
    if excerpt is not None:
        text = text[excerpt.end() :]
    boxed = "│" in text
    grouped = "Exception Group Traceback" in text
    arrows = _DOTNET_CAUSE in text
    parts: list[_Part] = [_Part([], 0)]
    current = parts[0]
    python_depth = 0
    in_python_frame = in_rust_causes = False
    depth = 0
    for line in text.split("\n"):
        if len(line) > _LINE_LIMIT:
            line = line[: _LINE_LIMIT * 2 // 3] + line[-(_LINE_LIMIT // 3) :]
        if boxed and line[:1] in "│╷╵├┌└":
            line = _BOX_BORDER.sub("", line)
        if grouped:
            if _GROUP_RULE.match(line):
                current = _Part([], 1000, grouped=True)
                parts.append(current)
                in_python_frame = False
                continue
            bar = _GROUP_BAR.match(line)
            if bar is not None:
                line = line[bar.end() :]
        if in_python_frame:
            if line.startswith("    ") or not line:
                continue
            in_python_frame = False
        first = line[:1]
        if first in _PLAIN_HEADS and not arrows:
            in_rust_causes = False
            current.lines.append(line)
            continue
        if not line or line.isspace():
            if current.lines:
                current.lines.append("")
            continue
        if first in " \t":
            stripped = line.lstrip()
            head = stripped[0]
            if head == "F" and _PYTHON_FRAME.match(stripped):
                in_python_frame = True
                continue
            if (head in _FRAME_HEADS or (head > "\x7f" and head.isdecimal())) and _FRAME.match(stripped):
                continue
            if head in _CARET_HEADS and _CARETS.match(stripped):
                continue
            if first == "\t" and _GO_FRAME.match(line):
                continue
            if head in _NOISE_HEADS and (line.startswith(_NOISE) or stripped.startswith(_NOISE)):
                continue
            node = _NODE_CAUSE.match(line) if head in _NODE_CAUSE_HEADS else None
            if node is not None:
                depth += 1
                current = _Part([line[node.end() :]], depth)
                parts.append(current)
                continue
            if arrows and _DOTNET_CAUSE in line:
                depth, current = _dotnet(line, depth, parts, current)
                continue
            if in_rust_causes:
                rust = _RUST_CAUSE.match(line)
                depth += 1
                current = _Part([line[rust.end() :] if rust else line], depth)
                parts.append(current)
                continue
            caused = _CAUSED_BY.match(line) if head in _CAUSED_BY_HEADS else None
            if caused is not None:
                depth += 1
                current = _Part([line[caused.end() :]], depth)
                parts.append(current)
                continue
            current.lines.append(line)
            continue
        in_rust_causes = False
        if first in _LINK_HEADS and line.startswith(_TRACEBACKS):
            if any(current.lines) and not grouped:
                current = _Part([], current.depth)
                parts.append(current)
            continue
        if first in _LINK_HEADS and line in _PYTHON_LINKS:
            python_depth -= 1
            current = _Part([], python_depth)
            parts.append(current)
            continue
        if first in "Cc" and line.rstrip() in ("Caused by:", "caused by:"):
            in_rust_causes = True
            continue
        # Other white space than blanks and tabs can stand before it as well.
        caused = _CAUSED_BY.match(line) if first in _CAUSED_BY_HEADS or first.isspace() else None
        if caused is not None:
            depth += 1
            current = _Part([line[caused.end() :]], depth)
            parts.append(current)
            continue
        if first in _OUTER_FRAME_HEADS and (_FRAME.match(line) or line.startswith(_NOISE)):
            continue
        if arrows and _DOTNET_CAUSE in line:
            depth, current = _dotnet(line, depth, parts, current)
            continue
        current.lines.append(line)
    return parts


def _dotnet(line: str, depth: int, parts: list[_Part], current: _Part) -> tuple[int, _Part]:
    outer, *inner = line.split(_DOTNET_CAUSE)
    if outer.strip():
        current.lines.append(outer)
    for message in inner[:8]:
        depth += 1
        current = _Part([message], depth)
        parts.append(current)
    return depth, current

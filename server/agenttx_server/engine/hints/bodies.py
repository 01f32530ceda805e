"""Error bodies: what an API answered, as JSON or as a client library's print of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from agenttx_server.engine.records import HintCategory

from .fields import field_errors_finding
from .literals import find_bodies
from .problem import Problem, read_problem
from .rule import CERTAIN, LIKELY, WEAK, Finding
from .vocabulary import ADVICE, category_of_code, category_of_status
from .wording import key_names, safe_message

__all__ = ["body_findings"]

FindInText = Callable[[str], Finding | None]

_HTTP_HEAD: Final = re.compile(r"HTTP/[\d.]{1,3} (\d{3})[^\n]{0,100}")


def body_findings(text: str, find_in_text: FindInText) -> Iterator[Finding]:
    """Findings of the bodies in ``text``, in order; messages inside are read by ``find_in_text`` as well."""
    if "{" not in text and "[" not in text:
        return
    head = _HTTP_HEAD.match(text)
    for start, end, value in find_bodies(text):
        problem = read_problem(value)
        if problem is None:
            continue
        if head is not None and problem.status is None:
            problem = replace(problem, status=int(head[1]))
        finding = _finding(problem, find_in_text)
        if finding is None:
            continue
        if start > 0 and head is None and not (problem.messages or problem.fields or problem.texts):
            # Properties that a runtime prints behind its own message: { code: 'ENOENT', errno: -2 }.
            if finding.category is HintCategory.UNKNOWN:
                continue
            finding = replace(finding, weight=WEAK)
        yield finding if finding.excerpt else replace(finding, excerpt=text[start:end])


def _finding(problem: Problem, find_in_text: FindInText) -> Finding | None:
    category = _category(problem)
    for message in (*problem.texts, *problem.messages):
        found = find_in_text(message)
        if found is not None and found.weight >= CERTAIN:
            return found
        # A body in a message of a body; each level is escaped once more, so there are few.
        inner = next((f for f in body_findings(message, find_in_text) if f.rule == "body.fields"), None)
        if inner is not None:
            return inner
    if problem.fields:
        return field_errors_finding("body.fields", problem.fields)
    said = next((m for m in problem.messages), "")
    if problem.texts:
        found = find_in_text(problem.texts[0])
        if found is not None:
            return found
        said = problem.texts[0]
    in_message = find_in_text(said) if said else None
    if in_message is not None and in_message.category is HintCategory.RATE_LIMITED:
        category = HintCategory.RATE_LIMITED
    if in_message is not None and (
        category in (None, HintCategory.HTTP_CLIENT_ERROR, HintCategory.INVALID_VALUE)
        or in_message.category == category
    ):
        category = in_message.category
        keys = in_message.keys
        if in_message.weight >= LIKELY:
            return replace(in_message, keys=keys or key_names(problem.parameter), weight=CERTAIN)
    keys = key_names(problem.parameter)
    says = _said(problem, said)
    if category is None and keys:
        category = HintCategory.INVALID_VALUE  # who names a parameter finds fault with it
    if category is None:
        if not says:
            return None
        return Finding("body.message", HintCategory.UNKNOWN, says, ADVICE[HintCategory.UNKNOWN], keys, LIKELY)
    weight = CERTAIN if problem.codes or problem.status or keys else LIKELY
    return Finding("body.code", category, says, ADVICE[category], keys, weight)


def _category(problem: Problem) -> HintCategory | None:
    if problem.wait and problem.status in (None, 429):
        return HintCategory.RATE_LIMITED
    by_status = category_of_status(problem.status) if problem.status else None
    if by_status not in (
        None,
        HintCategory.HTTP_CLIENT_ERROR,
        HintCategory.HTTP_SERVER_ERROR,
        HintCategory.RATE_LIMITED,
    ):
        return by_status
    for code in reversed(problem.codes):
        by_code = category_of_code(code)
        if by_code is not None:
            if (
                by_code is HintCategory.RESOURCE_EXHAUSTED
                and by_status is HintCategory.RATE_LIMITED
                and "resource" in code.lower()
            ):
                return HintCategory.RATE_LIMITED
            return by_code
    return by_status


def _said(problem: Problem, said: str) -> str:
    parts = []
    code = next(
        (
            code
            for code in reversed(problem.codes)
            if code and code not in said and not code.startswith("http")
        ),
        "",
    )
    if problem.status and str(problem.status) not in said:
        parts.append(str(problem.status))
    if code and code.lower() not in said.lower():
        parts.append(code)
    head = " ".join(parts)
    others = [message for message in problem.messages[1:3] if message not in said and len(message) < 120]
    text = safe_message(". ".join([said.rstrip("."), *others]) if others else said)
    if problem.parameter and problem.parameter not in text:
        text = f"{safe_message(problem.parameter, 60)}: {text}"
    line = f"{head}: {text}" if head and text else head or text
    if problem.quota and problem.quota not in line:
        line += f" ({safe_message(problem.quota, 60)})"
    if problem.wait:
        line += f" (wait {safe_message(problem.wait, 20)})"
    if problem.reference and problem.reference not in line:
        line += f" (ref {safe_message(problem.reference, 40)})"
    return line

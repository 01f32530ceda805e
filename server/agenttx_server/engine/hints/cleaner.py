"""The pipeline: raw error → chain of causes → candidate rules → best finding → one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agenttx_server.engine.records import Hint, HintCategory

from .bodies import body_findings
from .causes import ErrorText, read_causes
from .fallback import fallback_finding, with_context
from .plain_text import RAW_LIMIT_BYTES, without_terminal_codes
from .rule import ANY_WORD, CERTAIN, Cause, Finding, Rule
from .rules import DEFAULT_RULES
from .wording import PREFIX, Facts, fill, hint_line, key_names, safe_message

__all__ = ["Cleaner", "Explanation"]

_WORD: Final = re.compile(r"[^\W_]+(?:_[^\W_]+)*|_+")
_KEY_ERROR: Final = "python.key_error"
_CANDIDATES_LIMIT: Final = 56  # real errors have at most 53 of 440; a text made of trigger words stays cheap
_WHOLE_BODY: Final = ("{", "[{", "[\n", "HTTP/")
_CONTEXT_LIMIT: Final = 8000
_EXCERPT_LIMIT: Final = 160
_READ_LIMIT: Final = (
    32 * 1024
)  # characters of a text that is no body; a trace of that length has about 500 lines
_LINES_LIMIT: Final = 800
_LANDMARKS: Final = ("\nCaused by: ", "\n ---> ", "[cause]: ", "\nERROR", "\nDETAIL")
_LANDMARKS_KEPT: Final = 3  # of each kind
_LANDMARK_ROOM: Final = 1000
_FRAME_LIMIT: Final = 300
_LEAD: Final = 200  # blanks and terminal codes can stand before a body


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hint and why it says what it says.

    ``rule`` is None when no rule matched. ``matched`` is the passage the rule matched, masked and on
    one line; ``why`` is a sentence for people.
    """

    hint: Hint
    rule: str | None
    matched: str
    why: str


class Cleaner:
    """Clean Hints under the default rules and, before them, a deployment's own.

    Immutable after construction and safe to share between threads.
    """

    __slots__ = ("_by_word", "_rules")

    def __init__(self, extra_rules: Iterable[Rule] = ()) -> None:
        """``extra_rules`` are tried before the default ones; :exc:`ValueError` for a name used twice."""
        self._rules: tuple[Rule, ...] = (*extra_rules, *DEFAULT_RULES)
        names: set[str] = set()
        by_word: dict[str, list[int]] = {}
        for order, rule in enumerate(self._rules):
            if rule.name in names:
                raise ValueError(f"two rules are named {rule.name!r}")
            names.add(rule.name)
            for trigger in rule.triggers:
                by_word.setdefault(trigger, []).append(order)
        self._by_word = {word: tuple(orders) for word, orders in by_word.items()}

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules in the order they are tried."""
        return self._rules

    def clean(self, raw: str) -> Hint:
        """One true line about ``raw``. Total and deterministic: any text gives a hint, none raises."""
        return _hint(self._find(raw))

    def explain(self, raw: str) -> Explanation:
        """The hint of :meth:`clean` with the rule that matched, and where."""
        finding = self._find(raw)
        hint = _hint(finding)
        matched = safe_message(finding.excerpt, _EXCERPT_LIMIT)
        if finding.rule is None:
            why = "no rule matched; the most telling line was kept"
        else:
            why = f"rule {finding.rule} matched" + (f": {matched}" if matched else "")
        return Explanation(hint, finding.rule, matched, why)

    def _find(self, raw: str) -> Finding:
        text = _readable(raw)
        is_body = text.lstrip().startswith(_WHOLE_BODY)
        if is_body:
            best = _heaviest(body_findings(text, self._find_in_text))
            if best is not None:
                return with_context(best, text[:_CONTEXT_LIMIT])
        error = read_causes(text)
        best = self._best(error)
        if (best is None or best.weight < CERTAIN) and not (is_body and len(error.causes) == 1):
            for cause in error.causes:
                in_body = _heaviest(body_findings(cause.text, self._find_in_text))
                if in_body is not None and (best is None or _outweighs(in_body, best)):
                    best = in_body
        if best is None:
            best = fallback_finding(error)
        return with_context(best, "\n".join(cause.text for cause in error.causes))

    def _find_in_text(self, text: str) -> Finding | None:
        return self._best(read_causes(text))

    def _best(self, error: ErrorText) -> Finding | None:
        """The best finding of the rules: heaviest first, then deepest, then in table order."""
        lowered = [cause.text.lower() for cause in error.causes]
        best: Finding | None = None
        rules = self._candidates(lowered)
        for index, cause in enumerate(error.causes):
            found = _first_match(rules, cause, lowered[index], best.weight if best else 0)
            if found is None:
                continue
            if error.siblings > 1 and index < error.siblings:
                return _with_siblings(found, error)
            best = found
            if best.rule == _KEY_ERROR and (told := self._told_again(best, error, lowered, index)):
                return told
            if best.weight >= CERTAIN:
                break
        return best

    def _told_again(
        self, found: Finding, error: ErrorText, lowered: Sequence[str], index: int
    ) -> Finding | None:
        """What an outer error says about the value that a lookup missed: ``no order with id 'ord-17'``.

        A key with a digit in it was looked up, not named by a programmer; the sentence around it says more.
        """
        value = found.keys[0] if found.keys else ""
        if not any(letter.isdigit() for letter in value):
            return None
        for outer in range(index + 1, len(error.causes)):
            cause = error.causes[outer]
            if value in cause.message and cause.message.strip("'\"") != value:
                told = _first_match(self._candidates(lowered[outer : outer + 1]), cause, lowered[outer], 0)
                if told is not None and told.rule not in (_KEY_ERROR, "exception.by_name"):
                    return told
        return None

    def _candidates(self, lowered: Sequence[str]) -> list[Rule]:
        words: set[str] = set()
        for text in lowered:
            words.update(_WORD.findall(text))
        by_word = self._by_word
        orders: set[int] = set(by_word.get(ANY_WORD, ()))
        for word in words & by_word.keys():
            orders.update(by_word[word])
        return [self._rules[order] for order in sorted(orders)[:_CANDIDATES_LIMIT]]


def _heaviest(findings: Iterable[Finding]) -> Finding | None:
    return max(findings, key=lambda finding: finding.weight, default=None)  # max keeps the first of equals


def _outweighs(in_body: Finding, in_text: Finding) -> bool:
    """Around a body, a rule that knows the system's words says more than a code; the body's fields say most."""
    if in_body.rule == "body.fields":
        return in_body.weight >= in_text.weight
    return in_body.weight > in_text.weight


def _first_match(rules: Sequence[Rule], cause: Cause, lowered: str, above: int) -> Finding | None:
    """The heaviest finding in ``cause`` that weighs more than ``above``."""
    best: Finding | None = None
    for rule in rules:
        if rule.weight <= above:
            continue
        if rule.phrases and not any(phrase in lowered for phrase in rule.phrases):
            continue
        match = rule.pattern.search(lowered if rule.folded else cause.text)
        if match is None:
            continue
        finding = _finding(rule, match, cause, lowered)
        if finding is not None:
            best, above = finding, rule.weight
            if above >= CERTAIN:
                break
    return best


def _finding(rule: Rule, match: re.Match[str], cause: Cause, lowered: str) -> Finding | None:
    raw: dict[str, str | None] = dict(match.groupdict())
    raw["message"] = cause.message or cause.text
    if "{line}" in rule.says[-1]:
        raw["line"] = line_at(cause.text, match.start()).removeprefix(f"{cause.type_name}: ")
    if rule.read is not None:
        more = rule.read(match, cause)
        if more is None:
            return None
        raw.update(more)
    keys: list[str] = []
    for group in rule.keys:
        for name in key_names(raw.get(group) or ""):
            if name not in keys:
                keys.append(name)
    key = keys[0] if keys else None
    facts = Facts(raw, key)
    category = HintCategory(raw.get("category") or rule.category)
    says, advice = fill(rule.says, facts), fill((rule.advice,), facts)
    says = _as_printed(says, rule, cause.text, lowered)
    return Finding(rule.name, category, says, advice, tuple(keys), rule.weight, match[0] or cause.text)


def _as_printed(says: str, rule: Rule, text: str, lowered: str) -> str:
    """``says`` with its first words in the letters of the error, for whoever searches for them there."""
    head = next((head for head in rule.opening if says.startswith(head)), "")
    start = lowered.find(head) if head and len(lowered) == len(text) else -1
    return says if start == -1 else text[start : start + len(head)] + says[len(head) :]


def line_at(text: str, position: int) -> str:
    """The line of ``text`` around ``position``, without the blanks around it."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end != -1 else len(text)].strip()


def _with_siblings(found: Finding, error: ErrorText) -> Finding:
    """``found`` with the messages of the other members of its group, so that none is dropped silently."""
    others = [
        safe_message(cause.message or cause.text, 80)
        for cause in error.causes[1 : error.siblings]
        if cause.text != error.causes[0].text
    ][:3]
    if not others:
        return found
    also = "; also: " + "; ".join(others)
    return Finding(
        found.rule,
        found.category,
        found.says.rstrip(".") + also,
        "Fix each.",
        found.keys,
        found.weight,
        found.excerpt,
    )


def _hint(finding: Finding) -> Hint:
    return Hint(hint_line(finding.says, finding.advice), finding.category, finding.rule, finding.keys)


def _readable(raw: str) -> str:
    """``raw`` bounded for reading, without terminal codes, with ``\\n`` as its only line end.

    A text that begins as a body is read up to 64 KiB, for what is wrong can stand at its end. Of another one,
    32 Ki characters are: its head, its tail and what follows the last three marks of each kind of cause between them.
    """
    limit = RAW_LIMIT_BYTES if raw[:_LEAD].lstrip().startswith(_WHOLE_BODY) else _READ_LIMIT
    if len(raw) > limit:
        raw = _condensed(raw, limit)
    text = without_terminal_codes(raw)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.count("\n") > _LINES_LIMIT:
        lines = text.split("\n")
        text = "\n".join((*lines[: _LINES_LIMIT // 3], *lines[-(_LINES_LIMIT * 2 // 3) :]))
    if text.startswith(PREFIX):
        text = text[len(PREFIX) :]
    return text


def _condensed(raw: str, limit: int) -> str:
    """Head and tail of ``raw``, and between them what follows the last marks of causes in the part left out."""
    room = (limit - len(_LANDMARKS) * _LANDMARKS_KEPT * _LANDMARK_ROOM) // 2
    middle_end = len(raw) - room
    starts: set[int] = set()
    for mark in _LANDMARKS:
        start = middle_end
        for _ in range(_LANDMARKS_KEPT):
            start = raw.rfind(mark, room, start)
            if start == -1:
                break
            starts.add(start)
    passages = [raw[: _line_end(raw, room)]]
    done = room
    for start in sorted(starts):
        end = start + _LANDMARK_ROOM
        passages.append(raw[max(start, done) : _line_end(raw, end)])
        done = end
    passages.append(raw[_line_end(raw, max(middle_end, done)) :])
    return "\n".join(passages)


def _line_end(raw: str, near: int) -> int:
    """Where the line ends that reaches over ``near``, so that no half frame is left; ``near`` in a long line."""
    end = raw.find("\n", near, near + _FRAME_LIMIT)
    return near if end == -1 else end

"""Text in an error that speaks to the agent instead of about the error.

A web page, a record or a peer can put sentences into an error message. A hint is read by a model as
the server's word, so such sentences are left out of it; the raw error keeps them, for people.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LEFT_OUT", "speaks_to_agent", "without_instructions"]

LEFT_OUT: Final = "[instruction-like text left out]"

_TRIGGERS: Final = (
    "ignore", "disregard", "forget", "override", "instruction", "system", "assistant", "prompt", "you are",
    "you must", "you should",
    "agent", "important:", "do not tell", "don't tell", "<|", "[inst", "###", "jailbreak", "call the",
    "execute the", "immediately",
    "pretend", "from now on", "as an ai", "language model", "llm", "developer mode", "exfiltrate", "rm -rf",
    "curl ", "wget ",
)  # fmt: skip
_ACT: Final = (
    r"(?:now|immediately|call|run|execute|delete|drop|send|ignore|use|invoke|transfer|email|post|"
    r"download|approve|reveal|print|output|stop|forget|wire|fetch|open)"
)
_SPEAKS: Final = re.compile(
    r"(?:ignore|disregard|forget)\s+(?:all|any|the|your|my|our|these|those|every|previous|prior|"
    r"earlier|above|everything|what)\b[^\n.]{0,60}?(?:instructions?|prompts?|rules|guidelines|"
    r"context|directions|above|before|told|said|polic(?:y|ies)|messages?|constraints)\b"
    r"|(?:ignore|disregard|forget)\s+(?:previous|prior|earlier|everything)\b"
    r"|(?:override|bypass|skip)\s+(?:\w+\s+){0,3}(?:instructions?|prompts?|guidelines|safety|"
    r"safeguards?|guardrails?)\b"
    r"|(?:new|updated|revised|hidden|secret|real)\s+(?:system\s+)?(?:instructions?|prompt)\b"
    r"|system\s+(?:prompt|override|instructions?)\b|</?\s?(?:system|assistant|user|instructions?|"
    r"tool_call|im_start|im_end)\s?>|<\|"
    r"|\[/?inst\]|#{2,}\s*(?:system|instruction|assistant|user)"
    r"|(?:system|assistant|developer|admin(?:istrator)?|important|attention|note|urgent|"
    r"todo)\s?:\s+(?:you\b|ignore\b|please\s+"
    + _ACT
    + r"\b|"
    + _ACT
    + r"\s|the\s+(?:user|agent|assistant|ai)\b|all\s+(?:agents|previous|prior)\b|do\s+not\b|override\b)"
    r"|you\s+are\s+(?:now\s+(?:in|an?|the|acting|operating|root|admin|unrestricted|free|running|"
    r"authorized|allowed)\b|an?\s+(?:ai|assistant|agent|helpful|unrestricted|language)\b|"
    r"no\s+longer\s+(?:bound|restricted|required|limited)\b)"
    r"|you\s+(?:must|should|need\s+to|have\s+to|will|can|may)\s+(?:now|immediately|instead|first|"
    r"also|only)\s+\w+"
    r"|you\s+(?:must|should|need\s+to|have\s+to)\s+(?:call|invoke|execute|delete|drop|transfer|"
    r"reveal|approve|wire|ignore)\b"
    r"|from\s+now\s+on\b|developer\s+mode|jailbreak|admin\s+mode|god\s+mode"
    r"|(?:as\s+an|dear|hey|hello|attention|note\s+(?:to|for)|message\s+(?:to|for)|"
    r"instructions?\s+(?:to|for))\s+(?:an?\s+|the\s+|any\s+|all\s+)?(?:ai|llm|language\s+model|"
    r"agent|assistant|chatbot|model)s?\b"
    r"|\b(?:ai|llm)\s+(?:agents?|assistants?|models?)\b[^.\n]{0,80}\b(?:must|should|please|"
    r"need\s+to|have\s+to)\b"
    r"|\b(?:agent|assistant)s?(?:[,:]\s+|\s+(?:must|should|please)\s+)(?:please\s+|you\s+(?:must|"
    r"should)\s+|to\s+)?" + _ACT + r"\b"
    r"|(?:do\s+not|don't|never)\s+(?:tell|inform|alert|notify)\s+(?:the\s+|any)?(?:user|human|"
    r"operator|anyone|one|them)\b"
    r"|pretend\s+(?:to\s+be|that|you)\b|exfiltrate|act\s+as\s+(?:an?|if)\b"
    r"|\b(?:call|invoke|execute|use|run)\s+(?:the\s+)?(?:tool|function)\s+[`'\"\w]|\b(?:call|"
    r"invoke)\s+(?:the\s+)?[`'\"]?[a-z]{2,30}_[a-z_]{2,40}\b"
    r"|(?:send|post|email|forward|upload|transfer|wire|leak)\s+(?:\w+\s+){0,4}(?:credentials?|"
    r"secrets?|api\s+keys?|passwords?|tokens?|funds|money|environment\s+variables|env\s+vars|"
    r"contents\s+of)\b"
    r"|rm\s+-rf\s+[/~*]|(?:curl|wget)\s[^\n|]{1,200}\|\s*(?:ba|z)?sh\b"
)  # searched in lower-cased text
_SENTENCE: Final = re.compile(
    r"[^.!?\n;]{1,600}(?:[.!?;\n]{1,4}(?=\s|$|[\"'\])>])|[.!?;](?=\S)|\n|$)?\s{0,8}|"
    r"[.!?;\n]{1,20}\s{0,8}"
)
_QUOTED: Final = re.compile(
    r"\"[^\"\n]{1,400}\"|'[^'\n]{1,400}'|`[^`\n]{1,400}`|\([^()\n]{1,400}\)|<!--[^\n]{0,600}?-->"
)


def speaks_to_agent(text: str) -> bool:
    """Whether ``text`` reads as an instruction to a model rather than as a report of an error."""
    lowered = text.lower()
    for trigger in _TRIGGERS:
        if trigger in lowered:
            return _SPEAKS.search(lowered) is not None
    return False


def without_instructions(text: str) -> str:
    """``text`` with instruction-like quotations and sentences replaced by a marker; other text as it is."""
    if not speaks_to_agent(text):
        return text
    text = _QUOTED.sub(
        lambda m: f"{m[0][0]}{LEFT_OUT}{m[0][-1]}" if _SPEAKS.search(m[0].lower()) else m[0], text
    )
    if not _SPEAKS.search(text.lower()):
        return text
    kept: list[str] = []
    for sentence in _SENTENCE.findall(text):
        if _SPEAKS.search(sentence.lower()):
            if not kept or kept[-1] != LEFT_OUT + " ":
                kept.append(LEFT_OUT + " ")
        else:
            kept.append(sentence)
    result = "".join(kept).strip()
    return LEFT_OUT if _SPEAKS.search(result.replace(LEFT_OUT, "").lower()) else result

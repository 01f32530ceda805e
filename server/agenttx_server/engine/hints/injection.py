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
    "ignore", "disregard", "forget", "override", "instruction", "system", "assistant", "prompt", "you are", "you must", "you should",
    "agent", "important:", "do not tell", "don't tell", "<|", "[inst", "###", "jailbreak", "call the", "execute the", "immediately",
    "pretend", "from now on", "as an ai", "language model", "llm", "developer mode", "exfiltrate", "rm -rf", "curl ", "wget ",
)  # fmt: skip
_SPEAKS: Final = re.compile(
    r"(?:ignore|disregard|forget|override|bypass|skip)\s+(?:\w+\s+){0,4}(?:instructions?|prompts?|rules|guidelines|context|directions|safety|polic(?:y|ies)|everything|above|previous)"
    r"|(?:new|updated|revised|hidden|secret|real)\s+(?:system\s+)?(?:instructions?|prompt)\b"
    r"|system\s+(?:prompt|message|override|instruction|note|notice)\b|<\/?\s?(?:system|assistant|user|instructions?|tool_call|im_start|im_end)\b|<\|"
    r"|\[/?inst\]|#{2,}\s*(?:system|instruction|assistant|user)"
    r"|(?:^|[\s\"'(\[>])(?:system|assistant|developer)\s?:\s?\w"
    r"|you\s+are\s+(?:now|no\s+longer|an?\s+(?:ai|assistant|agent|helpful|unrestricted))|from\s+now\s+on\b|developer\s+mode|jailbreak"
    r"|(?:as|dear|hey|hello|attention|note\s+to|message\s+(?:to|for)|for\s+the)\s+(?:an?\s+|the\s+|any\s+)?(?:ai|llm|language\s+model|agent|assistant|chatbot)s?\b"
    r"|(?:ai|llm)\s+(?:agents?|assistants?|models?)\b[^.\n]{0,80}\b(?:must|should|please|need\s+to|have\s+to)\b"
    r"|(?:agent|assistant)s?\s*(?::|,|must\b|should\b|please\b)\s*\w"
    r"|(?:do\s+not|don't|never)\s+(?:tell|inform|mention|reveal\s+this\s+to|alert|notify)\b"
    r"|pretend\s+(?:to|that|you)\b|exfiltrate|act\s+as\s+(?:an?|the|if)\b"
    r"|(?:please\s+|now\s+|immediately\s+|must\s+|should\s+|and\s+|then\s+)(?:call|invoke|run|execute|use)\s+(?:the\s+)?(?:tool|function|command|`|'|\"|\w{1,40}_\w{1,40}|rm\b|curl\b|bash\b|sh\b)"
    r"|(?:send|post|email|forward|upload|transfer|wire|leak)\s+(?:\w+\s+){0,4}(?:credentials?|secrets?|api\s+keys?|passwords?|tokens?|funds|money|environment\s+variables|env\s+vars|contents\s+of)"
    r"|rm\s+-rf\s+[/~*]|(?:curl|wget)\s+(?:-\S+\s+)*\S+\s*\|\s*(?:ba)?sh",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"[^.!?\n;]{1,600}(?:[.!?;\n]{1,4}(?=\s|$|[\"'\])>])|[.!?;](?=\S)|\n|$)?\s{0,8}|[.!?;\n]{1,20}\s{0,8}")
_QUOTED: Final = re.compile(r"\"[^\"\n]{1,400}\"|'[^'\n]{1,400}'|`[^`\n]{1,400}`|\([^()\n]{1,400}\)|<!--[^\n]{0,600}?-->")


def speaks_to_agent(text: str) -> bool:
    """Whether ``text`` reads as an instruction to a model rather than as a report of an error."""
    lowered = text.lower()
    return any(trigger in lowered for trigger in _TRIGGERS) and _SPEAKS.search(text) is not None


def without_instructions(text: str) -> str:
    """``text`` with instruction-like quotations and sentences replaced by a marker; other text as it is."""
    if not speaks_to_agent(text):
        return text
    text = _QUOTED.sub(lambda m: f"{m[0][0]}{LEFT_OUT}{m[0][-1]}" if _SPEAKS.search(m[0]) else m[0], text)
    if not _SPEAKS.search(text):
        return text
    kept: list[str] = []
    for sentence in _SENTENCE.findall(text):
        if _SPEAKS.search(sentence):
            if not kept or kept[-1] != LEFT_OUT + " ":
                kept.append(LEFT_OUT + " ")
        else:
            kept.append(sentence)
    result = "".join(kept).strip()
    return result if not _SPEAKS.search(result.replace(LEFT_OUT, "")) else LEFT_OUT

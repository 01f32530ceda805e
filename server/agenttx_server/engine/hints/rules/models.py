"""Language-model providers and agent frameworks; most of their errors are JSON and are read as bodies."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "llm.context_length",
        "context tokens prompt",
        r"(?P<detail>(?:maximum context length|context[ _]length[ _]exceeded|context window|prompt is "
        r"too long|input is too long|exceeds? the (?:model's )?(?:maximum|context)|too many (?:input "
        r")?tokens in|Input tokens exceed)[^\n]{0,240})",
        C.RESOURCE_EXHAUSTED,
        "{message}",
        "Send fewer tokens.",
        weight=LIKELY,
    ),
    rule(
        "llm.rate_limit",
        "rate tokens",
        r"Rate limit reached for (?P<detail>[^\n]{1,300}?)Please try again in "
        r"(?P<wait>[\w.]{1,20}?)\.?(?=\s|$)",
        C.RATE_LIMITED,
        "rate limit reached for {detail}",
        "Wait {wait}, then retry.",
    ),
    rule(
        "llm.billing",
        "quota credit billing credits insufficient balance",
        r"(?P<detail>(?:You exceeded your current quota, please check your plan|credit balance is too "
        r"low|insufficient (?:credits|funds|balance)|billing (?:hard )?limit|out of "
        r"credits)[^\n]{0,160})",
        C.RESOURCE_EXHAUSTED,
        "{detail}",
        "Waiting won't help: raise the quota or the balance.",
        weight=CERTAIN,
    ),
    rule(
        "llm.api_key",
        "key api_key",
        r"(?P<detail>(?:Incorrect API key provided|invalid x-api-key|API key not valid|[Ii]nvalid API[ "
        r"-]?key|No API key provided|api[_-]key client option must be set|missing API key|API key "
        r"(?:is )?(?:expired|missing|invalid|required))[^\n]{0,160})",
        C.AUTHENTICATION,
        "{detail}",
        "Correct the API key.",
    ),
    rule(
        "llm.model_not_found",
        "model",
        r"(?:[Tt]he )?[Mm]odel:? [`'\"]?(?P<model>[\w.:/\-]{1,120})[`'\"]? (?P<what>does not exist|not "
        r"found|is not available|was not found|has been deprecated|is not supported)",
        C.MISSING_RECORD,
        "model {model} {what}",
        "Use a model that you have access to.",
    ),
    rule(
        "llm.field",
        "required",
        r"(?:^|[\"': ])(?P<name>[a-z_][\w.]{0,100}): (?P<detail>Field required|Input should "
        r"be[^\n'\"]{1,120}|Extra inputs are not permitted|value is not a valid[^\n'\"]{1,80})",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct {name}.",
        "name",
        weight=LIKELY,
        read=lambda match, cause: {
            "category": C.MISSING_ARGUMENT.value if match["detail"] == "Field required" else None
        },
    ),
    rule(
        "llm.overloaded",
        "overloaded capacity",
        r"(?i:overloaded(?:_error)?|at capacity|high demand|no capacity)[^\n]{0,120}",
        C.HTTP_SERVER_ERROR,
        "{message}",
        "Wait, then retry.",
        weight=LIKELY,
    ),
    rule(
        "agent.not_a_tool",
        "tool",
        r"(?<![\w.\-/])(?P<tool>[\w.\-/]{1,128}) is not a valid tool,? (?P<detail>try one of [^\n]{1,160})?",
        C.UNKNOWN_TOOL,
        ("unknown tool: {tool}; {detail}", "unknown tool: {tool}"),
        "Use the name of a tool that exists.",
    ),
    rule(
        "mcp.error",
        "mcp",
        r"MCP error (?P<code>-\d{1,6}): (?P<detail>[^\n]{1,300})",
        C.UNKNOWN,
        "MCP error {code}: {detail}",
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _mcp(match["code"], match["detail"]),
    ),
)


def _mcp(code: str, detail: str) -> dict[str, str | None]:
    category, advice = {
        "-32001": (C.TIMEOUT, "Retry, with a longer timeout or less work."),
        "-32000": (C.CONNECTION, "Restart the MCP server and reconnect."),
        "-32601": (C.UNKNOWN_TOOL, "Use a method that the server has."),
        "-32602": (C.INVALID_VALUE, "Correct the arguments."),
        "-32700": (C.INVALID_JSON, "Send well-formed JSON."),
    }.get(code, (C.UNKNOWN, "Check the inputs of this step."))
    return {"category": category.value, "advice": advice}

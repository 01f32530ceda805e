"""Lines of events, and tables of tools."""

from tests.support.sample_records import NOON, TRANSACTION_ID

from agenttx.records import EffectClass, Event, EventType, Tool, ToolLocation
from agenttx_server.cli.rendering.events import event_line
from agenttx_server.cli.rendering.tools import tool_details, tool_table

SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}, "default": {}}, "required": ["key"]}
KV_GET = Tool(
    "kv.get",
    "Read a value.\n\nFails if there is none.",
    SCHEMA,
    EffectClass.READ_ONLY,
    ToolLocation.SERVER,
    0.0,
    0,
    False,
)


def event(type_: EventType, step_id: int = 0, attempt: int = 0, **payload) -> Event:
    return Event(8, TRANSACTION_ID, type_, step_id, 0, attempt, 2, NOON, payload)


def test_a_failure_leads_with_the_tool_and_the_hint(shown):
    line = shown(
        event_line(
            event(
                EventType.STEP_FAILED,
                10,
                2,
                hint="Hint: no.",
                tool_name="kv.get",
                category="missing_record",
                error_keys=["k"],
            )
        )
    )
    assert line.split("  ")[0] == "12:00:00.000     8".split("  ")[0]
    assert "STEP_FAILED" in line
    assert "step 10 (2)" in line
    assert line.endswith("kv.get  Hint: no.  category=missing_record")


def test_an_event_of_the_whole_transaction_names_no_step(shown):
    line = shown(
        event_line(event(EventType.TRANSACTION_REWOUND, strategy="DEPENDENCY_JUMP", to_step=3, reason=""))
    )
    assert "step " not in line
    assert line.endswith("DEPENDENCY_JUMP  to_step=3")


def test_an_event_is_one_line_whatever_it_holds(shown):
    assert shown(event_line(event(EventType.STEP_FAILED, 1, 1, hint="a\nb\x1b[2J"))).endswith("a b\\x1b[2J")


def test_tools_show_their_promise_and_which_arguments_may_be_left_out(shown):
    heading, line = shown(tool_table([KV_GET])).splitlines()
    assert heading.startswith("TOOL")
    assert line.split() == ["kv.get", "READ_ONLY", "server", "key,", "[default]", "Read", "a", "value."]


def test_a_tool_in_full_has_its_whole_description_and_schema(shown):
    text = shown(tool_details(KV_GET))
    assert "Fails if there is none." in text
    assert '"required": [' in text
    assert "the transaction's" in text

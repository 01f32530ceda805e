"""Tools of installed distributions in a real server process."""

import os

import pytest
from tests.support.installed_package import WEATHER, install
from tests.support.running_server import PYTHONPATH, server_process, start_process

import agenttx


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site"


@pytest.fixture
def environment(site):
    return {"PYTHONPATH": os.pathsep.join([str(site), PYTHONPATH])}


def test_a_named_entry_point_is_served_with_its_undo(tmp_path, site, environment):
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": WEATHER})

    with (
        server_process(tmp_path / "data", environment=environment, entry_point_tools="weather") as server,
        agenttx.Client(server.address) as client,
    ):
        tx = client.transaction(agent_id="forecaster").begin()
        tx.step("weather.record", city="Oslo", celsius=4)
        assert tx.step("weather.read").output == {"Oslo": 4}
        tx.rewind(1)
        assert tx.step("weather.read").output == {}
        tx.rollback()


def test_what_is_installed_is_not_even_imported_unless_it_is_named(tmp_path, site, environment):
    install(
        site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": "raise SystemExit(9)"}
    )

    with (
        server_process(tmp_path / "data", environment=environment) as server,
        agenttx.Client(server.address) as client,
    ):
        assert not [tool.name for tool in client.tools() if tool.name.startswith("weather")]
        (told,) = [event for event in server.events() if event["event"] == "installed tools are not served"]
    assert told["entry_points"] == ["'weather' of weather-tools 1.0"]


def test_a_name_that_a_built_in_tool_has_keeps_the_server_from_starting(tmp_path, site, environment):
    source = WEATHER.replace("weather.read", "kv.get")
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": source})

    process = start_process(tmp_path / "data", environment, entry_point_tools="all")

    assert process.wait() == 78
    assert process.log[-1] == (
        "agenttx: two tools are named 'kv.get': one from the built-in ones, one from 'weather' of "
        "weather-tools 1.0; rename one, or leave one out"
    )

"""Which entry points are served, and what is said about those that can't be."""

import importlib
import sys

import pytest
from tests.support.installed_package import WEATHER, install

from agenttx_server.tools import ToolLoadError
from agenttx_server.tools.entry_points import installed_names, load_entry_points
from agenttx_server.tools.tool_sources import tools_of


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory of installed packages; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    yield tmp_path / "site"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(*wanted):
    return [tool.name for tool in tools_of(load_entry_points(wanted))]


def refusal(*wanted):
    with pytest.raises(ToolLoadError) as refused:
        names(*wanted)
    return str(refused.value)


def two_packages(site):
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": WEATHER})
    other = WEATHER.replace('"weather.', '"climate.')
    install(site, "climate", {"weather": "climate_tools:TOOLS"}, {"climate_tools": other})


@pytest.mark.parametrize(
    "asked", [["weather"], ["Weather_Tools"], ["all"], ["weather", "weather-tools", "all"]]
)
def test_an_entry_point_is_asked_for_by_its_name_its_distribution_or_all(site, asked):
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": WEATHER})

    assert names(*asked) == ["weather.record", "weather.read"]


def test_nothing_is_imported_that_is_not_asked_for(site):
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": "raise SystemExit"})

    assert names() == []
    assert installed_names() == ["'weather' of weather-tools 1.0"]


def test_of_several_entry_points_the_named_one_alone_is_imported(site):
    broken = {"weather_tools": WEATHER, "broken_tools": "raise RuntimeError"}
    install(site, "two", {"weather": "weather_tools:read", "broken": "broken_tools"}, broken)

    assert names("weather") == ["weather.read"]


@pytest.mark.parametrize(
    ("value", "source", "message"),
    [
        ("weather_tools:TOOL", WEATHER, "module 'weather_tools' has no 'TOOL'"),
        (
            "weather_tools",
            "import no_such_thing",
            "importing it failed: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("weather_tools", "raise RuntimeError('no key')", "importing it failed: RuntimeError: no key"),
        ("weather_tools", "", "no tools there; make one with @tool(name, effects=...)"),
        ("no such module", "", "expected module:object, for example my_tools:TOOLS"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_told_with_its_distribution(site, value, source, message):
    install(site, "weather-tools", {"weather": value}, {"weather_tools": source})

    assert refusal("weather") == f"--entry-point-tools: 'weather' of weather-tools 1.0: {message}"


def test_a_name_that_nothing_has_is_told_with_those_there_are(site):
    install(site, "weather-tools", {"weather": "weather_tools:TOOLS"}, {"weather_tools": WEATHER})

    assert refusal("wether") == (
        "--entry-point-tools 'wether': nothing installed offers tools under it; installed: "
        "'weather' of weather-tools 1.0"
    )


def test_a_name_that_two_distributions_have_is_refused(site):
    two_packages(site)

    assert refusal("weather") == (
        "--entry-point-tools 'weather': several have that name: 'weather' of climate 1.0, 'weather' of "
        "weather-tools 1.0; name the distribution instead"
    )


def test_the_name_of_a_distribution_tells_them_apart(site):
    two_packages(site)

    assert names("climate") == ["climate.record", "climate.read"]


def test_undo_actions_of_one_name_are_told_with_both_origins(site):
    install(site, "weather-tools", {"weather": "weather_tools:record"}, {"weather_tools": WEATHER})
    other = WEATHER.replace("weather.record", "climate.record")
    install(site, "climate", {"climate": "climate_tools:record"}, {"climate_tools": other})

    assert refusal("all") == (
        "two undo actions are named 'weather.forget': one from 'climate' of climate 1.0, one from "
        "'weather' of weather-tools 1.0; rename one, or leave one out"
    )

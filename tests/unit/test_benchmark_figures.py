"""How the benchmarks' figures are summed up, judged, drawn and written; and what the runner does about topics that fail."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import databases, render, run
from benchmarks.measuring import Findings, Plot, Series, Table, Target, percentile, ratios, summary
from benchmarks.svg import Axis, line_chart, number

SVG = "{http://www.w3.org/2000/svg}"


def findings() -> Findings:
    rates = {1: summary([90, 100, 120]), 64: summary([900, 1000, 1500])}
    return Findings(
        "sample",
        "A <sample> & more",
        "About it.",
        tables=[
            Table("Rates", ("what", "rate", "of the echo"), [["a|b", rates[1], 0.5], ["c", rates[64], None]])
        ],
        plots=[
            Plot("rates", "Rates <of> & all", "callers", "a second", [Series.of("a & b", rates)], log_y=True),
            Plot("flat", "Nothing", "x", "y", [Series.of("zero", {1: summary([0.0])})]),
        ],
        targets=[
            Target("of the echo", summary([0.4, 0.5, 0.9]), 0.5, at_least=True),
            Target("a rewind", summary([6.0]), 5.0, unit="ms"),
        ],
        left_out=["PostgreSQL: it is not there"],
    )


def results(**given: Any) -> dict[str, Any]:
    found = {
        "date": "2026-01-01",
        "machine": {"cpus": 2, "processor": "", "python": "3.11"},
        "budget": {"name": "full", "repetitions": 5, "seconds": 0.25},
        "topics": [json.loads(json.dumps(findings().as_json())) | {"seconds": 3.0}],
        "failed": [],
        "left_out": [],
        "seconds": 60.0,
    }
    return found | given


def test_a_summary_is_median_least_and_greatest():
    assert summary([3, 1, 2]) == {"median": 2, "least": 1, "greatest": 3, "count": 3}
    assert ratios([10, 30], [10, 10])["median"] == 2
    assert percentile([5, 1, 3], 0.5) == 3
    assert percentile([1], 0.99) == 1


def test_a_ratio_needs_a_baseline_of_the_same_rounds():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


@pytest.mark.parametrize(
    ("median", "at_least", "met"),
    [(1, True, True), (0.9, True, False), (1, False, True), (1.1, False, False)],
)
def test_the_median_decides_whether_an_aim_is_met(median: float, at_least: bool, met: bool):
    assert Target("it", summary([0.0, median, 9.0]), 1.0, at_least=at_least).is_met is met


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345.6, "12,346"), (1.0, "1"), (0.04567, "0.0457"), (99.96, "100"), (2.5, "2.5")],
)
def test_numbers_have_three_digits_that_count(value: float, text: str):
    assert number(value) == text


def test_a_plot_is_svg_with_every_point_inside():
    for plot in results()["topics"][0]["plots"]:
        root = ElementTree.fromstring(line_chart(plot))

        width, height = float(root.get("width", "")), float(root.get("height", ""))
        circles = root.findall(f"{SVG}circle")
        assert len(circles) == sum(len(series["points"]) for series in plot["series"])
        assert all(
            0 < float(one.get("cx", "")) < width and 0 < float(one.get("cy", "")) < height for one in circles
        )
        assert plot["title"] in [text.text for text in root.findall(f"{SVG}text")]


def test_higher_is_drawn_higher_and_a_decade_is_as_wide_as_the_next():
    axis = Axis([1, 100], 0.0, 200.0, is_log=True)

    assert (axis.place(1), round(axis.place(10), 6), axis.place(100)) == (0.0, 100.0, 200.0)
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert Axis([3, 9], 100.0, 0.0, is_log=False).place(0) == 100.0


def test_the_page_names_aims_met_and_missed_and_what_was_left_out():
    page = render.page(results(failed=["peers"]))

    assert "| of the echo | **0.5** (0.4 – 0.9) | ≥ 0.5 × | yes |" in page
    assert "| a rewind | **6** | ≤ 5 ms | **no** |" in page
    assert "| a\\|b | **100** (90 – 120) | 0.5 |" in page
    assert "Left out: PostgreSQL: it is not there." in page
    assert "Failed: peers." in page
    assert "rough" not in page
    assert "rough" in render.page(results(budget={"name": "quick", "repetitions": 3, "seconds": 0.1}))


def test_rendering_writes_page_results_and_plots_and_takes_away_old_ones(tmp_path: Path):
    (tmp_path / "gone.svg").write_text("")

    render.render(results(), tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "flat.svg",
        "rates.svg",
        "results.json",
    ]
    assert json.loads((tmp_path / "results.json").read_text()) == results()


def test_the_page_in_the_repository_is_that_of_its_results():
    results = json.loads((render.PAGES / "results.json").read_text(encoding="utf-8"))

    assert (render.PAGES / "README.md").read_text(encoding="utf-8") == render.page(results)
    plots = {plot["name"]: plot for found in results["topics"] for plot in found["plots"]}
    assert sorted(plots) == sorted(path.stem for path in render.PAGES.glob("*.svg"))
    for name, plot in plots.items():
        assert (render.PAGES / f"{name}.svg").read_text(encoding="utf-8") == line_chart(plot)


@pytest.mark.parametrize(
    "path", sorted((run.REPOSITORY / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_every_benchmark_can_be_imported(path: Path):
    assert import_module(f"benchmarks.{path.stem}").__doc__ or path.stem == "__init__"


def test_a_topic_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sample = findings().as_json() | {"seconds": 1.0}
    monkeypatch.setattr(run, "_measure", lambda topic, *_: None if topic == "rewinds" else sample)
    monkeypatch.setattr(databases, "postgresql_server", lambda: contextlib.nullcontext(None))
    monkeypatch.setitem(run.NEEDED, "limits", ("a_module_that_is_not_there",))
    out = tmp_path / "there" / "results.json"
    monkeypatch.setattr("sys.argv", ["run", "--only", "limits", "rewinds", "peers", "--out", str(out)])
    monkeypatch.delitem(run.NEEDED, "peers")

    code = run.main()

    found = json.loads(out.read_text())
    assert code == 1
    assert found["failed"] == ["rewinds"]
    assert [one["topic"] for one in found["topics"]] == ["sample"]
    assert found["left_out"][0].startswith("limits")
    assert found["budget"] == asdict(run.measuring.BUDGETS["full"])
    assert "MISSED a rewind: **6**, aim ≤ 5 ms" in capsys.readouterr().out

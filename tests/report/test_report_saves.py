"""What saves cost, on the page and in report.json, from made-up run directories."""

import json
import re

import numpy as np
from synthetic_quickstart import write_run

from areca.report import build_report

SAVES = {
    "count": 12,
    "seconds_each": 0.314,
    "share": 0.0092,
    "blocked_seconds": 0.6,
    "slowed_seconds": 3.2,
    "last_seconds": 0.52,
    "kind": "blocked: measured; slowed: estimated from 60 steps beside a write against 4000 without",
}


def _page(tmp_path, *entries) -> tuple[str, dict]:
    for i, saves in enumerate(entries):
        path = tmp_path / f"run{i}"
        result = write_run(path, 1e4, 1e5, 5.0, np.random.default_rng(0), steps=40)
        (path / "result.json").write_text(json.dumps(result | ({} if saves is None else {"saves": saves})))
    build_report([tmp_path / f"run{i}" for i in range(len(entries))], tmp_path / "out")
    return (tmp_path / "out" / "report.html").read_text(), json.loads((tmp_path / "out" / "report.json").read_text())


def test_the_page_says_how_many_saves_there_were_and_what_they_took(tmp_path):
    html, summary = _page(tmp_path, SAVES, None, SAVES | {"count": 0, "seconds_each": None, "slowed_seconds": None})
    table = html[html.index("saves on the way") :]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[1:4]]
    assert rows[0] == ["run0", "12", "0.31", "s", "0.9%", "0.60", "s", "3.2", "s", "0.52", "s"]
    assert rows[1][:3] == ["run2", "0", "–"]
    assert [r["saves"] for r in summary["runs"]][:2] == [SAVES, None]


def test_runs_that_recorded_no_saves_get_no_table(tmp_path):
    html, _ = _page(tmp_path, None, "many", {"count": "x"})
    assert "saves on the way" not in html

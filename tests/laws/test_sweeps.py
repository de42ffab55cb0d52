"""A sweep of learning rates in a fit: the best rate of each size and budget, all seeds, and that it is said."""

import json

import pytest

from areca.laws import load
from areca.plan.template import find_template

RATES = (0.5, 1.0, 2.0)


def _loss(size, rate, seed):
    """Best at 1 for the small size, at 2 for the large; seeds scatter less than rates matter."""
    best = 1.0 if size == 0 else 2.0
    return 4.0 - size + 0.1 * abs(RATES.index(rate) - RATES.index(best)) + 0.01 * seed


@pytest.fixture
def ladder(tmp_path):
    """Two sizes, three rates, two seeds, as `areca ladder` leaves them."""
    runs = []
    for size in range(2):
        for seed in range(2):
            for rate in RATES:
                name = f"n{size}-s{seed}-lr{rate:g}"
                labels = {"budget_flops": 1e9, "name": name, "seed": seed, "learning_rate_factor": rate}
                result = {"n_params": 1000 * (size + 1), "n_tokens": 10000, "flops_exact": 1e9, "flops_6nd": 5e8}
                run_dir = tmp_path / "runs" / name
                run_dir.mkdir(parents=True)
                result |= {"loss": _loss(size, rate, seed), "labels": labels}
                (run_dir / "result.json").write_text(json.dumps(result))
                runs.append({"name": name, "budget_flops": 1e9, "path": f"runs/{name}"})
    (tmp_path / "ladder.json").write_text(json.dumps({"budgets_flops": [1e9], "runs": runs}))
    return tmp_path


def test_the_best_rate_of_each_size_and_all_its_seeds_are_taken(ladder):
    rows = load([ladder])
    assert sorted(rows.label) == ["n0-s0-lr1", "n0-s1-lr1", "n1-s0-lr2", "n1-s1-lr2"]
    assert "1 in 1, 2 in 1 of 2; 8 runs at other rates are left out (--rates all takes them)" in rows.notes[0]
    assert rows.notes[1].startswith("in 1 of 2 sizes and budgets the best learning rate is the lowest or the highest")


def test_all_rates_are_taken_when_asked(ladder):
    rows = load([ladder], rates="all")
    assert len(rows) == 12
    assert rows.notes == ()


def test_a_rate_whose_seeds_did_not_all_end_is_not_the_best(ladder):
    (ladder / "runs" / "n1-s1-lr2" / "result.json").unlink()
    rows = load([ladder])
    assert sorted(rows.label) == ["n0-s0-lr1", "n0-s1-lr1", "n1-s0-lr1", "n1-s1-lr1"]
    assert any("1 run has no result yet" in note for note in rows.notes)


def test_seeds_without_a_sweep_are_all_taken(ladder):
    runs = json.loads((ladder / "ladder.json").read_text())
    runs["runs"] = [r for r in runs["runs"] if r["name"].endswith("lr0.5")]
    (ladder / "ladder.json").write_text(json.dumps(runs))
    rows = load([ladder])
    assert len(rows) == 4
    assert rows.notes == ()


def test_a_plan_takes_its_template_from_the_runs_that_were_fitted(ladder, tiny_store):
    from areca.config import to_dict
    from tiny import tiny_config

    for run in (ladder / "runs").iterdir():
        (run / "run.json").write_text(json.dumps({"config": to_dict(tiny_config(tiny_store))}))
    template = find_template([ladder])
    assert template is not None
    assert template.name == "n1-s0-lr2"
    assert len(template.configs) == 4

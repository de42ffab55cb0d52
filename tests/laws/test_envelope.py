import json

import numpy as np
import pytest

from areca.cli.main import main
from areca.errors import DataError, FitError
from areca.laws.fits.curves import Curve, read_curves
from areca.laws.fits.envelope import fit_envelope

E, A, B, ALPHA, BETA = 1.8, 480.0, 2100.0, 0.35, 0.37


def _loss(n, d):
    return E + A / n**ALPHA + B / d**BETA


def _curves(sizes=16, noise=0.0, seed=0, points=600):
    """Runs at a constant rate, so that a loss on the way is that of a run which ends there."""
    generator = np.random.default_rng(seed)
    curves = []
    for k, n in enumerate(np.geomspace(2e7, 2e9, sizes)):
        d = np.geomspace(0.02, 1, points) * 80 * n
        loss = _loss(n, d) * np.exp(noise * generator.standard_normal(points))
        curves.append(Curve(f"r{k}", n, d, 6 * n * d, loss))
    return curves


def test_the_envelope_of_exact_curves_is_the_closed_form_of_the_frontier():
    found = fit_envelope(_curves(), samples=100)
    # Hoffmann et al. 2022, equation 4: a = beta / (alpha + beta), N_opt = G (C / 6)^a.
    assert found.n_exponent == pytest.approx(BETA / (ALPHA + BETA), abs=0.02)
    assert found.d_exponent == pytest.approx(ALPHA / (ALPHA + BETA), abs=0.02)
    assert found.n_exponent + found.d_exponent == pytest.approx(1.0, abs=1e-3)
    c = float(np.sqrt(np.prod(found.flops_range)))
    g = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    n, d = found.best(c)
    assert n == pytest.approx(g * (c / 6) ** (BETA / (ALPHA + BETA)), rel=0.05)
    assert 6 * n * d == pytest.approx(c, rel=0.02)


def test_the_interval_over_runs_holds_the_exponent_and_the_smoothing_takes_the_noise_of_steps():
    held = []
    for seed in range(12):
        found = fit_envelope(_curves(sizes=12, noise=0.02, seed=seed), samples=150, seed=seed)
        low, high = found.n_exponent_interval
        held.append(low <= BETA / (ALPHA + BETA) <= high)
        assert found.n_exponent == pytest.approx(BETA / (ALPHA + BETA), abs=0.08)
    assert np.mean(held) >= 0.85


def test_smoothing_leaves_a_power_law_where_it_is_to_its_ends():
    d = np.geomspace(1e6, 1e8, 400)
    curve = Curve("r", 1e6, d, 6e6 * d, 30 * d**-0.15)
    np.testing.assert_allclose(curve.smoothed(), np.log(curve.loss), atol=1e-9)


def test_a_loss_on_the_way_of_a_decaying_schedule_is_no_finished_runs_and_that_is_said():
    # Up to 2% higher before the end, nothing at the end: runs win as they end, where smaller ones have ended.
    decayed = [
        Curve(c.name, c.n_params, c.n_tokens, c.flops, c.loss * np.exp(0.02 * (1 - c.n_tokens / c.n_tokens[-1])))
        for c in _curves()
    ]
    plain, high = fit_envelope(_curves(), samples=50), fit_envelope(decayed, samples=50)
    c = float(np.sqrt(np.prod(plain.flops_range)))
    assert high.best(c)[0] != pytest.approx(plain.best(c)[0], rel=0.05)
    assert any("schedule that decays" in note for note in high.notes)


def test_too_few_runs_and_runs_that_never_compete_are_said():
    with pytest.raises(FitError, match="at least 4 runs"):
        fit_envelope(_curves(sizes=3))
    apart = [
        Curve(f"r{k}", 10.0**k, d := np.geomspace(1, 2, 20) * 10.0**k, d * 60.0**k, 3 + 0 * d) for k in range(5, 10)
    ]
    with pytest.raises(FitError, match="only 0 of 5 runs have the lowest loss"):
        fit_envelope(apart)


def test_curves_come_from_run_directories_and_tables_alike(tmp_path, capsys):
    lines = ["run,n_params,n_tokens,loss"]
    for curve in _curves(points=200):
        run = tmp_path / "runs" / curve.name
        run.mkdir(parents=True)
        result = {"n_params": curve.n_params, "n_tokens": curve.n_tokens[-1], "flops_exact": curve.flops[-1]}
        (run / "result.json").write_text(json.dumps(result | {"flops_6nd": curve.flops[-1], "loss": curve.loss[-1]}))
        rows = zip(curve.n_tokens, curve.loss, strict=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps({"tokens": d, "loss": x}) + "\n" for d, x in rows))
        lines += [f"{curve.name},{curve.n_params},{d},{x}" for d, x in zip(curve.n_tokens, curve.loss, strict=True)]
    (tmp_path / "curves.csv").write_text("\n".join(lines) + "\n")
    of_runs = fit_envelope(read_curves([tmp_path / "runs"]), samples=50)
    of_table = fit_envelope(read_curves([tmp_path / "curves.csv"]), samples=50)
    assert of_runs.n_exponent == pytest.approx(of_table.n_exponent, abs=1e-6)
    assert main(["fit", "--curves", str(tmp_path / "runs"), "--bootstrap", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_exponent"] == pytest.approx(of_runs.n_exponent)
    assert main(["fit", "--curves", str(tmp_path / "curves.csv"), "--bootstrap", "50"]) == 0
    printed = capsys.readouterr().out
    assert "N_opt ~ C^" in printed
    assert "schedule that decays" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_params,n_tokens,loss\n1e6,1e6,3\n", "has no column run"),
        ("run,n_params,loss\na,1e6,3\n", "has no column 'n_tokens'"),
        ("run,n_params,n_tokens,loss\n" + "".join(f"a,1e6,{k}e6,{3 - k}\n" for k in range(1, 10)), "loss is 0.0"),
        ("run,n_params,n_tokens,loss\n" + "".join(f"a,{k}e6,{k}e6,3\n" for k in range(1, 10)), "is not one positive"),
        ("run,n_params,n_tokens,loss\na,1e6,1e6,3\n", "has 1 points"),
        ("run,n_params,n_tokens,loss\n" + "a,1e6,1e6,3\n" * 10, "do not rise"),
    ],
)
def test_bad_tables_of_curves_get_one_sentence(tmp_path, capsys, text, said):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        read_curves([tmp_path / "c.csv"])
    assert main(["fit", "--curves", str(tmp_path / "c.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1

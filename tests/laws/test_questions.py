"""Suspicious tables are questioned or refused, and sound ones are not.

Each case is made from sound runs by one slip, so what must be found is known.
"""

import numpy as np
import pytest

from areca.errors import DataError
from areca.laws import LawReport, fit_laws, load, load_columns

PF_DAY = 1e15 * 86_400
N = np.repeat([1e7, 3e7, 1e8, 3e8, 1e9], 4)
D = np.tile([5e8, 2e9, 8e9, 3.2e10], 5)
C = 6 * N * D
L = 1.69 + 406.4 / N**0.34 + 410.7 / D**0.28


def _table(tmp_path, columns, name="runs.csv"):
    rows = zip(*(map(str, column) for column in columns.values()), strict=True)
    path = tmp_path / name
    path.write_text("\n".join([",".join(columns), *map(",".join, rows)]) + "\n")
    return path


def _load(tmp_path, n=N, d=D, c=C, l=L, **options):
    columns = {"n_params": n, "n_tokens": d, "flops": c, "loss": l}
    return load([_table(tmp_path, {k: v for k, v in columns.items() if v is not None})], **options)


def _refused(tmp_path, *words, **slip):
    with pytest.raises(DataError) as error:
        _load(tmp_path, **slip)
    for word in words:
        assert word in str(error.value)


def test_a_sound_table_is_not_questioned(tmp_path):
    assert _load(tmp_path).notes == ()
    assert _load(tmp_path, c=None).notes == ("runs.csv has no FLOPs; C = 6 N D is used.",)
    assert len(_load(tmp_path, d=None).notes) == 1
    assert len(_load(tmp_path, n=None).notes) == 1


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ({"c": C / PF_DAY}, "--unit flops=pf-days or --unit flops=flops"),
        ({"c": C / 1e21}, "--unit flops=zflops"),
        ({"c": C / 1e18}, "--unit flops=eflops"),
        ({"d": D / 1024}, "--unit n_tokens=sequences:1024 or --unit n_tokens=tokens"),
        ({"d": D / 8192}, "--unit n_tokens=sequences:8192"),
        ({"d": D / 500_000}, "--unit n_tokens=steps:500000"),
        ({"d": D / 1e9}, "--unit n_tokens=B"),
        ({"d": D / 1e6}, "--unit n_tokens=M"),
        ({"n": N / 1e6}, "--unit n_params=M"),
        ({"n": N / 1e9}, "--unit n_params=B"),
    ],
)
def test_a_slip_of_units_is_named_with_the_option_that_mends_it(tmp_path, slip, said):
    _refused(tmp_path, said, **slip)
    # The option that the message gives mends it, and the other one silences it.
    ((name, values),) = slip.items()
    quantity = {"n": "n_params", "d": "n_tokens", "c": "flops"}[name]
    unit = said.split(f"--unit {quantity}=")[1].split()[0]
    mended = _load(tmp_path, **slip, units={quantity: unit})
    np.testing.assert_allclose(mended.column(quantity), {"n": N, "d": D, "c": C}[name], rtol=1e-12)
    plain = {"n": "params", "d": "tokens", "c": "flops"}[name]
    np.testing.assert_array_equal(_load(tmp_path, **slip, units={quantity: plain}).column(quantity), values)


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ({"c": None, "n": N / 1e6}, "--unit n_params=M"),
        ({"c": None, "n": N / 1e9}, "--unit n_params=B"),
        ({"c": None, "n": N / 1e9, "d": D / 1e9}, "--unit n_params=B"),
        ({"c": None, "d": D / 1e9}, "--unit n_tokens=B"),
        ({"d": None, "c": C / PF_DAY}, "--unit flops=pf-days"),
    ],
)
def test_slips_are_seen_without_all_of_n_d_and_c(tmp_path, slip, said):
    _refused(tmp_path, said, **slip)


def test_two_slips_are_named_one_after_the_other(tmp_path):
    slips = {"n": N / 1e6, "d": D / 1e9}
    _refused(tmp_path, "--unit n_tokens=B", **slips)
    _refused(tmp_path, "--unit n_params=M", **slips, units={"n_tokens": "B"})
    o = _load(tmp_path, **slips, units={"n_tokens": "B", "n_params": "M"})
    np.testing.assert_allclose(o.n_params * o.n_tokens, N * D, rtol=1e-12)


def test_columns_of_other_forms_are_asked_for_their_units(tmp_path):
    path = _table(tmp_path, {"n_tokens": D[:4] / 1e9, "loss": L[:4]})
    with pytest.raises(DataError, match=r"D is at most 32 in .*--unit n_tokens=B"):
        load_columns([path], ["n_tokens", "loss"], {})
    path = _table(tmp_path, {"compute": C[:4] / PF_DAY, "score": L[:4] / 8})
    with pytest.raises(DataError, match="as if 'compute' were in pf-days"):
        load_columns([path], ["flops", "score"], {})
    c = load_columns([path], ["flops", "score"], {}, units={"flops": "pf-days"})
    np.testing.assert_allclose(c.values["flops"], C[:4], rtol=1e-12)


def test_mixed_units_in_a_column_are_refused_with_a_row_of_each_kind(tmp_path):
    d = D.copy()
    d[[3, 7]] /= 1e9
    _refused(tmp_path, "mixes units", "runs.csv line 5 (and like it in 2 of 20 rows)", "runs.csv line 2", d=d)
    c = C.copy()
    c[0] /= PF_DAY
    _refused(tmp_path, "mixes units", "line 2 (and like it in 1 of 20", c=c)
    _refused(tmp_path, "mixes units in column 'flops'", "line 2 and", "--unit flops=flops", c=c, d=None)
    n = N.copy()
    n[4] = 0.03
    _refused(tmp_path, "mixes units in column 'n_params': 0.03 in", "line 6", c=None, n=n)


def test_embeddings_counted_in_n_are_asked_about(tmp_path):
    embeddings = 50_000 * 9.3 * N ** (1 / 3)  # V times a width that grows as the cube root of N
    (note,) = _load(tmp_path, n=N + embeddings).notes
    assert "does N count embeddings" in note
    assert f"{embeddings.min():.2g} to {embeddings.max():.2g}" in note
    exact = _load(tmp_path, c=6 * (N + embeddings) * D)
    (note,) = exact.notes
    assert "as exact FLOPs do" in note
    # They are compared as that: not by a median of C / N D, which no small run has.
    assert exact.columns["flops"] == "flops (exact FLOPs)"
    assert exact.flops_counts == "exact"
    assert exact.flops_of(1e8, 1e9, exact=7e17) == 7e17
    # Neither noise of a few percent nor a constant factor is a drift.
    wobble = np.exp(np.random.default_rng(0).normal(0, 0.02, len(N)))
    assert _load(tmp_path, c=C * wobble).notes == ()
    assert _load(tmp_path, c=C * 1.3).notes == ()


def test_the_forward_pass_alone_is_asked_about(tmp_path):
    (note,) = _load(tmp_path, c=2 * N * D).notes
    assert "a third of 6 N D" in note


def test_losses_in_other_units(tmp_path):
    ppl = np.exp(L)
    _refused(tmp_path, "--unit loss=perplexity", l=ppl)
    np.testing.assert_allclose(_load(tmp_path, l=ppl, units={"loss": "perplexity"}).loss, L, rtol=1e-12)
    mixed = L.copy()
    mixed[6] = np.exp(L[6])
    _refused(tmp_path, "runs.csv line 8", f"{mixed[6]:.4g}", "ln V", l=mixed)
    (note,) = _load(tmp_path, l=L / 8).notes
    assert "lie below 1" in note
    accuracy = 0.9 - 0.1 * (L - L.min()) / np.ptp(L)
    _refused(tmp_path, "'loss'", "rises with N and with D", l=accuracy)
    assert _load(tmp_path, l=accuracy, units={"loss": "nats"}).notes == ()


def test_exact_repeats_are_named_kept_dropped_or_refused(tmp_path):
    again = [np.append(values, values[3]) for values in (N, D, C, L)]
    one = dict(zip("ndcl", again, strict=True))
    o = _load(tmp_path, **one)
    (note,) = o.notes
    assert "1 of 21 rows repeat others in N, D and loss, as" in note
    assert "line 22 does" in note
    assert "line 5" in note
    assert len(o) == 21
    assert len(_load(tmp_path, **one, duplicates="drop")) == 20
    assert _load(tmp_path, **one, duplicates="keep").notes == ()
    with pytest.raises(DataError, match="--duplicates drop, or keep"):
        _load(tmp_path, **one, duplicates="refuse")
    twice = {name: np.concatenate([v, v]) for name, v in zip("ndcl", (N, D, C, L), strict=True)}
    with pytest.raises(DataError, match="20 of 40 rows repeat others"):
        _load(tmp_path, **twice)
    # The same loss from another seed is a repeat, not a duplicate: losses are rounded in many tables.
    seeds = {"n_params": twice["n"], "n_tokens": twice["d"], "loss": twice["l"], "seed": np.repeat([0, 1], 20)}
    assert len(load([_table(tmp_path, seeds)])) == 40


def test_seeds_and_kinds_of_runs_at_the_same_n_and_d_are_said(tmp_path):
    columns = {"n_params": np.tile(N, 2), "n_tokens": np.tile(D, 2), "loss": np.concatenate([L, L * 1.003])}
    assert (
        "40 rows of runs.csv have the same N and D as others and another loss, as"
        in load([_table(tmp_path, columns)]).notes[-1]
    )
    assert "taken as repeats of a run (seeds)" in load([_table(tmp_path, columns)]).notes[-1]
    columns["corpus"] = np.repeat(["c4", "pile"], 20)
    path = _table(tmp_path, columns)
    assert "differ in 'corpus'" in load([path]).notes[-1]
    assert load([path], where=["corpus=pile"]).notes[0] == "20 of 40 rows of runs.csv are taken: corpus=pile."
    # Runs that saw different amounts of unique data are no repeats.
    columns = {k: v for k, v in columns.items() if k != "corpus"} | {"unique_tokens": np.repeat([1e8, 1e9], 20)}
    assert not any("another loss" in note for note in load([_table(tmp_path, columns)]).notes)


def test_points_along_training_curves_are_asked_about(tmp_path):
    d = np.concatenate([np.linspace(1e8, 4e9, 40)] * 3)
    n = np.repeat([1e7, 3e7, 1e8], 40)
    loss = 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28
    (_, note) = load([_table(tmp_path, {"n_params": n, "n_tokens": d, "loss": loss})]).notes
    assert "looks like training curves (40 rows from" in note
    keep = np.arange(120) % 8 == 0  # few points, uneven, but of named runs
    columns = {"run_id": np.repeat(["a", "b", "c"], 40), "n_params": n, "n_tokens": d**1.1, "loss": loss}
    (_, note) = load([_table(tmp_path, {k: v[keep] for k, v in columns.items()})]).notes
    assert "have the same 'run_id'" in note


def test_designs_that_people_use_are_not_questioned(tmp_path):
    rng = np.random.default_rng(1)
    designs = {
        "a laptop's ladder": (np.tile(np.geomspace(4e3, 2e5, 5), 3), np.repeat([3e11, 9e11, 2.7e12], 5)),
        "isoFLOP of Chinchilla": (np.tile(np.geomspace(7e7, 1e10, 9), 9), np.repeat(np.geomspace(6e18, 3e21, 9), 9)),
        "one size, large": (np.full(6, 7e9), np.geomspace(1e21, 1e23, 6)),
        "over-trained": (np.tile([1.5e9, 7e9, 7e10], 3), np.repeat([1e23, 1e24, 1e25], 3)),
    }
    for name, (n, c) in designs.items():
        d = c / (6 * n)
        law = 1.9 + 95 / n**0.4 + 1400 / d**0.46 if n.max() < 1e6 else 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28
        loss = law * np.exp(rng.normal(0, 0.005, len(n)))
        assert _load(tmp_path, n=n, d=d, c=c, l=loss).notes == (), name
        assert len(_load(tmp_path, n=n, d=d, c=None, l=loss).notes) == 1, name
        assert len(_load(tmp_path, n=n, d=None, c=c, l=loss).notes) == 1, name


def test_columns_of_other_forms_are_checked_for_repeats(tmp_path):
    path = _table(tmp_path, {"flops": [1e18, 1e19, 1e18], "score": [0.2, 0.4, 0.2]})
    with pytest.raises(DataError, match="1 of 3 rows repeat others in score, flops"):
        load_columns([path], ["score", "flops"], {})
    assert len(load_columns([path], ["score", "flops"], {}, duplicates="drop")) == 2


def test_runs_of_other_sizes_with_the_same_compute_and_score_are_no_duplicates(tmp_path):
    # 20 runs on a grid where C = 6 N D repeats across (N, D), with a score that depends on C alone.
    n = np.repeat([1e7, 4e7, 1.6e8, 6.4e8, 2.56e9], 4)
    score = np.round(0.25 + 0.6 / (1 + (1e19 / (n * D)) ** 0.5), 2)
    columns = {"n_params": n, "n_tokens": D, "score": score}
    assert len(set(zip(n * D, score, strict=True))) == 8
    one = load_columns([_table(tmp_path, columns)], ["flops", "score"], {}, duplicates="refuse")
    assert len(one) == 20
    assert not any("repeat others" in note for note in one.notes)
    with pytest.raises(DataError, match="repeat others in n_tokens, loss"):  # no more is known of these rows
        load_columns([_table(tmp_path, {"n_tokens": D, "loss": np.round(L[0] / D**0.05, 2)})], ["n_tokens", "loss"], {})
    of_one = load_columns(
        [_table(tmp_path, {"n_params": n, "n_tokens": D, "loss": np.round(L[0] / D**0.05, 2)})],
        ["n_tokens", "loss"], {}, duplicates="refuse",
    )  # fmt: skip
    assert len(of_one) == 20
    # A row that is pasted is one, whatever the form asks for; the second seed of a run is not.
    again = {k: np.append(v, v[3]) for k, v in columns.items()}
    note = load_columns([_table(tmp_path, again)], ["flops", "score"], {}).notes[-1]
    assert "1 of 21 rows repeat others in flops, score, n_params, n_tokens" in note
    seeds = again | {"seed": np.append(np.zeros(20), 1)}
    assert len(load_columns([_table(tmp_path, seeds)], ["flops", "score"], {}, duplicates="refuse")) == 21
    groups = again | {"task": [*["a"] * 20, "b"]}
    path = _table(tmp_path, groups)
    assert len(load_columns([path], ["flops", "score"], {}, group="task", duplicates="refuse")) == 21


FACTORS = (1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.01, 0.1, 10, 20, 64, 128, 1000, 1e6, 1e9, 1e12)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_cost_that_no_run_has_is_asked_about_and_an_answer_is_taken_with_a_warning(tmp_path, factor):
    _refused(tmp_path, f"C is {factor:.4g} times 6 N D", "--unit flops=flops" if factor < 1 else "--unit", c=factor * C)
    o = _load(tmp_path, c=factor * C, units={"flops": "flops"})
    np.testing.assert_allclose(o.flops, factor * C, rtol=1e-12)
    (warning,) = o.warnings
    assert warning.startswith(f"C is {factor:.4g} times 6 N D in runs.csv, which no training run costs; it is taken")
    assert "(--unit flops=flops)" in warning


@pytest.mark.parametrize(
    ("slip", "units"),
    [
        ({"c": C / 1e3}, "flops=kflops"),
        ({"c": C / 1e6}, "flops=mflops"),
        ({"c": C / 1e9}, "flops=gflops"),
        ({"d": D / 64}, "n_tokens=sequences:64"),
        ({"d": D / 1000}, "n_tokens=sequences:1000"),
        ({"d": D / 1000}, "n_tokens=K"),
        ({"n": N / 1000}, "n_params=K"),
    ],
)
def test_every_unit_that_would_make_c_come_to_6_n_d_is_offered(tmp_path, slip, units):
    _refused(tmp_path, f"--unit {units}", **slip)


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e-9, "flops=gflops"), (1e-3, "flops=kflops"), (1000, "n_tokens=K"), (1024, "sequences:1024")]
)
def test_exact_flops_in_another_unit_are_no_exact_flops_of_large_embeddings(tmp_path, factor, unit):
    exact = 6 * (N + 50_000 * 9.3 * N ** (1 / 3)) * D
    _refused(tmp_path, unit, c=factor * exact)


def test_small_counts_are_asked_in_the_unit_that_c_tells(tmp_path):
    n = np.repeat([4e3, 2e4, 6e4, 1e5, 1.89e5], 4)
    small = {"n": n / 1e6, "c": 6 * n * D}
    _refused(tmp_path, "'n_params' were in M; say which it is, --unit n_params=M or --unit n_params=params", **small)
    np.testing.assert_allclose(_load(tmp_path, **small, units={"n_params": "M"}).n_params, n, rtol=1e-12)
    # Exact FLOPs of so small models are several times 6 N D and tell it all the same.
    _refused(tmp_path, "--unit n_params=M", n=n / 1e6, c=6 * (n + 300 * n ** (1 / 2.2)) * D)
    # Without C both are offered.
    _refused(tmp_path, "--unit n_params=B, --unit n_params=M or --unit n_params=params", n=n / 1e6, c=None)


def test_a_unit_in_a_name_that_is_wrong_is_asked_about(tmp_path):
    path = _table(tmp_path, {"n_params": N, "tokens (M)": D / 1e9, "flops": C, "loss": L})
    with pytest.raises(DataError, match=r"C is 1000 times 6 N D .* --unit n_tokens=B,? "):
        load([path])
    np.testing.assert_allclose(load([path], units={"n_tokens": "B"}).n_tokens, D, rtol=1e-12)


def test_a_column_that_is_not_flops_is_asked_about(tmp_path):
    path = _table(tmp_path, {"n_params": N, "tokens": D, "loss": L})
    with pytest.raises(
        DataError, match=r"C / 6 N is at most 533 tokens in .*'tokens', taken for C, is by its name D; say --n-tokens"
    ):
        load([path], flops="tokens")
    path = _table(tmp_path, {"params": N, "tokens": D, "loss": L})
    with pytest.raises(DataError, match="'params', taken for C, is by its name N; say --n-params COLUMN"):
        load([path], flops="params", n_tokens="tokens")
    path = _table(tmp_path, {"n_params": N, "x": D, "loss": L})
    with pytest.raises(
        DataError, match=r"C / 6 N is at most 533 tokens in .* --unit flops=pf-days or --unit flops=flops"
    ):
        load([path], flops="x")


def test_repeated_data_taken_for_new_is_warned_of(tmp_path):
    columns = {"n_params": N, "n_tokens": D, "unique_tokens": np.full(len(N), 1e9), "loss": L}
    (warning,) = load([_table(tmp_path, columns)]).warnings  # D of 0.5, 2, 8 and 32e9
    assert warning.startswith("15 of 20 rows of runs.csv repeat their unique tokens, 10 of them more than 4 times (up")
    assert "fit --form data-constrained" in warning
    assert load([_table(tmp_path, columns | {"unique_tokens": D})]).warnings == ()
    form = load_columns([_table(tmp_path, columns)], ["n_params", "n_tokens", "unique_tokens", "loss"], {})
    assert not any("repeat" in note for note in form.notes)
    rng = np.random.default_rng(0)
    columns["loss"] = L * np.exp(rng.normal(0, 1e-3, len(L)))
    report = fit_laws(load([_table(tmp_path, columns)]), samples=20, deep=False)
    assert warning in report.warnings
    assert warning in LawReport.from_dict(report.to_dict(), "law.json").warnings

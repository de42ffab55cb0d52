"""A form of one's own that can't be used: every message says what was looked for and what to do."""

import numpy as np
import pytest

from areca.errors import ConfigError, FitError
from areca.laws import Form, exponent, fit, positive, scale
from areca.laws.forms.catalog import find_form

HEAD = "from areca.laws import Form, exponent, positive, scale\n"
MADE = (
    'Form(name="mine", equation="L(D) = E + (D_c / D)^a", inputs=("n_tokens",), parameters=(positive("E", "nats"), '
    'scale("D_c", "tokens", of="n_tokens", exponent="a"), exponent("a")), '
    "predict=lambda p, x: p.E + (p.D_c / x.n_tokens) ** p.a)\n"
)
PARAMETERS = (positive("E"), scale("D_c", "tokens", of="n_tokens", exponent="a"), exponent("a"))
D = np.geomspace(1e8, 5e10, 10)
ROWS = {"n_tokens": D, "loss": 2.1 + (3e8 / D) ** 0.4}


def _write(tmp_path, text, monkeypatch):
    (tmp_path / "my.py").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("where", ["my.py", "my.py:", "my.py:LAW"])
def test_a_form_is_found_by_its_file_and_name(tmp_path, monkeypatch, where):
    _write(tmp_path, f"{HEAD}LAW = {MADE}SAME = LAW\n", monkeypatch)
    assert find_form(where).name == "mine"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        (HEAD, "other.py:LAW", ["--form other.py:LAW", "there is no file other.py", "as FILE.py:NAME"]),
        ("x = 1\n", "my.py:LAW", ["my.py makes no Form", "LAW = Form(...)", "areca.laws", "say --form my.py:LAW"]),
        ("x = 1\n", "my.py", ["my.py makes no Form", "NAME = Form(...)"]),
        (f"{HEAD}A = {MADE}B = {MADE}", "my.py", ["my.py makes 2 Forms", "--form my.py:A or --form my.py:B"]),
        (f"{HEAD}A = {MADE}", "my.py:Aa", ["my.py makes no Form 'Aa' (did you mean 'A'?)", "say --form my.py:A"]),
        (f"{HEAD}A = {MADE}K = 3\n", "my.py:K", ["K in my.py is of the type int and no Form", "say --form my.py:A"]),
        ("\nimport not_there\n", "my.py", ["my.py stops in line 2 with ModuleNotFoundError", "not_there", "mend it"]),
        ("def f(:\n", "my.py", ["my.py stops in line 1 with SyntaxError"]),
        ("raise SystemExit(3)\n", "my.py", ["my.py stops in line 1 with SystemExit (3)"]),
        (f"{HEAD}A = Form(name='x')\n", "my.py", ["my.py stops in line 2 with TypeError", "'inputs'"]),
        (f"{HEAD}A = {MADE.replace('D_c', 'E', 1)}".replace('"D_c"', '"E"'), "my.py", ["parameter 'E' twice"]),
        (HEAD + "A = " + MADE.replace('("n_tokens",)', '"n_tokens"'), "my.py", ["mine has inputs = 'n_tokens'"]),
        (HEAD + "A = " + MADE.replace('of="n_tokens"', 'of="n_params"'), "my.py", ["D_c is of 'n_params'", "n_tokens"]),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, monkeypatch, text, where, words):
    _write(tmp_path, text, monkeypatch)
    with pytest.raises(ConfigError) as error:
        find_form(where)
    said = str(error.value)
    assert "\n" not in said
    for word in words:
        assert word in said


def test_a_name_without_a_file_says_how_a_form_of_ones_own_is_named():
    with pytest.raises(ConfigError, match=r"there is no law 'my:LAW'.*or a Form of your own as FILE.py:NAME"):
        find_form("my:LAW")


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        (lambda p, x: p.F + x.n_tokens, ["asks for 'F'", "its parameters are E, D_c, a, its inputs n_tokens"]),
        (lambda p, x: p.E + x.tokens, ["asks for 'tokens'", "its inputs n_tokens"]),
        (lambda p, x: p.E, ["gives one number for 3 rows", "x.n_tokens"]),
        (lambda p, x: 2.0, ["gives one number for 3 rows"]),
        (lambda p, x: None, ["gives nothing for 3 rows"]),
        (lambda p, x: x.n_tokens[:, None] + p.E, ["gives an array of shape (3, 1) for 3 rows"]),
        (lambda p, x: x.n_tokens[:2] ** -p.a, ["gives an array of shape (2,) for 3 rows"]),
        (lambda p, x: p.E if p.E > 1 else x.n_tokens, ["can't be evaluated", "without if, math or numpy"]),
        (lambda p, x: np.exp(np.asarray(x.n_tokens)), ["can't be evaluated", "jax.numpy"]),
        (lambda p, x: 1 / 0, ["can't be evaluated (ZeroDivisionError: division by zero)"]),
    ],
)
def test_an_equation_that_gives_no_number_for_each_row_is_said(predict, words):
    form = Form("mine", "L(D) = ...", ("n_tokens",), PARAMETERS, predict)
    with pytest.raises(ConfigError) as error:
        fit(form, ROWS)
    said = str(error.value)
    assert "\n" not in said
    for word in ["predict of mine", *words]:
        assert word in said


def test_an_equation_that_is_no_number_says_where(tmp_path):
    form = Form("mine", "L(D) = -E", ("n_tokens",), PARAMETERS[:1], lambda p, x: -p.E * x.n_tokens**0)
    with pytest.raises(FitError, match=r"equation of mine gives -0.1, whose logarithm .* row 1 \(n_tokens = 1e\+08\)"):
        fit(form, ROWS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": ()}, "mine has inputs = "),
        ({"parameters": positive("E")}, "mine has parameters = "),
        ({"parameters": (*PARAMETERS, positive("E"))}, "names the parameter 'E' twice"),
        ({"constants": {"E": 1.0}}, "names the parameter 'E' twice"),
        ({"response": "n_tokens"}, "as its response and as an input"),
        ({"compare": "sqrt"}, "'log' or 'linear'"),
        ({"predict": 3}, "give a function of parameters and inputs"),
    ],
)
def test_a_form_made_of_the_wrong_things_is_refused(changes, said):
    parts = {"name": "mine", "equation": "L(D) = E", "inputs": ("n_tokens",), "parameters": PARAMETERS,
             "predict": lambda p, x: p.E + x.n_tokens * 0}  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        Form(**parts | changes)

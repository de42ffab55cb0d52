"""Counts by arithmetic: closed forms, the parameters that a decoder really has, and what `areca count` says."""

import dataclasses
import json
import math

import pytest

from areca.cli.main import main
from areca.errors import ConfigError, DataError
from areca.model.config import PRESETS, ModelConfig
from areca.model.counts import (
    attention_flops_per_token,
    count_params,
    exact_flops_per_token,
    hardware_flops_per_token,
    hardware_flops_utilisation,
    model_flops_utilisation,
    recomputed_flops_per_token,
    six_nd,
    utilisation,
)
from areca.model.summary import load_shape, peak_of, summarise

TINY = ModelConfig(vocab_size=11, d_model=6, n_layers=2, n_heads=3, head_dim=4, d_ff=5)


def test_parameters_by_hand():
    # A layer: Q and O 2 x 6 x 12, K and V 2 x 6 x 4, gate, up and down 3 x 6 x 5, a norm of 6.
    n = count_params(TINY)
    assert dataclasses.astuple(n) == (66, 2 * (144 + 48), 2 * 90, 18, 0)
    assert n.non_embedding == 384 + 180 + 18
    assert n.total == n.non_embedding + 66


def test_parameters_of_gpt2s_choices_by_hand():
    # GPT-2's choices: K and V 2 x 6 x 12, up and down 2 x 6 x 5, two norms, an output and 8 positions; a layer's biases
    # 3 x 12 + 5 + 2 x 6 and those of its norms 2 x 6, the last norm's 6.
    gpt2 = dataclasses.replace(
        TINY, block="serial", n_kv_heads=3, mlp="gelu", tied=False, positions="learned", n_positions=8, biases=True
    )
    n = count_params(gpt2)
    assert dataclasses.astuple(n) == (2 * 66 + 48, 2 * (144 + 144), 2 * 60, 30, 2 * (36 + 5 + 12 + 12) + 6)
    assert exact_flops_per_token(gpt2, 7) == 6 * (66 + 576 + 120) + 12 * 2 * 12 * 7


def test_flops_by_hand():
    # Six a weight in a matrix product; the output logits are one, the norms are none.
    assert attention_flops_per_token(TINY, 7) == 12 * 2 * 3 * 4 * 7
    assert exact_flops_per_token(TINY, 7) == 6 * (66 + 384 + 180) + 12 * 2 * 3 * 4 * 7
    assert six_nd(TINY, 10) == 6 * 582 * 10


def test_flops_of_the_forward_pass_are_those_of_its_matrix_products():
    # Counted product by product, 2 m k n each, for one sequence of T tokens; training is three times forward.
    c, T = TINY, 7
    products = []
    for _ in range(c.n_layers):
        products += [(T, c.d_model, c.n_heads * c.head_dim), (T, c.d_model, c.head_dim), (T, c.d_model, c.head_dim)]
        products += [(T, c.head_dim, T), (T, T, c.head_dim)] * c.n_heads
        products += [(T, c.n_heads * c.head_dim, c.d_model)]
        products += [(T, c.d_model, c.d_ff), (T, c.d_model, c.d_ff), (T, c.d_ff, c.d_model)]
    products += [(T, c.d_model, c.vocab_size)]
    forward = sum(2 * m * k * n for m, k, n in products)
    assert exact_flops_per_token(c, T) * T == 3 * forward


def test_the_decoder_has_as_many_parameters_as_counted():
    import jax

    decoder = pytest.importorskip("areca.model.decoder")
    for config in (TINY, ModelConfig(vocab_size=32, d_model=8, n_layers=3, n_heads=2)):
        shapes = jax.eval_shape(lambda key, c=config: decoder.init(c, key), jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count_params(config).total


def test_mfu_is_a_fraction_of_the_peak_of_all_chips():
    assert utilisation(6e9, tokens_per_second=1e5, chips=4, peak_flops_per_chip=3e14) == pytest.approx(0.5)
    for bad in (
        {"tokens_per_second": 0.0, "chips": 1, "peak_flops_per_chip": 1e12},
        {"tokens_per_second": 1.0, "chips": 0, "peak_flops_per_chip": 1e12},
        {"tokens_per_second": 1.0, "chips": 1, "peak_flops_per_chip": -1.0},
    ):
        with pytest.raises(ConfigError, match="MFU needs positive"):
            model_flops_utilisation(TINY, context=7, **bad)


def test_hfu_is_mfu_without_rematerialization_and_more_with_it():
    given = {"context": 7, "tokens_per_second": 1e5, "chips": 2, "peak_flops_per_chip": 1e12}
    mfu = model_flops_utilisation(TINY, **given)
    assert hardware_flops_utilisation(TINY, **given) == mfu
    # By hand: 2 L D (H K + 2 K + 2 F) and 4 L H K T more, against 6 x 648 + 12 L H K T.
    again = 2 * 2 * 6 * (12 + 8 + 10) + 4 * 2 * 3 * 4 * 7
    assert hardware_flops_per_token(TINY, 7, "block") == 6 * 648 + 12 * 2 * 3 * 4 * 7 + again
    assert hardware_flops_per_token(TINY, 7, "selective") == hardware_flops_per_token(TINY, 7)
    hfu = hardware_flops_utilisation(TINY, **given, remat="block")
    assert hfu / mfu == pytest.approx(1 + again / (6 * 648 + 12 * 2 * 3 * 4 * 7))
    with pytest.raises(ConfigError, match="remat is 'all'; FLOPs are known for 'none', 'selective', 'block'"):
        hardware_flops_per_token(TINY, 7, "all")


@pytest.mark.parametrize("changes", [{}, {"block": "serial", "mlp": "gelu", "n_kv_heads": 3}])
def test_a_rematerialized_block_multiplies_again_what_is_counted(changes):
    # The matrix products in the gradient of one block with jax.checkpoint, less those without it.
    import jax
    import jax.numpy as jnp
    from jax.extend.core import jaxprs_in_params

    from areca.model import decoder

    c, T = ModelConfig(vocab_size=32, d_model=8, n_layers=1, n_heads=3, head_dim=4, d_ff=10, **changes).resolved(), 16
    p = jax.tree.map(lambda a: a[0], decoder.init(c, jax.random.key(0)).layers)

    def block(p, x):
        return decoder.block(c, p, x, decoder.angles_at(c, T))

    def products(jaxpr) -> int:
        found = 0
        for e in jaxpr.eqns:
            if e.primitive.name == "dot_general":
                contracted = e.params["dimension_numbers"][0][0]
                k = math.prod(e.invars[0].aval.shape[i] for i in contracted)
                found += 2 * k * e.outvars[0].aval.size
            for inner in jaxprs_in_params(e.params):
                found += products(inner)
        return found

    def flops(f) -> int:
        gradient = jax.grad(lambda p, x: jnp.sum(jnp.sin(f(p, x))), argnums=(0, 1))
        return products(jax.make_jaxpr(gradient)(p, jnp.ones((1, T, 8))).jaxpr)

    assert flops(jax.checkpoint(block)) - flops(block) == T * recomputed_flops_per_token(c, T, "block")


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"positions": "learned", "n_positions": 64}])
def test_rows_that_are_looked_up_are_no_work_of_the_hardware(changes):
    # Without rematerialization all that is left beside the products are PaLM's 6 for each number of a norm.
    shape = dataclasses.replace(TINY, **changes)
    assert hardware_flops_per_token(shape, 7) == exact_flops_per_token(shape, 7) + 6 * count_params(shape).norms
    given = {"context": 7, "tokens_per_second": 10.0, "chips": 1, "peak_flops_per_chip": 1e6}
    assert model_flops_utilisation(shape, **given) == pytest.approx(hardware_flops_per_token(shape, 7) * 10 / 1e6)


def test_a_shape_is_a_preset_a_file_or_widths(tmp_path):
    widths = {"vocab_size": 11, "d_model": 6, "n_layers": 2, "n_heads": 3, "head_dim": 4, "d_ff": 5}
    by_widths = load_shape("", context=7, **widths)
    assert by_widths.config == TINY
    model = tmp_path / "model.json"
    model.write_text(json.dumps(widths))
    assert load_shape(str(model), context=7).config == TINY
    run = tmp_path / "run.json"
    run.write_text(
        json.dumps({"config": {"model": widths, "data": {"store": "s", "context": 64}, "tokens": 5}, "fingerprint": ""})
    )
    assert load_shape(str(run)).context == 64
    assert load_shape(str(run), context=32).context == 32
    assert load_shape("palm-8b", vocab_size=128).config.vocab_size == 128
    assert load_shape("palm-8b").config == PRESETS["palm-8b"].resolved()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"model": "palm-8x"}, ConfigError, r"no model 'palm-8x' \(did you mean 'palm-8b'\?\)"),
        ({"model": "absent.json"}, DataError, "absent.json does not exist"),
        ({"model": "", "d_model": 8, "n_heads": 2}, ConfigError, "a shape needs --vocab-size and --n-layers too"),
        ({"model": "palm-8b", "d_model": 4097, "n_heads": 16}, None, ""),
        (
            {"model": "", "vocab_size": 8, "d_model": 10, "n_layers": 1, "n_heads": 4},
            ConfigError,
            "d_model 10 is not div",
        ),
        ({"model": "palm-8b", "n_layers": -1}, ConfigError, "--n-layers is -1"),
        ({"model": "palm-8b", "context": -1}, ConfigError, "--context is -1"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(arguments, error, says):
    if error is None:  # a given head width needs no divisor of D: PaLM 540B has none
        assert load_shape(**arguments).config.head_dim == 256
        return
    with pytest.raises(error, match=says):
        load_shape(**arguments)


def test_a_file_that_is_no_configuration_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"d_modl": 8}')
    with pytest.raises(ConfigError, match=r"d_modl is not a setting \(did you mean 'd_model'\?\)"):
        load_shape(str(path))
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="must be a table of settings"):
        load_shape(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="is not text in UTF-8, so it is not JSON"):
        load_shape(str(path))


def test_exact_and_six_nd_are_both_named():
    shape = load_shape("", context=7, vocab_size=11, d_model=6, n_layers=2, n_heads=3, head_dim=4, d_ff=5)
    r = summarise(shape, tokens=10)
    assert (r["n_params"], r["n_params_total"]) == (582, 648)
    assert (r["flops_exact"], r["flops_6nd"]) == (57960, 34920)
    assert r["memory_bytes_float32"] == {"parameters": 2592, "gradients": 2592, "optimizer_state": 5184}
    assert r["mfu"] is None


def test_mfu_without_a_peak_is_refused_not_guessed():
    shape = load_shape("palm-8b")
    with pytest.raises(ConfigError, match="--peak-tflops"):
        summarise(shape, tokens_per_second=1000)
    with pytest.raises(ConfigError, match="--tokens-per-second"):
        summarise(shape, peak_flops_per_chip=1e12)
    with pytest.raises(ConfigError, match="whole number"):
        summarise(shape, tokens=0.5)
    with pytest.raises(ConfigError, match="whole number"):
        summarise(shape, tokens=float("inf"))


def test_a_peak_is_a_chip_s_or_a_number():
    assert peak_of("tpu-v4")[0] == peak_of("", 275)[0] == 275e12
    assert peak_of() == (None, "")
    with pytest.raises(ConfigError, match="the peak is given twice"):
        peak_of("tpu-v4", 275)


def test_count_takes_the_peak_of_a_chip_and_prints_the_hfu(capsys):
    speed = ["count", "palm-540b", "--tokens-per-second", "238300", "--chips", "6144"]
    assert main([*speed, "--chip", "TPU v4", "--remat", "block"]) == 0
    table = capsys.readouterr().out
    # 6 N_total + 12 L H K T + 2 L D (H K + 2 K + 2 F) + 4 L H K T = 3.9868e12, x 238,300 / 1.6896e18.
    for text in ("46.2%", "56.2%", "3.9868e+12", "tpu-v4, bfloat16: Google Cloud documentation"):
        assert text in table
    assert main([*speed, "--peak-tflops", "275", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hfu"] is None


def test_count_prints_a_table_or_json(capsys):
    command = ["count", "palm-540b", "--tokens-per-second", "238300", "--chips", "6144", "--peak-tflops", "275"]
    assert main(command) == 0
    table = capsys.readouterr().out
    for text in ("540,356,474,880", "540.35 B", "46.2%", "45.7%", "6 N a token", "exact FLOPs a token"):
        assert text in table
    assert max(map(len, table.splitlines())) <= 100
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mfu"] == pytest.approx(0.462, abs=5e-4)

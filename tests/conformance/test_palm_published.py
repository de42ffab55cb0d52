"""Numbers printed in "PaLM: Scaling Language Modeling with Pathways" (Chowdhery et al. 2022, arXiv:2204.02311)."""

import pytest

from areca.model.config import PRESETS, ModelConfig
from areca.model.counts import (
    attention_flops_per_token,
    count_params,
    exact_flops_per_token,
    hardware_flops_per_token,
    model_flops_utilisation,
    utilisation,
)


@pytest.mark.parametrize(("name", "billions"), [("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.35)])
def test_parameters_of_table_1(name, billions):
    n = count_params(PRESETS[name])
    # The matrices alone round to what is printed; the norms' scales add at most 2.2 million.
    assert round((n.total - n.norms) / 1e9, 2) == billions
    assert n.total / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize(("with_attention", "percent"), [(True, 46.2), (False, 45.7)])
def test_mfu_of_palm_540b(with_attention, percent):
    # Section 4.1 and Table 3: 238.3K tokens/s at batch 2048 on 6144 TPU v4 of 275 TFLOP/s.
    mfu = model_flops_utilisation(
        PRESETS["palm-540b"],
        context=2048,
        tokens_per_second=238_300,
        chips=6144,
        peak_flops_per_chip=275e12,
        with_attention=with_attention,
    )
    assert round(100 * mfu, 1) == percent


@pytest.mark.parametrize(("with_attention", "percent"), [(True, 30.2), (False, 29.7)])
def test_mfu_of_megatron_turing_nlg(with_attention, percent):
    # Smith et al. 2022 (arXiv:2201.11990), section 2.4: 105 layers, D 20480, 128 heads, batch 1920 x 2048 tokens in
    # 60.1 s on 280 servers of 8 A100 (312 TFLOP/s). PaLM's Appendix B gives the utilisation.
    layers, width, context = 105, 20_480, 2048
    # GPT's block: 4 D^2 of attention and 8 D^2 of MLP, with the embeddings of 50,257 tokens and of the positions.
    n_total = 12 * layers * width**2 + (50_257 + context) * width
    assert n_total / 1e9 == pytest.approx(530, abs=0.5)
    shape = ModelConfig(vocab_size=50_257, d_model=width, n_layers=layers, n_heads=128)
    per_token = 6 * n_total + (attention_flops_per_token(shape, context) if with_attention else 0)
    mfu = utilisation(per_token, tokens_per_second=1920 * context / 60.1, chips=280 * 8, peak_flops_per_chip=312e12)
    assert round(100 * mfu, 1) == percent


def test_mfu_of_gopher():
    # Section 4.1: 32.5% of 4096 TPU v3 from 0.0152 steps/s. Rae et al. 2021 (arXiv:2112.11446): 280B parameters, 80
    # layers of width 16,384, 128 heads of 128, T 2048, batches of 6M tokens at the end: 3072 sequences. The peak of a
    # TPU v3 is 123 TFLOP/s (Google Cloud documentation, TPU v3).
    shape = ModelConfig(vocab_size=32_000, d_model=16_384, n_layers=80, n_heads=128)
    per_token = 6 * 280e9 + attention_flops_per_token(shape, 2048)
    mfu = utilisation(per_token, tokens_per_second=0.0152 * 3072 * 2048, chips=4096, peak_flops_per_chip=123e12)
    assert round(100 * mfu, 1) == 32.5


def test_mfu_of_gpt_3_is_lower_by_the_formula_than_published():
    # Section 4.1 and Table 3: 21.3% from 24.6 non-attention model TFLOP/s per V100 (Patterson et al. 2021, whose Table
    # 4 has the peak of 125 TFLOP/s too). Brown et al. 2020, Table 2.1: 96 layers, D 12,288, 96 heads of 128, T 2048.
    # The formula gives 20.2%. What is published comes out if the attention's training FLOPs, 12 L H K T, are set
    # against the forward FLOPs of the weights, 2 N, where the formula has 6 N.
    n_total = 175e9
    attention = attention_flops_per_token(ModelConfig(vocab_size=50_257, d_model=12_288, n_layers=96, n_heads=96), 2048)
    per_second = 24.6e12 / (6 * n_total)

    def percent(per_token: float) -> float:
        mfu = utilisation(per_token, tokens_per_second=per_second, chips=1, peak_flops_per_chip=125e12)
        return round(100 * mfu, 1)

    assert percent(6 * n_total + attention) == 20.2
    assert percent(6 * n_total + 3 * attention) == 21.3


@pytest.mark.parametrize(
    ("name", "share", "tera", "tera_with_remat"),
    [("palm-8b", 0, "0.055", "0.0561"), ("palm-62b", 0, "0.388", "0.392"), ("palm-540b", 0.75, "3.28", "4.1")],
)
def test_flops_a_token_with_rematerialization(name, share, tera, tera_with_remat):
    # Table 22, in TFLOPs a token without and with rematerialization: the whole forward pass of the T x T attention
    # is computed again (4 L H K T), and for 540B 75% of the rest of the forward pass (of 2 N_total).
    model = PRESETS[name]
    again = share * 2 * count_params(model).total + attention_flops_per_token(model, 2048) / 3
    assert f"{hardware_flops_per_token(model, 2048) / 1e12:.3g}" == tera
    assert f"{hardware_flops_per_token(model, 2048, recomputed=again) / 1e12:.3g}" == tera_with_remat


def test_hfu_of_palm_540b():
    # Section 4.1: 57.8% at 238.3K tokens/s, with what Table 22 rematerializes.
    model = PRESETS["palm-540b"]
    again = 0.75 * 2 * count_params(model).total + attention_flops_per_token(model, 2048) / 3
    per_token = hardware_flops_per_token(model, 2048, recomputed=again)
    hfu = utilisation(per_token, tokens_per_second=238_300, chips=6144, peak_flops_per_chip=275e12)
    assert round(100 * hfu, 1) == 57.8


def test_training_flops_of_palm_540b():
    # The appendix on compute usage: 2.56e24 FLOPs over 780 billion tokens.
    flops = 780e9 * exact_flops_per_token(PRESETS["palm-540b"], 2048)
    assert f"{flops:.2e}" == "2.56e+24"


def test_heads_times_head_width_is_not_the_width_of_540b():
    # Table 1: 48 heads of 256 in a width of 18432, F = 4 D.
    config = PRESETS["palm-540b"].resolved()
    assert config.n_heads * config.head_dim == 12_288
    assert config.d_ff == 73_728


def test_gpt2_is_its_published_size_with_every_choice_of_palm_switched_back():
    # openai/gpt2 as released (Radford et al. 2019): 124,439,808 parameters, the embeddings shared.
    gpt2 = ModelConfig(
        vocab_size=50_257, d_model=768, n_layers=12, n_heads=12, block="serial", n_kv_heads=12, mlp="gelu",
        positions="learned", n_positions=1024, biases=True,
    )  # fmt: skip
    assert count_params(gpt2).total == 124_439_808

"""Numbers printed in "PaLM: Scaling Language Modeling with Pathways" (Chowdhery et al. 2022, arXiv:2204.02311)."""

import pytest

from areca.model.config import PRESETS, ModelConfig
from areca.model.counts import (
    attention_flops_per_token,
    count_params,
    exact_flops_per_token,
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


def test_training_flops_of_palm_540b():
    # The appendix on compute usage: 2.56e24 FLOPs over 780 billion tokens.
    flops = 780e9 * exact_flops_per_token(PRESETS["palm-540b"], 2048)
    assert f"{flops:.2e}" == "2.56e+24"


def test_heads_times_head_width_is_not_the_width_of_540b():
    # Table 1: 48 heads of 256 in a width of 18432, F = 4 D.
    config = PRESETS["palm-540b"].resolved()
    assert config.n_heads * config.head_dim == 12_288
    assert config.d_ff == 73_728

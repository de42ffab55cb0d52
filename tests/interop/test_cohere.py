"""The decoder against transformers' CohereForCausalLM, an independent implementation of the same block.

Cohere's block is PaLM's: x + attention(LN(x)) + mlp(LN(x)), one LayerNorm with weight only, SwiGLU, interleaved rotary
positions over the whole head, one key and value head, no biases, a tied head with scaled logits.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test-interop installs PyTorch")
transformers = pytest.importorskip("transformers")

from areca.config import OptimizerConfig  # noqa: E402
from areca.interop import cohere  # noqa: E402
from areca.model import decoder  # noqa: E402
from areca.model.config import ModelConfig  # noqa: E402
from areca.model.counts import count_params  # noqa: E402
from areca.train.step import TrainState, compile_step, init_state  # noqa: E402

SHAPES = {
    "heads fill the width": ModelConfig(vocab_size=97, d_model=48, n_layers=3, n_heads=4),
    "heads x width is not D": ModelConfig(vocab_size=61, d_model=40, n_layers=2, n_heads=3, head_dim=8, d_ff=56),
    "scanned layers": ModelConfig(vocab_size=32, d_model=16, n_layers=9, n_heads=2, rope_theta=500.0),
    "multi-head": ModelConfig(vocab_size=61, d_model=48, n_layers=2, n_heads=4, n_kv_heads=4, norm_epsilon=1e-5),
    "grouped": ModelConfig(vocab_size=61, d_model=40, n_layers=2, n_heads=6, n_kv_heads=2, head_dim=8),
    "muP's logits": ModelConfig(vocab_size=61, d_model=48, n_layers=2, n_heads=4, base_width=16),
}


def _params(config: ModelConfig, seed: int) -> decoder.Decoder:
    """Initial parameters with norm scales away from one, so that they are compared too."""
    params = decoder.init(config, jax.random.key(seed))
    noise = np.random.default_rng(seed)

    def scales(a):
        return jnp.asarray(noise.uniform(0.5, 1.5, a.shape), jnp.float32)

    return dataclasses.replace(
        params, norm=scales(params.norm), layers=dataclasses.replace(params.layers, norm=scales(params.layers.norm))
    )


def _cohere(config: ModelConfig, params: decoder.Decoder, dtype=torch.float32):
    """CohereForCausalLM with our parameters, by the configuration and the names that `areca export hf` writes."""
    model = transformers.CohereForCausalLM(transformers.CohereConfig(**cohere.to_config(config, 512, eod_id=0)))
    model = model.to(dtype)
    tensors = {name: torch.tensor(value) for name, value in cohere.to_tensors(config.resolved(), params).items()}
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    assert sum(p.numel() for p in model.parameters()) == count_params(config.resolved()).total
    return model.eval()


def _tokens(config: ModelConfig, batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, config.vocab_size, (batch, length), dtype=np.int32)


def _objective(logits, targets, z_loss: float = 1e-4):
    """PaLM's loss in PyTorch: mean cross-entropy + z_loss log(Z)^2."""
    log_z = logits.logsumexp(-1)
    return (log_z - logits.gather(-1, targets[..., None])[..., 0]).mean() + z_loss * log_z.square().mean()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [7, 300])  # shorter than a block of queries, and no multiple of it
def test_logits_are_those_of_cohere(name, length):
    config = SHAPES[name]
    params = _params(config, seed=1)
    tokens = _tokens(config, 2, length)
    ours = np.asarray(jax.jit(lambda p, t: decoder.logits(config, p, t))(params, jnp.asarray(tokens)))
    with torch.no_grad():
        theirs = _cohere(config, params)(torch.from_numpy(tokens).long()).logits.numpy()
    assert ours.dtype == np.float32
    assert np.abs(theirs).max() > 1  # there is something to compare
    assert np.abs(ours - theirs).max() < 1e-5


def test_logits_are_as_close_to_float64_as_those_of_cohere():
    config = SHAPES["heads fill the width"]
    params = _params(config, seed=2)
    tokens = _tokens(config, 2, 200)
    ours = np.asarray(decoder.logits(config, params, jnp.asarray(tokens)))
    with torch.no_grad():
        single = _cohere(config, params)(torch.from_numpy(tokens).long()).logits.numpy()
        double = _cohere(config, params, torch.float64)(torch.from_numpy(tokens).long()).logits.numpy()
    error = np.abs(ours - double).max()
    assert error < 1e-5
    assert error < 4 * np.abs(single - double).max()


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_every_parameter_are_those_of_autograd(name):
    config = SHAPES[name]
    c = config.resolved()
    params = _params(config, seed=3)
    tokens = _tokens(config, 2, 151)

    def ours(p):
        return decoder.loss(config, p, jnp.asarray(tokens), 1e-4)[0]

    value, gradient = jax.jit(jax.value_and_grad(ours))(params)
    model = _cohere(config, params)
    t = torch.from_numpy(tokens).long()
    loss = _objective(model(t[:, :-1]).logits, t[:, 1:])
    loss.backward()
    assert float(value) == pytest.approx(loss.item(), abs=2e-6)
    theirs = {n: p.grad.numpy() for n, p in model.named_parameters()}
    for key, mine in cohere.to_tensors(c, gradient).items():
        scale = np.abs(theirs[key]).max()
        assert scale > 0
        np.testing.assert_allclose(mine, theirs[key], atol=2e-5 * scale, rtol=0, err_msg=key)


def test_training_with_adam_follows_pytorch():
    config = SHAPES["heads fill the width"]
    settings = OptimizerConfig(
        name="adam", learning_rate=3e-3, momentum=0.9, beta2=0.95, clip_norm=0.5, weight_decay=0.1, z_loss=1e-4
    )
    params = _params(config, seed=4)
    model = _cohere(config, params)
    theirs = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    start = init_state(config, settings, seed=0)
    state = TrainState(start.step, jax.tree.map(jnp.copy, params), start.optimizer)
    step = compile_step(config, settings, state, batch=4, context=32)
    clipped = 0
    for i in range(8):
        tokens = _tokens(config, 4, 33, seed=i)
        state, metrics = step(state, jnp.asarray(tokens), jnp.float32(3e-3))
        t = torch.from_numpy(tokens).long()
        theirs.zero_grad()
        loss = _objective(model(t[:, :-1]).logits, t[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        theirs.step()
        clipped += norm > 0.5
        assert float(metrics[0] + metrics[1]) == pytest.approx(loss.item(), rel=1e-5)
        assert float(metrics[2]) == pytest.approx(norm, rel=1e-4)
    assert clipped  # the clipping was compared too
    moved = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for key, mine in cohere.to_tensors(config.resolved(), state.params).items():
        # Adam turns rounding of a gradient near zero into a step: within a hundredth of the way of 8 steps.
        np.testing.assert_allclose(mine, moved[key], atol=2e-4, rtol=0, err_msg=key)

"""The step in PyTorch: a plain model written for speed (eager or compiled), and transformers' CohereForCausalLM.

Written for speed: one joined input projection, rotary positions on contiguous halves (kernels are permuted once, so the
numbers are those of interleaved pairs), scaled_dot_product_attention with is_causal over expanded keys, the logit scale
on the hidden state rather than on the logits, fused Adam.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.problem import Problem, batch, weights


class Block(nn.Module):
    """x + attention(LN(x)) + mlp(LN(x)), one norm without bias, multi-query attention, SwiGLU."""

    def __init__(self, p: Problem) -> None:
        super().__init__()
        self.p = p
        self.widths = (p.n_heads * p.head_dim, p.head_dim, p.head_dim, p.d_ff, p.d_ff)
        self.norm = nn.Parameter(torch.ones(p.d_model))
        self.project_in = nn.Linear(p.d_model, sum(self.widths), bias=False)
        self.attention_out = nn.Linear(p.n_heads * p.head_dim, p.d_model, bias=False)
        self.mlp_out = nn.Linear(p.d_ff, p.d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, D = x.shape
        H, K = self.p.n_heads, self.p.head_dim
        h = F.layer_norm(x, (D,), self.norm, None, self.p.epsilon)
        q, k, v, gate, up = self.project_in(h).split(self.widths, dim=-1)
        q = rotate(q.view(B, T, H, K).transpose(1, 2), cos, sin)
        k = rotate(k.view(B, T, 1, K).transpose(1, 2), cos, sin).expand(B, H, T, K)
        v = v.view(B, T, 1, K).transpose(1, 2).expand(B, H, T, K)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, H * K)
        return x + self.attention_out(a) + self.mlp_out(F.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Plain(nn.Module):
    """The decoder with tied embeddings and logits scaled by D^-1/2; `forward` returns the loss."""

    def __init__(self, p: Problem) -> None:
        super().__init__()
        self.p = p
        self.embedding = nn.Parameter(torch.empty(p.vocab_size, p.d_model))
        self.blocks = nn.ModuleList([Block(p) for _ in range(p.n_layers)])
        self.norm = nn.Parameter(torch.ones(p.d_model))
        frequency = p.rope_theta ** (-torch.arange(0, p.head_dim, 2, dtype=torch.float32) / p.head_dim)
        angle = torch.outer(torch.arange(p.context, dtype=torch.float32), frequency)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.load(weights(p))

    @torch.no_grad()
    def load(self, w: dict[str, np.ndarray]) -> None:
        p = self.p
        halves = np.concatenate([np.arange(0, p.head_dim, 2), np.arange(1, p.head_dim, 2)])
        self.embedding.copy_(torch.from_numpy(w["embedding"]))
        for i, block in enumerate(self.blocks):
            query = w["query"][i][..., halves].reshape(p.d_model, -1)
            joined = [query, w["key"][i][:, halves], w["value"][i], w["gate"][i], w["up"][i]]
            block.project_in.weight.copy_(torch.from_numpy(np.concatenate(joined, axis=1).T.copy()))
            block.attention_out.weight.copy_(torch.from_numpy(w["attention_out"][i].reshape(-1, p.d_model).T.copy()))
            block.mlp_out.weight.copy_(torch.from_numpy(w["mlp_out"][i].T.copy()))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens[:, :-1], self.embedding)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = F.layer_norm(x, (self.p.d_model,), self.norm, None, self.p.epsilon) * self.p.d_model**-0.5
        return objective(F.linear(x, self.embedding), tokens[:, 1:], self.p.z_loss)


def objective(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """Mean cross-entropy + z_loss log(Z)^2, with one log-softmax for both."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    negative = F.cross_entropy(logits, targets, reduction="none")
    log_z = negative + logits.gather(1, targets[:, None])[:, 0]
    return negative.mean() + z_loss * log_z.square().mean()


class Cohere(nn.Module):
    """transformers' CohereForCausalLM, which is PaLM's block, with the same weights and loss."""

    def __init__(self, p: Problem) -> None:
        super().__init__()
        from transformers import CohereConfig, CohereForCausalLM

        self.p = p
        config = CohereConfig(
            vocab_size=p.vocab_size,
            hidden_size=p.d_model,
            intermediate_size=p.d_ff,
            num_hidden_layers=p.n_layers,
            num_attention_heads=p.n_heads,
            num_key_value_heads=1,
            max_position_embeddings=p.context,
            layer_norm_eps=p.epsilon,
            logit_scale=p.d_model**-0.5,
            tie_word_embeddings=True,
            rope_theta=p.rope_theta,
            rope_parameters={"rope_type": "default", "rope_theta": p.rope_theta},
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
            attn_implementation="sdpa",
        )
        self.model = CohereForCausalLM(config)
        self.load(weights(p))

    @torch.no_grad()
    def load(self, w: dict[str, np.ndarray]) -> None:
        D = self.p.d_model
        self.model.model.embed_tokens.weight.copy_(torch.from_numpy(w["embedding"]))
        for i, layer in enumerate(self.model.model.layers):
            for linear, kernel in (
                (layer.self_attn.q_proj, w["query"][i].reshape(D, -1)),
                (layer.self_attn.k_proj, w["key"][i]),
                (layer.self_attn.v_proj, w["value"][i]),
                (layer.self_attn.o_proj, w["attention_out"][i].reshape(-1, D)),
                (layer.mlp.gate_proj, w["gate"][i]),
                (layer.mlp.up_proj, w["up"][i]),
                (layer.mlp.down_proj, w["mlp_out"][i]),
            ):
                linear.weight.copy_(torch.from_numpy(kernel.T.copy()))

    def forward(self, tokens: Tensor) -> Tensor:
        return objective(self.model(input_ids=tokens[:, :-1]).logits, tokens[:, 1:], self.p.z_loss)


def make(side: str, p: Problem, threads: int) -> Callable[[int], float]:
    """A function that takes the step of that index and returns its loss. `side`: eager, compile or cohere."""
    torch.set_num_threads(threads)
    model: nn.Module = Cohere(p) if side == "cohere" else Plain(p)
    forward: Callable[[Tensor], Tensor] = torch.compile(model) if side == "compile" else model
    optimizer = torch.optim.Adam(model.parameters(), lr=p.learning_rate, betas=(p.beta1, p.beta2), fused=True)

    def step(index: int) -> float:
        tokens = torch.from_numpy(batch(p, index)).long()
        optimizer.zero_grad(set_to_none=True)
        loss = forward(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), p.clip_norm)
        optimizer.step()
        return loss.item()

    return step

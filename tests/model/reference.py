"""PaLM's decoder written a second time: numpy, float64, one head and one position after another, pairs interleaved.

Follows section 2 of the paper and nothing of areca.model; what it shares with it are the names of the parameters. Where
a parameter is absent (None) or there is one more, it takes the other of each of PaLM's choices: what GPT-2 does.
"""

import math

import numpy as np


def logits(p, tokens_T: np.ndarray, theta: float, epsilon: float) -> np.ndarray:
    """[T, V] for one sequence; `p` is a Decoder whose leaves are float64 numpy arrays."""
    D = p.embedding.shape[1]
    x = p.embedding[tokens_T]
    turn = (lambda z: rotate(z, theta)) if p.positions is None else (lambda z: z)
    if p.positions is not None:
        x = x + p.positions[: len(tokens_T)]
    w = p.layers
    _, _, H, K = w.query.shape
    for i in range(len(w.norm)):

        def times(h, name, i=i):
            kernel, bias = getattr(w, name)[i], getattr(w, name + "_bias")
            out = h @ kernel.reshape(h.shape[-1], -1)
            return out if bias is None else out + bias[i]

        h = norm(x, w.norm[i], epsilon, w.norm_bias, i)
        query, key, value = times(h, "query"), times(h, "key"), times(h, "value")
        shared = H // (key.shape[1] // K)  # heads to a key
        heads = []
        for n in range(H):
            q, g = slice(n * K, (n + 1) * K), slice(n // shared * K, (n // shared + 1) * K)
            heads.append(attend(turn(query[:, q]), turn(key[:, g]), value[:, g]))
        out = w.attention_out[i].reshape(H * K, D)
        attention = np.concatenate(heads, axis=1) @ out
        if w.attention_out_bias is not None:
            attention = attention + w.attention_out_bias[i]
        if w.mlp_norm is not None:
            x, attention = x + attention, 0.0
            h = norm(x, w.mlp_norm[i], epsilon, w.mlp_norm_bias, i)
        up = times(h, "up")
        if w.gate is None:
            middle = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        else:
            gate = times(h, "gate")
            middle = gate / (1 + np.exp(-gate)) * up
        x = x + times(middle, "mlp_out") + attention
    last = norm(x, p.norm, epsilon, p.norm_bias)
    return last @ (p.embedding if p.output is None else p.output).T / np.sqrt(D)


def norm(x_TD: np.ndarray, scale_D: np.ndarray, epsilon: float, bias=None, layer=slice(None)) -> np.ndarray:
    centred = x_TD - x_TD.mean(-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale_D
    return out if bias is None else out + bias[layer]


def rotate(x_TK: np.ndarray, theta: float) -> np.ndarray:
    T, K = x_TK.shape
    turn = np.exp(1j * np.arange(T)[:, None] * theta ** (-np.arange(0, K, 2) / K))
    z = (x_TK[:, 0::2] + 1j * x_TK[:, 1::2]) * turn
    return np.stack([z.real, z.imag], axis=-1).reshape(T, K)


def attend(q_TK: np.ndarray, k_SK: np.ndarray, v_SK: np.ndarray) -> np.ndarray:
    out = []
    for t, q in enumerate(q_TK):
        score = k_SK[: t + 1] @ q / np.sqrt(len(q))
        weight = np.exp(score - score.max())
        out.append(weight @ v_SK[: t + 1] / weight.sum())
    return np.array(out)


def objective(p, tokens_BS: np.ndarray, z_loss: float, theta: float, epsilon: float) -> float:
    """Mean cross-entropy + z_loss log(Z)^2 of predicting each next token."""
    terms = []
    for row in tokens_BS:
        logit = logits(p, row[:-1], theta, epsilon)
        log_z = np.log(np.exp(logit).sum(-1))
        terms.append(log_z - logit[np.arange(len(logit)), row[1:]] + z_loss * log_z**2)
    return float(np.mean(terms))

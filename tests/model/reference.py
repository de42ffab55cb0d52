"""PaLM's decoder written a second time: numpy, float64, one head and one position after another, pairs interleaved.

Follows section 2 of the paper and nothing of areca.model; what it shares with it are the names of the parameters.
"""

import numpy as np


def logits(p, tokens_T: np.ndarray, theta: float, epsilon: float) -> np.ndarray:
    """[T, V] for one sequence; `p` is a Decoder whose leaves are float64 numpy arrays."""
    D = p.embedding.shape[1]
    x = p.embedding[tokens_T]
    w = p.layers
    for i in range(len(w.norm)):
        h = norm(x, w.norm[i], epsilon)
        gate, up = h @ w.gate[i], h @ w.up[i]
        mlp = (gate / (1 + np.exp(-gate)) * up) @ w.mlp_out[i]
        key, value = rotate(h @ w.key[i], theta), h @ w.value[i]
        heads = range(w.query.shape[2])
        attention = sum(attend(rotate(h @ w.query[i][:, n], theta), key, value) @ w.attention_out[i][n] for n in heads)
        x = x + mlp + attention
    return norm(x, p.norm, epsilon) @ p.embedding.T / np.sqrt(D)


def norm(x_TD: np.ndarray, scale_D: np.ndarray, epsilon: float) -> np.ndarray:
    centred = x_TD - x_TD.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale_D


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

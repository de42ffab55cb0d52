"""A look into a token store: the text of a few held-out documents, the mixture that training would see."""

from typing import Any

import numpy as np

from areca.data.order import Order
from areca.data.store import TokenStore
from areca.data.tokenizer import load_tokenizer
from areca.errors import ConfigError

LONGEST = 160  # tokens of a document that are shown
_MEASURED = 20_000  # examples, at most, that a mixture is measured on


def samples(store: TokenStore, count: int) -> list[dict[str, Any]]:
    """`count` documents of each corpus, spread evenly over its held-out side: `{"corpus", "document", "text"}`."""
    if count < 0:
        raise ConfigError(f"--sample is {count}; give how many documents of each corpus to show.")
    if count == 0:
        return []
    tokenizer = load_tokenizer(store.tokenizer_path)
    found: list[dict[str, Any]] = []
    for info in store.corpora:
        tokens = store.tokens(info.name, "heldout")
        ends = np.flatnonzero(tokens == store.eod_id)
        starts = np.concatenate([[0], ends[:-1] + 1])
        shown = min(count, len(ends))
        chosen = sorted({(2 * k + 1) * len(ends) // (2 * shown) for k in range(shown)})
        for i in chosen:
            ids = tokens[starts[i] : ends[i]]
            store.check_ids(ids[:LONGEST], info.name, "heldout")
            text = tokenizer.decode_bytes(ids[:LONGEST].tolist()).decode("utf-8", "replace")
            found.append(
                {"corpus": info.name, "document": int(i), "text": text + (" ..." if len(ids) > LONGEST else "")}
            )
    return found


def mixture(store: TokenStore, tokens: int, context: int = 128) -> list[dict[str, Any]]:
    """What the first `tokens` training tokens hold of each corpus.

    `{"corpus", "weight" asked, "share" realised, "epochs" over its training tokens}`; the share is counted over the
    first 20,000 examples at most.
    """
    if tokens < 1:
        raise ConfigError(f"--mixture is {tokens}; give a number of training tokens, such as 1000000.")
    order = Order(store, context)
    shares = order.realised(min(_MEASURED, max(1, tokens // context)))
    return [
        {
            "corpus": name,
            "weight": order.weights[name],
            "share": share,
            "epochs": share * tokens / (order.windows_per_epoch[name] * context),
        }
        for name, share in shares.items()
    ]

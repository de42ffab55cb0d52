"""On what a model is trained: corpora, tokenizer, token store, the order of examples, batches. numpy, no jax.

text -> documents (sources, corpora) -> clean, without duplicates (dedup) -> train | held-out -> tokens (tokenizer)
     -> token store (build, store) -> which window when (order) -> batches (batches)
"""

"""WHAT is computed: the decoder, its parameters and its counts. Knows nothing of data, training or runs."""

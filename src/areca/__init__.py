"""Areca: a pretraining laboratory for language models, in Python on JAX."""

__version__ = "0.1.0"

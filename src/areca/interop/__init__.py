"""Other ecosystems: models and tokenizers as directories that Hugging Face's libraries read, both ways."""

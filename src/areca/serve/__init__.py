"""A trained model behind OpenAI's completions API, so that what speaks to one speaks to ours: `areca serve`."""

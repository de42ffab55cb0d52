"""Everything that can be typed after `areca`: the verbs, and the verbs of verbs."""

from areca.cli.main import VERBS

COMMANDS = [
    *VERBS, "corpus build", "corpus list", "corpus show", "tokenizer train", "tokenizer show", "export hf", "import hf",
]  # fmt: skip

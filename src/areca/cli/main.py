"""`areca VERB ...`: finds the verb, imports only its module, and turns our errors into one sentence and exit code 2.

Nothing heavy (jax, numpy, pyarrow) is imported here or at the head of a verb's module, so that `--help` is quick.
"""

import errno
import importlib
import sys

from areca import __version__
from areca.errors import ArecaError, closest

# verb -> what it does, in the order a user meets them. The module is areca.cli.<verb>, its entry `run(argv) -> int`.
VERBS: dict[str, str] = {
    "quickstart": "the whole story on real text: ladder, law, plan, verified prediction",
    "corpus": "build, list or show token stores made from text",
    "tokenizer": "train or show a tokenizer",
    "train": "train a model, or go on with --resume",
    "ladder": "train a family of models over sizes and budgets",
    "fit": "fit scaling laws to run directories or any table",
    "plan": "the run to buy for a budget, with its predicted loss",
    "count": "parameters, FLOPs and MFU of a model",
    "generate": "sample text from a checkpoint",
    "report": "one HTML page from run directories",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one verb and returns the exit code: 0, 2 for a user's mistake, 130 when interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"areca {__version__}")
        return 0
    verb = argv[0]
    if verb not in VERBS:
        print(f"areca: there is no verb {verb!r}{closest(verb, VERBS)}; `areca --help` lists them.", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(f"areca.cli.{verb}").run(argv[1:]) or 0
    except ArecaError as error:
        print(f"areca {verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"areca {verb}: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or "the output directory"
            print(f"areca {verb}: the disk is full while writing {where}; free space and run it again.", file=sys.stderr)
            return 2
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and error.filename:
            print(f"areca {verb}: no permission to use {error.filename} ({error.strerror}).", file=sys.stderr)
            return 2
        raise


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [
            "usage: areca VERB [options]",
            "",
            "A pretraining laboratory for language models.",
            "",
            *lines,
            "",
            "`areca VERB --help` explains one verb, with an example. Start with `areca quickstart`.",
        ]
    )

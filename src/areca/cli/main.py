"""`areca VERB ...`: finds the verb, imports only its module, and turns our errors into one sentence and exit code 2.

Nothing heavy (jax, numpy, pyarrow) is imported here or at the head of a verb's module, so that `--help` is quick.
"""

import _thread
import contextlib
import importlib
import os
import sys
import threading
import traceback

from areca import __version__
from areca.errors import ArecaError, closest, of_the_system

# verb -> what it does, in the order a user meets them. The module is areca.cli.<verb>, its entry `run(argv) -> int`.
VERBS: dict[str, str] = {
    "quickstart": "the whole story on real text: ladder, law, plan, verified prediction",
    "corpus": "build, list or show token stores made from text",
    "tokenizer": "train or show a tokenizer",
    "train": "train a model, or go on with --resume",
    "ladder": "train a family of models over sizes and budgets",
    "fit": "fit scaling laws to run directories or any table",
    "plan": "the run to buy for a budget, with its predicted loss",
    "design": "the next runs of a ladder: those that narrow a prediction most",
    "count": "parameters, FLOPs and MFU of a model",
    "dryrun": "will it fit: a training step compiled for any mesh, without the chips",
    "generate": "sample text from a checkpoint",
    "serve": "a checkpoint behind OpenAI's completions API",
    "export": "a model as a directory that transformers loads",
    "import": "a Hugging Face directory as a model to generate from and train on",
    "footprint": "energy and carbon of a run, a study, a plan or a published run",
    "islands": "what a step over islands is made of, and how many segments pay",
    "trace": "what islands did in recorded steps, and what the steps waited for",
    "watch": "a live view of a run or a ladder in the terminal",
    "track": "send a run's numbers to TensorBoard, W&B or trackio",
    "report": "one HTML page from run directories",
    "doctor": "what this machine has and can do, and what would go wrong",
}


# How work goes on after it was stopped, where that is not by starting anew.
GOES_ON: dict[str, str] = {
    "quickstart": "give the same command: it goes on",
    "train": "go on with --resume",
    "ladder": "give the same command: it goes on",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one verb and returns the exit code: 0, 2 for a user's mistake, 130 when interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    verb = argv[0] if argv else "help"
    hook, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        code = _dispatch(verb, argv[1:])
        sys.stdout.flush()  # a reader that has gone away shows here, not at exit
        return code
    except ArecaError as error:
        print(f"areca {verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"areca {verb}: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError as error:
        print(f"areca {verb}: there is not enough memory ({error or 'no size given'}); ask for less.", file=sys.stderr)
        return 2
    except OSError as error:
        printing = _printing(error)
        sentence = of_the_system(error, GOES_ON.get(verb, "run it again"), "standard output" if printing else "")
        if sentence is None:
            raise
        print(f"areca {verb}: {sentence}", file=sys.stderr)
        if printing:  # what is left in its buffer is dropped, or Python would try, and complain, at its end
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    finally:
        if sys.unraisablehook is _interrupt_again:  # else one that needs to stay is around it
            sys.unraisablehook = hook


def _printing(error: OSError) -> bool:
    """Whether it is standard output that took no more: errors of printing name no file, and only the verbs print."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return error.filename is None and innermost.f_globals.get("__name__", "").startswith(("areca.cli.", "json"))


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C inside a callback that Python can't raise from, such as jax's of the garbage collector, is not lost."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        threading.Timer(0.05, _thread.interrupt_main).start()  # at once it would be raised, and lost, in here
    else:
        sys.__unraisablehook__(unraisable)


def _dispatch(verb: str, argv: list[str]) -> int:
    if verb in ("-h", "--help", "help"):
        print(_overview())
    elif verb in ("-V", "--version"):
        print(f"areca {__version__}")
    elif verb in VERBS:
        return importlib.import_module(f"areca.cli.{verb}").run(argv) or 0
    else:
        print(f"areca: there is no verb {verb!r}{closest(verb, VERBS)}; `areca --help` lists them.", file=sys.stderr)
        return 2
    return 0


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

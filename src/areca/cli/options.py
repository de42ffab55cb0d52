"""Parsing shared by all verbs: tyro over a typed function, one sentence for a misspelt option, verbs of verbs.

The options that describe a model's shape, which several verbs take, are here too (`with_shape`).
"""

import contextlib
import inspect
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from areca.errors import ConfigError, closest
from areca.remote.place import is_url

READ_HERE = ("areca fit", "areca report", "areca trace", "areca watch")  # verbs that read no URL


def call(function: Callable[..., Any], argv: list[str], prog: str, **beside: Any) -> Any:
    """Parses `argv` into `function`'s arguments and calls it.

    The function's annotations are the options, its docstring the help (put an example in it). A command line that
    can't be parsed raises ConfigError with one sentence; an option that does not exist names the closest one.
    `beside` are further arguments of the function, which aren't options.
    """
    import tyro

    bind = _with_hints(function, beside)
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if argv and not argv[0] and first is not None and first.kind is first.POSITIONAL_ONLY:
        raise ConfigError(f"{first.name.upper()} is empty text; see `{prog} --help`.")  # an unset variable of a shell
    _refuse_lists(function, argv, prog)
    _refuse_url(prog, argv)
    argv = _whole_numbers(function, argv)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            (args, kwargs), unknown = tyro.cli(
                bind, args=argv, prog=prog, return_unknown_args=True, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(f"{_sentence(complaint.getvalue(), function, argv)}; see `{prog} --help`.") from None
    if unknown:
        parameters = inspect.signature(function).parameters
        known = ["--" + name.replace("_", "-") for name in parameters]
        raise ConfigError(f"there is no option {unknown[0]!r}{closest(unknown[0], known)}; see `{prog} --help`.")
    return function(*args, **kwargs, **beside)


def _refuse_lists(function: Callable[..., Any], argv: list[str], prog: str) -> None:
    """ConfigError where an option that takes several values is given twice, so that the values of the first would be
    lost, or without any, which would be as if it were not given."""
    for name, hint in get_type_hints(function).items():
        option = f"--{name.replace('_', '-')}"
        if get_origin(hint) is not tuple or option not in argv:
            continue
        if argv.count(option) > 1:
            raise ConfigError(f"{option} is given {argv.count(option)} times; give all of its values after one.")
        after = argv[argv.index(option) + 1 :]
        if not after or after[0].startswith("--"):
            raise ConfigError(
                f"{option} is given without a value; name one or more, or leave it out; see `{prog} --help`."
            )


_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE]\+?\d+)?")


def _whole_numbers(function: Callable[..., Any], argv: list[str]) -> list[str]:
    """The words, with 1000 for the 1e3 of an option that takes whole numbers."""
    hints = {f"--{name.replace('_', '-')}": hint for name, hint in get_type_hints(function).items()}
    whole = {name for name, hint in hints.items() if int in (hint, *get_args(hint)) and str not in get_args(hint)}
    found: list[str] = []
    option = ""  # whose value the next word is
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            option = name.replace("_", "-")
        else:
            value = word
        if option in whole and _NUMBER.fullmatch(value):
            number = float(value)
            if number.is_integer() and abs(number) < 2**53:
                word = (f"{name}=" if word.startswith("--") else "") + str(int(number))
        if (equals or not word.startswith("--")) and get_origin(hints.get(option)) is not tuple:
            option = ""
        found.append(word)
    return found


def _before_options(argv: list[str]) -> Iterable[str]:
    return itertools.takewhile(lambda word: not word.startswith("-"), argv)


def _refuse_url(prog: str, argv: list[str]) -> None:
    """ConfigError where a result is to go to a URL, as only token stores do, or what is read on this machine is one."""
    if prog in READ_HERE and (url := next(filter(is_url, _before_options(argv)), None)):
        raise ConfigError(
            f"{url} is a URL, and {prog} reads files of this machine; fetch it first (a copied ladder by its own "
            "command, a run by `areca train --resume --copy-to`)."
        )
    for option, value in itertools.pairwise([*argv, "-"]):
        if option == "--copy-to=" or (option == "--copy-to" and not value):
            raise ConfigError("--copy-to is empty text, so nothing would be copied; name a URL, or leave it out.")
        value = option.partition("=")[2] or value
        if option.partition("=")[0] == "--out" and "://" in value and prog != "areca corpus build":
            instead = (
                f", and have it copied with --copy-to {value}"
                if prog in ("areca train", "areca ladder")
                else "; copy it from there"
            )
            raise ConfigError(f"--out is {value}; {prog} writes to this machine: name a path{instead}.")


def _with_hints(
    function: Callable[..., Any], hidden: Iterable[str] = ()
) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """A function of the same arguments that returns them, annotated so that the help reads as a person would write it.

    A positional is called by its name, as in our messages. A default is shown where it is a value: not the None, '' or
    0 that stands for "not given", not that of a switch, and not where the text itself says what happens.
    """
    import tyro

    def bind(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs

    texts = _argument_texts(function)
    shown, hints = [], get_type_hints(function, include_extras=True)
    for p in inspect.signature(function).parameters.values():
        if p.name in hidden:
            continue
        settings: dict[str, Any] = {}
        kinds = get_args(hints[p.name])
        if p.kind is p.POSITIONAL_ONLY:
            settings["metavar"] = p.name.upper() if get_origin(hints[p.name]) is None else f"{p.name.upper()} ..."
            if get_origin(hints[p.name]) is not None:  # several, or none
                settings["help_behavior_hint"] = ""
        elif type(None) in kinds:
            settings["metavar"] = next(k for k in kinds if k is not type(None)).__name__.upper()
        says = any(words in texts.get(p.name, "") for words in ("not given", "(default", "leave it out"))
        stands_for_none = p.default in (None, "", 0, ()) and p.name != "seed"  # 0 is a seed
        if p.default is not p.empty and (says or stands_for_none or isinstance(p.default, bool)):
            settings["help_behavior_hint"] = ""
        annotation = Annotated[hints[p.name], tyro.conf.arg(**settings)] if settings else hints[p.name]
        shown.append(p.replace(annotation=annotation))
    bind.__name__, bind.__doc__ = function.__name__, function.__doc__
    bind.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    bind.__annotations__ = {p.name: p.annotation for p in shown}
    return bind


def _argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring's "Args:" says of each argument."""
    texts: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].splitlines():
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            texts[name] = match[2]
        elif name:
            texts[name] += " " + line.strip()
    return texts


# What tyro says of a value that it can't use, of one kind or of several.
_WRONG = re.compile(
    r"Error parsing (?P<option>\S+): (?:.*from \['(?P<value>.*?)'\]|[^']*(?:literal|string)[^']*'(?P<number>[^']*)'$)"
)
_WRONG_LIST = re.compile(r"Error parsing (?P<option>\S+): Could not find valid parse for arguments: \[(?P<values>.*)\]")


def _sentence(box: str, function: Callable[..., Any], argv: list[str]) -> str:
    """The first message inside the box that tyro draws around its errors, in our words where they are known."""
    words: list[str] = []
    title_lines = 1 if box.startswith("╭") else 2  # where the locale has no such border, the title is ruled off below
    for line in box.splitlines()[title_lines:]:
        text = line.strip(" │|")
        if text.startswith(("─", "╰", "---")):
            break
        words.append(text)
    message = " ".join(" ".join(words).split()).rstrip(".") or "the command line can't be parsed"
    if message.startswith("Missing from"):
        missing = _missing(function, argv)
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if (match := _WRONG.match(message)) and (value := match["value"] or match["number"]):
        whole = "FLOAT" not in message and ("INT" in message or "int()" in message)
        kind = "a number" if match["number"] or whole or "FLOAT" in message else "one of its values"
        if whole and _is_number(value):
            kind = "a whole number"
        return f"{match['option']} is {value!r}, which is not {kind}"
    if match := _WRONG_LIST.match(message):
        values = " ".join(re.findall(r"'([^']*)'", match["values"]))
        return f"{match['option']} is {values!r}, which is not a list of numbers"
    return message


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _missing(function: Callable[..., Any], argv: list[str]) -> list[str]:
    """The required arguments that are not in `argv`, as a user writes them."""
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    named = [f"--{p.name.replace('_', '-')}" for p in required if p.kind is p.KEYWORD_ONLY]
    given = {word.partition("=")[0].replace("_", "-") for word in argv}
    missing = [name for name in named if name not in given]
    positional = [p.name.upper() for p in required if p.kind is p.POSITIONAL_ONLY]
    # tyro complains of the positional first, wherever it stands: without a word in front of the options it is missing.
    return ([] if argv and not argv[0].startswith("-") else positional) + missing or positional


def numbers(option: str, words: Iterable[str]) -> tuple[float, ...]:
    """The numbers of an option that takes several, apart by spaces or by commas."""
    found = []
    for word in (w for words_ in words for w in words_.split(",")):
        try:
            found.append(float(word))
        except ValueError:
            raise ConfigError(f"{option} is {word!r}, which is not a number.") from None
    return tuple(found)


def pairs(option: str, words: Iterable[str], form: str) -> dict[str, str]:
    """{name: value} of an option that takes several NAME=VALUE, `form` in the words of the message."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (name and equals and value):
            raise ConfigError(f"{option} is {word!r}; write it as {form}.")
        if name in found:
            raise ConfigError(f"{option} names {name} twice, {found[name]!r} and {value!r}; leave one out.")
        found[name] = value
    return found


def dispatch(subverbs: Mapping[str, Callable[..., Any]], argv: list[str], prog: str) -> Any:
    """Runs `argv[0]` of a verb that has verbs of its own, such as `areca corpus build`."""
    if not argv or argv[0] in ("-h", "--help"):
        summaries = "\n".join(
            f"  {n:<8} {inspect.cleandoc(f.__doc__ or '').splitlines()[0]}" for n, f in subverbs.items()
        )
        print(f"usage: {prog} {{{','.join(subverbs)}}} [options]\n\n{summaries}\n")
        return 0 if argv else 2
    if argv[0] not in subverbs:
        raise ConfigError(
            f"there is no {prog} {argv[0]!r}{closest(argv[0], subverbs)}; use one of {', '.join(subverbs)}."
        )
    return call(subverbs[argv[0]], argv[1:], f"{prog} {argv[0]}")


def print_json(value: Any) -> None:
    """Prints a result for machines on standard output; progress and prose go to standard error."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def deliver(values: Any, show: Callable[[], None], *, out: str, json: bool, written: Sequence[str] = ()) -> None:
    """Writes a verb's result to --out, and prints it for machines or shows it with the names of all files written."""
    if out:
        from areca.files import write_json

        write_json(out, values)
    if json:
        print_json(values)
        return
    show()
    for path in [*written, *([out] if out else [])]:
        print(f"written: {path}")


# What load_shape takes, in the words of the help. A verb with these has them all.
_SHAPE: dict[str, tuple[Any, str | None, str]] = {
    "model": (
        str,
        "",
        "palm-8b, palm-62b or palm-540b, or a TOML or JSON file with a model's or a run's configuration; or leave it "
        "out and give the shape.",
    ),
    "context": (int | None, None, "T, tokens in a sequence; the file's own, or 2048, if not given."),
    "vocab_size": (
        int | None,
        None,
        "V, tokens in the vocabulary; the model's own if not given, as the next five.",
    ),
    "d_model": (int | None, None, "D, the model's width."),
    "n_layers": (int | None, None, "L, the number of blocks."),
    "n_heads": (int | None, None, "H, query heads; they share one key and value head unless a file sets n_kv_heads."),
    "head_dim": (int | None, None, "K, width of a head; D / H if not given."),
    "d_ff": (int | None, None, "F, feed-forward width; 4 D if not given."),
}


def with_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """A verb with MODEL and the options of a shape in front of `--json`; it gets them as `shape`, for load_shape."""

    def verb(model: str = "", /, **options: Any) -> Any:
        shape = {"model": model} | {name: options.pop(name) for name in _SHAPE if name in options}
        return function(**options, shape=shape)

    own = [p for p in inspect.signature(function).parameters.values() if p.name != "shape"]
    kinds = {"model": inspect.Parameter.POSITIONAL_ONLY}
    added = {
        name: inspect.Parameter(name, kinds.get(name, inspect.Parameter.KEYWORD_ONLY), default=default, annotation=kind)
        for name, (kind, default, _) in _SHAPE.items()
    }
    parameters = [added.pop("model"), *own[:-1], *added.values(), own[-1]]
    texts = {name: f"    {name}: {text}\n" for name, (_, _, text) in _SHAPE.items()}
    head, args, rest = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")
    rest, last, json = rest.partition(f"    {own[-1].name}: ")
    verb.__doc__ = head + args + texts.pop("model") + rest + "".join(texts.values()) + last + json
    verb.__name__, verb.__module__ = function.__name__, function.__module__
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {p.name: p.annotation for p in parameters}
    return verb

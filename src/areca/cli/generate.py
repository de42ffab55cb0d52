"""`areca generate`: text from a trained run."""

MOST_TEXTS = 128  # side by side, as many as `areca serve` takes in one request
MOST_TOKENS = 1_000_000  # of each, all of which are kept


def run(argv: list[str]) -> int:
    """Parses and runs `areca generate`."""
    from areca.cli.options import call

    return call(generate, argv, "areca generate")


def generate(
    run: str,
    /,
    *,
    prompt: str = "",
    tokens: int = 64,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    count: int = 1,
    step: int | None = None,
    store: str | None = None,
    json: bool = False,
) -> int:
    """Sample text from a checkpoint of a run.

    RUN is a directory that `areca train` made; its latest checkpoint is read, after its files are compared with their
    digests. The same command gives the same text. Text beyond the length that the model was trained on is written from
    the last half of that length.

    Example: areca generate runs/first --prompt "The river" --tokens 100

    Args:
        run: the run directory.
        prompt: what to continue; leave it out for the beginning of a document.
        tokens: length of the continuation, at most (up to 1,000,000); it ends earlier where the model ends the
            document.
        temperature: 0 always takes the likeliest token, 1 draws as the model predicts.
        top_k: draw from so many of the likeliest tokens; 0 for all.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: of the draws.
        stop: strings that end a continuation; it ends before them.
        count: how many continuations, up to 128; other seeds give more.
        step: read the checkpoint of this step instead of the latest.
        store: directory of the token store, if it was moved since the run.
        json: print the continuations, and what they took in energy and carbon, as JSON.
    """
    from areca.errors import ConfigError

    for name, value, most in (("count", count, MOST_TEXTS), ("tokens", tokens, MOST_TOKENS)):
        if not 1 <= value <= most:
            raise ConfigError(f"--{name} is {value:,}; it must be from 1 to {most:,}.")
    if "" in stop:
        raise ConfigError("--stop has an empty string, which every text contains; leave it out.")
    from areca import runtime

    runtime.prepare()
    from areca.cli.progress import say
    from areca.footprint.planned import in_words
    from areca.model.sampling import Sampling
    from areca.train.restore import sample_and_cost

    shown = None if json else _Shown(count)
    samples, cost = sample_and_cost(
        run, [prompt] * count, tokens, Sampling(temperature, top_k, top_p), seed, step, store,
        stops=stop, begin=shown and shown.begin, write=shown and shown.write,
    )  # fmt: skip
    if json:
        from areca.cli.options import print_json

        print_json({"samples": samples, "footprint": cost})
        return 0
    assert shown is not None
    shown.finish()
    say(in_words(cost))
    return 0


class _Shown:
    """The first text is shown as it is made; the others, made at the same time, after it."""

    def __init__(self, count: int) -> None:
        self._texts = [""] * count

    def begin(self, prompts: list[str]) -> None:
        self._texts = list(prompts)
        print(prompts[0], end="", flush=True)

    def write(self, i: int, text: str) -> None:
        self._texts[i] += text
        if i == 0:
            print(text, end="", flush=True)

    def finish(self) -> None:
        print()
        for text in self._texts[1:]:
            print("---")
            print(text)

"""`areca import hf`: other people's models, and our exported ones, to generate from and to train on."""

from areca.cli.options import dispatch


def run(argv: list[str]) -> int:
    """Runs `areca import ...`."""
    return dispatch({"hf": hf}, argv, "areca import") or 0


def hf(source: str, /, *, out: str, json: bool = False) -> int:
    """Make a model of a Hugging Face directory, to generate from and to start runs from.

    SOURCE is a directory with a CohereForCausalLM in safetensors: what `areca export hf` wrote, which comes back to the
    bit, or anyone's. `areca generate` reads the result, and `areca train --init-from` starts from it.

    Example: areca import hf exported --out models/first

    Args:
        source: the directory to read.
        out: the directory to write; it must not exist.
        json: print what is in model.json.
    """
    from areca import runtime

    runtime.prepare()
    from areca.cli.progress import say
    from areca.interop.huggingface import import_hf

    meta = import_hf(source, out, say)
    if json:
        from areca.cli.options import print_json

        print_json(meta)
        return 0
    how = "to the bit as it was exported" if meta["origin"]["exported"] else "from its config.json"
    print(f"{out}: the model of {source}, {how}. `areca generate {out}`, or `areca train CONFIG --init-from {out}`.")
    return 0

"""`areca export hf`: a model for other people's tools."""

from areca.cli.options import dispatch


def run(argv: list[str]) -> int:
    """Runs `areca export ...`."""
    return dispatch({"hf": hf}, argv, "areca export") or 0


def hf(source: str, /, *, out: str, step: int | None = None, store: str | None = None, json: bool = False) -> int:
    """Write a model and its tokenizer as a directory that transformers loads.

    SOURCE is a run, an imported model, or one checkpoint of a run (runs/first/checkpoints/4000). The directory is a
    CohereForCausalLM, whose block is PaLM's: the same logits to rounding, the same tokens. `areca import hf` brings it
    back to the bit.

    Example: areca export hf runs/first --out exported

    Args:
        source: what to export.
        out: the directory to write; it must not exist.
        step: export the checkpoint of this step instead of the latest.
        store: directory of the token store, if it was moved since the run.
        json: print what is in areca.json.
    """
    from areca import runtime

    runtime.prepare()
    from areca.interop.huggingface import export_hf

    note = export_hf(source, out, step, store)
    if json:
        from areca.cli.options import print_json

        print_json(note)
        return 0
    model = note["config"]["model"]
    print(f'{out}: step {note["step"]} of {source} for transformers, AutoModelForCausalLM.from_pretrained("{out}").')
    if model["n_heads"] * model["head_dim"] != model["d_model"]:
        print(
            f"{model['n_heads']} heads of {model['head_dim']} are not the width {model['d_model']}: transformers reads "
            "head_dim, and some other runtimes do not."
        )
    return 0

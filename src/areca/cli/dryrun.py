"""`areca dryrun`: will a model fit on a mesh of chips, and how fast can a step be."""

from typing import Any, Literal


def run(argv: list[str]) -> int:
    """Parses and runs `areca dryrun`."""
    from areca.cli.options import call

    return call(dryrun, argv, "areca dryrun")


def dryrun(
    model: str = "",
    /,
    *,
    mesh: str,
    batch: int,
    chip: str = "",
    islands: int = 1,
    context: int = 0,
    remat: Literal["none", "selective", "block"] = "block",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    chips_per_host: int = 4,
    vocab_size: int = 0,
    d_model: int = 0,
    n_layers: int = 0,
    n_heads: int = 0,
    head_dim: int = 0,
    d_ff: int = 0,
    json: bool = False,
) -> int:
    """Compile a training step for any mesh, without the chips: bytes, FLOPs, transfers, step time by roofline.

    Nothing is allocated: the program is compiled on virtual devices of this machine's CPU.

    Example: areca dryrun palm-540b --mesh 256x12 --islands 2 --batch 2048 --chip tpu-v4

    Args:
        model: palm-8b, palm-62b or palm-540b, or a TOML or JSON file with a model's or a run's configuration; or leave
            it out and give the shape.
        mesh: DATAxMODEL of one island: devices that share the batch x devices that share heads, F and V.
        batch: sequences a step, over all islands.
        chip: one of the table (`areca count --chip list`) or a file; without it there is no step time.
        islands: how many of these meshes train together, exchanging gradients.
        context: T, tokens in a sequence; the file's own, or 2048, if not given.
        remat: what a layer keeps for its backward pass: all (none), the outputs of products, or its input (block).
        dtype: of the computation; parameters and optimizer are float32.
        chips_per_host: for the bytes that pairs of hosts exchange between islands.
        vocab_size: V, tokens in the vocabulary. Overrides the model's, as the next five do.
        d_model: D, the model's width.
        n_layers: L, the number of blocks.
        n_heads: H, query heads; all share one key and value head.
        head_dim: K, width of a head; D / H if not given.
        d_ff: F, feed-forward width; 4 D if not given.
        json: print the result as JSON.
    """
    from areca.cli.options import print_json
    from areca.model.summary import load_shape
    from areca.train.dryrun import ask

    widths = {"vocab_size": vocab_size, "d_model": d_model, "n_layers": n_layers}
    widths |= {"n_heads": n_heads, "head_dim": head_dim, "d_ff": d_ff}
    shape = load_shape(model, context, **widths)
    result = ask(
        shape.config,
        mesh,
        batch=batch,
        context=shape.context,
        islands=islands,
        chip=chip,
        remat=remat,
        dtype=dtype,
        chips_per_host=chips_per_host,
    )
    if json:
        print_json(result)
    else:
        _print(shape.name, result)
    return 0


def _print(name: str, r: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    m, need = r["mesh"], r["bytes_per_chip"]
    islands = f"{m['islands']} islands of " if m["islands"] > 1 else ""
    console.print(
        f"[bold]{name}: {r['n_params_total'] / 1e9:.4g} B parameters on {islands}{m['data']} x {m['model']} "
        f"(data x model) = {r['devices']:,} {r['chip'] or 'devices'}[/bold], {r['batch']:,} x {r['context']:,} tokens "
        f"a step, {r['dtype']}, remat {r['remat']}",
        soft_wrap=True,
    )
    rows = [
        ("parameters, float32", need["parameters"], "exact"),
        ("optimizer, two moments", need["optimizer"], "exact"),
        ("activations kept, L B T D / devices", need["saved_activations"], "exact"),
        (
            "temporaries, these included",
            need["temporaries_at_most"],
            "at most: compiled for a CPU, which widens bfloat16",
        ),
    ]
    table = Table("bytes a chip", "GiB", "", box=None, pad_edge=False)
    for what, value, how in rows:
        if value is not None:
            table.add_row(what, f"{value / 2**30:,.2f}", how)
    console.print(table)
    if r["fits"]:
        f = r["fits"]
        verdict = {True: "it fits", False: "it does NOT fit", None: "it may fit"}[f["fits"]]
        console.print(f"{verdict}: at most {f['needed_at_most'] / 2**30:.1f} of {f['memory'] / 2**30:.0f} GiB")
    table = Table("transfers a step", "axis", "times", "GiB a chip receives", box=None, pad_edge=False)
    for t in r["transfers"]:
        table.add_row(t["kind"], t["axis"], f"{t['count']:,}", f"{t['bytes'] / 2**30:,.2f}")
    if r["transfers"]:
        console.print(table)
    if r["islands_exchange"]:
        e = r["islands_exchange"]
        console.print(
            f"gradients between islands: {e['bytes'] / 2**40:.3f} TiB a step over {e['host_pairs']:,} pairs of hosts, "
            f"{e['bytes_per_host_pair'] / 2**30:.3f} GiB a pair",
            soft_wrap=True,
        )
    f = r["flops"]
    console.print(
        f"a step: {f['exact_per_step']:.4g} exact FLOPs (6 N D: {f['six_nd_per_step']:.4g}); with what is computed "
        f"again {f['hardware_per_step']:.4g}, {f['hardware_per_chip']:.4g} a chip",
        soft_wrap=True,
    )
    if r["roofline"]:
        _roofline(console, r)
    for line in r["extrapolated"]:
        console.print(f"note: {line}", style="yellow", soft_wrap=True)
    console.print(f"compiled in {r['compiled']['seconds']:.1f} s", style="dim")


def _roofline(console: Any, r: dict[str, Any]) -> None:
    line = r["roofline"]
    parts = [f"computing {line['compute_seconds']:.3g} s at the peak"]
    for key, words in (
        ("transfer_seconds", "transfers inside an island"),
        ("between_islands_seconds", "between islands"),
    ):
        if line[key] is None:
            parts.append(f"{words} unknown (no published bandwidth)")
        elif line[key]:
            parts.append(f"{words} {line[key]:.3g} s")
    console.print(f"roofline: {', '.join(parts)}", soft_wrap=True)
    for key, words in (("hidden", "if all transfers hide behind computing"), ("exposed", "if none does")):
        if key in line:
            v = line[key]
            speed = f"{v['tokens_per_second']:,.0f} tokens/s"
            console.print(f"  {words}: {v['step_seconds']:.3g} s a step, {speed}, MFU {v['mfu']:.1%}")
    if r["published"]:
        p = r["published"]
        console.print(
            f"  published for this configuration: {p['tokens_per_second']:,.0f} tokens/s, {p['step_seconds']:.3g} s a "
            f"step, MFU {p['mfu']:.1%} ({p['source']}): {p['of_exposed']:.0%} of the roofline without hiding",
            soft_wrap=True,
        )

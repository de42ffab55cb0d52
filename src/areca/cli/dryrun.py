"""`areca dryrun`: will a model fit on a mesh of chips, and how fast can a step be."""

from textwrap import wrap
from typing import Any, Literal

from areca.cli.options import call, print_json, with_shape
from areca.cli.units import byte_size, duration, short


def run(argv: list[str]) -> int:
    """Parses and runs `areca dryrun`."""
    return call(dryrun, argv, "areca dryrun")


@with_shape
def dryrun(
    *,
    shape: dict[str, Any],
    mesh: str,
    batch: int,
    chip: str = "",
    islands: int = 1,
    remat: Literal["none", "selective", "block"] = "block",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    optimizer: Literal["adafactor", "adam", "muon"] = "adafactor",
    chips_per_host: int = 4,
    link_gbps: float = 0.0,
    island_seconds: float = 0.0,
    json: bool = False,
) -> int:
    """Compile a training step for any mesh, without the chips: bytes, FLOPs, transfers, step time by roofline.

    Nothing is allocated: the program is compiled on virtual devices of this machine's CPU.

    Example: areca dryrun palm-540b --mesh 256x12 --islands 2 --batch 2048 --chip tpu-v4

    Args:
        mesh: DATAxMODEL of one island: devices that share the batch x devices that share heads, F and V.
        batch: sequences a step, over all islands.
        chip: one of the table (`areca count --chip list`) or a file; without it there is no step time.
        islands: how many of these meshes train together, exchanging gradients.
        remat: what a layer keeps for its backward pass: all (none), the outputs of products, or its input (block).
        dtype: of the computation; parameters and optimizer are float32.
        optimizer: what a step updates with; muon keeps one moment of each layer's matrices and makes them orthogonal.
        chips_per_host: for the bytes that pairs of hosts exchange between islands.
        link_gbps: Gbit/s from a host to its peer in another island, each way at once; 0: PaLM's and the chip's.
        island_seconds: measured, of a step of one island alone with its share of the batch; 0: published or a roofline.
        json: print the result as JSON.
    """
    from areca.config import OptimizerConfig
    from areca.model.summary import load_shape
    from areca.train.ahead.dryrun import ask

    asked = load_shape(**shape)
    result = ask(
        asked.config,
        mesh,
        batch=batch,
        context=asked.context,
        islands=islands,
        chip=chip,
        remat=remat,
        dtype=dtype,
        optimizer=OptimizerConfig(optimizer, beta2=0.0 if optimizer == "adafactor" else 0.95),
        chips_per_host=chips_per_host,
        link_gbps=link_gbps,
        island_seconds=island_seconds,
    )
    if json:
        print_json(result)
    else:
        _print(asked.name, result)
    return 0


def _print(name: str, r: dict[str, Any]) -> None:
    """Lines of at most 80 characters, for what a chip and a step can be."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    m = r["mesh"]
    islands = f"{m['islands']} islands of " if m["islands"] > 1 else ""
    console.print(f"[bold]{name}: {short(r['n_params_total'])} parameters[/bold]")
    console.print(
        f"on {islands}{m['data']} x {m['model']} (data x model) = {r['devices']:,} {r['chip'] or 'devices'}; "
        f"{r['dtype']}, remat {r['remat']}"
    )
    console.print(f"{r['batch']:,} x {r['context']:,} tokens a step\n")
    _bytes(console, r)
    _transfers(console, r)
    _flops(console, r["flops"])
    if r["roofline"]:
        _roofline(console, r)
    if r["scaling"]:
        _scaling(console, r["scaling"])
    for line in r["extrapolated"]:
        console.print(f"note: {line}", style="yellow", soft_wrap=False)
    console.print(f"compiled in {r['compiled']['seconds']:.1f} s", style="dim")


def _bytes(console: Any, r: dict[str, Any]) -> None:
    need = r["bytes_per_chip"]
    compiled = need["temporaries_at_most"] == r["compiled"]["temporary_bytes"]
    rows = [
        ("parameters, float32", need["parameters"], "exact"),
        (
            "optimizer, muon's moments" if r["optimizer"] == "muon" else "optimizer, two moments",
            need["optimizer"],
            "exact",
        ),
        ("activations kept", need["saved_activations"], "exact, as the program stacks them"),
        ("temporaries, these included", need["temporaries_estimate"], f"estimate of what is live ({_peak(need)})"),
        (
            "  temporaries, at most",
            need["temporaries_at_most"],
            "bound: compiled for CPUs, in float32" if compiled else "bound: less when compiled for CPUs",
        ),
    ]
    console.print("bytes a chip")
    for what, value, how in rows:
        if value is not None:
            console.print(f"{what:<29}{byte_size(value):>10}  {how}")
    if f := r["fits"]:
        verdict = {True: "it fits", False: "it does NOT fit", None: "it may fit"}[f["fits"]]
        about = f"about {byte_size(f['needed_estimate'])}, " if f["needed_estimate"] else ""
        least = f", at least {byte_size(f['needed_at_least'])}" if "needed_at_least" in f else ""
        most = f"at most {byte_size(f['needed_at_most'])}"
        console.print(f"[bold]{verdict}[/bold] in {byte_size(f['memory'])}: {about}{most}{least}")


def _peak(need: dict[str, Any]) -> str:
    return need["estimate"]["peak"] if need["estimate"] else ""


def _transfers(console: Any, r: dict[str, Any]) -> None:
    if r["transfers"]:
        console.print(f"\n{'transfers a step':<18}{'axis':<12}{'times':>9}{'a chip receives':>18}")
    for t in r["transfers"]:
        console.print(f"{t['kind']:<18}{t['axis']:<12}{t['count']:>9,}{byte_size(t['bytes']):>18}")
    if e := r["islands_exchange"]:
        pairs = f"{e['host_pairs']:,} pair{'s' if e['host_pairs'] > 1 else ''} of hosts"
        each = byte_size(e["bytes_per_host_pair"])
        console.print(f"between islands: gradients of {byte_size(e['bytes'])} over {pairs}, {each} a pair")


def _flops(console: Any, f: dict[str, float]) -> None:
    console.print(f"\nFLOPs a step: {f['exact_per_step']:.4g} exact, {f['six_nd_per_step']:.4g} by 6 N D,")
    console.print(f"  {f['hardware_per_step']:.4g} with what is computed again: {f['hardware_per_chip']:.4g} a chip")
    if f["optimizer_per_step"]:
        console.print(f"  and {f['optimizer_per_step']:.4g} of Muon's iterations, {f['optimizer_per_chip']:.4g} a chip")
    console.print(f"  ({f['products_per_chip_in_program']:.4g} a chip in the products of the program that was traced)")


def _roofline(console: Any, r: dict[str, Any]) -> None:
    line = r["roofline"]
    console.print(f"roofline: computing {duration(line['compute_seconds'])} at the peak")
    for key, words in (
        ("transfer_seconds", "transfers inside an island"),
        ("between_islands_seconds", "transfers between islands"),
    ):
        if line[key] is None:
            console.print(f"  {words}: unknown (no published bandwidth)")
        elif line[key]:
            console.print(f"  {words}: {duration(line[key])}")
    rows = [("all transfers hidden", line.get("hidden")), ("none hidden", line.get("exposed"))]
    rows.append(("published", r["published"]))
    for words, v in rows:
        if v:
            speed = f"{v['tokens_per_second']:,.0f} tokens/s"
            console.print(f"  {words + ':':<22}{duration(v['step_seconds'])} a step, {speed}, MFU {v['mfu']:.1%}")
    if p := r["published"]:
        console.print(f"    ({p['source']}: none hidden is {p['of_exposed']:.0%} of it)")


def _scaling(console: Any, s: dict[str, Any]) -> None:
    """Several islands against one: a row for each link, then what the rows rest on."""
    n = s["islands"]
    console.print(f"\nscaling over {n} islands, against one with {s['sequences_of_an_island']:,} sequences (weak)")
    known = s["island_seconds"] is not None
    heads = f"{'after backward':>16}{'overlapped (segments)':>24}" if known else ""
    console.print(f"{'a host sends ' + byte_size(s['bytes_a_host_sends']):<24}{'Gbit/s':>7}{'takes':>8}{heads}")
    for row in s["links"]:
        line = f"{row['link']:<24}{row['gbps_of_a_host']:>7.3g}{duration(row['exchange_seconds']):>8}"
        if known:
            over = row["overlapped"]
            line += f"{row['after_backward']['weak']:>15.3f}x{over['weak']:>16.3f}x ({over['segments']})"
        console.print(line)
    if known:
        after, over = (_strong(s["links"][0][way]) for way in ("after_backward", "overlapped"))
        console.print(f"strong, against one with all sequences: {after}; overlapped {over}")
    if need := s["needed"]:
        least = (
            f"{need['overlapped_tbps']:.3g} do, overlapped" if need["overlapped_tbps"] else "no speed does, overlapped"
        )
        console.print(
            f"{need['efficiency']:.1%} of {n}x needs {need['after_backward_tbps']:.3g} Tbit/s of all hosts; {least}"
        )
    if p := s["published"]:
        burst, ideal = f"a burst of {p['burst_tbps']:g} Tbps", duration(p["roofline_island_seconds"])
        console.print(f"published: {p['weak']}x, and {burst}; that alone gives {p['weak_of_burst']:.3f}x,")
        console.print(
            f"  and {p['weak']}x alone means {p['tbps_of_weak']:.0f} Tbps; with an island's roofline of {ideal}"
        )
        console.print(f"  the burst gives {p['roofline_weak_of_burst']:.3f}x")
    for a in s["assumptions"]:
        line = f"{a['from'] or 'unknown'}: {a['what']}"
        console.print("\n".join(wrap(line, 80, initial_indent="  ", subsequent_indent="    ")), style="dim")


def _strong(v: dict[str, float]) -> str:
    low, high = f"{v['strong_at_least']:.2f}", f"{v['strong_at_most']:.2f}x"
    return high if low == high[:-1] else f"{low} to {high}"

"""`areca count`: what a decoder weighs and what a token costs, by arithmetic on its shape."""

from typing import Any

from areca.cli.options import call, print_json, with_shape
from areca.cli.units import byte_size, short


def run(argv: list[str]) -> int:
    call(count, argv, "areca count")
    return 0


@with_shape
def count(
    *,
    shape: dict[str, Any],
    tokens: float | None = None,
    tokens_per_second: float | None = None,
    chips: int = 1,
    chip: str = "",
    peak_tflops: float | None = None,
    remat: str = "",
    json: bool = False,
) -> None:
    """Parameters, training FLOPs, memory and MFU of a model, without building it.

    Example: areca count palm-540b --tokens-per-second 238300 --chips 6144 --chip tpu-v4

    Args:
        tokens: D, training tokens, for totals (780e9 is understood).
        tokens_per_second: observed over all chips, for the MFU.
        chips: accelerators that share the work.
        chip: which accelerator, such as h200, or a TOML or JSON file that describes yours; list prints all and where
            their figures are from.
        peak_tflops: peak TFLOP/s of one of them, in place of --chip.
        remat: none, selective or block: what the backward pass computes again, for the HFU; without it there is none.
        json: print the result as JSON.
    """
    if chip == "list":
        _print_chips(json)
        return
    from areca.model.summary import load_shape, peak_of, summarise

    peak, source = peak_of(chip, peak_tflops)
    result = summarise(
        load_shape(**shape),
        tokens=tokens,
        tokens_per_second=tokens_per_second,
        chips=chips,
        peak_flops_per_chip=peak,
        remat=remat,
    )
    if json:
        print_json(result | {"peak_source": source or None})
    else:
        _print(result, source)


def _print(r: dict[str, Any], peak_source: str) -> None:
    c, parts, memory = r["config"], r["n_params_by_part"], r["memory_bytes_float32"]
    grouped = c["n_kv_heads"] > 1
    tables = ("V D" if c["tied"] else "2 V D") + (" + P D" if c["n_positions"] else "")
    rows = [
        ("parameters, all", f"{r['n_params_total']:,}", f"{short(r['n_params_in_matrices'])} in matrices"),
        (
            "  embedding, in and out",
            f"{parts['embedding']:,}",
            tables,
        ),
        ("  attention", f"{parts['attention']:,}", "L (2 D H K + 2 D G K)" if grouped else "L (2 D H K + 2 D K)"),
        ("  feed-forward", f"{parts['mlp']:,}", "L 3 D F" if c["mlp"] == "swiglu" else "L 2 D F"),
        ("  norms", f"{parts['norms']:,}", "(2 L + 1) D" if c["block"] == "serial" else "(L + 1) D"),
        *([("  biases", f"{parts['biases']:,}", "one for each output")] if c["biases"] else []),
        ("N, without embedding", f"{r['n_params']:,}", short(r["n_params"])),
        ("exact FLOPs a token", f"{r['exact_flops_per_token']:.5g}", "training, all matrix products"),
        ("  T x T attention", f"{r['attention_flops_per_token']:.5g}", "12 L H K T"),
        ("6 N a token", f"{r['six_n_flops_per_token']:.5g}", "N without embedding"),
    ]
    if r["remat"]:
        again = "nothing computed again" if r["remat"] == "none" else f"rematerialized by {r['remat']}"
        rows.append(("hardware FLOPs a token", f"{r['hardware_flops_per_token']:.5g}", again))
    if r["n_tokens"]:
        rows += [
            ("exact FLOPs", f"{r['flops_exact']:.5g}", f"of D = {short(r['n_tokens'])} tokens"),
            ("6 N D", f"{r['flops_6nd']:.5g}", f"of D = {short(r['n_tokens'])} tokens"),
        ]
    rows += [
        ("float32 parameters", byte_size(memory["parameters"]), ""),
        ("float32 gradients", byte_size(memory["gradients"]), ""),
        ("float32 optimizer state", byte_size(memory["optimizer_state"]), "two moments"),
    ]
    if r["mfu"] is not None:
        rows += [
            ("MFU", f"{r['mfu']:.1%}", "6 N_total + 12 L H K T a token"),
            ("MFU without attention", f"{r['mfu_without_attention']:.1%}", "6 N_total a token"),
        ]
    if r["hfu"] is not None:
        rows.append(("HFU", f"{r['hfu']:.1%}", "hardware FLOPs a token"))
    if r["mfu"] is not None:
        rows.append(("peak of a chip, TFLOP/s", f"{r['peak_flops_per_chip'] / 1e12:.5g}", peak_source))
    print(
        f"{r['model']}: {c['n_layers']} layers of D {c['d_model']:,}, {c['n_heads']} heads of {c['head_dim']}, "
        f"F {c['d_ff']:,}, V {c['vocab_size']:,}, T {r['context']:,}"
    )
    for what, value, note in rows:
        print(f"{what:<24} {value:>17}  {note}".rstrip())


_FIGURES = {
    "peak_flops": "peaks",
    "memory_bytes": "memory",
    "memory_bytes_per_second": "its bandwidth",
    "interconnect_bytes_per_second": "link",
    "network_bytes_per_second": "network",
    "tdp_watts": "power",
}


def _print_chips(json: bool) -> None:
    from dataclasses import asdict

    from areca.chips import CHIPS, DTYPES

    if json:
        print_json([asdict(c) for c in CHIPS.values()])
        return

    def cell(value: float | None, unit: float) -> str:
        return "-" if value is None else f"{value / unit:.4g}"

    print("Peaks in TFLOP/s, dense; memory in GB; its bandwidth, link (all of a chip) and network (between")
    print("hosts, a chip's share) in GB/s of one direction; TDP in W; - where none was published.\n")
    heads = (*DTYPES, "memory", "b'width", "link", "", "network", "TDP")
    print(f"{'chip':<10}" + "".join(f"{h:>9}" for h in heads))
    for c in CHIPS.values():
        figures = [cell(c.peak_flops.get(d), 1e12) for d in DTYPES]
        figures += [cell(c.memory_bytes, 1e9), cell(c.memory_bytes_per_second, 1e9)]
        figures += [cell(c.interconnect_bytes_per_second, 1e9), c.interconnect]
        figures += [cell(c.network_bytes_per_second, 1e9), cell(c.tdp_watts, 1)]
        print(f"{c.name:<10}" + "".join(f"{f:>9}" for f in figures))
    for c in CHIPS.values():
        print(f"\n{c.name}: {' or '.join(c.device_kinds)} to jax")
        for source in dict.fromkeys(c.sources[n] for n in _FIGURES):
            print(f"  {', '.join(label for n, label in _FIGURES.items() if c.sources[n] == source)}: {source}")

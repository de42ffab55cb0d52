"""What several islands reach together, on paper: PaLM's published figures first, then the backward pass in segments.

Weak scaling, as PaLM counts it: the throughput of n islands over that of one island with its share of the batch (the
same work for each island). Strong: the time of one island with the whole batch over that of n. Without overlap an
island's gradients leave when its backward pass has ended; with it, they leave segment by segment
(areca.train.islands.overlap).

What is free: the speed of the link between islands. PaLM (Chowdhery et al. 2022, section 4) gives two figures that
would each settle it, and they differ by a factor of two: bursts of 81 Tbps over all hosts, and 1.95x, by which the
exchange took twice as long as that. Both are shown, and for PaLM's own configuration a third reading with one fitted
number, like the second: the burst, and a time after it that nothing hides. Importable without jax.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from areca.model.config import PRESETS
from areca.model.counts import count_params, exact_flops_per_token, recomputed_flops_per_token
from areca.train.islands.overlap import Times, best_lengths, step_seconds

if TYPE_CHECKING:
    from areca.train.ahead.dryrun import DryRun

SOURCE = "Chowdhery et al. 2022, section 4"
PALM_SPEEDUP = 1.95  # of two pods, over one with half the batch
PALM_BURST = 81e12  # bits a second, all hosts sending at once
PALM_HOSTS_OF_A_POD = 768
PALM_TOKENS_PER_SECOND = 238_300.0  # two pods: section 4.1
PALM_STEP_SECONDS = 2048 * 2048 / PALM_TOKENS_PER_SECOND
PROGRAM_SECONDS = 1e-4  # what starting one more program costs; assumed


@dataclass(frozen=True)
class Link:
    """What connects two hosts of different islands, in each direction."""

    name: str
    origin: str  # given, published, fitted or chip
    bits_per_second: float  # of a host
    beside: float = 0.0  # seconds from the last byte to the update, which nothing hides


def palm_links() -> tuple[Link, Link, Link]:
    """1.95x read with one fitted number, as a slower link or as a time beside the burst; and the published burst."""
    burst = PALM_BURST / (2 * PALM_HOSTS_OF_A_POD)
    bits = 8 * 2 * count_params(PRESETS["palm-540b"]).total / PALM_HOSTS_OF_A_POD  # bfloat16
    took = PALM_STEP_SECONDS * (1 - PALM_SPEEDUP / 2)
    beside = took - bits / burst
    return (
        Link("as slow as PaLM's 1.95x", "fitted", bits / took),
        Link(f"PaLM's burst + {1e3 * beside:.0f} ms", "fitted", burst, beside),
        Link("PaLM's burst of 81 Tbps", "published", burst),
    )


def over_islands(asked: "DryRun", result: dict[str, Any]) -> dict[str, Any] | None:
    """The section "scaling" of a dry run whose other sections are in `result`; None for one island.

    Without `link_gbps` the links are those of `palm_links` and the chip's own; without `island_seconds` an island's
    step alone is the published one, or the roofline with nothing hidden.
    """
    if asked.islands == 1:
        return None
    published = result["published"]
    alone, origin = _alone(result, asked.island_seconds)
    links = _links(asked, bool(published))
    a_host = (asked.islands - 1) * result["islands_exchange"]["bytes_per_host_pair"]
    segment = PROGRAM_SECONDS + _not_hidden(asked, result)
    rows = [_row(asked, link, alone, a_host, segment, _of_weights(asked, result)) for link in links]
    hosts = asked.islands * result["islands_exchange"]["host_pairs"]
    return {
        "islands": asked.islands,
        "sequences_of_an_island": asked.batch,
        "island_seconds": alone,
        "bytes_a_host_sends": a_host,
        "links": rows,
        "needed": _needed(asked, alone, a_host, hosts, segment) if alone else None,
        "published": _beside_published(asked, result, a_host) if published else None,
        "assumptions": _assumptions(asked, origin, links, segment),
    }


def _alone(result: dict[str, Any], island_seconds: float) -> tuple[float | None, tuple[str, str]]:
    """Seconds of an island's step alone, and where they are from."""
    if island_seconds:
        return island_seconds, ("given", f"an island's step alone takes {island_seconds:g} s")
    if result["published"]:
        text = f"238,300 tokens/s on two pods, {PALM_SPEEDUP}x one ({SOURCE} and 4.1): an island alone"
        return PALM_STEP_SECONDS * PALM_SPEEDUP / 2, ("published", f"{text} takes 1.95 / 2 of their step")
    line = result["roofline"]
    if line and line["transfer_seconds"] is not None:
        alone = line["compute_seconds"] + line["transfer_seconds"]
        return alone, ("chip", "an island's step alone is its roofline with nothing hidden; a slower one scales better")
    return None, ("", "an island's step is unknown: name a chip with published links, or give island-seconds")


def _links(asked: "DryRun", palm: bool) -> list[Link]:
    if asked.link_gbps:
        return [Link("as given", "given", 1e9 * asked.link_gbps)]
    slow, beside, burst = palm_links()
    links = [slow, beside, burst] if palm else [slow, burst]  # the time beside is that of 1.4 GB a host
    if asked.chip and asked.chip.network_bytes_per_second:
        bits = 8 * asked.chip.network_bytes_per_second * asked.chips_per_host
        links.append(Link(f"network of {asked.chip.name}", "chip", bits))
    return links


def times(asked: "DryRun", alone: float, link: Link, segment: float) -> Times:
    """An island's step alone, split by FLOPs, and a host's bytes of each part; (n - 1) hosts wait for them.

    Segments recompute their layers (remat "block"), also where the island alone does not and so takes less.
    """
    m, context = asked.model.resolved(), asked.context
    logits = 6 * m.vocab_size * m.d_model
    forward = (exact_flops_per_token(m, context) - logits) / 3
    again = {remat: recomputed_flops_per_token(m, context, remat) for remat in ("block", asked.remat)}
    second = alone / (3 * forward + logits + again[asked.remat])
    n = count_params(m)
    # A shared embedding's gradient travels in two parts: the output's and the input's.
    bottom = m.d_model * (m.vocab_size + m.n_positions)
    top = m.d_model * (m.vocab_size + 1)
    exchange = (asked.islands - 1) * {"bfloat16": 2, "float32": 4}[asked.dtype] / asked.hosts
    return Times(
        forward=forward * second,
        head=logits * second,
        layer=(2 * forward + again["block"]) * second / m.n_layers,
        embedding=0.0,
        segment=segment,
        head_bytes=top * exchange,
        layer_bytes=(n.non_embedding - m.d_model) * exchange / m.n_layers,
        embedding_bytes=bottom * exchange,
        seconds_per_byte=8 / link.bits_per_second,
    )


def _row(
    asked: "DryRun", link: Link, alone: float | None, a_host: float, segment: float, weights: float
) -> dict[str, Any]:
    exchange = link.beside + 8 * a_host / link.bits_per_second
    row: dict[str, Any] = {
        "link": link.name,
        "origin": link.origin,
        "gbps_of_a_host": link.bits_per_second / 1e9,
        "tbps_of_all_hosts": asked.islands * asked.hosts * link.bits_per_second / 1e12,
        "beside_seconds": link.beside,
        "exchange_seconds": exchange,
        "after_backward": None,
        "overlapped": None,
    }
    if not alone:
        return row

    def speedup(step: float, **others: float) -> dict[str, float]:
        # One island with n times the sequences takes n times as long, but for transfers of weights that it waits for.
        whole = asked.islands * alone
        return others | {
            "step_seconds": step,
            "not_hidden_seconds": step - alone,
            "weak": whole / step,
            "efficiency": alone / step,
            "strong_at_least": (whole - (asked.islands - 1) * min(weights, alone)) / step,
            "strong_at_most": whole / step,
        }

    t = times(asked, alone, link, segment)
    lengths = best_lengths(t, asked.model.n_layers)
    row["after_backward"] = speedup(alone + exchange)
    row["overlapped"] = speedup(step_seconds(t, lengths) + link.beside, segments=len(lengths)) | {
        "lengths": list(lengths)
    }
    return row


def _needed(asked: "DryRun", alone: float, a_host: float, hosts: float, segment: float) -> dict[str, float | None]:
    """The speed over all hosts that gives PaLM's efficiency, 1.95 / 2, both ways; None where no speed does."""
    efficiency = PALM_SPEEDUP / 2
    step = alone / efficiency
    layers = asked.model.n_layers

    def overlapped(bits_per_second: float) -> float:
        t = times(asked, alone, Link("", "", bits_per_second), segment)
        return step_seconds(t, best_lengths(t, layers))

    after = 8 * a_host / (step - alone)  # of a host
    low, high = after / 1e6, after
    reached = overlapped(high) <= step
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if overlapped(middle) <= step else (middle, high)
    return {
        "efficiency": efficiency,
        "after_backward_tbps": hosts * after / 1e12,
        "overlapped_tbps": hosts * high / 1e12 if reached else None,
    }


def _beside_published(asked: "DryRun", result: dict[str, Any], a_host: float) -> dict[str, Any]:
    """What each published figure says of the other, and both with the dry run's own seconds in place of PaLM's."""
    slow, beside, burst = palm_links()
    took = PALM_STEP_SECONDS * (1 - PALM_SPEEDUP / 2)
    at_burst = 8 * a_host / burst.bits_per_second
    line = result["roofline"]
    ideal = line["compute_seconds"] + line["transfer_seconds"]
    return {
        "source": SOURCE,
        "weak": PALM_SPEEDUP,
        "burst_tbps": PALM_BURST / 1e12,
        "exchange_seconds_of_burst": at_burst,
        "exchange_seconds_of_weak": took,
        "weak_of_burst": asked.islands / (1 + at_burst / (PALM_STEP_SECONDS - took)),
        "tbps_of_weak": PALM_BURST / 1e12 * slow.bits_per_second / burst.bits_per_second,
        "fitted_share_of_burst": slow.bits_per_second / burst.bits_per_second,
        "fitted_beside_seconds": beside.beside,
        "roofline_island_seconds": ideal,
        "roofline_weak_of_burst": asked.islands / (1 + at_burst / ideal),
        "roofline_weak_of_slow": asked.islands / (1 + took / ideal),
    }


def _of_weights(asked: "DryRun", result: dict[str, Any]) -> float:
    """Seconds of the transfers over data, bytes of weights that don't grow with the sequences; 0 if unknown."""
    speed = asked.chip.interconnect_bytes_per_second if asked.chip else None
    moved = sum(t["bytes"] for t in result["transfers"] if t["axis"] == "data")
    return moved / speed if speed else 0.0


def _not_hidden(asked: "DryRun", result: dict[str, Any]) -> float:
    """Seconds at a segment's ends that nothing hides: a layer's kernels come over data, a layer's gradients go.

    Kernels are gathered twice a step, in the forward pass and in the backward pass.
    """
    speed = asked.chip.interconnect_bytes_per_second if asked.chip else None
    moved = {t["kind"]: t["bytes"] for t in result["transfers"] if t["axis"] == "data"}
    a_layer = (moved.get("all-gather", 0) / 2 + moved.get("reduce-scatter", 0)) / asked.model.n_layers
    return a_layer / speed if speed else 0.0


def _assumptions(asked: "DryRun", alone: tuple[str, str], links: list[Link], segment: float) -> list[dict[str, str]]:
    """Everything that the section rests on and that was not computed, with where it is from."""
    found = [alone]
    for link in links:
        speed = f"{link.bits_per_second / 1e9:.3g} Gbit/s"
        if link.origin == "given":
            what = f"a host sends {speed}, and receives as many at once"
        elif link.origin == "chip":
            assert asked.chip
            what = f"{link.name}: {asked.chip.sources.get('network_bytes_per_second', asked.chip.name)}"
        elif link.beside:
            what = f"or the burst is right, and {link.beside:.3f} s after it nothing hides (one number)"
        elif link.origin == "fitted":
            what = (
                f"a link on which PaLM's exchange after the backward pass gives {PALM_SPEEDUP}x (one number): {speed}"
            )
        else:
            what = f"81 Tbps ({SOURCE}), read as all {2 * PALM_HOSTS_OF_A_POD:,} hosts sending at once: {speed} each"
        found.append((link.origin, what))
    hosts = f"hosts have {asked.chips_per_host} chips and a peer in every other island; {asked.dtype} gradients travel"
    found += [
        ("assumed", hosts),
        ("assumed", "an island's seconds are spread over forward pass, logits and layers by their FLOPs"),
        ("assumed", "the link sends one part at a time at full speed once its program has ended, and slows no program"),
        ("assumed", f"each segment costs {1e3 * segment:.1f} ms: {1e3 * PROGRAM_SECONDS:g} ms to start a program, and "
         "one layer's gather and reduce-scatter over data that nothing hides"),
        ("assumed", "clipping and update come when all gradients have arrived; their seconds are an island's own"),
    ]  # fmt: skip
    if asked.remat != "block":
        found.append(("assumed", "segments compute their layers again (remat block), which an island alone does not"))
    return [{"from": origin, "what": what} for origin, what in found]

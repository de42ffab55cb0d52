"""The end of a run on another mixture: whole steps of it, no window again too soon, the same bits after a stop."""

import json
import shutil

import numpy as np
import pytest

from areca.config import (
    AnnealConfig,
    BatchConfig,
    CheckpointConfig,
    DataConfig,
    GuardConfig,
    RunConfig,
    ScheduleConfig,
)
from areca.data.batches import Batches
from areca.data.order import ANNEAL, Order
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError
from areca.train import anneal, rewinds
from areca.train.guard import Spike
from areca.train.loop import train
from areca.train.record import metrics_without_timing
from tiny import tiny_config

T = 16
MAIN, LAST = (("big", 3.0), ("small", 1.0)), (("small", 4.0), ("big", 1.0))


def _config(store, **changes) -> RunConfig:
    """Nine steps, of 2 sequences and from token 128 of 4; the decay begins in the middle of the sixth."""
    fields = {
        "data": DataConfig(str(store), T, weights=MAIN),
        "tokens": 480,
        "batch": BatchConfig(((0, 2), (128, 4))),
        "schedule": ScheduleConfig("wsd", decay_tokens=250),
        "anneal": AnnealConfig(LAST),
        "checkpoint": CheckpointConfig(every_steps=3, keep_last=3),
    }
    return tiny_config(store, **(fields | changes))


def _run(store, **changes) -> RunConfig:
    """Eight steps of 4 sequences, one program: the decay begins in the middle of the fifth."""
    return _config(store, batch=BatchConfig(((0, 4),)), **changes)


@pytest.fixture(scope="module")
def opened(tiny_store) -> TokenStore:
    return TokenStore.open(tiny_store)


@pytest.fixture(scope="module")
def run(tiny_store, tmp_path_factory):
    path = tmp_path_factory.mktemp("anneal") / "run"
    train(_run(tiny_store), path)
    return path


def test_it_begins_with_the_first_step_that_starts_when_the_decay_has_begun(tiny_store):
    steps = anneal.plan(_config(tiny_store))
    # 4 steps of 32 tokens to token 128, then steps of 64: 192, 256 (the decay begins at 230), 320, ...
    assert [(p.tokens, p.first_example) for p in steps] == [
        (32, 0), (64, 2), (96, 4), (128, 6), (192, 8), (256, 12),
        (320, ANNEAL), (384, ANNEAL + 4), (448, ANNEAL + 8), (512, ANNEAL + 12),
    ]  # fmt: skip
    assert anneal.before(steps) == 16
    exactly = anneal.plan(_config(tiny_store, anneal=AnnealConfig(LAST, start=192)))
    assert [p.first_example for p in exactly][4:7] == [8, ANNEAL, ANNEAL + 4]


@pytest.mark.parametrize("weights", [MAIN, LAST, (("big", 1.0),), (("big", 97.0), ("small", 1.0))])
def test_what_was_read_of_each_corpus_is_counted_as_if_one_by_one(opened, weights):
    order = Order(opened, T, seed=2, weights=weights)
    names = [c.name for c in opened.corpora]
    corpora = [names[i] for i in order.windows(0, 600)[:, 0]]
    for n in (0, 1, 2, 7, 99, 100, 600):
        assert order.read(n) == {c: corpora[:n].count(c) for c in order.corpora}


def test_a_corpus_of_both_goes_on_where_it_was_so_no_window_comes_twice_in_an_epoch(opened):
    batches = Batches(opened, DataConfig("", T, seed=4, weights=MAIN), LAST)
    batches.anneal_after(400)
    assert batches.anneal is not None
    for number, name in enumerate(c.name for c in opened.corpora):
        both = np.concatenate([batches.order.windows(0, 400), batches.anneal.windows(0, 900)])
        got = both[both[:, 0] == number, 1]
        # A corpus' own order does not depend on the mixture, so both together are that of the corpus alone.
        assert np.array_equal(got, Order(opened, T, 4, ((name, 1.0),)).windows(0, len(got))[:, 1])
        epoch = batches.order.windows_per_epoch[name]
        assert len(set(got[:epoch])) == min(epoch, len(got))
    tokens = batches.get(ANNEAL + 30, 5)
    for row, (corpus, offset) in zip(tokens, batches.anneal.windows(30, 35), strict=True):
        assert np.array_equal(row, opened.tokens(("big", "small")[corpus], "train")[offset : offset + T + 1])


def test_the_shares_of_the_anneal_are_its_own_from_its_first_step(opened):
    batches = Batches(opened, DataConfig("", T, weights=MAIN), LAST)
    batches.anneal_after(1001)
    assert batches.anneal is not None
    from_small = np.cumsum(batches.anneal.windows(0, 500)[:, 0] == 1)
    assert np.all(np.abs(from_small - 0.8 * np.arange(1, 501)) <= 1)


def test_the_run_says_which_examples_came_from_which_mixture(tiny_store, run, opened):
    told = json.loads((run / "run.json").read_text())["anneal"]
    assert (told["start_tokens"], told["first_step"], told["tokens_before"]) == (230, 5, 256)
    assert told["weights"] == {"small": 4.0, "big": 1.0}
    result = json.loads((run / "result.json").read_text())
    main, last = result["mixtures"]
    assert (main["steps"], main["examples"], main["tokens"]) == ([1, 4], [0, 16], 256)
    assert (last["steps"], last["examples"], last["tokens"]) == ([5, 8], [ANNEAL, ANNEAL + 16], 256)
    batches = anneal.batches(_run(tiny_store), opened, anneal.plan(_run(tiny_store)))
    assert batches.anneal is not None
    for part, order in ((main, batches.order), (last, batches.anneal)):
        small = int((order.windows(0, 16)[:, 0] == 1).sum())
        assert part["sequences"] == {"big": 16 - small, "small": small}
        assert part["epochs"]["small"] == pytest.approx(small / order.windows_per_epoch["small"])
    assert result["unique_tokens"] == 512  # 32 sequences, none twice
    assert result["epochs"] == 1


def test_until_it_begins_the_run_is_that_without_one(tiny_store, run, tmp_path):
    train(_run(tiny_store, anneal=AnnealConfig()), tmp_path / "plain")
    with_it, without = metrics_without_timing(run), metrics_without_timing(tmp_path / "plain")
    assert with_it[:4] == without[:4]
    assert with_it[4]["loss"] != without[4]["loss"]
    assert "anneal" not in json.loads((tmp_path / "plain" / "run.json").read_text())
    assert "mixtures" not in json.loads((tmp_path / "plain" / "result.json").read_text())


@pytest.mark.parametrize("step", [3, 6])
def test_resumed_before_it_or_in_it_the_run_ends_with_the_same_bits(tiny_store, run, tmp_path, step):
    again = shutil.copytree(run, tmp_path / "again")
    train(_run(tiny_store), again, resume="must", from_step=step)
    assert metrics_without_timing(again) == metrics_without_timing(run)
    one, other = (json.loads((r / "result.json").read_text()) for r in (run, again))
    assert all(one[k] == other[k] for k in ("parameters_sha256", "loss", "mixtures"))


# --- going back


def _spike(step: int) -> Spike:
    return Spike(step, step + 2, "loss", 9.0, 3.0, 0.1)


def _long(store) -> RunConfig:
    return _config(store, tokens=64 * 40, batch=BatchConfig(((0, 4),)), anneal=AnnealConfig(LAST, start=64 * 20))


def test_a_rewind_before_it_moves_the_examples_and_not_its_beginning(tiny_store, opened):
    config, guard = _long(tiny_store), GuardConfig(rewind_steps=3, skip_batches=6)
    first = rewinds.decide(guard, _spike(18), anneal.plan(config))
    # Steps 16 to 20 and a batch more of the same mixture: nothing of the anneal, which lies in the next steps.
    assert (first.to_step, first.skipped_from, first.skipped_to) == (15, 60, 84)
    steps = anneal.plan(config, rewinds.skipped((first,)))
    assert [p.first_example for p in steps][14:22] == [56, 84, 88, 92, 96, 100, ANNEAL, ANNEAL + 4]
    # What came before the anneal, skipped or not, is not read in it again.
    batches = anneal.batches(config, opened, steps)
    assert batches.anneal is not None
    assert batches.before == 104
    passed = {tuple(w) for w in batches.order.windows(0, 104)}
    assert not passed & {tuple(w) for w in batches.anneal.windows(0, 80)}
    mixtures = anneal.seen(config, batches, steps)["mixtures"]
    assert [m["tokens"] for m in mixtures] == [64 * 20, 64 * 20]


def test_a_spike_in_it_goes_back_to_its_beginning_at_most_and_reads_others_of_its_examples(tiny_store):
    config, guard = _long(tiny_store), GuardConfig(rewind_steps=6, skip_batches=6)
    soon = rewinds.decide(guard, _spike(23), anneal.plan(config))
    assert (soon.to_step, soon.skipped_from, soon.skipped_to) == (20, ANNEAL, ANNEAL + 24)
    assert rewinds.skipped_tokens((soon,), T) == 24 * T
    steps = anneal.plan(config, rewinds.skipped((soon,)))
    assert [p.first_example for p in steps][18:22] == [72, 76, ANNEAL + 24, ANNEAL + 28]
    late = rewinds.decide(guard, _spike(35), anneal.plan(config))
    assert (late.to_step, late.skipped_from, late.skipped_to) == (29, ANNEAL + 36, ANNEAL + 60)
    assert rewinds.decide(guard, _spike(20), anneal.plan(config)).to_step == 14


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"anneal": AnnealConfig((), 100)}, "anneal.start is 100 and anneal.weights is not set"),
        ({"anneal": AnnealConfig(LAST, -1)}, "anneal.start is -1"),
        ({"anneal": AnnealConfig(LAST, 449)}, "anneal.start is 449; it must lie above 0 and be at most 448"),
        ({"schedule": ScheduleConfig("cosine")}, "schedule.name is 'cosine', which has no decay to begin with"),
        ({"schedule": ScheduleConfig("wsd", decay_tokens=480)}, "start of the decay, where the anneal begins, is 0"),
        (
            {"anneal": AnnealConfig((("smal", 1.0),))},
            "^anneal.weights names 'smal'.*did you mean 'small'.*; it has big, small",
        ),
        ({"anneal": AnnealConfig((("small", 0.0),))}, "^anneal.weights gives 'small' the weight 0.0"),
    ],
)
def test_an_anneal_that_can_not_be_is_refused(tiny_store, tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        train(_config(tiny_store, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mixture_smaller_than_its_batch_is_refused(tiny_store, tmp_path):
    config = _config(
        tiny_store, data=DataConfig(str(tiny_store), T, weights=(("big", 1.0),)), tokens=64 * 600,
        batch=BatchConfig(((0, 4), (64 * 100, 900))), anneal=AnnealConfig((("small", 1.0),), start=64 * 100),
    )  # fmt: skip
    with pytest.raises(DataError, match=r"900 sequences .* to train on in the anneal's mixture"):
        train(config, tmp_path / "run")

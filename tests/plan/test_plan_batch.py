"""The batch that follows the critical batch, as the trainer will take it."""

import numpy as np
import pytest

from areca.config import BatchConfig
from areca.errors import ConfigError
from areca.laws.published import published
from areca.model.counts import exact_flops_per_token
from areca.plan import family, plan_run
from areca.plan.batch import PUBLISHED, parse_critical_batch, ramp, steps_of
from areca.train import schedules

VOCAB, CONTEXT = 50_257, 2048


@pytest.fixture(scope="module")
def plan():
    return plan_run(published("chinchilla"), 1e21, family(VOCAB), context=CONTEXT, critical=PUBLISHED, data=3)


def test_the_ramp_takes_the_trainer_through_the_planned_steps_and_tokens(plan):
    rows = BatchConfig(tuple(map(tuple, plan.ramp)))
    walked = list(schedules.steps(rows, plan.best.n_tokens, CONTEXT))
    assert len(walked) == plan.best.steps
    assert walked[-1].tokens == plan.best.n_tokens
    assert [b for _, b in plan.ramp] == sorted({s.batch for s in walked})
    assert plan.batch == walked[-1].batch
    per_token = exact_flops_per_token(plan.model(), CONTEXT)
    assert 1e21 - per_token * plan.batch * CONTEXT < plan.best.flops_exact <= 1e21


def test_each_batch_is_at_most_the_critical_one_and_more_than_half_of_it(plan):
    law, n = published("chinchilla"), plan.best.n_params_total
    for start, sequences in plan.ramp[1:]:
        loss = min(float(law.predict(n, start)), np.log(VOCAB))
        critical = 2.1e8 / loss ** (1 / 0.21)  # Kaplan et al. 2020, table 2
        assert sequences * CONTEXT <= critical * (1 + 1e-9)
        assert sequences * CONTEXT > critical / 2
    assert {sequences % 3 for _, sequences in plan.ramp} == {0}


def test_neighbours_have_ramps_of_their_own(plan):
    for c in plan.neighbours.values():
        assert c.flops_exact == pytest.approx(1e21, rel=0.01)
        assert c.steps > plan.best.n_tokens / (4 * plan.batch * CONTEXT)


@pytest.mark.parametrize("tokens", [100, 159, 160, 161, 470, 479, 480, 481, 4321])
def test_whole_steps_along_a_ramp(tokens):
    rows = [[0, 2], [150, 4], [475, 16]]  # of 10 tokens a sequence
    steps, seen = steps_of(rows, tokens, 10)
    walked = [s for s in schedules.steps(BatchConfig(tuple(map(tuple, rows))), 10**5, 10) if s.tokens <= tokens]
    assert (steps, seen) == (len(walked), walked[-1].tokens)


def test_a_law_of_ones_own():
    own = parse_critical_batch("1e5,0.5")
    assert float(own.at(2.0)) == pytest.approx(1e5 / 4)
    assert parse_critical_batch("kaplan") is PUBLISHED
    for words in ("Kaplan", "1e5", "1e5,0", "-1,0.2", "a,b", "1,2,3"):
        with pytest.raises(ConfigError, match="--b-crit is"):
            parse_critical_batch(words)


def test_a_ramp_ends_where_the_run_does():
    run = plan_run(published("chinchilla"), 3e16, family(1000), context=128, batch=1).best
    rows = ramp(published("chinchilla"), PUBLISHED, run, 128)
    assert rows[0][0] == 0
    assert all(start < run.n_tokens for start, _ in rows)
    assert [b for _, b in rows] == sorted(b for _, b in rows)

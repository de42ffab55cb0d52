"""HOW parameters move: optimizer, schedules, step, loop, evaluation, checkpoints and the record of a run."""

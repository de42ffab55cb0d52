"""From observations to numbers: one engine for every form, objectives, resampling, intervals, and fits built on it."""

"""What a run is doing right now, from its files alone: for `areca watch` (docs/track-my-runs.md)."""

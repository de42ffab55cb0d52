"""Where runs are seen: metrics.jsonl is read and sent on to TensorBoard, W&B or trackio (docs/track-my-runs.md)."""

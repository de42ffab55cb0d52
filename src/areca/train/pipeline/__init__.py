"""One model over the stages of a pipeline."""

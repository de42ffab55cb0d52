"""One model over several islands: what each computes of a step, what they exchange, and what is done when one is
lost."""

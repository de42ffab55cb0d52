"""FAMILIES of runs: the ladder, the quickstart. Composes data, training, laws, plan and report."""

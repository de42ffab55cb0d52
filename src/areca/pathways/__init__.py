"""Where it runs: one controller, islands, asynchronous dataflow, gangs (Barham et al. 2022)."""

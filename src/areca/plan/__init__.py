"""What to buy for a budget: a concrete run with its predicted loss, its interval and its neighbours.

Composes `laws` (what loss), `model` (what it costs in exact FLOPs) and `footprint` (what it costs in energy).
"""

from areca.plan.plan import Candidate, Plan, plan_run
from areca.plan.shapes import by_size, family, interpolate

__all__ = ["Candidate", "Plan", "by_size", "family", "interpolate", "plan_run"]

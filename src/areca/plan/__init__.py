"""What to buy for a budget: a concrete run with its predicted loss, its interval and its neighbours.

Composes `laws` (what loss), `model` (what it costs in exact FLOPs) and `footprint` (what it costs in energy).
"""

from areca.plan.plan import Candidate, Plan, plan_run
from areca.plan.shapes import by_size, family, interpolate
from areca.plan.template import Template, find_template, make_plan, run_config

__all__ = [
    "Candidate", "Plan", "Template", "by_size", "family", "find_template", "interpolate", "make_plan", "plan_run",
    "run_config",
]  # fmt: skip

"""What to buy for a budget: a concrete run with its predicted loss, its interval and its neighbours.

Composes `laws` (what loss), `model` (what it costs in exact FLOPs) and `footprint` (what it costs in energy).
"""

from areca.plan.batch import CriticalBatch
from areca.plan.budget import Purchase
from areca.plan.candidates import Candidate
from areca.plan.choice import Choice
from areca.plan.plan import Plan, plan_run
from areca.plan.request import Request, make_plan
from areca.plan.runconfig import run_config
from areca.plan.shapes import by_size, family, interpolate
from areca.plan.template import Template, find_template

__all__ = [
    "Candidate", "Choice", "CriticalBatch", "Plan", "Purchase", "Request", "Template", "by_size", "family",
    "find_template", "interpolate", "make_plan", "plan_run", "run_config",
]  # fmt: skip

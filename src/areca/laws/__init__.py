"""What runs say: scaling laws fitted to run directories or to any table, with intervals that cover.

`load(paths)` reads observations, `fit_laws(observations)` returns a `LawReport` that predicts a new run's loss with an
interval. Knows nothing of models or training; needs numpy and scipy, not jax.
"""

from areca.laws.average import COUPLINGS, Average, Form, fit_average
from areca.laws.bootstrap import Bootstrap, bootstrap, predict_interval
from areca.laws.compute import ComputeLaw, fit_compute
from areca.laws.isoflop import IsoFlop, Valley, fit_isoflop
from areca.laws.observations import Observations
from areca.laws.parametric import ParametricFit, fit_parametric
from areca.laws.report import FAILED_CHECK, LawReport, fit_laws
from areca.laws.tables import Columns, load, load_columns

__all__ = [
    "COUPLINGS", "FAILED_CHECK", "Average", "Bootstrap", "Columns", "ComputeLaw", "Form", "IsoFlop", "LawReport",
    "Observations", "ParametricFit", "Valley", "bootstrap", "fit_average", "fit_compute", "fit_isoflop", "fit_laws",
    "fit_parametric", "load", "load_columns", "predict_interval",
]  # fmt: skip

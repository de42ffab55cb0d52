"""What runs say: scaling laws fitted to run directories or to any table, with intervals that cover.

`load(paths)` reads observations, `fit_laws(observations)` returns a `LawReport` that predicts a new run's loss with an
interval. `fit(form, data)` fits any declared `Form`. Knows nothing of models or training; fits run in jax, what was
fitted is read and predicts without it.
"""

from areca.laws.fits.average import COUPLINGS, Average, fit_average
from areca.laws.fits.bootstrap import Bootstrap, bootstrap, predict_interval
from areca.laws.fits.compute import ComputeLaw, fit_compute
from areca.laws.fits.curves import Curve, read_curves
from areca.laws.fits.envelope import Envelope, fit_envelope
from areca.laws.fits.fitting import Fit, fit
from areca.laws.fits.isoflop import IsoFlop, Valley, fit_isoflop
from areca.laws.fits.optimum import Optimum, optimum
from areca.laws.fits.parametric import ParametricFit, fit_parametric
from areca.laws.fits.resample import Samples, resample
from areca.laws.fits.uncertainty import delta_intervals, profile
from areca.laws.forms import Form, exponent, positive, real, scale
from areca.laws.reading.observations import Observations
from areca.laws.reading.tables import Columns, load, load_columns
from areca.laws.report import FAILED_CHECK, LawReport, fit_laws

__all__ = [
    "COUPLINGS", "FAILED_CHECK", "Average", "Bootstrap", "Columns", "ComputeLaw", "Curve", "Envelope", "Fit", "Form",
    "IsoFlop", "LawReport", "Observations", "Optimum", "ParametricFit", "Samples", "Valley", "bootstrap",
    "delta_intervals", "exponent", "fit", "fit_average", "fit_compute", "fit_envelope", "fit_isoflop", "fit_laws",
    "fit_parametric", "load", "load_columns", "optimum", "positive", "predict_interval", "profile", "read_curves",
    "real", "resample", "scale",
]  # fmt: skip

"""What tests ask of ArviZ, in the words of the version that is installed: 0.x or 1.x."""

import arviz
import numpy as np

from pyro_manifold.diagnostics import is_before_1


def shortest_interval(draws, probability):
    """Ends of ArviZ's interval of highest density, of draws of a number."""
    keyword = "hdi_prob" if is_before_1() else "prob"
    return arviz.hdi(np.asarray(draws).flatten(), **{keyword: probability})


def elpd(idata):
    """The estimate of leave-one-out cross-validation."""
    found = arviz.loo(idata)
    return float(found.elpd_loo if is_before_1() else found.elpd)


def compare(results):
    """The table of `arviz.compare` with all digits, and with positive differences from the best model."""
    table = arviz.compare(results, **({} if is_before_1() else {"round_to": "none"}))
    return table.assign(elpd_diff=table.elpd_diff.abs())


def groups(idata):
    """Names of the groups of an export, both an InferenceData and a DataTree iterate over them."""
    return set(idata)

"""The posteriors of posteriordb that have reference draws, in Pyro, NumPyro and PyMC, read from a folder of the user.

Magnusson et al., posteriordb: Testing, benchmarking and developing Bayesian inference algorithms (arXiv 2407.04967);
https://github.com/stan-dev/posteriordb.
"""

import json
import os
import zipfile
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.problems.posteriordb import languages
from benchmarks.problems.posteriordb.models import MODELS


class Reference(NamedTuple):
    """Mean and standard deviation of a parameter by its reference draws, with standard errors."""

    mean: float
    mean_error: float
    deviation: float
    deviation_error: float


class Problem:
    """A posterior, for the runners of `benchmarks.peers`.

    Args:
        folder: ``posterior_database`` of a checkout.
        name: of the posterior.
    """

    def __init__(self, folder, name):
        self._folder, self.name = Path(folder), name
        self._about = json.loads((self._folder / "posteriors" / f"{name}.json").read_text())
        self._model = MODELS[self._about["model_name"]]

    @cached_property
    def data(self):
        """Data by name, arrays in place of lists."""
        found = _unzipped(self._folder / "data" / "data" / f"{self._about['data_name']}.json.zip")
        return {name: np.array(value) if isinstance(value, list) else value for name, value in found.items()}

    @cached_property
    def draws(self):
        """Reference draws ``{parameter: (chains, draws)}``, nearly independent."""
        name = f"{self._about['reference_posterior_name']}.json.zip"
        chains = _unzipped(self._folder / "reference_posteriors" / "draws" / "draws" / name)
        return {parameter: np.array([chain[parameter] for chain in chains]) for parameter in chains[0]}

    def references(self):
        """Return ``{parameter: Reference}``."""
        return {name: _reference(x) for name, x in self.draws.items()}

    @property
    def pyro_model(self):
        return lambda: self._model(languages.Pyro(), self.data)

    @property
    def numpyro_model(self):
        return lambda: self._model(languages.NumPyro(), self.data)

    def pymc_model(self):
        import pymc

        with pymc.Model() as model:
            self._model(languages.PyMC(), self.data)
        return model

    def values(self, draws):
        """Compute ``{parameter: (chains, draws)}``, with posteriordb's names, from draws of all sites."""
        found = {}
        for name, x in {**draws, **_derived(self._about["model_name"], draws, self.data)}.items():
            each = {name: x} if x.ndim == 2 else {f"{name}[{k + 1}]": x[..., k] for k in range(x.shape[2])}
            found |= each
        return {name: np.asarray(found[name]) for name in self.draws}


class _OfFolder(dict):
    """Problems by name, of the folder that the environment variable POSTERIORDB names."""

    def __missing__(self, name):
        return Problem(os.environ["POSTERIORDB"], name)


PROBLEMS = _OfFolder()


def names(folder):
    """Return the names of the posteriors whose model, data and reference draws are here."""
    folder, found = Path(folder), []
    for path in sorted((folder / "posteriors").glob("*.json")):
        about = json.loads(path.read_text())
        draws = folder / "reference_posteriors" / "draws" / "draws" / f"{about['reference_posterior_name']}.json.zip"
        if about["model_name"] in MODELS and draws.exists():
            found.append(about["name"])
    return found


def _unzipped(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def _reference(x):
    count, centred = x.size, x - x.mean()
    deviation, fourth = x.std(), (centred**4).mean()
    error = np.sqrt((fourth - deviation**4) / count) / (2 * deviation)
    return Reference(x.mean(), deviation / np.sqrt(count), deviation, error)


def _derived(model, draws, data):
    """Compute parameters of posteriordb that are no sites."""
    if model == "eight_schools_noncentered":
        return {"theta": draws["mu"][..., None] + draws["tau"][..., None] * draws["theta_trans"]}
    if model == "garch11":
        return {"beta1": draws["share"] * (1 - draws["alpha1"])}
    if model == "gp_pois_regr":
        squares = (data["x"][:, None] - data["x"][None]) ** 2
        alpha, rho = (draws[name][..., None, None] for name in ("alpha", "rho"))
        covariance = alpha**2 * np.exp(-squares / (2 * rho**2)) + 1e-10 * np.eye(len(squares))
        return {"f": (np.linalg.cholesky(covariance) @ draws["f_tilde"][..., None])[..., 0]}
    return {}

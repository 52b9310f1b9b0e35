"""The thermostat beside friction alone: the program runs, and its standard deviations are those of the posteriors."""

import pyro
import pytest
import torch

from benchmarks.accuracy import thermostat
from pyro_manifold.infer import MCMC, OSGHMC


@pytest.mark.long
def test_runs(capsys):
    thermostat.main(["--small"])
    said = capsys.readouterr().out
    assert said.count("###") == 3
    assert said.count("| SGNHT |") == 6
    assert said.count("| SGNHT, embedded |") == 1
    assert "nan" not in said


@pytest.mark.long
@pytest.mark.parametrize(("name", "step_size"), [("regression", 0.006), ("matrix", 0.02)])
def test_draws_on_all_rows_have_the_exact_standard_deviations(name, step_size, monkeypatch):
    monkeypatch.setattr(thermostat, "BATCH", thermostat.ROWS)
    scales = torch.linspace(0.25, 1.0, 10)
    posterior = thermostat.regression(name, scales) if name == "regression" else thermostat.matrix(name, 20_000)
    assert posterior.noise == 0
    start = {site: value.expand(32, *value.shape) for site, value in posterior.start.items()}
    pyro.set_rng_seed(0)
    kernel = OSGHMC(posterior.model, step_size=step_size, num_steps=20)
    mcmc = MCMC(kernel, 500, 20, num_chains=32, initial_params=start, disable_progbar=True)
    mcmc.run()
    ratios = posterior.ratios(next(iter(mcmc.get_samples().values())))
    assert ((ratios - 1).abs() < 0.06).all()

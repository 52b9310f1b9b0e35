"""NumPyro's models have the densities of Pyro's; what is said of draws."""

import numpy as np
import pytest
import torch
from pyro import poutine

from benchmarks.papers.variational import problems, splines, truth
from tests.benchmarks.requirements import needs


def pyro_density(model, values, x, y):
    trace = poutine.trace(poutine.condition(model, values)).get_trace(x, y)
    return float(trace.log_prob_sum())


def numpyro_density(model, values, x, y):
    import numpyro

    numpyro.enable_x64()
    values = {name: value.numpy() for name, value in values.items()}
    return float(numpyro.infer.util.log_density(model, (x.numpy(), y.numpy()), {}, values)[0])


@pytest.mark.long
@needs("numpyro")
def test_logistic_densities_agree():
    x, y, values = torch.randn(8, 3), torch.bernoulli(torch.full((8,), 0.5)), {"coefficients": torch.randn(3)}
    ours, theirs = (
        pyro_density(problems.logistic, values, x, y),
        numpyro_density(truth.numpyro_logistic, values, x, y),
    )
    assert ours == pytest.approx(theirs)


@pytest.mark.long
@needs("numpyro")
def test_spline_densities_agree():
    split, _ = problems.spline_data(points=9)
    names = "persistence", "prior_variance", "noise_variance"
    scales = dict(zip(names, torch.tensor([-0.6, 0.5, 0.1]), strict=True))
    values = {**scales, "coefficients": torch.randn(splines.COEFFICIENTS)}
    ours = pyro_density(splines.model, values, split.x_train, split.y_train)
    theirs = numpyro_density(truth.numpyro_spline, values, split.x_train, split.y_train)
    assert ours == pytest.approx(theirs)


@pytest.mark.long
@needs("numpyro")  # for its R-hat
def test_cache_is_read_back(monkeypatch, tmp_path):
    calls = []

    def sample(model, x, y):
        calls.append(model)
        return {"coefficients": np.random.randn(4, 100, 3), "divergences": np.array(2), "seconds": np.array(1.0)}

    monkeypatch.setattr(truth, "CACHE", tmp_path)
    monkeypatch.setattr(truth, "sample", sample)
    (first, figures), (second, _) = (truth.truth("name", None, None, None) for _ in range(2))
    assert len(calls) == 1
    assert first["coefficients"].shape == (400, 3)
    torch.testing.assert_close(first, second)
    assert figures["divergences"] == 2
    assert figures["rhat"] < 1.2


def test_moments_apart():
    draws = torch.randn(1000, 2)
    apart, ratio = truth.moments_apart(2 * draws + 3 * draws.std(0), draws - draws.mean(0))
    assert ratio == pytest.approx(2.0)
    assert apart == pytest.approx(float((3 + 2 * draws.mean(0) / draws.std(0)).square().mean().sqrt()))

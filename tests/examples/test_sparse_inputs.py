"""The Gaussian process of sparse inputs, compared with BoTorch's own program and predictions."""

import pyro
import pytest
import torch
from pyro import poutine

from examples import sparse_inputs
from tests.examples import short_runs

pytestmark = [*short_runs.ignored, pytest.mark.long]


@pytest.fixture
def process():
    """Return 15 points and values, and an object of BoTorch without draws, in float64 in both frameworks."""
    jax = pytest.importorskip("jax")
    models = pytest.importorskip("botorch.models.fully_bayesian")
    x, y, *_ = sparse_inputs.design("Branin", 15)
    with jax.enable_x64():
        yield x, y, lambda noises=None: models.SaasFullyBayesianSingleTaskGP(x, y.unsqueeze(-1), noises)


@pytest.mark.parametrize("known", [False, True], ids=["noise", "known noise"])
def test_the_density_is_that_of_botorchs_program(process, known):
    from numpyro.infer.util import log_density

    x, y, made = process
    noises = 0.01 + torch.rand(15, 1) if known else None
    program = made(noises).pyro_model.sample
    names = {"mean": "mean", "variance": "outputscale", "noise": "noise", "overall": "kernel_tausq"}
    names["own"] = "_kernel_inv_length_sq"
    for _ in range(3):
        trace = poutine.trace(poutine.uncondition(sparse_inputs.model)).get_trace(x, y, noises)
        values = {site: trace.nodes[site]["value"] for site in names if site in trace.nodes}
        ours = poutine.trace(poutine.condition(sparse_inputs.model, values)).get_trace(x, y, noises).log_prob_sum()
        theirs, _ = log_density(program, (), {}, {names[site]: value.numpy() for site, value in values.items()})
        assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("known", [False, True], ids=["noise", "known noise"])
def test_botorch_predicts_what_we_predict(process, known):
    """Its object has every second draw, and gives mean and variance of the function for each of them."""
    x, y, made = process
    new, noises = sparse_inputs.points(7, 3), 0.01 + torch.rand(15, 1) if known else None
    gp = made(noises)
    pyro.set_rng_seed(0)
    mcmc = sparse_inputs.fit(gp, num_samples=6, warmup_steps=20, num_chains=2, thinning=2)
    draws = mcmc.get_samples(deterministic=True)
    with torch.no_grad():
        found = gp.posterior(new)
    for k in range(6):
        draw = {name: value[2 * k] for name, value in draws.items()}
        mean, variance = sparse_inputs.conditional(x, y, new, noises, draw)
        torch.testing.assert_close(found.mean[k].squeeze(-1), mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.variance[k].squeeze(-1), variance, rtol=1e-3, atol=1e-4)


def test_data_in_double_precision_are_fitted_in_it(process):
    """By default torch has single precision, and BoTorch advises double for the data."""
    *_, made = process
    gp, before = made(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        draws = sparse_inputs.fit(gp, num_samples=4, warmup_steps=4, num_chains=2, thinning=1).get_samples()
    finally:
        torch.set_default_dtype(before)
    assert {value.dtype for value in draws.values()} == {torch.float64}
    assert gp.num_mcmc_samples == 8


def test_what_does_not_fit_is_refused_before_sampling(process):
    models = pytest.importorskip("botorch.models.fully_bayesian")
    x, y, made = process
    others = {
        "a FullyBayesianSingleTaskGP": models.FullyBayesianSingleTaskGP(x, y.unsqueeze(-1)),
        "a SaasFullyBayesianSingleTaskGP, expected .* without input warping": models.SaasFullyBayesianSingleTaskGP(
            x, y.unsqueeze(-1), use_input_warping=True
        ),
        "a NoneType": None,
    }
    for sentence, gp in others.items():
        with pytest.raises(ValueError, match=f"fit: gp is {sentence}"):
            sparse_inputs.fit(gp)
    for thinning in (0, 1.5, 10_000):
        with pytest.raises(ValueError, match=f"fit: thinning={thinning}"):
            sparse_inputs.fit(made(), thinning=thinning)


def test_inputs_that_matter_are_found(tmp_path, capsys):
    mcmc, found = sparse_inputs.main(["--output", str(tmp_path), "--draws", "100"])
    assert "median relevance" in capsys.readouterr().out
    relevance = mcmc.get_samples(deterministic=True)["relevance"].median(0).values
    assert bool((relevance[:2] > 0.1).all())
    assert bool((relevance[2:] < 0.01).all())
    error, inside = found["OHMC, sparse inputs"]
    assert error < 0.1
    assert inside > 0.9
    assert (tmp_path / "sparse_inputs.png").stat().st_size > 10_000

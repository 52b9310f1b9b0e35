"""Pathfinder: exact for Gaussians, weighted draws for other densities, and what it says where neither helps."""

import itertools
import warnings

import pyro
import pyro.distributions as dist
import pytest
import scipy.special
import torch
from pyro.infer.autoguide import AutoNormal

from problems.monte_carlo import STANDARD_ERRORS
from pyro_manifold import constraints
from pyro_manifold.diagnostics import SamplerWarning
from pyro_manifold.distributions import MatrixFisher, MatrixLangevin, StiefelUniform, VonMisesFisher
from pyro_manifold.infer import MCMC, OHMC, init_to_draws, pathfinder


def assert_weighted_mean(found, values, truth, error=0.0):
    """The mean of resampled draws agrees with the truth, by the effective size of the importance weights."""
    error = (float(values.var()) * (1 / found.ess + 1 / len(values)) + error**2) ** 0.5
    assert abs(float(values.mean()) - truth) < STANDARD_ERRORS * error


def regression(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[-1]), 2.0).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def test_a_gaussian_posterior_is_found_exactly():
    x = torch.randn(40, 5) * torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0])
    y = torch.randn(40)
    found = pathfinder(regression, x, y, num_draws=4000)
    precision = x.mT @ x / 0.25 + torch.eye(5) / 4
    mean = torch.linalg.solve(precision, x.mT @ y / 0.25)
    whitened = (found.get_samples()["w"] - mean) @ torch.linalg.cholesky(precision)
    for k in range(5):
        assert_weighted_mean(found, whitened[:, k], 0.0)
        assert_weighted_mean(found, whitened[:, k].square(), 1.0)
    assert_weighted_mean(found, whitened[:, 0] * whitened[:, 4], 0.0)
    assert found.khat < 0.3
    assert found.ess > 7000  # of 8,000: the Hessian has rounding errors only


def test_a_von_mises_fisher_distribution():
    """Without the volume element of the projection, the mean cosine would be larger by twenty standard errors."""
    n, concentration = 20, 300.0
    mean_direction = torch.nn.functional.normalize(torch.randn(n), dim=0)
    found = pathfinder(
        lambda: pyro.sample("u", VonMisesFisher(mean_direction, torch.tensor(concentration))), num_draws=4000
    )
    truth = scipy.special.ive(n / 2, concentration) / scipy.special.ive(n / 2 - 1, concentration)
    assert_weighted_mean(found, found.get_samples()["u"] @ mean_direction, truth)


def test_a_matrix_langevin_distribution():
    F = torch.cat([torch.diag(torch.tensor([90.0, 60.0])), torch.zeros(4, 2)])

    def model():
        X = pyro.sample("X", StiefelUniform(6, 2))
        pyro.factor("langevin", (F * X).sum())

    found = pathfinder(model, num_draws=4000)
    draws, exact = found.get_samples()["X"], MatrixLangevin(F).sample((4000,))
    assert constraints.stiefel.check(draws).all()
    for entry in [(0, 0), (1, 1), (0, 1)]:
        truth = exact[:, *entry].square()
        assert_weighted_mean(found, draws[:, *entry].square(), float(truth.mean()), float(truth.std()) / 4000**0.5)


def prior():
    return {
        "s": dist.LogNormal(torch.tensor(0.0), 1.0),
        "R": MatrixFisher(15 * torch.eye(3)),
        "u": VonMisesFisher(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(20.0)),
    }


def orientations_and_a_scale(y):
    s, R, u = (pyro.sample(name, distribution) for name, distribution in prior().items())
    pyro.sample("y", dist.Normal(s[..., None] * (R @ u.unsqueeze(-1)).squeeze(-1), 0.3).to_event(1), obs=y)


@pytest.mark.long
def test_several_manifolds_against_importance_sampling_from_the_prior():
    y = torch.tensor([1.0, 0.5, -0.7])
    found = pathfinder(orientations_and_a_scale, y, num_draws=4000)
    exact = {name: distribution.sample((100_000,)) for name, distribution in prior().items()}
    turned = (exact["R"] @ exact["u"].unsqueeze(-1)).squeeze(-1)
    weights = dist.Normal(exact["s"].unsqueeze(-1) * turned, 0.3).log_prob(y).sum(-1).softmax(0)
    draws = found.get_samples()
    for values, truth in [
        (draws["s"].log(), exact["s"].log()),
        ((draws["R"] @ draws["u"].unsqueeze(-1))[:, 0, 0], turned[:, 0]),
        (draws["R"][:, 0, 0], exact["R"][:, 0, 0]),
        (draws["u"][:, 2], exact["u"][:, 2]),
    ]:
        mean = weights @ truth
        error = (weights.square() @ (truth - mean).square()).sqrt()
        assert_weighted_mean(found, values, float(mean), float(error))


def funnel():
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    pyro.sample("x", dist.Normal(torch.zeros(9), (v / 2).exp()).to_event(1))


def test_a_poor_approximation_is_warned_of_and_starts_chains():
    with pytest.warns(SamplerWarning, match=r"k̂ = \d.*first look") as caught:
        found = pathfinder(funnel)
    assert caught[0].filename == __file__
    assert found.khat > 0.7
    kernel = OHMC(funnel, init_strategy=init_to_draws(found.get_samples()))
    run = kernel.prepare(4, 0, None)
    assert all((found.get_samples()["v"] - v).abs().min() < 1e-12 for v in run.values["v"])
    MCMC(kernel, 5, 5, num_chains=4, disable_progbar=True).run()


def test_results_are_those_of_other_samplers(capsys):
    y = torch.tensor([0.3, 1.2])

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.deterministic("double", 2 * mean)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    found = pathfinder(model, y, num_draws=500, num_paths=2)
    found.summary()
    text = capsys.readouterr().out
    assert "mean" in text
    assert "k̂ " in text.splitlines()[-1]
    data = found.to_inferencedata(posterior_predictive=True)
    assert data.posterior["mean"].shape == (1, 500)
    assert data.log_likelihood["y"].shape == (1, 500, 2)
    assert data.posterior_predictive["y"].shape == (1, 500, 2)
    assert found.bounds.shape == (2,)
    prior = dist.Normal(0.0, 1.0).log_prob(found.get_samples()["mean"])
    likelihood = dist.Normal(found.get_samples()["mean"][:, None], 1.0).log_prob(y).sum(1)
    assert torch.allclose(found.posterior.log_density[0], prior + likelihood)
    assert found.get_samples(align=True, deterministic=True)["double"].shape == (500,)


def test_the_seed_decides_and_dtypes_follow_the_model():
    torch.set_default_dtype(torch.float32)

    def model():
        U = pyro.sample("U", StiefelUniform(4, 2))
        pyro.factor("near", 20 * U[0, 0] + 20 * U[1, 1])

    pyro.set_rng_seed(3)
    first = pathfinder(model).get_samples()["U"]
    pyro.set_rng_seed(3)
    assert torch.equal(first, pathfinder(model).get_samples()["U"])
    assert not torch.equal(first, pathfinder(model).get_samples()["U"])
    assert first.dtype == torch.float32


def test_many_coordinates_take_the_curvature_of_the_path():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        found = pathfinder(lambda: pyro.sample("x", dist.Normal(torch.zeros(250), 1.0).to_event(1)), num_draws=200)
    assert found.get_samples()["x"].shape == (200, 250)


def two_modes(far, weight):
    """Two modes at -1.5 and at ``far``, the second with this share of the mass."""
    x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    parts = dist.Normal(torch.tensor([-1.5, far]), 0.3).log_prob(x.unsqueeze(-1))
    pyro.factor("modes", (parts + torch.tensor([1 - weight, weight]).log()).logsumexp(-1))


@pytest.mark.parametrize(("far", "weight"), [(1.5, 0.5), (3.0, 0.8)])
def test_modes_have_their_masses(far, weight):
    """However many of the paths end in each of them."""
    shares = []
    for seed in range(4):
        pyro.set_rng_seed(seed)
        found = pathfinder(two_modes, far, weight)
        shares.append(float((found.get_samples()["x"] > far - 1.5).double().mean()))
    assert all(abs(share - weight) < 0.02 for share in shares), shares


def normal_with_rounding_errors():
    """A standard normal whose log density has large rounding errors far away, as where a noise scale is 1e-40."""
    x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    rounding = 1e6 * torch.sin(1e6 * x.detach())
    pyro.factor("density", torch.where(x > 20, rounding - (x - 25).square() / 20, -x.square() / 2))


def test_a_path_among_rounding_errors_is_left_out():
    starts = itertools.cycle([25.0, 1.0, 1.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplerWarning)
        for seed in range(3):
            pyro.set_rng_seed(seed)
            found = pathfinder(normal_with_rounding_errors, init_strategy=lambda site: torch.tensor(next(starts)))
            assert found.get_samples()["x"].abs().max() < 10


def test_signs_of_columns_are_equally_likely():
    def model():
        U = pyro.sample("U", StiefelUniform(4, 2))
        pyro.factor("axes", 40 * U[..., 0, 0] ** 2 + 20 * U[..., 1, 1] ** 2)

    pyro.set_rng_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)  # a wide density on a curved manifold
        U = pathfinder(model, num_paths=16).get_samples()["U"]
    signs = 2 * (U[:, 0, 0] > 0).long() + (U[:, 1, 1] > 0).long()
    shares = torch.bincount(signs, minlength=4) / len(U)
    assert ((shares - 0.25).abs() < 0.08).all(), shares


def test_exact_gaussians_are_no_alarm():
    y = torch.linspace(-1.0, 2.0, 50)

    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, 1.0).expand([50]).to_event(1), obs=y)

    for seed in range(6):
        pyro.set_rng_seed(seed)
        assert pathfinder(model, num_paths=8 if seed else 1).khat < 0.7


def half_improper():
    pyro.sample("known", dist.Normal(0.0, 1.0))
    pyro.sample("free", dist.ImproperUniform(dist.constraints.real, (2,), ()).to_event(1))


def test_a_site_on_which_nothing_depends_is_named():
    with pytest.raises(ValueError, match=r"does not depend on \['free'\] and is improper"):
        pathfinder(half_improper)


def improper():
    pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))


def coin():
    pyro.sample("heads", dist.Bernoulli(0.5))


def mixture(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        side = pyro.sample("side", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(mean + 2 * side, 1.0), obs=y)


def test_discrete_sites_are_summed_out():
    assert set(pathfinder(mixture, torch.tensor([0.1, 2.2, 1.9])).get_samples()) == {"mean"}


def test_wrong_input_has_a_sentence():
    wrong = {"init_strategy": "mean", "transforms": 3, "max_plate_nesting": -1}
    for options in ({"num_draws": 0}, {"num_paths": 1.5}, {"num_draws": "many"}, *({k: v} for k, v in wrong.items())):
        with pytest.raises(ValueError, match=next(iter(options))):
            pathfinder(funnel, **options)
    with pytest.raises(ValueError, match="expected a Pyro model"):
        pathfinder("funnel")
    with pytest.raises(ValueError, match="the model is a guide, AutoNormal"):
        pathfinder(AutoNormal(funnel))
    with pytest.raises(ValueError, match="no path has a point"):
        pathfinder(improper)
    with pytest.raises(ValueError, match="no continuous site"):
        pathfinder(coin)
    with pytest.raises(ValueError, match="no site can move"):
        pathfinder(lambda: pyro.sample("U", StiefelUniform(1, 1)))
    with pytest.raises(ValueError, match="may be improper, flat"):
        pathfinder(lambda: pyro.sample("U", StiefelUniform(3, 3)))

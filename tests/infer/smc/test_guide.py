"""Sequential Monte Carlo from guides, against evidences that are known exactly."""

import math
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import SoftplusTransform
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, AutoStructured

from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import OHMC, SMC
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from tests.infer.models import F, langevin, linear
from tests.infer.smc.test_smc import assert_evidence, assert_mean_of_runs, run


def regression():
    x, y = torch.randn(30, 4), torch.randn(30)
    covariance = 4 * x @ x.T + 0.25 * torch.eye(30)
    return (x, y), float(dist.MultivariateNormal(torch.zeros(30), covariance).log_prob(y))


def posterior(x, y):
    precision = x.T @ x / 0.25 + torch.eye(4) / 4
    return torch.linalg.solve(precision, x.T @ y / 0.25), precision.inverse()


def put_at(guide, mean, covariance):
    """A guide where fitting would bring it, but for half as many variances again."""
    with torch.no_grad():
        if isinstance(guide, AutoNormal):
            guide.locs.w = mean
            guide.scales.w = (1.5 * covariance.diagonal()).sqrt()
            return
        guide.loc.copy_(mean)
        if isinstance(guide, AutoMultivariateNormal):
            root = torch.linalg.cholesky(1.5 * covariance)
            guide.scale = root.diagonal()
            guide.scale_tril = root / root.diagonal().unsqueeze(-1)
        else:
            guide.scale = (1.5 * covariance.diagonal()).sqrt()


@pytest.mark.parametrize(
    "kind",
    [
        AutoMultivariateNormal,
        pytest.param(AutoNormal, marks=pytest.mark.long),
        pytest.param(partial(AutoStiefelLowRankMultivariateNormal, rank=1), marks=pytest.mark.long),
    ],
)
def test_the_evidence_does_not_depend_on_the_guide(kind):
    (x, y), truth = regression()
    guide = kind(linear)
    guide(x, y)
    mean, covariance = posterior(x, y)
    put_at(guide, mean, covariance)
    smc = run(linear, x, y, init=guide, num_particles=256)
    assert len(smc.levels) <= 4  # from the prior there are about ten
    assert_evidence(smc, truth)
    w = smc.get_samples(group_by_chain=True)["w"]
    assert_mean_of_runs(w[..., 0], float(mean[0]))
    assert_mean_of_runs((w[..., 1] - mean[1]).square(), float(covariance[1, 1]))


def test_a_guide_of_parameters_that_is_a_function():
    (x, y), truth = regression()
    mean, _ = posterior(x, y)

    def guide(x, y):
        pyro.sample("w", dist.Normal(pyro.param("loc", mean.clone()), 0.3).to_event(1))

    assert_evidence(run(linear, x, y, init=guide, num_particles=256), truth)


def with_a_scale():
    langevin()
    pyro.sample("s", dist.Gamma(2.0, 1.0))
    pyro.factor("of scale", torch.zeros(()))


def near_it():
    pyro.sample("U", MatrixLangevin(0.7 * F))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))


@pytest.mark.long
def test_sites_on_manifolds_stay_on_them_in_a_guide_that_has_them():
    # Particles move where the kernel's transforms say, and so must the guide.
    kernel = partial(OHMC, transforms={"s": SoftplusTransform().inv})
    smc = run(with_a_scale, init=near_it, num_particles=256, kernel=kernel)
    assert_evidence(smc, 1.607)
    draws = smc.get_samples(group_by_chain=True)
    assert_mean_of_runs((F * draws["U"]).sum((-2, -1)), 2.809)
    assert_mean_of_runs(draws["s"], 2.0)
    identity = torch.eye(2).expand(8, 256, 2, 2)
    torch.testing.assert_close(draws["U"].mT @ draws["U"], identity, atol=1e-10, rtol=0)


def test_a_gaussian_guide_has_them_in_their_charts():
    guide = AutoMultivariateNormal(langevin, init_scale=1.0)
    guide()
    guide.loc.data.zero_()  # as wide as the chart's own Gaussian
    smc = run(langevin, init=guide, num_particles=256)
    assert_evidence(smc, 1.607)
    assert_mean_of_runs((F * smc.get_samples(group_by_chain=True)["U"]).sum((-2, -1)), 2.809)


@pytest.mark.long
def test_discrete_sites_are_the_models_alone():
    y = torch.tensor([-2.0, 2.5, 3.0])

    def mixture():
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(torch.where(z > 0, mean, -mean), 1.0), obs=y)

    grid = torch.linspace(-20, 20, 40_001).unsqueeze(-1)
    right, left = dist.Normal(grid, 1.0).log_prob(y), dist.Normal(-grid, 1.0).log_prob(y)
    density = torch.logaddexp(right + math.log(0.4), left + math.log(0.6)).sum(-1)
    density = density + dist.Normal(0.0, 3.0).log_prob(grid.squeeze(-1))
    smc = run(mixture, init=lambda: pyro.sample("mean", dist.Normal(0.0, 4.0)), num_particles=256)
    assert_evidence(smc, float(density.logsumexp(0) + math.log(40 / 40_000)))


def hidden():
    radius = pyro.sample("radius", dist.Gamma(2.0, 1.0), infer={"is_auxiliary": True})
    pyro.sample("U", MatrixLangevin(radius * F))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))


def of_other_sites():
    pyro.sample("U", StiefelUniform(3, 2))


def off_the_manifold():
    pyro.sample("U", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))


def negative():
    pyro.sample("U", StiefelUniform(3, 2))
    pyro.sample("s", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (AutoDelta(with_a_scale), "is a point"),
        (AutoStructured(with_a_scale), r"AutoStructured has auxiliary variables \['U_aux', 's_aux'\]"),
        (AutoMultivariateNormal(with_a_scale), "AutoMultivariateNormal has no sites yet"),
        (hidden, r"hidden has auxiliary variables \['radius'\]"),
        (of_other_sites, r"the guide has the sites \['U'\], expected those of the model, \['U', 's'\]"),
        (off_the_manifold, "site 'U' has support .* in the guide, expected stiefel"),
        (negative, "site 's' has support Real"),
    ],
)
def test_guides_that_cannot_be_begun_with_are_sentences(guide, words):
    with pytest.raises(ValueError, match=words):
        SMC(OHMC(with_a_scale), 64, 2, init=guide, disable_progbar=True).run()

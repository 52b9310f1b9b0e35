"""The likelihood of observations whose discrete sites were summed out, against closed forms."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import pointwise_log_likelihood
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from tests.diagnostics.either_arviz import elpd

Y = torch.tensor([0.5, -1.2, 2.0, 0.1])
X = torch.tensor([1.0, 0.3, -0.4, 0.8])


def components():
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    means = pyro.sample("means", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    return weights, means


def draws(count=5):
    return {"weights": dist.Dirichlet(torch.ones(3)).sample((count,)), "means": 2 * torch.randn(count, 3)}


def likelihood(model, samples):
    return pointwise_log_likelihood(Program(model), samples)


def closed_form(samples, y, scale=1.0):
    """The log of Σ_k w_k N(y | m_k, scale²), ``(draws, ...)`` for y of any shape."""
    weights, means = (samples[name].reshape(-1, *[1] * y.dim(), 3) for name in ("weights", "means"))
    return dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, scale)).log_prob(y)


def test_a_mixture_has_the_likelihood_of_its_closed_form_and_arviz_reads_it(tmp_path):
    def mixture(y):
        axis = pyro.sample("axis", StiefelUniform(3, 1))
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("rows", len(y)):
            kind = pyro.sample("kind", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(3 * axis[kind, 0], 1.0), obs=y)

    y = torch.cat([torch.randn(20) - 2, torch.randn(20) + 2])
    mcmc = MCMC(OHMC(mixture), num_samples=100, warmup_steps=100, num_chains=2, disable_progbar=True)
    mcmc.run(y)
    idata = mcmc.to_inferencedata(dims={"y": ["row"]})
    samples = mcmc.get_samples()
    expected = closed_form({"weights": samples["weights"], "means": 3 * samples["axis"][..., 0]}, y)
    np.testing.assert_allclose(idata.log_likelihood["y"].values.reshape(200, 40), expected.numpy(), atol=1e-10)
    assert idata.log_likelihood["y"].dims == ("chain", "draw", "row")
    assert np.isfinite(elpd(idata))


def test_sites_with_one_assignment_have_one_likelihood():
    """Given θ, x and y of a row are dependent; w has an assignment of its own, and v none."""

    def model():
        weights, means = components()
        with pyro.plate("rows", 4):
            kind = pyro.sample("kind", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(means[kind], 1.0), obs=X)
            pyro.sample("y", dist.Normal(means[kind], 2.0), obs=Y)
        with pyro.plate("others", 3):
            other = pyro.sample("other", dist.Categorical(weights))
            pyro.sample("w", dist.Normal(means[other], 1.0), obs=Y[:3])
            pyro.sample("v", dist.Normal(means[0], 1.0), obs=X[:3])

    samples = draws()
    found = likelihood(model, samples)
    assert set(found) == {"x, y", "w", "v"}
    weights, means = (samples[name][:, None] for name in ("weights", "means"))
    terms = dist.Normal(means, 1.0).log_prob(X[:, None]) + dist.Normal(means, 2.0).log_prob(Y[:, None])
    torch.testing.assert_close(found["x, y"], (weights.log() + terms).logsumexp(-1))
    torch.testing.assert_close(found["w"], closed_form(samples, Y[:3]))
    torch.testing.assert_close(found["v"], dist.Normal(means[..., 0], 1.0).log_prob(X[:3]))


def chain(weights, means, states, transition):
    previous = None
    for t, y in enumerate(states):
        distribution = weights if previous is None else transition[previous]
        previous = pyro.sample(f"z{t}", dist.Categorical(distribution))
        pyro.sample(f"y{t}", dist.Normal(means[previous], 1.0), obs=y)


TRANSITION = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)


def test_observations_that_share_a_site_are_left_out_and_others_are_not():
    def hidden_markov():
        weights, means = components()
        chain(weights, means, Y, TRANSITION)
        with pyro.plate("rows", 4):
            pyro.sample("x", dist.Normal(means[0], 1.0), obs=X)

    def common():
        weights, means = components()
        kind = pyro.sample("kind", dist.Categorical(weights))
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(means[kind], 1.0), obs=Y)

    def local_and_common():
        weights, means = components()
        rows = pyro.plate("rows", 4)
        with rows:
            kind = pyro.sample("kind", dist.Categorical(weights))
        shift = pyro.sample("shift", dist.Categorical(weights))
        with rows:
            pyro.sample("y", dist.Normal(means[kind] + shift, 1.0), obs=Y)

    with pytest.warns(
        UserWarning,
        match=r"log_likelihood of \['y0', 'y1', 'y2', 'y3'\] is left out, since its likelihood does not factorise",
    ):
        assert set(likelihood(hidden_markov, draws())) == {"x"}
    with pytest.warns(UserWarning, match=r"of \['y'\] is left out, .* which share \['kind'\]"):
        assert not likelihood(common, draws())
    with pytest.warns(UserWarning, match=r"of \['y'\] is left out, .* which share \['kind', 'shift'\]"):
        assert not likelihood(local_and_common, draws())


def test_one_chain_of_states_for_each_row():
    def model():
        weights, means = components()
        with pyro.plate("rows", 4):
            chain(weights, means, [Y, X], TRANSITION)

    samples = draws()
    weights, means = samples["weights"], samples["means"]
    terms = [
        (weights[:, i] * TRANSITION[i, j]).log()[:, None]
        + dist.Normal(means[:, i, None], 1.0).log_prob(Y)
        + dist.Normal(means[:, j, None], 1.0).log_prob(X)
        for i, j in itertools.product(range(3), repeat=2)
    ]
    torch.testing.assert_close(likelihood(model, samples)["y0, y1"], torch.stack(terms).logsumexp(0))


@pytest.mark.parametrize("rows_dim", [-1, -2])
def test_observations_within_a_row_have_the_likelihood_of_the_row(rows_dim):
    data = torch.randn(4, 2) if rows_dim == -2 else torch.randn(2, 4)

    def model():
        weights, means = components()
        rows, columns = pyro.plate("rows", 4, dim=rows_dim), pyro.plate("columns", 2, dim=-3 - rows_dim)
        with rows:
            kind = pyro.sample("kind", dist.Categorical(weights))
            with columns:
                pyro.sample("y", dist.Normal(means[kind], 1.0), obs=data)

    samples = draws()
    weights, means = (samples[name][:, None] for name in ("weights", "means"))
    rows = data if rows_dim == -2 else data.mT
    terms = dist.Normal(means[..., None], 1.0).log_prob(rows[:, None, :]).sum(-1)
    torch.testing.assert_close(likelihood(model, samples)["y"], (weights.log() + terms).logsumexp(-1))


def test_given_continuous_sites_that_depend_on_the_assignment():
    """p(y | tau) of a scale mixture: given tau, y does not depend on the assignment."""

    def model():
        weights, means = components()
        with pyro.plate("rows", 4):
            kind = pyro.sample("kind", dist.Categorical(weights))
            tau = pyro.sample("tau", dist.Normal(means[kind], 1.0))
            pyro.sample("y", dist.Normal(tau, 1.0 + kind), obs=Y)

    samples = draws() | {"tau": torch.randn(5, 4)}
    weights, means = (samples[name][:, None] for name in ("weights", "means"))
    prior = weights.log() + dist.Normal(means, 1.0).log_prob(samples["tau"][..., None])
    terms = dist.Normal(samples["tau"][..., None], 1.0 + torch.arange(3)).log_prob(Y[:, None])
    expected = (prior.log_softmax(-1) + terms).logsumexp(-1)
    torch.testing.assert_close(likelihood(model, samples)["y"], expected)


def test_masked_observations_are_0_and_scales_are_left_out():
    mask = torch.tensor([True, False, True, True])

    def model():
        weights, means = components()
        with pyro.plate("rows", 4), poutine.scale(scale=0.1):
            kind = pyro.sample("kind", dist.Categorical(weights))
            with poutine.mask(mask=mask):
                pyro.sample("y", dist.Normal(means[kind], 1.0), obs=Y)

    samples = draws()
    torch.testing.assert_close(likelihood(model, samples)["y"], closed_form(samples, Y) * mask)


def test_a_plate_of_one_element_and_loops_over_plates():
    def one():
        weights, means = components()
        with pyro.plate("rows", 1):
            kind = pyro.sample("kind", dist.Categorical(weights))
            pyro.sample("y", dist.Normal(means[kind], 1.0), obs=Y[:1])

    def loop():
        weights, means = components()
        for i in pyro.plate("rows", 2):
            kind = pyro.sample(f"kind{i}", dist.Categorical(weights))
            pyro.sample(f"y{i}", dist.Normal(means[kind], 1.0), obs=Y[i])

    samples = draws()
    torch.testing.assert_close(likelihood(one, samples)["y"], closed_form(samples, Y[:1]))
    found = likelihood(loop, samples)
    torch.testing.assert_close(torch.stack([found["y0"], found["y1"]], -1), closed_form(samples, Y[:2]))


def test_a_site_that_was_not_kept_is_named():
    def model():
        weights, means = components()
        with pyro.plate("rows", 4):
            kind = pyro.sample("kind", dist.Categorical(weights))
            pyro.sample("y", dist.Normal(means[kind], 1.0), obs=Y)

    with pytest.raises(ValueError, match=r"no draws of \['means'\], which save_params leaves out"):
        likelihood(model, {"weights": draws()["weights"]})

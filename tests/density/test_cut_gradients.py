"""Models that cut gradients are refused, and no other ones."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal

from pyro_manifold.density import refuse_cut_gradients, target_from_model
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, SVI, GeodesicSlice

Y = 2.0 + 0.1 * torch.arange(30.0)


def without_gradient(a, b):
    with torch.no_grad():
        mean = 2 * a
    return mean + b


CUTS = {
    "detach": (lambda a, b: (2 * a).detach() + b, "'a'"),
    "data": (lambda a, b: 2 * a.data + b, "'a'"),
    "no_grad": (without_gradient, "'a'"),
    "NumPy": (lambda a, b: 2 * a + torch.as_tensor(b.detach().numpy()), "'b'"),
    "item": (lambda a, b: 2 * a.item() + b, "'a'"),
    "a list": (lambda a, b: torch.tensor([a, b]) @ torch.tensor([2.0, 1.0]), "'a', 'b'"),
    "a part": (lambda a, b: 2 * a + b + 0.3 * a.detach(), "'a'"),
}
WHOLE = {
    "smooth": lambda a, b: 2 * a + b,
    "a shift that cancels": lambda a, b: (a - a.detach()).exp().log() + a.detach() + b,
    "a jump": lambda a, b: a + (b > 0.3) * 1.0,
    "rounded": lambda a, b: a + b.round(),
    "kinks": lambda a, b: (a - torch.linspace(-9.0, 9.0, 5000, dtype=a.dtype)).abs().mean() + b,
}


def line(of):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 5.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(of(a, b), 0.3), obs=y)

    return model


@pytest.mark.parametrize("name", CUTS)
def test_the_site_is_named(name):
    of, sites = CUTS[name]
    mcmc = MCMC(OHMC(line(of)), 10, 10, num_chains=2, disable_progbar=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of numbers out of tensors
        with pytest.raises(ValueError, match=rf"Site {sites}: the gradient .* torch.stack\(\[...\]\)"):
            mcmc.run(Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("repeated", [1, 5000])
@pytest.mark.parametrize("name", WHOLE)
def test_nothing_else_is_refused(name, repeated, dtype):
    """Also where rounding is large: the energy is about 1e7 for repeated data."""
    target = target_from_model(line(WHOLE[name]), (Y.to(dtype).repeat(repeated),))
    positions = {name: torch.randn(4, dtype=dtype) for name in ("a", "b")}
    refuse_cut_gradients(target.potential_fn, positions, {})


def test_a_wide_prior_is_not_refused():
    """In float32 the energies at its width differ by less than their rounding."""
    torch.set_default_dtype(torch.float32)
    target = target_from_model(lambda: pyro.sample("a", dist.Normal(0.0, 1e5)))
    refuse_cut_gradients(target.potential_fn, {"a": torch.randn(4)}, {})


def matrix(U):
    def model():
        X = pyro.sample("U", StiefelUniform(4, 2))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(U(X) * scale, 0.1).to_event(2), obs=torch.eye(4, 2))

    return model


def test_sites_on_manifolds_are_compared():
    target = target_from_model(matrix(lambda X: X))
    positions = {"U": StiefelUniform(4, 2).sample((2,)), "scale": torch.zeros(2)}
    refuse_cut_gradients(target.potential_fn, positions, target.manifolds)
    with pytest.raises(ValueError, match="Site 'U': the gradient"):
        refuse_cut_gradients(target_from_model(matrix(torch.detach)).potential_fn, positions, target.manifolds)


def test_smc_compares_the_posterior():
    """At the inverse temperature 0, where particles begin, the likelihood has no influence."""
    with pytest.raises(ValueError, match="Site 'a': the gradient"):
        SMC(OHMC(line(CUTS["detach"][0])), 64, disable_progbar=True).run(Y)


def test_svi_warns_and_takes_pyros_steps():
    """As in Pyro, where a model may cut gradients on purpose."""
    model = line(CUTS["detach"][0])
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.warns(UserWarning, match="Pyro's own steps.*Site 'a': the gradient"):
        svi.step(Y)
    assert svi.backend == "pyro"


def test_kernels_without_gradients_need_none():
    MCMC(GeodesicSlice(line(CUTS["detach"][0])), 2, 2, num_chains=2, disable_progbar=True).run(Y)

"""Every distribution of `cases.py`: shapes, support, dtypes, derivatives, copies, and draws that have its density."""

import copy
import pickle

import pyro
import pytest
import torch
from pyro.distributions import TorchDistribution
from torch.autograd import gradcheck
from torch.distributions import biject_to

from problems.importance import weighted_mean
from problems.monte_carlo import assert_mean
from pyro_manifold import distributions
from tests.distributions.cases import DISTRIBUTIONS
from tests.parameters import long_except

ALL = pytest.mark.parametrize("name", DISTRIBUTIONS)


def made(name, *batch, dtype=torch.float64, **options):
    return DISTRIBUTIONS[name].make(torch.randn(*batch, 4, 4, dtype=dtype), **options)


def test_none_is_left_out():
    public = {getattr(distributions, name) for name in distributions.__all__}
    public = {each for each in public if isinstance(each, type) and issubclass(each, TorchDistribution)}
    assert {type(made(name)) for name in DISTRIBUTIONS} == public


# ---- shapes -----------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("batch", long_except([(), (3,), (2, 3)], (2, 3)))
def test_shapes_and_support(name, batch):
    one, event = made(name, *batch), DISTRIBUTIONS[name].event
    assert (one.batch_shape, one.event_shape, one.support.event_dim) == (batch, event, len(event))
    for shape in ((), (5,), (0,), (2, 5)):
        draws = one.sample(shape)
        assert draws.shape == (*shape, *batch, *event)
        assert one.support.check(draws).all()
        assert one.log_prob(draws).shape == (*shape, *batch)
        assert not draws.requires_grad
    wider = one.expand((7, *batch))
    assert wider.sample().shape == (7, *batch, *event)
    assert (repr(wider.support), getattr(wider, "chart", None)) == (repr(one.support), getattr(one, "chart", None))
    torch.testing.assert_close(wider.log_prob(draws[0, 0]), one.log_prob(draws[0, 0]).expand(7, *batch))
    whole = wider.to_event(1 + len(batch))
    value = whole.sample()
    torch.testing.assert_close(whole.log_prob(value), wider.log_prob(value).sum())


@ALL
def test_elements_of_a_batch_are_alone(name):
    """The density of one element, and draws of which no two are equal, whether parameters are or not."""
    z, make = torch.randn(3, 4, 4), DISTRIBUTIONS[name].make
    draws = make(z).sample((5,))
    for k in range(3):
        torch.testing.assert_close(make(z).log_prob(draws)[:, k], make(z[k]).log_prob(draws[:, k]))
    torch.testing.assert_close(torch.func.vmap(make(z, validate_args=False).log_prob)(draws), make(z).log_prob(draws))
    for each in (draws, make(z[0]).expand((3,)).sample((5,)), made(name).sample((15,))):
        assert len(each.reshape(15, -1).unique(dim=0)) == 15


@ALL
def test_in_plates(name):
    one = made(name)

    def model():
        with pyro.plate("outer", 3, dim=-2), pyro.plate("inner", 4, dim=-1):
            return pyro.sample("x", one)

    trace = pyro.poutine.trace(model).get_trace()
    value = trace.nodes["x"]["value"]
    assert value.shape == (3, 4, *one.event_shape)
    torch.testing.assert_close(trace.log_prob_sum(), one.log_prob(value).sum())


# ---- values -----------------------------------------------------------------------------------------------------


@ALL
def test_values_off_the_support_are_refused(name):
    strict, lax = made(name, validate_args=True), made(name, validate_args=False)
    value = strict.sample()
    strict.log_prob(value)
    for wrong in (-1.5 * value, torch.full_like(value, torch.nan)):
        assert not strict.support.check(wrong)
        with pytest.raises(ValueError, match=r"support|value"):
            strict.log_prob(wrong)
        with pytest.raises(ValueError, match=r"support|value"):
            strict.expand((2,)).log_prob(wrong)
        lax.log_prob(wrong)
    assert not lax.log_prob(wrong).isfinite()


@ALL
def test_dtypes(name):
    """Float32 follows from parameters, and has the density of float64 but for rounding."""
    z, make = torch.randn(6, 4, 4), DISTRIBUTIONS[name].make
    exact, rounded = make(z), make(z.float())
    draws = rounded.sample((10,))
    assert draws.dtype == rounded.log_prob(draws).dtype == rounded.expand((2, 6)).sample().dtype == torch.float32
    assert rounded.support.check(draws).all()
    expected = make(z, validate_args=False).log_prob(draws.double())
    torch.testing.assert_close(rounded.log_prob(draws).double(), expected, rtol=2e-5, atol=2e-5)
    assert exact.sample().dtype == exact.log_prob(exact.sample()).dtype == torch.float64


@ALL
def test_the_transform_of_the_support_leads_there_and_back(name):
    one = made(name, 3)
    value, transform = one.sample((5,)), biject_to(one.support)
    torch.testing.assert_close(transform(transform.inv(value)), value)


# ---- derivatives ------------------------------------------------------------------------------------------------


@ALL
def test_derivatives_in_values(name):
    one = made(name, 2, validate_args=False)
    assert gradcheck(one.log_prob, (one.sample((3,)).requires_grad_(),))


@pytest.mark.parametrize("name", [name for name, case in DISTRIBUTIONS.items() if case.parameters])
def test_derivatives_in_parameters(name):
    z, make = torch.randn(2, 4, 4), DISTRIBUTIONS[name].make
    value = make(z).sample((3,))
    assert gradcheck(lambda z: make(z).log_prob(value), (z.requires_grad_(),))
    one = make(z)
    if one.has_rsample:
        (gradient,) = torch.autograd.grad(one.rsample((3,)).sum(), z)
        assert gradient.isfinite().all()
        assert gradient.any()
    assert not one.sample().requires_grad


# ---- copies and seeds -------------------------------------------------------------------------------------------


def pickled(one):
    return pickle.loads(pickle.dumps(one))


@ALL
@pytest.mark.parametrize("through", [pytest.param(copy.deepcopy, marks=pytest.mark.long), pickled])
def test_copies_have_the_same_density_and_draws(name, through):
    one = made(name, 3).expand((2, 3))
    other = through(one)
    draws = []
    for each in (one, one, other):
        pyro.set_rng_seed(0)
        draws.append(each.sample((4,)))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(one.log_prob(draws[0]), other.log_prob(draws[0]))


# ---- draws and density ------------------------------------------------------------------------------------------


WITH_REFERENCE = [name for name, case in DISTRIBUTIONS.items() if case.reference is not None]


# Those of Bingham–von Mises–Fisher are slow, and compared with importance sampling in test_bingham.py.
@pytest.mark.parametrize(
    "name", long_except(WITH_REFERENCE, *(each for each in WITH_REFERENCE if each != "Bingham–von Mises–Fisher"))
)
def test_draws_have_the_density(name):
    """Importance sampling: E_r[p/r] = 1 of a normalised density, and E_r[f p/r] = E_p[f] E_r[p/r] of any."""
    reference, one = DISTRIBUTIONS[name].reference(), made(name)
    proposals = reference.sample((20_000,))
    log_weights = one.log_prob(proposals) - reference.log_prob(proposals)
    if DISTRIBUTIONS[name].normalised:
        assert_mean(log_weights.exp(), 1.0)
    draws = one.sample((4000,))
    # What notices draws that are too concentrated, or too little, is the log density.
    log_ratio = one.log_prob(draws) - reference.log_prob(draws)
    assert_mean(log_ratio, *weighted_mean(log_weights, log_weights))
    found, expected = draws.flatten(1), proposals.flatten(1)
    for f in (lambda x: x[:, 0], lambda x: x[:, -1], lambda x: x[:, 0] ** 2, lambda x: x[:, 0] * x[:, -1]):
        assert_mean(f(found), *weighted_mean(f(expected), log_weights))

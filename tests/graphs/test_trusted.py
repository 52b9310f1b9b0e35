"""A graph is told from the function that it stands for by more than rounding, and by no less."""

import pytest
import torch

from problems.models import MODELS
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.infer import OHMC

# Large terms that cancel, as residuals do.
TERMS = 1e4 * torch.randn(1000, generator=torch.Generator().manual_seed(0))


def terms(x, y):
    return x[:, None] * (TERMS - TERMS.mean()).to(x) + y[:, None] / len(TERMS)


def energy_and_gradient(x, y):
    """Gradients of very different size: the second is what is left of large numbers."""
    return 1e4 * x.square(), 2e4 * x, terms(x, y).sum(1)


def reordered(x, y):
    """The same, summed in another order."""
    return 1e4 * x.square(), 2e4 * x, terms(x, y).cumsum(1)[:, -1]


def branching(x, y):
    return 1e4 * x.square(), 2e4 * x, torch.where(y > 0, y, 2 * y)


def frozen(x, y):
    """What a trace at positive y keeps of `branching`."""
    return 1e4 * x.square(), 2e4 * x, y


def taken(function, form, point):
    return Trusted(function, "function").attempt("graph", lambda _: form, [point])


POINT = torch.tensor([3000.0, 17.0]), torch.tensor([0.5, -0.7])


def test_rounding_is_no_difference():
    single = [value.float() for value in POINT]
    assert not torch.allclose(reordered(*single)[2], energy_and_gradient(*single)[2], rtol=0.01, atol=0.01)
    assert taken(energy_and_gradient, reordered, single)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_difference_beside_a_large_gradient_is_seen(dtype):
    """At 0.7 of 6e7 it is below the rounding of the whole gradient in float32."""
    assert not taken(branching, frozen, [value.to(dtype) for value in POINT])


def test_a_difference_near_the_size_of_rounding_names_it():
    def lossy(x, y):
        return (*energy_and_gradient(x, y)[:2], energy_and_gradient(x, y)[2] + 0.3 * x)

    with pytest.warns(UserWarning, match=r"times what rounding the sites to float32 .* float64"):
        Trusted(energy_and_gradient, "function").attempt(
            "graph", lambda _: lossy, [[value.float() for value in POINT]], failure="No graph: {reason}."
        )


def test_what_becomes_infinite_in_another_order_is_no_difference():
    x = torch.tensor([200.0, 2.0])
    assert taken(lambda x: (x.exp() * x.exp(),), lambda x: ((2 * x).exp(),), [x])  # overflow on both sides
    assert taken(lambda x: (x.exp() - x.exp(),), lambda x: ((x.exp() - x.exp()) * 1,), [torch.tensor([800.0, 1.0])])
    assert not taken(lambda x: (torch.where(x > 100, torch.inf, x),), lambda x: (x,), [x])


@pytest.mark.parametrize("name", MODELS)
def test_models_that_do_not_branch_are_traced_in_float32(name):
    torch.set_default_dtype(torch.float32)
    problem = OHMC(MODELS[name](0)).prepare(4, 10, None).problem
    assert problem.batched.graph.form == "traced"


def test_a_large_site_does_not_hide_a_branch_of_a_small_one():
    """Each number is disturbed by its own rounding, not by that of its neighbours."""
    unit, step = torch.tensor([1e10, 1e-5], dtype=torch.float64), torch.tensor([1.3, 0.7], dtype=torch.float64)

    def stepped(x):
        return ((x / unit).square().sum() + (2 if x.tolist()[1] > 0 else 0),)

    assert not taken(stepped, lambda x: ((x / unit).square().sum(),), [unit * step])


IMAGES = torch.randn(32, 784, generator=torch.Generator().manual_seed(1), dtype=torch.float32)


def units_at_their_kinks():
    """Weights and offsets of 16 ReLUs, each of which one image brings to zero but for rounding."""
    weights = torch.randn(784, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float32) / 28
    return weights, -(IMAGES @ weights)[range(16), range(16)]


def gradient_of_units(weights, offsets):
    active = (IMAGES @ weights + offsets > 0).to(weights)
    return IMAGES.mT @ active, active.sum(0)


def gradient_in_another_order(weights, offsets):
    active = (IMAGES.flip(1) @ weights.flip(0) + offsets > 0).to(weights)
    return IMAGES.mT @ active, active.sum(0)


def test_units_within_rounding_of_their_kinks_are_no_difference():
    units = units_at_their_kinks()
    found, expected = gradient_in_another_order(*units)[1], gradient_of_units(*units)[1]
    assert not torch.equal(found, expected)
    assert taken(gradient_of_units, gradient_in_another_order, units)


def test_units_that_were_frozen_are_a_difference_beside_kinks():
    units = units_at_their_kinks()
    frozen_at = (IMAGES @ units[0] > 0).float()

    def half_frozen(weights, offsets):
        gradient, counts = gradient_in_another_order(weights, offsets)
        return torch.cat([gradient[:, :8], IMAGES.mT @ frozen_at[:, 8:]], 1), counts

    assert not taken(gradient_of_units, half_frozen, units)

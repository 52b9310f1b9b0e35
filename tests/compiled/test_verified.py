"""Differences between a graph and its function are detected beyond rounding, and only then."""

import pytest
import torch

from problems.models import MODELS
from pyro_manifold.compiled import Labels, NotAFunctionError, Verified
from pyro_manifold.infer import OHMC
from tests.parameters import long_except

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
    """The branch of `branching` that a trace at positive y keeps."""
    return 1e4 * x.square(), 2e4 * x, y


def taken(function, form, point):
    return Verified(function, "function").attempt("graph", lambda _: form, [point])


POINT = torch.tensor([3000.0, 17.0]), torch.tensor([0.5, -0.7])


def test_rounding_is_no_difference():
    single = [value.float() for value in POINT]
    assert not torch.allclose(reordered(*single)[2], energy_and_gradient(*single)[2], rtol=0.01, atol=0.01)
    assert taken(energy_and_gradient, reordered, single)


def counted(function):
    def with_count(*inputs):
        with_count.calls += 1
        return function(*inputs)

    with_count.calls = 0
    return with_count


def test_rounding_is_known_after_the_perturbation_that_shows_it():
    """A model may be a network whose evaluations take seconds; a difference is compared with all perturbations."""
    single = [value.float() for value in POINT]
    rounded, wrong = counted(energy_and_gradient), counted(branching)
    assert taken(rounded, reordered, single)
    assert rounded.calls <= 3
    assert not taken(wrong, frozen, single)
    assert wrong.calls >= 4 * (1 + 8)  # here and at three points nearby


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_difference_next_to_a_large_gradient_is_detected(dtype):
    """A difference of 0.7 in 6e7 is below the rounding of the whole gradient in float32."""
    assert not taken(branching, frozen, [value.to(dtype) for value in POINT])


def test_a_difference_near_the_size_of_rounding_names_it():
    def lossy(x, y):
        return (*energy_and_gradient(x, y)[:2], energy_and_gradient(x, y)[2] + 0.3 * x)

    with pytest.warns(UserWarning, match=r"times what rounding the sites to float32 .* float64"):
        Verified(energy_and_gradient, "function").attempt(
            "graph", lambda _: lossy, [[value.float() for value in POINT]], failure="No graph: {reason}."
        )


def test_what_becomes_infinite_in_another_order_is_no_difference():
    x = torch.tensor([200.0, 2.0])
    assert taken(lambda x: (x.exp() * x.exp(),), lambda x: ((2 * x).exp(),), [x])  # overflow on both sides
    assert taken(lambda x: (x.exp() - x.exp(),), lambda x: ((x.exp() - x.exp()) * 1,), [torch.tensor([800.0, 1.0])])
    assert not taken(lambda x: (torch.where(x > 100, torch.inf, x),), lambda x: (x,), [x])


@pytest.mark.parametrize("name", long_except(MODELS, *list(MODELS)[:3]))
def test_models_that_do_not_branch_are_traced_in_float32(name):
    torch.set_default_dtype(torch.float32)
    problem = OHMC(MODELS[name](0)).prepare(4, 10, None).problem
    assert problem.batched.graph.backend == "traced"


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


def test_frozen_units_are_a_difference_near_kinks():
    units = units_at_their_kinks()
    frozen_at = (IMAGES @ units[0] > 0).float()

    def half_frozen(weights, offsets):
        gradient, counts = gradient_in_another_order(weights, offsets)
        return torch.cat([gradient[:, :8], IMAGES.mT @ frozen_at[:, 8:]], 1), counts

    assert not taken(gradient_of_units, half_frozen, units)


# ---- rounding of operations --------------------------------------------------------------------------------------

SATURATED = torch.linspace(4.0, 9.0, 400, dtype=torch.float64)


def clamped(p):
    return p.clamp(torch.finfo(p.dtype).eps, 1 - torch.finfo(p.dtype).eps)


def probit(f):
    """The log probability of a zero, with a gradient that is zero where a probability is clamped."""
    f = f.detach().requires_grad_()
    with torch.enable_grad():
        energy = -torch.log1p(-clamped(0.5 * (1 + torch.erf(f / 2**0.5))))
        (gradient,) = torch.autograd.grad(energy.sum(), f)
    return energy.detach(), gradient


def probit_with_another_erf(f):
    """The same, of a library that rounds the last bit otherwise."""
    f = f.detach().requires_grad_()
    with torch.enable_grad():
        erf = torch.erf(f / 2**0.5)
        last_bit = (torch.arange(len(f)) % 2).to(f) * torch.finfo(f.dtype).eps
        energy = -torch.log1p(-clamped(0.5 * (1 + (erf - last_bit * (erf < 1)))))
        (gradient,) = torch.autograd.grad(energy.sum(), f)
    return energy.detach(), gradient


def test_the_last_bits_of_a_probability_near_one_are_no_difference():
    f = SATURATED[SATURATED < 8.3]
    found, expected = probit_with_another_erf(f)[1], probit(f)[1]
    assert ((found - expected).abs() > 0.1).any()
    assert taken(probit, probit_with_another_erf, [f])


@pytest.mark.parametrize("beyond", [4.5, 6.0])
def test_a_wrong_tail_is_a_difference(beyond):
    """A gradient that is a tenth too large where rounding decides little, among others where it decides all."""

    def wrong(f):
        energy, gradient = probit(f)
        return energy, torch.where((f > beyond) & (f < beyond + 0.2), 1.1 * gradient, gradient)

    assert not taken(probit, wrong, [SATURATED])


def test_a_difference_is_reported_with_its_name_and_place():
    labels = Labels(["the potential energy", "the gradient of 'x'"], {0: "x"})
    x = torch.tensor([[0.5, 1.0], [2.0, 3.0]])
    verified = Verified(lambda x: (x.square().sum(1) / 2, x), "function", labels=labels)
    form = lambda x: (x.square().sum(1) / 2, torch.where(x > 2.5, 2 * x, x))  # noqa: E731
    with pytest.warns(UserWarning, match="No graph") as caught:
        verified.attempt("graph", lambda _: form, [[x]], failure="No graph: {reason}.")
    (warning,) = caught
    assert str(warning.message) == (
        "No graph: the gradient of 'x' is 6 instead of 3 at entry [1] in chain 1, where 'x' is [2, 3]."
    )


def test_what_is_not_a_function_is_raised():
    def function(x):
        raise NotAFunctionError("another at each call")

    with pytest.raises(NotAFunctionError, match="another at each call"):
        taken(function, lambda x: (x,), [torch.zeros(2)])

"""Layers with orthonormal weights: their prior, their shapes, and what travels with them."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn
from torch.nn import functional

from problems.monte_carlo import assert_mean
from pyro_manifold.nn import LowRankLinear, OrthogonalConv2d, OrthogonalLinear

LAYERS = {
    "wide": (lambda **options: OrthogonalLinear(5, 3, **options), (7, 5)),
    "tall": (lambda **options: OrthogonalLinear(3, 5, **options), (7, 3)),
    "square": (lambda **options: OrthogonalLinear(4, 4, bias=False, **options), (7, 4)),
    "convolution": (lambda **options: OrthogonalConv2d(2, 6, 3, padding=1, **options), (2, 2, 5, 5)),
    "grouped": (lambda **options: OrthogonalConv2d(4, 6, (3, 1), groups=2, **options), (2, 4, 5, 5)),
    "low rank": (lambda **options: LowRankLinear(6, 5, 2, **options), (7, 6)),
}
every_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


def gram_error(weight):
    """Distance from orthonormal rows, or columns if these are fewer."""
    weight = weight if weight.shape[-2] <= weight.shape[-1] else weight.mT
    return float((weight @ weight.mT - torch.eye(weight.shape[-2])).abs().max())


def values_of(layer, *args):
    nodes = poutine.trace(layer).get_trace(*args).nodes
    return {name: site["value"] for name, site in nodes.items() if site["type"] == "sample"}


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (3, 5), (4, 4)])
def test_linear_weights_are_orthonormal_and_uniform(inputs, outputs):
    layer = OrthogonalLinear(inputs, outputs, gain=2.0)
    draws = torch.stack([layer.weight / 2 for _ in range(2000)])
    assert draws.shape == (2000, outputs, inputs)
    assert max(map(gram_error, draws)) < 1e-12
    # Haar: E Q_ij² = 1/max, and entries of no preferred sign.
    assert_mean(draws[:, 0, -1].square(), 1 / max(inputs, outputs))
    assert_mean(draws[:, -1, 0], 0.0)


def test_the_site_is_the_tall_matrix_and_the_weight_is_read_from_it():
    for inputs, outputs in [(5, 3), (3, 5)]:
        layer, x = OrthogonalLinear(inputs, outputs, gain=1.5), torch.randn(7, inputs)
        values = values_of(layer, x)
        assert values["basis"].shape == (5, 3)
        weight = 1.5 * (values["basis"].T if outputs < inputs else values["basis"])
        output = poutine.condition(layer, values)(x)
        torch.testing.assert_close(output, x @ weight.T + values["bias"])


def test_biases_have_the_spread_that_they_are_given():
    for layer in (OrthogonalLinear(2, 3, bias_scale=0.3), LowRankLinear(4, 3, 2, bias_scale=0.3)):
        biases = torch.stack([layer.bias for _ in range(1000)]).flatten()
        assert_mean(biases, 0.0)
        assert_mean(biases.square(), 0.09)


def test_variances_of_outputs_are_those_of_the_docstrings():
    for layer, expected in [
        (OrthogonalLinear(8, 3, gain=2.0, bias_scale=0.5), 4 + 0.25),
        (OrthogonalLinear(3, 8, gain=2.0, bias_scale=0.5), 4 * 3 / 8 + 0.25),
        (LowRankLinear(8, 6, 2, bias_scale=0.5), 1 + 0.25),
    ]:
        outputs = torch.stack([layer(torch.randn(layer.in_features))[0] for _ in range(600)])
        assert_mean(outputs.square(), expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_are_orthonormal_group_by_group(groups):
    layer = OrthogonalConv2d(4, 6, (3, 1), groups=groups, bias=False)
    for _ in range(20):
        for matrix in layer.weight.flatten(1).chunk(groups):
            assert gram_error(matrix) < 1e-12
    tall = OrthogonalConv2d(1, 6, (2, 1)).weight.flatten(1)
    assert tall.shape == (6, 2)
    assert gram_error(tall) < 1e-12


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths:UserWarning")  # as nn.Conv2d
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, (0, 2), "same", "valid"])
def test_convolutions_are_those_of_torch(mode, padding):
    options = {"padding": padding, "dilation": (1, 2), "padding_mode": mode, "groups": 2}
    layer, reference = OrthogonalConv2d(4, 6, (2, 3), **options), nn.Conv2d(4, 6, (2, 3), **options)
    x = torch.randn(2, 4, 7, 8)
    values = values_of(layer, x)
    bases = values["basis"] if values["basis"].shape[-2:] == (3, 12) else values["basis"].mT
    with torch.no_grad():
        reference.weight.copy_(bases.reshape(6, 2, 2, 3))
        reference.bias.copy_(values["bias"])
    torch.testing.assert_close(poutine.condition(layer, values)(x), reference(x))


def test_low_rank_outputs_are_those_of_the_weight():
    layer, x = LowRankLinear(6, 5, 3, scale=2.0), torch.randn(2, 7, 6)
    values = values_of(layer, x)
    assert (values["singular_values"].diff() < 0).all()
    weight = values["left"] * values["singular_values"] @ values["right"].T
    torch.testing.assert_close(torch.linalg.svdvals(weight)[:3], values["singular_values"])
    torch.testing.assert_close(poutine.condition(layer, values)(x), functional.linear(x, weight, values["bias"]))
    squares = torch.stack([layer.weight.square().sum() for _ in range(2000)])
    assert_mean(squares, 3 * 2.0**2)


def test_a_gain_with_a_prior_is_a_site():
    layer = OrthogonalLinear(4, 3, gain=dist.LogNormal(0.0, 0.5), bias=False)
    x = torch.randn(2, 4)
    values = values_of(layer, x)
    assert set(values) == {"basis", "gain"}
    torch.testing.assert_close(poutine.condition(layer, values)(x), values["gain"] * x @ values["basis"])


@every_layer
def test_gradients_reach_inputs_and_sites(make, shape):
    layer, x = make(), torch.randn(shape, requires_grad=True)
    values = {name: value.requires_grad_() for name, value in values_of(layer, x.detach()).items()}
    poutine.condition(layer, values)(x).square().sum().backward()
    for value in (x, *values.values()):
        assert value.grad.abs().sum() > 0


@every_layer
def test_dtypes_follow_torch(make, shape):
    for dtype, other in [(torch.float32, torch.float64), (torch.float64, torch.float32)]:
        layer = make(dtype=dtype)
        values = values_of(layer, torch.randn(shape, dtype=dtype))
        assert {value.dtype for value in values.values()} == {dtype}
        layer.to(other)
        assert {value.dtype for value in values_of(layer, torch.randn(shape, dtype=other)).values()} == {other}
    assert make().weight.dtype == torch.get_default_dtype()
    assert not make().state_dict()


@every_layer
def test_copies_and_pickles_have_the_same_prior(make, shape):
    layer, x = make(), torch.randn(shape)
    for travelled in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        draws = []
        for each in (layer, travelled):
            pyro.set_rng_seed(0)
            draws.append(each(x))
        assert torch.equal(*draws)
        assert repr(travelled) == repr(layer)


def test_looking_at_a_layer_draws_nothing():
    state = torch.get_rng_state()
    for make, _ in LAYERS.values():
        repr(make())
    assert repr(OrthogonalLinear(3, 2, gain=2.0)) == "OrthogonalLinear(3, 2, bias=True, gain=2.0)"
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: OrthogonalLinear(0, 3), "in_features=0, expected a positive integer"),
        (lambda: OrthogonalLinear(3, 2.0), r"out_features=2\.0, expected a positive integer"),
        (lambda: OrthogonalLinear(3, 2, gain=-1.0), r"gain=-1\.0, expected a positive number or a distribution"),
        (lambda: OrthogonalLinear(3, 2, gain=dist.Normal(0.0, 1.0)), "can be negative, expected positive numbers"),
        (lambda: OrthogonalLinear(3, 2, gain=dist.HalfNormal(torch.ones(2))), r"shape \(2,\), expected one number"),
        (lambda: OrthogonalLinear(3, 2, bias_scale=0.0), r"bias_scale=0\.0, expected a positive number"),
        (lambda: OrthogonalConv2d(3, 2, (3, 3, 3)), r"kernel_size=\(3, 3, 3\), expected an integer or two"),
        (lambda: OrthogonalConv2d(3, 2, 3, groups=2), "groups=2 does not divide in_channels=3"),
        (lambda: OrthogonalConv2d(3, 2, 3, padding="full"), "padding='full', expected integers, 'same' or 'valid'"),
        (lambda: OrthogonalConv2d(3, 2, 3, 2, padding="same"), "padding='same' needs stride=1"),
        (lambda: OrthogonalConv2d(3, 2, 3, padding_mode="mirror"), "padding_mode='mirror', expected one of"),
        (lambda: LowRankLinear(3, 2, 3), "rank=3, expected at most 2"),
        (lambda: LowRankLinear(3, 2, 2, scale=-1.0), r"scale=-1\.0, expected a positive number"),
    ],
)
def test_bad_input_is_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()

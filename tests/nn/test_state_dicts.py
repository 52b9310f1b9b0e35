"""Weights of torch networks as values of sites: the same function, or the nearest that the layers allow."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import scipy.linalg
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from pyro_manifold.infer import OHMC, Predictive, init_to_draws
from pyro_manifold.nn import LowRankLinear, OrthogonalLinear, sites_from_state_dicts, to_bayesian_


def make():
    body = [nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)]
    return nn.Sequential(*body)


@pytest.fixture
def inputs():
    return torch.randn(5, 2, 4, 4)


def regression(network):
    def model(x, y):
        noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
        mean = network(x)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)

    return model


def test_chains_begin_at_the_functions_that_were_trained(inputs):
    """Three networks; the log density at each chain is that of one of them, computed without Pyro."""
    trained = [make() for _ in range(3)]
    network = to_bayesian_(copy.deepcopy(trained[0]), orthogonal=())
    values = sites_from_state_dicts(network, [each.state_dict() for each in trained])
    strategy = init_to_draws({**values, "noise": torch.full((3,), 0.5)})
    y = torch.randn(5, 3)
    run = OHMC(regression(network), init_strategy=strategy).prepare(3, 5, None, inputs, y)
    means = [each(inputs).detach() for each in trained]
    expected = sorted(float(torch.distributions.Normal(mean, 0.5).log_prob(y).sum()) for mean in means)
    found = []
    for k in range(3):
        weights = {name: value[[k]] for name, value in run.values.items() if name != "noise"}
        predicted = Predictive(lambda x: pyro.deterministic("f", network(x)), weights)(inputs)["f"][0]
        found.append(float(torch.distributions.Normal(predicted, 0.5).log_prob(y).sum()))
    assert sorted(found) == pytest.approx(expected)
    assert run.values["noise"].tolist() == pytest.approx([0.5] * 3)


def test_orthogonal_layers_have_the_nearest_matrices():
    """The unitary factor of the polar decomposition, by scipy, of each group of a convolution and of a wide layer."""
    trained = make()
    values = sites_from_state_dicts(to_bayesian_(copy.deepcopy(trained)), trained.state_dict())
    assert values["0.basis"].shape == (1, 2, 9, 2)
    for group in range(2):
        rows = trained[0].weight.detach()[2 * group : 2 * group + 2].flatten(1)
        expected, _ = scipy.linalg.polar(rows.numpy())
        torch.testing.assert_close(values["0.basis"][0, group].mT, torch.as_tensor(expected))
    expected, _ = scipy.linalg.polar(trained[2].weight.detach().numpy())
    torch.testing.assert_close(values["2.basis"][0].mT, torch.as_tensor(expected))
    for name in ("2.bias", "4.weight", "5.weight", "5.bias"):
        torch.testing.assert_close(values[name][0], trained.state_dict()[name])


def test_orthogonal_weights_with_a_gain_are_kept():
    network = nn.Sequential(OrthogonalLinear(6, 4, gain=dist.LogNormal(0.0, 1.0)), LowRankLinear(4, 3, rank=2))
    network = pyro.nn.module.to_pyro_module_(network) or network
    basis = scipy.linalg.qr(torch.randn(6, 4).numpy(), mode="economic")[0]
    low = torch.randn(3, 2) @ torch.randn(2, 4)
    state = {"0.weight": 2.5 * torch.as_tensor(basis).mT, "0.bias": torch.randn(4), "1.weight": low}
    values = sites_from_state_dicts(network, {**state, "1.bias": torch.zeros(3)})
    assert float(values["0.gain"]) == pytest.approx(2.5)
    x = torch.randn(7, 6)
    found = Predictive(lambda: pyro.deterministic("f", network(x)), values)()["f"][0]
    torch.testing.assert_close(found, (x @ state["0.weight"].mT + state["0.bias"]) @ low.mT)


def test_vectors_and_averages():
    """Draws of a Laplace approximation are vectors of all parameters; SWAG has an averaged model."""
    trained = make()
    network = to_bayesian_(copy.deepcopy(trained), orthogonal=())
    vectors, states = torch.randn(4, sum(each.numel() for each in trained.parameters())), []
    for vector in vectors:
        vector_to_parameters(vector, trained.parameters())
        states.append({name: value.clone() for name, value in trained.state_dict().items()})
    values = sites_from_state_dicts(network, states)
    torch.testing.assert_close(values["0.weight"].flatten(1), vectors[:, :36].reshape(4, -1))
    average = AveragedModel(trained)
    assert sites_from_state_dicts(network, average.module.state_dict())["2.weight"].shape == (1, 8, 16)
    with pytest.raises(ValueError, match=r"site '0.weight' needs '0.weight', .*'n_averaged'.*of \.module"):
        sites_from_state_dicts(network, average.state_dict())


def test_errors():
    trained = make()
    network = to_bayesian_(copy.deepcopy(trained))
    other = {**trained.state_dict(), "2.weight": torch.zeros(8, 15)}
    with pytest.raises(ValueError, match=r"shape \(8, 15\) is given for OrthogonalLinear\(16, 8"):
        sites_from_state_dicts(network, other)
    other = {**trained.state_dict(), "5.weight": torch.zeros(2, 8)}
    with pytest.raises(ValueError, match=r"'5.weight' has shape \(2, 8\), expected \(3, 8\)"):
        sites_from_state_dicts(network, other)
    with pytest.raises(TypeError, match="network is a Sequential"):
        sites_from_state_dicts(trained, trained.state_dict())
    with pytest.raises(ValueError, match=r"state_dicts=\[\]"):
        sites_from_state_dicts(network, [])

"""Existing networks with a prior: which layers become orthogonal, what the others get, and chains on them."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import nn

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.infer import MCMC, OHMC, Predictive
from pyro_manifold.nn import LowRankLinear, OrthogonalConv2d, OrthogonalLinear, to_bayesian_
from tests.parameters import long_except


class Pictures(nn.Module):
    """Convolutions, a normalisation and a head, some of them nested."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 2))
        self.middle = nn.Linear(6, 5, bias=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.middle(self.body(x).mean((-2, -1)))))


def perceptron(**options):
    return nn.Sequential(
        nn.Linear(2, 5, **options), nn.Tanh(), nn.Linear(5, 4, **options), nn.Tanh(), nn.Linear(4, 3, **options)
    )


def sites(network, x):
    nodes = poutine.trace(network).get_trace(x).nodes
    return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def test_hidden_layers_become_orthogonal_and_the_rest_normal():
    network, x = Pictures(), torch.randn(2, 1, 9, 9)
    assert to_bayesian_(network, bias_scale=0.5) is network
    assert isinstance(network, Pictures)
    assert isinstance(network, PyroModule)
    kinds = [type(part) for part in (network.body[0], network.body[3], network.middle, network.head)]
    assert kinds == [OrthogonalConv2d, OrthogonalConv2d, OrthogonalLinear, PyroModule[nn.Linear]]
    found = sites(network, x)
    assert set(found) == {
        *("body.0.basis", "body.0.bias", "body.1.weight", "body.1.bias", "body.3.basis", "body.3.bias"),
        *("middle.basis", "head.weight", "head.bias"),
    }
    for name, (mean, scale) in {
        "body.0.bias": (0, 0.5),
        "body.1.weight": (1, 0.5),
        "body.1.bias": (0, 0.5),
        "head.weight": (0, 4 * 5**-0.5),
        "head.bias": (0, 0.5),
    }.items():
        distribution = found[name]["fn"]
        torch.testing.assert_close(distribution.mean, torch.full(distribution.event_shape, float(mean)))
        torch.testing.assert_close(distribution.stddev, torch.full(distribution.event_shape, scale))
    assert not list(network.parameters())


def test_the_prior_of_outputs_is_that_of_the_docstring():
    """Outputs of a linear network: variance 1 from the orthonormal weight, and the bias."""
    network = to_bayesian_(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), bias_scale=0.5)
    outputs = torch.stack([network(torch.randn(6)) for _ in range(2000)])
    assert_mean(outputs[:, 0].square(), 4**2 * (1 + 0.25) + 0.25)


def test_layers_that_widen_keep_the_variance():
    """The default gain, for a convolution of patches of 2 × 3 numbers to 24 channels and for 2 numbers to 6."""
    linear = to_bayesian_(nn.Sequential(nn.Linear(2, 6), nn.Identity(), nn.Linear(6, 1)), bias_scale=0.5)[0]
    convolution = to_bayesian_(nn.Sequential(nn.Conv2d(2, 24, (1, 3), groups=2), nn.Conv2d(24, 1, 1)))[0]
    assert linear.gain == pytest.approx(3**0.5)
    assert convolution.gain == pytest.approx(4**0.5)
    outputs = torch.stack([linear(torch.randn(2)) for _ in range(2000)])
    assert_mean(outputs[:, 0].square(), 1 + 0.25)
    given = to_bayesian_(nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 1)), gain=1.0)[0]
    assert given.gain == 1.0


def test_the_last_layer_is_wider_without_orthogonal_layers_too():
    scales = {
        name: float(site["fn"].stddev.min())
        for name, site in sites(to_bayesian_(perceptron(), ()), torch.randn(1, 2)).items()
    }
    expected = {"0.weight": 2**-0.5, "2.weight": 5**-0.5, "4.weight": 4 * 4**-0.5}
    assert {name: scales[name] for name in expected} == pytest.approx(expected)


def test_the_order_of_layers_and_their_options_are_kept():
    plain = nn.Sequential(
        nn.Conv2d(2, 4, (3, 1), (1, 2), "valid", 2, groups=2, bias=False), nn.Flatten(), nn.Linear(8, 2)
    )
    plain.eval()
    network = to_bayesian_(copy.deepcopy(plain), "hidden")
    assert [type(part).__name__ for part in network] == ["OrthogonalConv2d", "PyroFlatten", "PyroLinear"]
    for name in ("stride", "padding", "dilation", "groups", "padding_mode", "training"):
        assert getattr(network[0], name) == getattr(plain[0], name)
    assert "bias" not in network[0]._pyro_samples
    of_pyro = PyroModule[nn.Sequential](PyroModule[nn.Linear](2, 3), PyroModule[nn.Tanh](), PyroModule[nn.Linear](3, 1))
    assert [type(part).__name__ for part in to_bayesian_(of_pyro)] == ["OrthogonalLinear", "PyroTanh", "PyroLinear"]


@pytest.mark.parametrize(
    ("orthogonal", "expected"),
    [
        ("hidden", {"body.0", "body.3", "middle"}),
        (nn.Conv2d, {"body.0", "body.3"}),
        ((nn.Linear,), {"middle", "head"}),
        (["middle"], {"middle"}),
        (lambda name, layer: layer.weight.shape[0] == 6, {"body.3"}),
        ((), set()),
    ],
)
def test_layers_are_chosen(orthogonal, expected):
    network = to_bayesian_(Pictures(), orthogonal)
    found = {name for name, part in network.named_modules() if isinstance(part, OrthogonalConv2d | OrthogonalLinear)}
    assert found == expected
    assert network(torch.randn(2, 1, 9, 9)).shape == (2, 3)


def test_subclasses_are_not_replaced():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    network = to_bayesian_(nn.Sequential(Doubled(2, 3), nn.Linear(3, 3), Doubled(3, 1)))
    assert [type(part).__name__ for part in network] == ["PyroDoubled", "OrthogonalLinear", "PyroDoubled"]


def test_scales_of_plain_weights():
    x = torch.randn(1, 2)
    given = sites(to_bayesian_(perceptron(), (), prior_scale=0.2, bias_scale=0.4), x)
    assert {float(site["fn"].stddev.min()) for name, site in given.items() if "weight" in name} == {0.2}
    assert {float(site["fn"].stddev.min()) for name, site in given.items() if "bias" in name} == {0.4}
    chosen = sites(to_bayesian_(perceptron(), (), prior_scale=lambda name, p: float(len(name) + p.dim())), x)
    assert float(chosen["4.weight"]["fn"].stddev.min()) == len("4.weight") + 2
    words = sites(to_bayesian_(nn.Sequential(nn.Embedding(10, 4))), torch.tensor([1]))
    assert float(words["0.weight"]["fn"].stddev.max()) == 1.0


def test_frozen_parameters_stay():
    network = perceptron()
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone()
    to_bayesian_(network)
    assert set(sites(network, torch.randn(1, 2))) == {"0.bias", "2.basis", "2.bias", "4.weight", "4.bias"}
    assert torch.equal(network[0].weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept_and_follow(dtype):
    network, x = to_bayesian_(perceptron(dtype=dtype)), torch.randn(1, 2, dtype=dtype)
    assert {site["value"].dtype for site in sites(network, x).values()} == {dtype}
    other = torch.float32 if dtype == torch.float64 else torch.float64
    assert {site["value"].dtype for site in sites(network.to(other), x.to(other)).values()} == {other}


def test_copies_and_pickles():
    network, x = to_bayesian_(Pictures()), torch.randn(2, 1, 9, 9)
    for travelled in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        draws = []
        for each in (network, travelled):
            pyro.set_rng_seed(0)
            draws.append(each(x))
        assert torch.equal(*draws)


def classifier(network):
    def model(x, y=None):
        logits = network(x)
        with pyro.plate("cases", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits

    return model


NETWORKS = {
    "perceptron": (lambda: to_bayesian_(perceptron(), gain=dist.LogNormal(0.0, 0.3)), (20, 2)),
    "frozen": (lambda: to_bayesian_(frozen(perceptron())), (20, 2)),
    "pictures": (lambda: to_bayesian_(Pictures()), (8, 1, 7, 7)),
    "low rank": (lambda: LowRankLinear(4, 3, 2), (20, 4)),
    "float32": (lambda: to_bayesian_(perceptron()), (20, 2)),
}


def frozen(network):
    network[2].bias.requires_grad_(False)
    return network


@pytest.mark.parametrize("name", long_except(NETWORKS, "frozen", "low rank"))
def test_four_chains_run_vectorised(name):
    make, shape = NETWORKS[name]
    dtype = torch.float32 if name == "float32" else torch.float64
    torch.set_default_dtype(dtype)  # Pyro's plates have a log density too, which is of this dtype
    network = make()
    x, y = torch.randn(shape), torch.randint(3, shape[:1])
    model = classifier(network)
    kernel = OHMC(model, step_size=0.05, num_steps=2, adapt_step_size=False)
    mcmc = MCMC(kernel, num_samples=10, warmup_steps=10, num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    assert kernel.run.problem.batched.graph.backend == "traced"
    draws = mcmc.get_samples(group_by_chain=True)
    expected = {each for each, site in sites(network, x).items() if not site["is_observed"]}
    assert set(draws) == expected
    for site, value in draws.items():
        assert value.dtype == dtype
        assert value.isfinite().all()
        assert (value[:, 0] != value[:, -1]).any()
        if site.endswith(("basis", "left", "right")):
            assert constraints.stiefel.check(value).all()
    predictions = Predictive(model, mcmc.get_samples(num_samples=3), return_sites=("_RETURN",))(x)["_RETURN"]
    assert predictions.shape == (3, shape[0], 3)


def test_the_prior_by_ohmc():
    """Without data a chain draws from the prior: of gain, of bases, of biases."""
    network = to_bayesian_(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), bias_scale=0.5)
    mcmc = MCMC(OHMC(lambda: network(torch.zeros(1, 3))), 200, 200, num_chains=16, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)
    assert_mean(draws["0.basis"][..., 0, 0].square(), 1 / 3)
    assert_mean(draws["0.basis"][..., 0, 0], 0.0)
    assert_mean(draws["0.bias"][..., 0].square(), 0.25)
    assert_mean(draws["1.weight"][..., 0, 0].square(), 4**2 / 2)


def shared():
    network = perceptron()
    network[2].bias = nn.Parameter(torch.zeros(4))
    return nn.Sequential(network[2], nn.Linear(4, 5), network[2])


@pytest.mark.parametrize(
    ("network", "options", "error", "sentence"),
    [
        (lambda: 3, {}, TypeError, r"network is a int, expected a torch\.nn\.Module"),
        (nn.Tanh, {}, ValueError, "network has no parameters with requires_grad=True"),
        (shared, {}, ValueError, r"'0\.weight' and '2\.weight' are the same tensor"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), {}, ValueError, r"'0\.weight' has no shape yet; run the network"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), {}, ValueError, "'1' normalises over the batch"),
        (perceptron, {"orthogonal": "all"}, ValueError, "orthogonal='all', expected 'hidden', types, a list of names"),
        (perceptron, {"orthogonal": 3}, ValueError, "orthogonal=3, expected 'hidden', types, a list of names"),
        (perceptron, {"orthogonal": ["0", "1"]}, ValueError, r"names \['1'\], but the layers.*\['0', '2', '4'\]"),
        (perceptron, {"prior_scale": 0.0}, ValueError, r"prior_scale=0\.0, expected a positive number"),
        (perceptron, {"prior_scale": lambda *_: -1.0}, ValueError, r"prior_scale gives -1\.0 for '4\.weight'"),
        (perceptron, {"bias_scale": "wide"}, ValueError, "bias_scale='wide', expected a positive number"),
        (perceptron, {"gain": -1.0}, ValueError, r"gain=-1\.0, expected a positive number or a distribution"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(network, options, error, sentence):
    network = network()
    before = repr(network)
    with pytest.raises(error, match=sentence):
        to_bayesian_(network, **options)
    assert repr(network) == before

"""The normaliser sees each distinct parameter once, however many data share it."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import MatrixLangevin, StiefelUniform, matrix_langevin, repeated_rows
from pyro_manifold.infer import OHMC

GROUP = torch.arange(98) % 4


@pytest.fixture
def seen(monkeypatch):
    """Numbers of parameters that the normaliser was computed for, call by call."""
    counts, normaliser = [], matrix_langevin.log_langevin_normaliser

    def counting(F):
        counts.append(F.shape[:-2].numel())
        return normaliser(F)

    monkeypatch.setattr(matrix_langevin, "log_langevin_normaliser", counting)
    return counts


COPIES = {
    "expanded distribution": (lambda F: MatrixLangevin(F.unsqueeze(1)).expand((4, 98)), 4),
    "expanded twice": (lambda F: MatrixLangevin(F.unsqueeze(1)).expand((4, 7)).expand((3, 4, 7)), 4),
    "expanded parameter": (lambda F: MatrixLangevin(F.unsqueeze(1).expand(4, 98, 3, 2)), 4),
    "indexed": (lambda F: MatrixLangevin(F[GROUP]), 4),
    "indexed from the end": (lambda F: MatrixLangevin(F[GROUP - 4]), 4),
    "indexed and expanded": (lambda F: MatrixLangevin(F[GROUP]).expand((5, 98)), 4),
    "indexed by a matrix": (lambda F: MatrixLangevin(F[GROUP.reshape(7, 14)]), 4),
    "some groups empty": (lambda F: MatrixLangevin(F[2 * (GROUP // 2)]), 4),
    "second dimension": (lambda F: MatrixLangevin(F.unsqueeze(0)[:, GROUP]), 4),
    "enumerated": (lambda F: MatrixLangevin(F[torch.arange(4).unsqueeze(-1)]).expand((4, 98)), 4),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_share(seen, name):
    make, distinct = COPIES[name]
    F = (3 * torch.randn(4, 3, 2)).requires_grad_()
    distribution = make(F)
    X = distribution.sample()
    found = distribution.log_prob(X)
    assert seen == [distinct]
    alone = MatrixLangevin((distribution.concentration * 1.0).contiguous())
    expected = alone.log_prob(X)
    assert found.shape == distribution.batch_shape
    assert torch.allclose(found, expected, atol=1e-12)
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((weights * x).sum(), F, retain_graph=True)[0] for x in (found, expected)]
    assert torch.allclose(*gradients, atol=1e-11)
    assert torch.allclose(distribution.mean, alone.mean)


def test_a_fixed_parameter_is_seen_once(seen):
    distribution = MatrixLangevin(torch.randn(4, 1, 3, 2).expand(4, 98, 3, 2)).expand((3, 4, 98))
    for _ in range(2):
        distribution.log_prob(distribution.sample())
    assert seen == [4]


def test_what_is_no_copy_stays():
    F = torch.randn(4, 3, 2, requires_grad=True)
    for events in (F, F[torch.tensor([True, False, True, True])], F[[0, 3]], F[GROUP] * 2, F[:, [0, 1, 2, 0, 1]]):
        assert repeated_rows(events, 2).distinct is events
    freed = F[GROUP]
    freed.sum().backward()
    assert repeated_rows(freed, 2).distinct is freed


def test_models_share(seen):
    X = MatrixLangevin(torch.eye(3, 2)).sample((98,))

    def one():
        F = pyro.sample("F", dist.Normal(0.0, 3.0).expand([3, 2]).to_event(2))
        with pyro.plate("data", 98):
            pyro.sample("X", MatrixLangevin(F), obs=X)

    def grouped():
        F = pyro.sample("F", dist.Normal(0.0, 3.0).expand([4, 3, 2]).to_event(3))
        with pyro.plate("data", 98):
            pyro.sample("X", MatrixLangevin(F[GROUP]), obs=X)

    def mixture():
        F = pyro.sample("F", dist.Normal(0.0, 3.0).expand([2, 3, 2]).to_event(3))
        with pyro.plate("data", 98):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)), infer={"enumerate": "parallel"})
            pyro.sample("X", MatrixLangevin(F[z]), obs=X)

    def marginalised():
        F = pyro.sample("F", dist.Normal(0.0, 3.0).expand([2, 3, 2]).to_event(3))
        with pyro.plate("data", 98):
            components = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), MatrixLangevin(F))
            pyro.sample("X", components, obs=X)

    for model, distinct in ((one, 1), (grouped, 4), (mixture, 2), (marginalised, 2)):
        run = OHMC(model).prepare(3, 1, None)
        assert run.problem.batched.graph.backend == "traced"
        values = [value.clone().requires_grad_() for value in run.problem.initial_values.values()]
        seen.clear()
        run.problem.target.potential_fn({"F": values[0][0]})
        assert seen == [distinct]


@pytest.mark.parametrize("form", ["index", "expand"])
def test_each_copy_gets_its_own_gradient(form):
    """Gradients of a function of the copies themselves, not of the parameter behind them."""
    F = torch.randn(3, 4, 2, requires_grad=True)
    copies = F[torch.tensor([0, 1, 1, 2, 2, 2])] if form == "index" else F[0].expand(6, 4, 2)
    X = StiefelUniform(4, 2).sample((6,))
    (found,) = torch.autograd.grad(MatrixLangevin(copies).log_prob(X).sum(), copies, retain_graph=True)
    alone = copies.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(MatrixLangevin(alone).log_prob(X).sum(), alone)
    assert torch.allclose(found, expected)


def test_copies_that_were_written_into_are_copies_no_longer():
    F = torch.randn(3, 4, 2, requires_grad=True)
    changed = F[torch.tensor([0, 1, 1, 2, 2, 2])]
    with torch.no_grad():
        changed[1] += 1
    X = StiefelUniform(4, 2).sample((6,))
    expected = MatrixLangevin(changed.detach().clone()).log_prob(X)
    assert torch.allclose(MatrixLangevin(changed).log_prob(X), expected)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_parameter_that_was_written_into_is_looked_at_again(requires_grad):
    F = torch.randn(3, 4, 2, requires_grad=requires_grad)
    distribution = MatrixLangevin(F)
    X = StiefelUniform(4, 2).sample((3,))
    distribution.log_prob(X)
    with torch.no_grad():
        F.mul_(2)  # as optimisers do
    assert torch.allclose(distribution.log_prob(X), MatrixLangevin(F.detach().clone()).log_prob(X))


def test_expand_keeps_what_is_minus_one():
    assert MatrixLangevin(torch.randn(3, 4, 2)).expand([5, -1]).batch_shape == (5, 3)

"""Models whose densities look at values, sort or assign on the way are native code, for all chains at once."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.infer import OHMC
from tests.infer.mcmc.compilers import native_code

COUNTS = torch.tensor([[3.0, 0.0, 2.0, 1.0], [0.0, 5.0, 1.0, 0.0]])


def counted():
    p = pyro.sample("p", dist.Dirichlet(torch.ones(4)))
    with pyro.plate("rows", 2):
        pyro.sample("y", dist.Multinomial(6, probs=p, validate_args=False), obs=COUNTS)


def ordered():
    increasing = dist.TransformedDistribution(dist.Normal(torch.zeros(3), 1.0), [dist.transforms.OrderedTransform()])
    cuts = pyro.sample("cuts", increasing)
    slope = pyro.sample("slope", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("rows", 5):
        pyro.sample("y", dist.OrderedLogistic(slope * torch.arange(5.0), cuts), obs=torch.tensor([0, 1, 2, 3, 2]))


def ranked():
    x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0).to_event(1))
    pyro.sample("gaps", dist.Normal(x.sort()[0].diff(), 1.0).to_event(1), obs=torch.ones(5))
    pyro.sample(
        "first", dist.Normal(x.topk(2)[0] + x.median() + x.cummax(0)[0][:2], 1.0).to_event(1), obs=torch.ones(2)
    )


def chosen():
    x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(x[torch.tensor([True, False, True, False])], 1.0).to_event(1), obs=torch.ones(2))
    pyro.sample("z", dist.Normal(x[x.argmax(0, True)], 1.0).to_event(1), obs=torch.ones(1))


@native_code
@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("model", [counted, ordered, ranked, chosen])
def test_models_are_native(model, chains):
    """Native code is in use only where it agrees with the model, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = OHMC(model).prepare(chains, 50, None)
        run.advance()
        run.policy.make(run.state)
    assert run.transitions[-1].graph.backend == "native"

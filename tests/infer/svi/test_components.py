"""Fits of square orthonormal matrices, which stay in one of two components, are reported with a way to the other."""

import re
import warnings
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value

from pyro_manifold.distributions import (
    GrassmannUniform,
    SpecialOrthogonalUniform,
    StiefelUniform,
    VonMisesFisher,
    constraints,
)
from pyro_manifold.infer import SVI
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel
from pyro_manifold.optim import RiemannianAdam, TorchRiemannianSGD

REFLECTION = torch.diag(torch.tensor([-1.0, 1.0, 1.0])).double()
SENTENCE = r"SVI: square orthonormal matrices \('{}'\) keep the determinant"


def near_reflection():
    X = pyro.sample("X", StiefelUniform(3, 3))
    pyro.factor("likelihood", -20 * (X - REFLECTION).square().sum())


def fit(model, guide, optim=None, steps=1):
    svi = SVI(model, guide, optim or pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(steps):
        svi.step()
    return svi


def messages(run):
    """Sentences about determinants."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught if "determinant" in str(each.message)]


@pytest.mark.filterwarnings("ignore:SVI falls back")
@pytest.mark.long
def test_the_remedy_of_the_sentence_leads_to_the_maximum():
    guide = AutoDelta(near_reflection)
    with pytest.warns(UserWarning, match=SENTENCE.format("X")):
        fit(near_reflection, guide, steps=200)
    assert (guide()["X"] - REFLECTION).norm() > 1.9  # the other component
    pyro.clear_param_store()
    guide = AutoDelta(near_reflection, init_loc_fn=init_to_value(values={"X": torch.eye(3)[[1, 0, 2]]}))
    with pytest.warns(UserWarning, match=SENTENCE.format("X")):
        fit(near_reflection, guide, pyro.optim.Adam({"lr": 0.1}), steps=300)
    assert (guide()["X"] - REFLECTION).norm() < 0.1


def several(*distributions):
    for k, each in enumerate(distributions):
        pyro.sample(f"X{k}", each())
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))


@pytest.mark.filterwarnings("ignore:SVI falls back")
@pytest.mark.parametrize("kind", [AutoNormal, pytest.param(AutoMultivariateNormal, marks=pytest.mark.long), AutoDelta])
def test_each_square_site_is_named_once_and_no_other(kind):
    connected = [
        partial(StiefelUniform, 3, 2),
        partial(GrassmannUniform, 2, 2),
        partial(SpecialOrthogonalUniform, 3),
        partial(VonMisesFisher, torch.eye(3)[0], 1.0),
    ]
    model = partial(
        several, *connected, partial(StiefelUniform, 2, 2, chart="householder"), partial(StiefelUniform, 3, 3)
    )
    found = messages(lambda: fit(model, kind(model), steps=3))
    assert len(found) == 1
    assert re.match(SENTENCE.format("X4', 'X5"), found[0])
    pyro.clear_param_store()
    assert not messages(lambda: fit(partial(several, *connected), kind(partial(several, *connected))))


@pytest.mark.filterwarnings("ignore:SVI falls back")
def test_parameters_of_guides_and_models_are_named():
    def model():
        pyro.param("W", torch.eye(2), constraint=constraints.stiefel)
        near_reflection()

    def guide():
        X = pyro.param("location", torch.eye(3), constraint=constraints.stiefel)
        pyro.sample("X", dist.Delta(X).to_event(2))

    (found,) = messages(lambda: fit(model, guide))
    assert re.match(SENTENCE.format("W', 'location"), found)


@pytest.mark.filterwarnings("ignore:SVI falls back")
def test_a_riemannian_optimiser_reports_its_own_parameters():
    guide = AutoDelta(near_reflection)
    found = messages(lambda: fit(near_reflection, guide, RiemannianAdam({"lr": 0.01}), steps=3))
    assert len(found) == 1
    assert found[0].startswith("Parameter 'AutoDelta.X' is a square orthonormal matrix")
    guide = AutoNormal(near_reflection)
    (found,) = messages(lambda: fit(near_reflection, guide, RiemannianAdam({"lr": 0.01}), steps=3))
    assert re.match(SENTENCE.format("X"), found)
    model = partial(several, partial(StiefelUniform, 3, 3, chart="householder"))
    (found,) = messages(lambda: fit(model, AutoDelta(model), RiemannianAdam({"lr": 0.01})))
    assert re.match(SENTENCE.format("X0"), found)


@pytest.mark.parametrize(
    ("manifold", "p", "count"), [(Stiefel(), 3, 1), (Stiefel(), 2, 0), (SpecialOrthogonal(), 3, 0)]
)
def test_a_torch_optimiser_reports_square_parameters_once(manifold, p, count):
    X = torch.eye(3, p).requires_grad_()
    optim = TorchRiemannianSGD([{"params": [X], "manifold": manifold}], lr=0.1)

    def steps():
        for _ in range(3):
            optim.zero_grad()
            (X - REFLECTION[:, :p]).square().sum().backward()
            optim.step()
            with torch.no_grad():
                X.mul_(1.0)  # a change by others

    assert len(messages(steps)) == count

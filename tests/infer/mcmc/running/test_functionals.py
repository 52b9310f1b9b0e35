"""Functionals by which trajectory lengths are chosen: symmetries do not change them, and all else does."""

from functools import cache

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC
from pyro_manifold.infer.mcmc.running import IdentifiedQuantities
from pyro_manifold.infer.mcmc.transitions import coordinates

A = torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5, 0.0], dtype=torch.float64))
B = torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).reshape(5, 3)


def subspace():
    U = pyro.sample("U", StiefelUniform(5, 2))
    pyro.factor("known", (U.mT @ A @ U).diagonal(dim1=-2, dim2=-1).sum(-1))


def axes():
    U = pyro.sample("U", StiefelUniform(5, 2))
    pyro.factor("known", (torch.tensor([2.0, 1.0]) * (U.mT @ A @ U).diagonal(dim1=-2, dim2=-1)).sum(-1))


def unordered_axes():
    U = pyro.sample("U", StiefelUniform(5, 2))
    pyro.factor("known", U.pow(4).sum((-2, -1)))


def components():
    U = pyro.sample("U", StiefelUniform(5, 2))
    scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
    root = U * scales.unsqueeze(-2)
    pyro.factor("known", -(root @ root.mT - A).square().sum((-2, -1)))


def product():
    U = pyro.sample("U", StiefelUniform(5, 2))
    V = pyro.sample("V", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    pyro.factor("known", -(U @ V.mT - B).square().sum((-2, -1)))


def groups():
    """Two matrices with scales in common."""
    scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
    with pyro.plate("groups", 2):
        U = pyro.sample("U", StiefelUniform(5, 2))
    root = U * scales.unsqueeze(-2).unsqueeze(-2)
    pyro.factor("known", -(root @ root.mT - A).square().sum((-3, -2, -1)))


def common_factor():
    V = pyro.sample("V", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    with pyro.plate("groups", 2):
        U = pyro.sample("U", StiefelUniform(5, 2))
    pyro.factor("known", -(U @ V.unsqueeze(-3).mT - B).square().sum((-3, -2, -1)))


def scales_of(count):
    """One matrix with scales of each group; as many groups as chains look like chains."""

    def model():
        U = pyro.sample("U", StiefelUniform(5, 2))
        with pyro.plate("groups", count):
            scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
        root = U * scales.unsqueeze(-2)
        pyro.factor("known", -(root @ root.mT - A).square().sum((-3, -2, -1)))

    return model


SIGNS = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
SWAP = SIGNS.flip(0)
TURN = torch.linalg.qr(torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)).Q
CASES = {  # a model, what changes nothing, and what does
    "rotations": (subspace, TURN, None),
    "signs": (axes, SIGNS, TURN),
    "signs and order": (unordered_axes, SWAP, TURN),
    "signs and order, with scales": (components, SWAP, TURN),
    "rotations of two": (product, TURN, None),
    "groups with common scales": (groups, SWAP, TURN),
    "groups with a common factor": (common_factor, TURN, None),
    "scales of one group": (scales_of(1), SWAP, TURN),
    "scales of as many groups as chains": (scales_of(3), SWAP, TURN),
    "scales of more groups": (scales_of(4), SWAP, TURN),
}


@cache
def prepared(model):
    run = OHMC(model).prepare(3, 0, None)
    return run, IdentifiedQuantities(run.problem)


@pytest.fixture(params=CASES)
def case(request):
    model, nothing, something = CASES[request.param]
    return *prepared(model), nothing, something


def turned(run, change, names=("U", "V")):
    """The state after a change of columns of these sites, and of what is in their order."""
    sites = {name: x @ change if name in names else x for name, x in run.sites.items()}
    if "scales" in sites and "U" in names:
        sites["scales"] = sites["scales"] @ change.abs().round()
    return run.state._replace(position=run.problem.layout.pack(sites))


def test_symmetries_do_not_change_them(case):
    run, functionals, nothing, _ = case
    torch.testing.assert_close(functionals(turned(run, nothing)), functionals(run.state))
    assert not torch.allclose(coordinates(turned(run, nothing)), coordinates(run.state))


def test_what_the_density_sees_changes_them(case):
    run, functionals, _, something = case
    if something is not None:
        assert not torch.allclose(functionals(turned(run, something)), functionals(run.state))
    generator = torch.Generator().manual_seed(0)
    other = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    moved = {**run.sites, "U": other @ run.sites["U"]}
    elsewhere = run.state._replace(position=run.problem.layout.pack(moved))
    assert not torch.allclose(functionals(elsewhere), functionals(run.state))
    if "V" in run.sites:
        assert not torch.allclose(functionals(turned(run, TURN, ["V"])), functionals(run.state))


def test_those_of_a_chain_depend_on_that_chain_alone(case):
    run, functionals, _, _ = case
    order = torch.tensor([2, 0, 1])
    moved = run.state._replace(position=run.problem.layout.pack({name: x[order] for name, x in run.sites.items()}))
    torch.testing.assert_close(functionals(moved), functionals(run.state)[order])


def test_shapes_that_cannot_be_combined_leave_the_coordinates(monkeypatch):
    """What helps to choose a length must not end a run."""
    run = OHMC(components).prepare(3, 0, None)
    monkeypatch.setattr(IdentifiedQuantities, "_invariant", lambda *_: torch.ones(2) + torch.ones(3))
    with pytest.warns(UserWarning, match="Trajectory lengths are chosen by the coordinates of 'U', 'scales'"):
        functionals = IdentifiedQuantities(run.problem)
    assert torch.equal(functionals(run.state), coordinates(run.state))


def test_without_symmetries_they_are_the_coordinates():
    def identified():
        U = pyro.sample("U", StiefelUniform(4, 2))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.factor("known", ((A[:4, :2] + 1) * U).sum((-2, -1)) * level)

    run = OHMC(identified).prepare(3, 0, None)
    assert torch.equal(IdentifiedQuantities(run.problem)(run.state), coordinates(run.state))

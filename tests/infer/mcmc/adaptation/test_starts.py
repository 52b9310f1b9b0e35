"""A short descent of chains whose random starts are far from where they belong."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.models import orthonormal
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC
from pyro_manifold.infer.mcmc.adaptation import nearer_starts
from pyro_manifold.manifolds import Stiefel

X, U = ("x",), ("U",)


def gaussian(scales, centre=0.0):
    def potential(position):
        x = (position[X] - centre) / scales
        return 0.5 * x.square().sum(1), {X: x / scales}

    return potential


def starts(scales, by, chains=3):
    return {X: by * scales * torch.randn(chains, len(scales))}


def starts_from(position, potential, manifolds=None, others=None):
    return nearer_starts(position, potential, manifolds or {}, lambda: others or position, torch.Generator())


def test_far_starts_come_as_near_as_draws_and_no_nearer():
    scales = torch.logspace(-0.5, 0.5, 40)
    position, potential = starts(scales, 100.0), gaussian(scales)
    found = starts_from(position, potential)
    energies = potential(found)[0]
    assert (potential(position)[0] > 1e4).all()
    assert (energies <= 60).all()
    assert (energies > 0.5).all()


@pytest.mark.parametrize("by", [1.0, 4.0])
def test_near_starts_stay(by):
    scales = torch.logspace(-0.5, 0.5, 40)
    position = starts(scales, by)
    assert starts_from(position, gaussian(scales))[X] is position[X]


def test_each_chain_decides_and_descends_by_itself():
    scales = torch.ones(5)

    def two_valleys(position):
        left, right = (gaussian(scales, centre)(position) for centre in (-1e3, 1e3))
        nearer = left[0] < right[0]
        return torch.where(nearer, left[0], right[0]), {X: torch.where(nearer.unsqueeze(1), left[1][X], right[1][X])}

    position = {X: torch.tensor([[-900.0], [900.0], [1001.0]]).expand(3, 5).clone()}
    found = starts_from(position, two_valleys)[X]
    assert (found[0] < -990).all()
    assert (found[1] > 990).all()
    assert torch.equal(found[2], position[X][2])


def test_a_chain_in_a_mode_without_probability_descends_again_or_joins_another():
    """The narrow valley at -100 has a probability of exp(-200), that at 0 all of it."""

    def valleys(position):
        x = position[X]
        narrow = (x < -50).all(1)
        energy = torch.where(narrow, 200 + 50 * (x + 100).square().sum(1), 0.5 * x.square().sum(1))
        return energy, {X: torch.where(narrow.unsqueeze(1), 100 * (x + 100), x)}

    position = {X: torch.tensor([[1.0], [-1.0], [-101.0], [2.0]]).expand(4, 5).clone()}
    found = starts_from(position, valleys, others={X: torch.full((4, 5), 3.0)})[X]
    assert torch.equal(found[[0, 1, 3]], position[X][[0, 1, 3]])
    assert torch.equal(found[2], torch.full((5,), 3.0))
    found = starts_from(position, valleys)[X]
    assert torch.equal(found[2], position[X][3])


def test_a_wide_mode_is_kept_however_low_a_narrow_one_is():
    """The same probabilities: 40 ln 100 = 184 nats of volume make up for 184 nats of energy."""

    def valleys(position):
        x = position[X]
        narrow = (x < -50).all(1)
        energy = torch.where(narrow, 0.5 * (100 * (x + 100)).square().sum(1) - 184, 0.5 * x.square().sum(1))
        return energy, {X: torch.where(narrow.unsqueeze(1), 1e4 * (x + 100), x)}

    position = {X: torch.tensor([[1.0], [-1.0], [-100.005], [2.0]]).expand(4, 40).clone()}
    assert torch.equal(starts_from(position, valleys)[X], position[X])


def test_a_chain_does_not_begin_at_a_pole():
    """Normal effects whose scale may vanish: each unit of log scale lowers the energy by the number of effects."""
    effects = 50

    def hierarchy(position):
        log_scale, x = position[X][:, 0], position[X][:, 1:]
        data = 0.3 * torch.linspace(-2, 2, effects)
        z, misfit = x / log_scale.exp().unsqueeze(1), (x - data) / 0.3
        energy = 0.5 * (z.square() + misfit.square()).sum(1) + effects * log_scale + log_scale.square() / 8
        gradient = torch.cat(
            [
                (effects - z.square().sum(1) + log_scale / 4).unsqueeze(1),
                z / log_scale.exp().unsqueeze(1) + misfit / 0.3,
            ],
            1,
        )
        return energy, {X: gradient}

    position = {X: 4 * torch.rand(8, 1 + effects) - 2}
    found = starts_from(position, hierarchy)[X]
    assert hierarchy(position)[0].max() > 1e3
    assert (found[:, 0] > -8).all()  # four standard deviations of the prior


def test_a_density_without_bound_moves_no_chain():
    def funnel(position):
        x = position[X]
        return 1e3 * x.sum(1), {X: torch.full_like(x, 1e3)}

    position = {X: torch.ones(2, 3)}
    assert torch.equal(starts_from(position, funnel)[X], position[X])


def test_matrices_stay_orthonormal_and_come_near_the_mode():
    mode = orthonormal(20, 2)

    def potential(position):
        return 1e5 * (2 - (position[U] * mode).sum((1, 2))), {U: (-1e5 * mode).expand_as(position[U])}

    position = {U: torch.stack([orthonormal(20, 2) for _ in range(3)])}
    found = starts_from(position, potential, {U: Stiefel()})
    assert Stiefel().membership_error(found[U]).max() < 1e-12
    assert (potential(found)[0] <= 40).all()


def test_infinite_energies_are_stepped_back_from():
    scales = torch.ones(4)

    def walled(position):
        energy, gradient = gaussian(scales)(position)
        inside = (position[X] > -0.5).all(1)
        return torch.where(inside, energy, torch.inf), gradient

    found = starts_from({X: 300 + torch.rand(2, 4)}, walled)
    assert (walled(found)[0] <= 4).all()


def far():
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.sample("x", dist.Normal(1e4, 1.0))
    pyro.factor("pull", U[..., 0, 0])


def test_runs_begin_there_unless_initial_values_are_given():
    assert abs(float(OHMC(far).prepare(1, 100, None).values["x"][0]) - 1e4) < 20
    given = {"U": torch.eye(4, 2).unsqueeze(0), "x": torch.ones(1)}
    assert float(OHMC(far).prepare(1, 100, given).values["x"][0]) == 1.0
    for options in ({"adapt_mass_matrix": False}, {"init_strategy": pyro.infer.autoguide.init_to_sample}):
        kernel = OHMC(far, **options)
        run = kernel.prepare(1, 100, None)
        assert torch.equal(run.sites["x"], run.problem.initial_values["x"])
    assert abs(float(OHMC(far).prepare(1, 10, None).values["x"][0])) < 20

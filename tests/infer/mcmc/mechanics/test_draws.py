"""Draws of many chains by each kind of mechanics, with and without momenta that persist, from a known distribution."""

import pytest
import torch

from problems.monte_carlo import STANDARD_ERRORS, deviation
from problems.phase_space import (
    System,
    WrongEnergy,
    WrongGeodesicEnergy,
    WrongMomentum,
    langevin_bingham,
    spread_masses,
)
from problems.targets import LANGEVIN
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics, Trajectory, reversed_in_time
from pyro_manifold.infer.mcmc.transitions import Executable, choose
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.mechanics.test_mechanics import MECHANICS


def vectorised_langevin(target, mechanics, iterations=80, step_size=0.25, num_steps=6):
    F = torch.as_tensor(target.F)
    n, p = F.shape
    masses = {("X",): spread_masses(mechanics, p)}
    system = System(langevin_bingham(F, torch.zeros(n, n), torch.zeros(p, p)), {("X",): mechanics}, masses)
    state = system.state({("X",): Stiefel().random_point(500, n, p)})
    draws, acceptance = system.sample(state, step_size, num_steps, iterations=iterations, burn_in=40)
    return target.statistic(draws[("X",)]), acceptance


@pytest.mark.parametrize(
    ("mechanics", "name"),
    [
        (MECHANICS["Cayley"], "V(3,2)"),
        pytest.param(MECHANICS["columns"], "V(3,2)", marks=pytest.mark.long),
        *(pytest.param(mechanics, "V(10,4)", marks=pytest.mark.long) for mechanics in MECHANICS.values()),
    ],
)
def test_distribution_of_many_chains(mechanics, name):
    """500 chains of 80 draws: a standard error near 0.01, where the end-to-end tests have 0.05."""
    draws, _ = vectorised_langevin(LANGEVIN[name], mechanics)
    assert abs(deviation(draws, *LANGEVIN[name].expectation())) < STANDARD_ERRORS


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanics",
    [
        WrongEnergy(),
        pytest.param(WrongMomentum(), marks=pytest.mark.long),
        pytest.param(WrongGeodesicEnergy(Stiefel()), marks=pytest.mark.long),
    ],
)
def test_the_test_of_distributions_can_fail_though_acceptance_is_high(mechanics):
    draws, acceptance = vectorised_langevin(LANGEVIN["V(3,2)"], mechanics, iterations=200)
    assert acceptance > 0.7
    assert abs(deviation(draws, *LANGEVIN["V(3,2)"].expectation())) > 10


class WithoutReversal(Trajectory):
    """A rejected chain goes on in the direction in which it was rejected."""

    def finish(self, *args):
        after, found = super().finish(*args)
        return choose(found["accepted"], after, reversed_in_time(after)), found


def persistent_langevin(mechanics, kind=Trajectory):
    """Steps so long that half is rejected: then what becomes of the momentum decides."""
    target = LANGEVIN["V(3,2)"]
    F = torch.as_tensor(target.F)
    masses = {("X",): spread_masses(mechanics, 2)}
    system = System(langevin_bingham(F, torch.zeros(3, 3), torch.zeros(2, 2)), {("X",): mechanics}, masses)
    system.trajectory = Executable(kind(system.mechanics), lambda batch: system.potential)
    state = system.state({("X",): Stiefel().random_point(1000, 3, 2)})
    draws, acceptance = system.sample(state, 1.4, 1, iterations=150, burn_in=50, persistence=0.9)
    return target.statistic(draws[("X",)]), acceptance


@pytest.mark.parametrize(
    "mechanics",
    [MECHANICS["Cayley"], *(pytest.param(MECHANICS[name], marks=pytest.mark.long) for name in ("geodesic", "columns"))],
)
def test_distribution_with_persistent_momenta(mechanics):
    draws, acceptance = persistent_langevin(mechanics)
    assert acceptance < 0.9
    assert abs(deviation(draws, *LANGEVIN["V(3,2)"].expectation())) < STANDARD_ERRORS


def test_without_reversal_persistent_momenta_draw_from_another_distribution():
    draws, _ = persistent_langevin(CayleyMechanics(), WithoutReversal)
    assert abs(deviation(draws, *LANGEVIN["V(3,2)"].expectation())) > 10

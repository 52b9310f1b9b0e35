"""Chains of one mode are not separated, chains of several are, and modes have the correct probability."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.accuracy.modes.groups_of_chains import chains_of_one_mode
from benchmarks.accuracy.modes.unvisited import MARGINALS, exact
from pyro_manifold.diagnostics import Symmetry, modes
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC


def chains_of(chains, draws, entries, effective):
    return chains_of_one_mode(chains, effective, draws, entries)


long = pytest.mark.long


@pytest.mark.parametrize(
    ("chains", "effective"), [(2, 5), (8, 100), pytest.param(2, 100, marks=long), pytest.param(8, 5, marks=long)]
)
def test_chains_of_one_mode_are_one_group(chains, effective):
    """200 sets each, half of them with heavy tails."""
    for k in range(200):
        x = chains_of(chains, 200, 10, effective)
        assert modes({"x": x if k % 2 else x.exp()}).chains == [list(range(chains))]


def test_chains_that_mix_slowly_are_rarely_separated():
    """One or two of 200 sets are separated, and 24 would be by the tails of their draws alone."""
    split = sum(len(modes({"x": chains_of(2, 200, 10, 3)})) > 1 for _ in range(200))
    assert split <= 8


@pytest.mark.parametrize(("effective", "distance"), [(8, 9.0), (50, 4.0)])
def test_chains_of_two_modes_are_two_groups(effective, distance):
    """The barrier between equal Gaussian modes at distance d is d²/8: 10 nats at 9, and 2 at 4."""
    for _ in range(100):
        x = chains_of(6, 200, 10, effective)
        x[[1, 4], :, 3] += distance
        assert sorted(modes({"x": x}).chains) == [[0, 2, 3, 5], [1, 4]]


def test_the_log_density_distinguishes_modes_and_orders_them():
    density = -chains_of(5, 400, 20, 100).square().sum(-1) / 2  # of 20 dimensions, with a standard deviation of 3.2
    density[[0, 3]] -= 25.0
    found = modes({"x": torch.randn(5, 400)}, density)
    assert found.chains == [[1, 2, 4], [0, 3]]
    assert found.shares.tolist() == pytest.approx([0.6, 0.4])
    assert float(found.log_density[0] - found.log_density[1]) == pytest.approx(25, abs=3)
    assert str(found).startswith("mode 0: chains 1, 2 and 4 (60%), log density -")


def test_a_chain_that_visits_two_modes_joins_them():
    x = chains_of(3, 200, 1, 100)
    x[1] += 8
    assert len(modes({"x": x})) == 2
    x[2, ::2] += 8
    assert len(modes({"x": x})) == 1


def test_rounding_does_not_separate_chains():
    x = 1 + torch.finfo(torch.float64).eps * torch.arange(4.0)[:, None].expand(4, 50)
    assert len(modes({"norms": x})) == 1
    assert len(modes({"x": torch.arange(4.0)[:, None].expand(4, 50)})) == 4  # chains that stand still


def test_copies_by_a_symmetry_are_one_mode():
    U = StiefelUniform(5, 2).sample() + 0.05 * torch.randn(4, 100, 5, 2)
    draws = {"U": U * torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(4, 1, 1, 1)}
    assert modes(draws).chains == [[0, 2], [1, 3]]
    assert len(modes(draws, symmetries=[Symmetry("signs", ("U",))])) == 1


WEIGHT = 0.7
SIZES = 250, 250, 256  # draws of each of four chains, all effective, and particles of each of four runs


def two_modes():
    """A mixture of weights 0.7 and 0.3 in x, given y = 0, and a unit vector known up to its sign."""
    x = pyro.sample("x", dist.Normal(0.0, 4.0))
    U = pyro.sample("U", StiefelUniform(3, 1))
    near = torch.stack([dist.Normal(m, 0.3).log_prob(x) - dist.Normal(0.0, 4.0).log_prob(x) for m in (-4.0, 4.0)])
    pyro.factor("x near", (near + torch.tensor([WEIGHT, 1 - WEIGHT]).log()).logsumexp(0))
    pyro.factor("U near", 60 * U[0, 0].square())


@long
def test_groups_of_a_run_and_their_probability():
    places = torch.tensor([-4.0, -4.0, -4.0, -4.0, 4.0, 4.0, 4.0, 4.0])
    starts = {"x": places, "U": torch.eye(3, 1).expand(8, 3, 1)}
    mcmc = MCMC(OHMC(two_modes), 200, 200, num_chains=8, initial_params=starts, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)
    side = draws["x"].mean(1) > 0
    found = mcmc.diagnostics()["modes"]
    assert sorted(found.chains) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # Every second chain gets the other sign of U: without asking for symmetries these are modes of their own.
    signs = draws["U"][..., :1, :].sign() * torch.tensor([1.0, -1.0] * 4).reshape(8, 1, 1, 1)
    assert sorted(modes({**draws, "U": draws["U"] * signs}).chains) == [[0, 2], [1, 3], [4, 6], [5, 7]]

    smc = SMC(OHMC(two_modes), num_particles=512, num_runs=8, disable_progbar=True)
    smc.run()
    weighed = modes(mcmc, particles=smc)
    truth = {True: 1 - WEIGHT, False: WEIGHT}
    for k, group in enumerate(weighed.chains):
        z = (float(weighed.weights[k]) - truth[bool(side[group[0]])]) / float(weighed.weights_error[k])
        assert abs(z) < 8.47  # the quantile of t₇ where the normal has 4
    missed = modes(
        {name: x[~side] for name, x in draws.items()},
        particles=smc,
        symmetries=mcmc.symmetries(),
    )
    assert missed.elsewhere == pytest.approx(1 - WEIGHT, abs=0.2)
    assert "no chain: probability" in str(missed)


def test_shares_of_exact_particles():
    """Particles drawn exactly: the share is binomial."""
    x = chains_of(6, 100, 3, 50)
    x[3:] += 10
    particles = torch.randn(40, 100, 3)
    particles[torch.rand(40, 100) < 0.25] += 10
    found = modes({"x": x}, particles={"x": particles})
    upper = next(k for k, group in enumerate(found.chains) if 3 in group)
    assert abs(float(found.weights[upper]) - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert float(found.weights_error[upper]) == pytest.approx((0.25 * 0.75 / 4000) ** 0.5, rel=0.5)
    assert found.elsewhere < 0.01


@pytest.mark.parametrize(
    ("marginal", "entries", "sets"),
    [("normal", 1, 40), ("normal", 20, 40), ("Cauchy", 20, 40)]
    + [
        pytest.param(*each, marks=long)
        for each in (
            ("normal", 400, 4),
            ("normal", 4000, 1),
            ("t5", 1, 40),
            ("t5", 20, 40),
            ("t5", 400, 4),
            ("t5", 4000, 1),
        )
    ],
)
def test_exact_particles_are_where_chains_are(marginal, entries, sets):
    """False alarms have a probability of at most 5 %: more than 7 of 40 or 2 of 4 by chance in 1 of 1,000."""
    found = [
        modes({"x": x}, particles={"x": y}).elsewhere
        for x, y in (exact(MARGINALS[marginal], entries, *SIZES) for _ in range(sets))
    ]
    assert sum(share > 0 for share in found) <= {40: 7, 4: 2, 1: 1}[sets]
    assert max(found) < 0.02


@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("entries", [1, 20, *(pytest.param(each, marks=long) for each in (400, 4000))])
def test_a_mode_apart_in_one_entry_is_noticed(entries, share):
    x, y = exact(torch.clone, entries, *SIZES)
    moved = torch.rand(4, 256) < share
    y[..., entries // 2] += 10.0 * moved
    found = modes({"x": x}, particles={"x": y})
    assert found.elsewhere == pytest.approx(float(moved.double().mean()), rel=0.05)
    assert found.weights.tolist() == pytest.approx([1 - found.elsewhere])
    assert f"no chain: probability {found.elsewhere:.2g} ± {found.elsewhere_error:.1g}" in str(found)


def test_a_mode_apart_by_a_little_in_every_entry_is_noticed():
    x, y = exact(torch.clone, 400, *SIZES)
    y[:, :80] += 2.0
    assert modes({"x": x}, particles={"x": y}).elsewhere == pytest.approx(80 / 256, abs=0.01)


@pytest.mark.parametrize("apart", [False, True])
def test_orthonormal_particles_known_up_to_signs(apart):
    """Draws and particles have signs of their own; those apart have another entry of their last column near 1."""
    F = 60 * torch.eye(6, 3)
    other = F.clone()
    other[2, 2], other[5, 2] = 0.0, 60.0
    U, particles = MatrixLangevin(F).sample((4, 250)), MatrixLangevin(F).sample((4, 256))
    if apart:
        particles[:, ::16] = MatrixLangevin(other).sample((4, 16))
    signs = [torch.randint(2, (*x.shape[:2], 1, 3)) * 2.0 - 1 for x in (U, particles)]
    symmetry = Symmetry("signs", ("U",))
    found = modes({"U": U * signs[0]}, symmetries=[symmetry], particles={"U": particles * signs[1]})
    assert len(found) == 1
    assert found.elsewhere == pytest.approx(1 / 16 if apart else 0, abs=1e-12)


def test_particles_of_each_of_two_modes_and_of_a_third():
    x, y = torch.randn(6, 100, 30), torch.randn(4, 300, 30)
    x[3:, :, 2] += 12
    y[:, 100:200, 2] += 12
    y[:, 200:, 7] -= 12
    found = modes({"x": x}, particles={"x": y})
    assert found.weights.tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.003)
    assert found.elsewhere == pytest.approx(1 / 3, abs=0.003)


@pytest.mark.long
@pytest.mark.parametrize(("probability", "seeds"), [(0.3, 12), (0.03, 12)])
def test_errors_of_probabilities_cover_the_truth(probability, seeds):
    """Root mean square of (probability - truth) / error: the 99.9 % quantile for 12 normal numbers is 1.66."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 4.0))
        shares = torch.tensor([1 - probability, probability]).log()
        near = torch.stack([dist.Normal(m, 0.3).log_prob(x) for m in (-4.0, 4.0)]) + shares
        pyro.factor("near", near.logsumexp(0) - dist.Normal(0.0, 4.0).log_prob(x))

    chains = 0.3 * torch.randn(4, 100) + torch.tensor([-4.0, -4.0, 4.0, 4.0])[:, None]
    z = []
    for _ in range(seeds):
        smc = SMC(OHMC(model), 256, 4, disable_progbar=True)
        smc.run()
        found = modes({"x": chains}, particles=smc)
        upper = next(k for k, group in enumerate(found.chains) if 2 in group)
        z.append((float(found.weights[upper]) - probability) / float(found.weights_error[upper]))
    assert torch.tensor(z).square().mean().sqrt() < 1.66


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"^modes: 10 draws of each chain, but 20 are needed"):
        modes({"x": torch.randn(3, 10)})
    with pytest.raises(ValueError, match=r"^modes: particles have the names \['y'\], expected those of draws, \['x'\]"):
        modes({"x": torch.randn(3, 30)}, particles={"y": torch.randn(2, 30)})
    with pytest.raises(
        ValueError, match=r"^modes: particles\['x'\] has shape \(2, 30, 3\), expected \(runs, particles, 2\)"
    ):
        modes({"x": torch.randn(3, 30, 2)}, particles={"x": torch.randn(2, 30, 3)})
    with pytest.raises(ValueError, match=r"leading dimensions {'x': \(30,\)}, expected the same number of chains"):
        modes({"x": torch.randn(3, 30)}, particles={"x": torch.randn(30)})
    with pytest.raises(ValueError, match=r"'y': \(2, 20\)}, expected the same number of chains"):
        modes(
            {"x": torch.randn(3, 30), "y": torch.randn(3, 30)},
            particles={"x": torch.randn(2, 30), "y": torch.randn(2, 20)},
        )


def test_batches_of_shape_and_one_chain():
    assert modes({"x": torch.randn(1, 20, 2, 3), "z": torch.ones(1, 20, dtype=torch.long)}).chains == [[0]]

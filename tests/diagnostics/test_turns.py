"""Angles whose density is periodic over all real numbers: draws that differ by whole turns are the same."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value
from scipy.special import i0, i1

from problems.monte_carlo import assert_mean
from pyro_manifold.density import target_from_model
from pyro_manifold.diagnostics import (
    Symmetry,
    align_draws,
    alignment_note,
    disagreement_warning,
    known_quantities,
    symmetries,
)
from pyro_manifold.infer import MCMC, OHMC, SMC
from tests.infer.smc.test_smc import assert_evidence

TURNS = Symmetry("turns", ("theta",))


def angle():
    pyro.sample("theta", dist.VonMises(0.3, 2.0))


def angles_in_a_plate():
    with pyro.plate("rows", 3):
        theta = pyro.sample("theta", dist.VonMises(torch.zeros(3), 1.0))
    pyro.sample("y", dist.Normal(theta.cos().sum(), 1.0), obs=torch.tensor(1.0))


def masked():
    theta = pyro.sample("theta", dist.VonMises(torch.zeros(3), 1.0).to_event(1).mask(False))
    pyro.factor("f", theta.cos().sum())


def pair():
    pyro.sample("theta", dist.SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.5))


def flat():
    theta = pyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.factor("f", 2 * theta.cos())


def flat_line():
    theta = pyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(theta, 1.0), obs=torch.tensor(0.0))


def angle_in_a_line():
    """Whole turns change the mean of the data."""
    theta = pyro.sample("theta", dist.VonMises(0.0, 1.0))
    pyro.sample("y", dist.Normal(theta, 3.0), obs=torch.tensor(0.0))


def hardly_known():
    """The density does not vary over a turn, nor over a radian."""
    theta = pyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(theta, 1e9), obs=torch.tensor(0.0))


def vague():
    pyro.sample("theta", dist.Normal(0.0, 1e9))


@pytest.mark.parametrize(
    ("model", "periodic"),
    [
        (angle, True),
        (angles_in_a_plate, True),
        (masked, True),
        (pair, True),
        (flat, True),
        (flat_line, False),
        (angle_in_a_line, False),
        (hardly_known, False),
        (vague, False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_angles_are_those_whose_density_is_periodic(model, periodic, dtype):
    torch.set_default_dtype(dtype)
    shape = SHAPES.get(model, ())
    begin = init_to_value(values={"theta": torch.zeros(shape)})
    found = symmetries(target_from_model(model, init_strategy=begin), {"theta": 3 * torch.randn(5, *shape)})
    assert found == ([TURNS] if periodic else [])


SHAPES = {angles_in_a_plate: (3,), masked: (3,), pair: (2,)}


def wandering(*shape):
    """Draws of four chains about 3, near the cut of the circle, and the same with other turns in each draw."""
    near = 3 + 0.5 * torch.randn(4, 300, *shape)
    return near, near + 2 * math.pi * torch.randint(-9, 9, near.shape)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_aligned_angles_are_those_of_one_turn(shape):
    near, draws = wandering(*shape)
    aligned = align_draws({"theta": draws, "x": near}, [TURNS])
    torch.testing.assert_close(aligned.draws["theta"], torch.where(near.mean() > math.pi, near - 2 * math.pi, near))
    assert aligned.draws["x"] is near
    assert aligned.ambiguous_fraction == (0.0,)
    uniform = align_draws({"theta": 2 * math.pi * torch.rand(4, 4000, *shape)}, [TURNS]).ambiguous_fraction[0]
    assert abs(uniform - 1 / 8) < 0.04


def test_chains_that_differ_by_turns_agree():
    near, _ = wandering(2)
    draws = {"theta": near + 2 * math.pi * torch.arange(4.0)[:, None, None]}
    assert "R-hat of theta" in disagreement_warning(draws, [])
    assert disagreement_warning(draws, [TURNS]) is None
    known = known_quantities(draws, [TURNS])
    torch.testing.assert_close(known["theta, cos and sin"], torch.stack([near.cos(), near.sin()], -1))
    apart = {"theta": draws["theta"] + torch.tensor([0.0, 0.0, 0.0, 1.5])[:, None, None]}
    warning = disagreement_warning(apart, [TURNS])
    assert "R-hat of theta, cos and sin" in warning
    assert "columns" not in warning
    note = alignment_note(TURNS, 0.0, draws)
    assert note.startswith("`theta` is an angle without bounds, known only up to whole turns: each draw is in the turn")
    assert "R-hat of cos and sin is at most 1.0" in note
    assert alignment_note(TURNS, 0.1, draws).endswith("depend on where the circle is cut.")
    assert TURNS.sentence().endswith("see those of its cos and sin.")


def test_a_run_is_reported_in_one_turn(capsys, tmp_path):
    def weak():
        pyro.sample("theta", dist.VonMises(1.0, 0.5))

    mcmc = MCMC(OHMC(weak), 1000, 200, num_chains=4, disable_progbar=True)
    mcmc.run()
    raw = mcmc.get_samples(group_by_chain=True)["theta"]
    assert float(raw.std()) > 7  # it wanders
    assert mcmc.diagnostics()["disagreeing_chains"] == {}
    aligned = mcmc.get_samples(group_by_chain=True, align=True)["theta"]
    assert float((aligned - 1).abs().max()) < 4.5
    assert_mean((aligned - 1).cos(), i1(0.5) / i0(0.5))
    mcmc.summary()
    said = capsys.readouterr().out
    assert "disagree" not in said
    assert "R-hat of cos and sin is at most 1.0" in said


def cosine():
    theta = pyro.sample("theta", dist.VonMises(0.0, 0.5))
    pyro.factor("f", 1.5 * theta.cos())


def test_the_evidence_of_an_angle_is_that_from_the_prior():
    """From the modes there are as many turns as descents find, and this is reported."""
    truth = math.log(i0(2.0) / i0(0.5))
    smc = SMC(OHMC(cosine), 256, 8, disable_progbar=True)
    smc.run()  # without a warning of lost mass
    assert_evidence(smc, truth)
    smc = SMC(OHMC(cosine), 256, 2, init="modes", num_starts=16, disable_progbar=True)
    with pytest.warns(UserWarning, match="the density of VonMises, the prior of site 'theta', is not normalised"):
        smc.run()

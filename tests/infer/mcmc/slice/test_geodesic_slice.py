"""Geodesic slice sampling: known distributions, also after a few iterations from exact draws; modes; what it says."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN
from pyro_manifold.diagnostics import to_inferencedata
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, GeodesicSlice
from pyro_manifold.infer.mcmc.slice import Bracket, Line, line_on
from pyro_manifold.manifolds import Euclidean, Grassmann, SpecialOrthogonal, Sphere, Stiefel
from tests.infer.models import F, factor_model, langevin

CHAINS = 20_000


def draw(kernel, num_samples=200, warmup_steps=100, num_chains=32, args=(), **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


# ---- exact draws stay exact draws --------------------------------------------------------------------------------

POLE = torch.tensor([0.0, 0.0, 6.0], dtype=torch.float64)
CENTRES, WIDTHS, SHARES = torch.tensor([[0.0, 1.0], [0.1, 0.3], [0.3, 0.7]], dtype=torch.float64)


def on_the_sphere():
    x = pyro.sample("x", dist.ProjectedNormal(torch.zeros(3)))
    pyro.factor("pull", POLE @ x)


def sphere_and_flat():
    """The normal's standard deviation depends on the height, so that the height has the density e^(6 h)."""
    x = pyro.sample("x", dist.ProjectedNormal(torch.zeros(3)))
    pyro.sample("w", dist.Normal(x[2].expand(2), (2 * x[2]).exp()).to_event(1))
    pyro.factor("pull", POLE @ x)


def flat():
    """A narrow and a wider mode, with 0.3 and 0.7 of the mass."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    parts = dist.Normal(CENTRES, WIDTHS).log_prob(x.unsqueeze(-1)) + SHARES.log()
    pyro.factor("modes", parts.logsumexp(-1) + x**2 / 2)


def exact_flat(count):
    mode = torch.multinomial(SHARES, count, replacement=True)
    return {"x": CENTRES[mode] + WIDTHS[mode] * torch.randn(count)}


def exact_sphere(count):
    """Heights by the inverse of their distribution function, which is closed in three dimensions."""
    lowest = torch.tensor(-12.0).exp()
    height = 1 + (lowest + (1 - lowest) * torch.rand(count)).log() / 6
    angle = 2 * torch.pi * torch.rand(count)
    radius = (1 - height**2).clamp(min=0).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], -1)


def exact_sphere_and_flat(count):
    x = exact_sphere(count)
    return {"x": x, "w": x[:, 2:] + (2 * x[:, 2:]).exp() * torch.randn(count, 2)}


STATISTICS = {
    "sphere": (on_the_sphere, lambda n: {"x": exact_sphere(n)}, lambda s: s["x"][:, 2]),
    "V(3,2)": (langevin, lambda n: {"U": MatrixLangevin(F).sample((n,))}, lambda s: (F * s["U"]).sum((-2, -1))),
    "uniform on V(4,3)": (
        lambda: pyro.sample("U", StiefelUniform(4, 3)),
        lambda n: {"U": Stiefel().random_point(n, 4, 3)},
        lambda s: s["U"][:, 0, 0] + s["U"][:, 1, 2] ** 3,
    ),
    "sphere and flat": (sphere_and_flat, exact_sphere_and_flat, lambda s: s["x"][:, 2] + 0.1 * s["w"][:, 0]),
    "flat": (flat, exact_flat, lambda s: s["x"]),
}


def changes(name, iterations=5):
    """How powers of the statistic differ from before the iterations, in each of many chains."""
    model, exact, statistic = STATISTICS[name]
    start = exact(CHAINS)
    run = GeodesicSlice(model, width=0.5, max_widths=3).prepare(CHAINS, 0, start)
    for _ in range(iterations):
        sites = run.advance()
    assert bool(run.statistics["accepted"].all())
    before, after = statistic(start), statistic(sites)
    middle = before.mean()
    return [(after - middle) ** power - (before - middle) ** power for power in (1, 2, 3)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if "V(" in name else name for name in STATISTICS]
)
def test_exact_draws_stay_exact_draws(name):
    """Of chains that are independent and begin at exact draws, the mean change of any function is 0."""
    for difference in changes(name):
        assert float(difference.std()) > 0.05
        assert_mean(difference, 0.0)


def deviations(name):
    return max(float(d.mean().abs() / d.std()) * len(d) ** 0.5 for d in changes(name))


right_bracket = Line.bracket


def centred(line, like, random):
    """A bracket about the point itself: from the point that is found, it would have been another."""
    half = torch.full_like(like, line.width / 2)
    return Bracket(-half, half, (2 * torch.rand(like.shape, generator=random) - 1) * half)


def one_sided(line, like, random):
    """A bracket that begins at the point."""
    none = torch.zeros_like(like)
    return Bracket(none, none + line.width, line.width * torch.rand(like.shape, generator=random))


def widths_in_equal_parts(line, like, random):
    """Widths that are not shared out at random between both ends."""
    one = torch.ones_like(like)
    return right_bracket(line, like, random)._replace(to_left=one, to_right=one)


@pytest.mark.parametrize("bracket", [centred, one_sided, widths_in_equal_parts])
def test_wrong_brackets_are_noticed(bracket, monkeypatch):
    monkeypatch.setattr(Line, "bracket", bracket)
    assert deviations("flat") > 6


def test_levels_of_a_wrong_distribution_are_noticed(monkeypatch):
    """A level u^½ p(x) in place of u p(x)."""
    right = torch.log1p
    monkeypatch.setattr(torch, "log1p", lambda x: right(x) / 2)
    assert deviations("sphere") > 6


# ---- from anywhere to known distributions; of matrices: `test_distributions_of_draws.py` --------------------------


@pytest.mark.parametrize(
    ("n", "p"), [(3, 1), *(pytest.param(*shape, marks=pytest.mark.long) for shape in ((4, 2), (3, 3)))]
)
def test_chains_from_one_point_become_uniform(n, p):
    """All entries have mean 0 and mean square 1/n, and one chain does not know of the others."""
    start = torch.eye(n, p).expand(2000, n, p)
    run = GeodesicSlice(lambda: pyro.sample("U", StiefelUniform(n, p))).prepare(2000, 0, {"U": start.clone()})
    for _ in range(40):
        U = run.advance()["U"]
    for entry in (U[:, 0, 0], U[:, -1, -1]):
        assert_mean(entry, 0.0)
        assert_mean(entry**2, 1 / n)


@pytest.mark.long
@pytest.mark.parametrize(("num_chains", "num_samples"), [(1, 1000), (16, 200)])
def test_flat_sites_of_unlike_scales(num_chains, num_samples):
    """Warm-up learns the scales, from where unconstrained sites begin, which is within 2 of zero.

    A chain alone needs more than 200 iterations to arrive.
    """

    def model():
        pyro.sample("narrow", dist.Normal(0.1, 0.01))
        pyro.sample("wide", dist.Normal(300.0, 100.0))
        pyro.sample("positive", dist.Gamma(3.0, 1.5))

    kernel = GeodesicSlice(model)
    samples = draw(kernel, num_samples, 500, num_chains).get_samples(group_by_chain=True)
    assert_mean(samples["narrow"], 0.1)
    assert_mean(samples["wide"], 300.0)
    assert_mean((samples["wide"] - 300.0) ** 2, 1e4)
    assert_mean(samples["positive"], 2.0)
    scales = kernel.run.tuning.settings(1)[("narrow", "positive", "wide")]
    assert 0.002 < scales[0] < 0.02
    assert 20 < scales[2] < 200


def test_both_signs_of_the_determinant():
    """The share of rotations is the logistic function of the difference in log density."""

    def model():
        Q = pyro.sample("Q", StiefelUniform(3, 3))
        pyro.factor("det", 0.5 * torch.linalg.det(Q))

    Q = draw(GeodesicSlice(model)).get_samples(group_by_chain=True)["Q"]
    assert_mean((torch.linalg.det(Q) > 0).double(), torch.sigmoid(torch.tensor(1.0)))
    with pytest.warns(UserWarning, match="draws follow the posterior given the sign of the initial value"):
        mcmc = draw(GeodesicSlice(model, reflection_probability=0), num_samples=20, num_chains=3)
    determinants = torch.linalg.det(mcmc.get_samples(group_by_chain=True)["Q"])
    assert bool((determinants.sign() == determinants[:, :1].sign()).all())


@pytest.mark.long
def test_all_modes_from_one():
    """Two thirds of the mass are in one of two modes, with e^-15 between them; all chains begin in the other."""
    centres = torch.eye(3)[:2]  # the density halfway is e^(50 (√½ - 1)) of that of a mode

    def model():
        x = pyro.sample("x", StiefelUniform(3, 1))
        pyro.factor("modes", torch.logsumexp(50 * centres @ x[..., 0] + torch.tensor([1.0, 2.0]).log(), 0))

    start = {"x": centres[0].expand(64, 3).unsqueeze(-1).clone()}
    mcmc = draw(GeodesicSlice(model), num_samples=400, num_chains=64, initial_params=start)
    x = mcmc.get_samples(group_by_chain=True)["x"][..., 0]
    assert_mean((x[..., 1] > x[..., 0]).double(), 2 / 3)


def test_a_density_without_a_gradient():
    """Uniform on a cap, NaN on a part of the rest: heights are uniform between its rim and the pole."""

    def potential(sites):
        height = sites["x"].detach()[2]
        outside = torch.where(height < 0, torch.nan, torch.inf)
        return torch.where(height > 0.5, 0.0, outside)

    start = {"x": torch.eye(3)[2].expand(32, 3).clone()}
    kernel = GeodesicSlice(potential_fn=potential, manifolds={"x": Sphere()})
    x = draw(kernel, initial_params=start).get_samples(group_by_chain=True)["x"]
    assert float(x[..., 2].min()) > 0.5
    assert_mean(x[..., 2], 0.75)
    assert_mean(x[..., 2] ** 2, 0.25 + 1 / 3)


@pytest.mark.long
def test_other_precision():
    F32 = F.float()

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.factor("langevin", (F32 * U).sum((-2, -1)))

    torch.set_default_dtype(torch.float32)
    mcmc = draw(GeodesicSlice(model))
    U = mcmc.get_samples(group_by_chain=True)["U"]
    assert U.dtype == torch.float32
    assert mcmc.diagnostics()["orthogonality_error"]["chain 0"] < 2e-6
    assert_mean((F32 * U).sum((-2, -1)).double(), *LANGEVIN["V(3,2)"].expectation())


# ---- geodesics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [(Sphere(), (4,)), (Stiefel(), (4, 1)), (Stiefel(), (2, 2)), (Stiefel(), (3, 3)), (SpecialOrthogonal(), (3, 3))],
)
def test_circles_close_after_one_width_and_not_before(manifold, shape):
    line = line_on(manifold, torch.Size(shape), 1.0, 1)
    assert line.closed
    x = manifold.random_point(50, *shape)
    v = line.velocity(x, None, torch.Generator())
    assert torch.allclose(v.flatten(1).norm(dim=1), torch.ones(50))
    whole, half = (line.at(x, v, torch.full((50,), share * line.width)) for share in (1.0, 0.5))
    assert torch.allclose(whole, x, atol=1e-12)
    assert float((half - x).flatten(1).norm(dim=1).min()) > 1


@pytest.mark.parametrize(
    ("manifold", "shape", "turning"),
    [
        (Stiefel(), (5, 3), 3),
        (Stiefel(), (2, 5, 3), 6),
        (Stiefel(), (5, 5), 4),
        (Grassmann(), (5, 2), 2),
        (Sphere(), (7, 3), 7),
    ],
)
def test_brackets_of_a_whole_turn(manifold, shape, turning):
    line = line_on(manifold, torch.Size(shape), 1.0, 5)
    assert line.width == pytest.approx(2 * torch.pi * turning**0.5)
    assert not line.closed
    assert line.max_widths == 1


def test_flat_space_has_the_width_that_was_asked_for():
    assert line_on(Euclidean(), torch.Size((3,)), 2.0, 5) == Line(Euclidean(), 2.0, 5)


def test_long_runs_stay_on_their_manifolds():
    def model():
        pyro.sample("V", StiefelUniform(6, 3))
        pyro.sample("Q", StiefelUniform(4, 4))
        with pyro.plate("vectors", 3):
            pyro.sample("x", dist.ProjectedNormal(torch.zeros(3)))

    run = GeodesicSlice(model).prepare(4, 0, None)
    for _ in range(100):
        run.advance()
    assert float(run.statistics["orthogonality_error"].max()) < 1e-13


# ---- as users run it ---------------------------------------------------------------------------------------------


def test_sites_of_all_kinds_with_statistics():
    mcmc = draw(GeodesicSlice(factor_model), 20, 30, 3, args=(torch.randn(10, 4),), thinning=2)
    found = to_inferencedata(mcmc)
    assert {"U", "noise", "scales", "weights"} <= set(found.posterior)
    assert {"n_evaluations", "lp"} <= set(found.sample_stats)
    diagnostics = mcmc.diagnostics()
    assert diagnostics["acceptance_rate"]["chain 2"] == 1


def test_each_block_takes_at_least_one_evaluation_and_few_more():
    run = GeodesicSlice(factor_model).prepare(16, 0, None, torch.randn(10, 4))
    counts = []
    for _ in range(20):
        run.advance()
        counts.append(run.statistics["n_evaluations"])
    assert int(torch.stack(counts).min()) >= 2
    assert float(torch.stack(counts).double().mean()) < 25


def test_a_site_without_room_stays():
    """Signs are for reflections, and a probability of one category has no coordinates."""

    def model():
        pyro.sample("sign", StiefelUniform(1, 1))
        pyro.sample("all", dist.Dirichlet(torch.ones(1)))
        pyro.sample("x", dist.Normal(0.0, 1.0))

    samples = draw(GeodesicSlice(model), num_samples=60, warmup_steps=20, num_chains=2).get_samples()
    assert set(samples["sign"].unique().tolist()) == {-1.0, 1.0}
    assert bool((samples["all"] == 1).all())


def test_compiling_falls_back_in_a_sentence(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.warns(UserWarning, match=r"jit_compile=True had no effect.*no C\+\+ compiler"):
        run = GeodesicSlice(langevin, jit_compile=True).prepare(2, 0, None)
    assert run.problem.batched.graph.backend == "traced"


def test_a_block_whose_bracket_shrinks_to_nothing_stays(monkeypatch):
    """It is told, and the chain stays where it is: a density of which x itself is below its own level."""
    monkeypatch.setattr("pyro_manifold.infer.mcmc.slice.geodesic_slice._MOST_ROUNDS", 20)
    run = GeodesicSlice(langevin).prepare(2, 0, None)
    run.state = run.state._replace(energy=run.state.energy - torch.tensor([0.0, 1e6]))
    before = run.state.position[("U",)]
    run.advance()
    assert run.statistics["accepted"].tolist() == [True, False]
    assert run.statistics["n_evaluations"][1] == 21
    assert torch.equal(run.state.position[("U",)][1], before[1])

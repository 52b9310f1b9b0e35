"""Signs of one column, or of columns along any dimension, with companions of any shape."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.density import target_from_model
from pyro_manifold.diagnostics import (
    Symmetry,
    align_draws,
    known_quantities,
    record_symmetries,
    recorded_symmetries,
    symmetries,
)
from pyro_manifold.distributions import StiefelUniform, VonMisesFisher
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.manifolds import Sphere
from tests.diagnostics.test_symmetries import DATA

AXIS = torch.eye(4, dtype=torch.float64)[0]
SPREADS = torch.tensor([2.0, 1.0], dtype=torch.float64)


def direction():
    return pyro.sample("u", VonMisesFisher(AXIS, torch.zeros(())))


def normal(name, *shape):
    return pyro.sample(name, dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)))


def observe(mean, name="y"):
    pyro.sample(name, dist.Normal(mean, 0.5).to_event(mean.dim()), obs=DATA[: len(mean)])


def scores_in_a_plate():
    u = direction()
    with pyro.plate("rows", 10):
        a = pyro.sample("a", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(a.unsqueeze(-1) * u, 0.5).to_event(1), obs=DATA)


def scores_in_two_plates():
    u = direction()
    with pyro.plate("schools", 2, dim=-2), pyro.plate("rows", 5, dim=-1):
        a = pyro.sample("a", dist.Normal(0.0, 2.0))
    observe(a.reshape(10, 1) * u)


def number():
    observe(normal("b") * direction() + DATA[:, :1])


def interval():
    rho = pyro.sample("rho", dist.Uniform(-1.0, 1.0))
    observe(rho * direction() + DATA[:, :1])


def two_unit_vectors():
    v = pyro.sample("v", VonMisesFisher(torch.eye(10)[0], torch.zeros(())))
    size = pyro.sample("size", dist.LogNormal(0.0, 1.0))
    observe(size * v.unsqueeze(-1) * direction())


def one_column():
    observe(normal("a", 10).unsqueeze(-1) * pyro.sample("u", StiefelUniform(4, 1)).mT)


def normal_loadings():
    intercepts, w = normal("m", 4), normal("w", 4)
    observe(intercepts + normal("a", 10).unsqueeze(-1) * w)


def loadings_without_scores():
    w = normal("w", 4)
    with pyro.plate("rows", 10):
        factor = dist.LowRankMultivariateNormal(torch.zeros(4), w.unsqueeze(-1), torch.ones(4))
        pyro.sample("y", factor, obs=DATA + 3 * DATA[:, :1])


def two_sets_of_scores():
    u, intercepts = direction(), normal("m", 4)
    observe(intercepts + normal("a", 10).unsqueeze(-1) * u)
    observe(intercepts + normal("b", 5).unsqueeze(-1) * u, "z")


def scores_in_a_loop():
    """Many sites of one number, with others whose signs are known."""
    u, intercepts, common = direction(), normal("m", 4), normal("b")
    for row in pyro.plate("rows", 9):
        a = pyro.sample(f"a{row}", dist.Normal(0.0, 2.0))
        pyro.sample(f"y{row}", dist.Normal(intercepts + common + a * u, 0.5).to_event(1), obs=DATA[row])


def rows_of_scores():
    U = pyro.sample("U", StiefelUniform(4, 2))
    a = pyro.sample("a", dist.Normal(torch.zeros(2, 10), SPREADS.unsqueeze(-1)).to_event(2))
    observe((U @ a).mT)


def plate_of_columns():
    with pyro.plate("factors", 2):
        u = direction()
    observe(normal("a", 10, 2) * SPREADS @ u)


def plate_of_equal_columns():
    """A rotation would leave the density as it is, and the spheres."""
    with pyro.plate("factors", 2):
        u = direction()
    observe(normal("a", 10, 2) @ u)


def plate_of_columns_in_front():
    with pyro.plate("factors", 2, dim=-2):
        u, scale = direction(), pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", 10, dim=-1):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
    observe(((a * scale).unsqueeze(-1) * u).sum(-3))


def scales_of_groups():
    U = pyro.sample("U", StiefelUniform(4, 2))
    d = pyro.sample("d", dist.LogNormal(torch.zeros(2, 3), 1.0).to_event(2))
    for group in range(3):
        distribution = dist.LowRankMultivariateNormal(torch.zeros(4), U * d[:, group], torch.ones(4))
        pyro.sample(f"y{group}", distribution.expand([3]).to_event(1), obs=DATA[3 * group : 3 * group + 3])


def known_sign():
    u = pyro.sample("u", VonMisesFisher(AXIS, torch.tensor(1.0)))
    observe(normal("a", 10).unsqueeze(-1) * u)


def coefficients():
    w = normal("w", 4)
    normal("unused", 3)
    pyro.sample("y", dist.Normal(DATA @ w, 1.0).to_event(1), obs=DATA[:, 0])


def correlated_numbers():
    """Both signs are one mode about 0."""
    pyro.sample("x", dist.MultivariateNormal(torch.zeros(3), torch.eye(3) + 5))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (scores_in_a_plate, "`u` and `a` are known only up to their sign, together"),
        (scores_in_two_plates, "`u` and `a` are known only up to their sign, together"),
        (number, "`u` and `b` are known only up to their sign, together"),
        (interval, "`u` and `rho` are known only up to their sign, together"),
        (two_unit_vectors, "`u` and `v` are known only up to their sign, together"),
        (one_column, "`u` and `a` are known only up to their sign, together"),
        (normal_loadings, "`a` and `w` are known only up to their sign, together"),
        (loadings_without_scores, "`w` is known only up to its sign"),
        (two_sets_of_scores, "`u`, `a` and `b` are known only up to their sign, together"),
        (scores_in_a_loop, "`u`, `a0`, `a1`, `a2`, `a3` and 5 more are known only up to their sign, together"),
        (
            rows_of_scores,
            "`U` and `a` are known only up to the signs of the columns of `U` and the rows of `a`, together",
        ),
        (
            plate_of_columns,
            "`u` and `a` are known only up to the signs of the rows of `u` and the columns of `a`, together",
        ),
        (
            plate_of_equal_columns,
            "`u` and `a` are known only up to the signs and the order of the rows of `u` and the columns of `a`, "
            "together",
        ),
        (
            plate_of_columns_in_front,
            "`u` and `a` are known only up to the signs and the order of the elements along dimension -3 of `u` and "
            "the rows of `a`, together, with `scale` in the same order",
        ),
        (
            scales_of_groups,
            "`U` is known only up to the signs and the order of its columns, with `d` in the same order",
        ),
        (known_sign, None),
        (coefficients, None),
        (correlated_numbers, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_signs_are_found_for_any_shape(model, expected):
    target = target_from_model(model)
    draws = [target.values(target.draw()) for _ in range(5)]
    samples = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    if model in (normal_loadings, loadings_without_scores):  # the density of the posterior is small at 0
        mcmc = MCMC(OHMC(model), num_samples=5, warmup_steps=50, disable_progbar=True)
        mcmc.run()
        samples = mcmc.get_samples()
    found = symmetries(target, samples)
    assert [each.known_up_to() for each in found] == ([] if expected is None else [expected])
    for symmetry in found:
        chains = {name: x.expand(2, *x.shape) for name, x in samples.items()}
        aligned = align_draws(chains, [symmetry]).draws
        before, after = (known_quantities(draws, [symmetry]) for draws in (chains, aligned))
        assert all(torch.allclose(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_order_and_signs_along_any_dimension_are_undone(dtype):
    """Draws about one point, of which each draw has its own order and signs."""
    chains, draws, count = 3, 20, 2
    noise = lambda *shape: 0.05 * torch.randn(chains, draws, *shape, dtype=dtype)  # noqa: E731
    u = torch.nn.functional.normalize(torch.randn(count, 1, 4, dtype=dtype) + noise(count, 1, 4), dim=-1)
    a, d = torch.randn(count, 10, dtype=dtype) + noise(count, 10), SPREADS.to(dtype).unsqueeze(-1) + noise(count, 3)
    order = torch.rand(chains, draws, count).argsort(-1)
    signs = (2.0 * torch.randint(2, (chains, draws, count)) - 1).to(dtype)

    def moved(x, signs):
        own = [*order.shape, *[1] * (x.dim() - 3)]
        return x.gather(2, order.reshape(own).expand_as(x)) * signs.reshape(own)

    mixed = {"u": moved(u, signs), "a": moved(a, signs), "d": moved(d, torch.ones_like(signs))}
    symmetry = Symmetry("permutations", ("u", "a"), reordered=("d",), transposed=("a",), axes=(("u", -3), ("d", -2)))
    found = align_draws(mixed, [symmetry]).draws
    for name, x in {"u": u, "a": a, "d": d}.items():
        turn = (x[:1, :1] * found[name][:1, :1]).flatten(3).sum(-1).sign() if name != "d" else torch.ones(1, 1, count)
        turn = turn.reshape(1, 1, count, *[1] * (x.dim() - 3))
        assert torch.allclose(found[name], x * turn.to(dtype))


@pytest.mark.long
def test_a_summary_of_one_factor_is_aligned(capsys):
    truth = torch.tensor([0.6, -0.8, 0.0, 0.0])
    data = 2 * torch.randn(30, 1) * truth + 0.3 * torch.randn(30, 4)

    def one_factor():
        u = direction()
        with pyro.plate("rows", 30):
            a = pyro.sample("a", dist.Normal(0.0, 2.0))
            pyro.sample("y", dist.Normal(a.unsqueeze(-1) * u, 0.3).to_event(1), obs=data)

    mcmc = MCMC(OHMC(one_factor), num_samples=50, warmup_steps=100, num_chains=8, disable_progbar=True)
    mcmc.run()
    u = mcmc.get_samples(group_by_chain=True, align=True)["u"]
    assert bool((u @ truth > 0.9).all()) or bool((u @ truth < -0.9).all())
    mcmc.summary(max_rows=2)
    text = capsys.readouterr().out
    assert "`u` and `a` are known only up to their sign, together: each draw has the signs nearest to the mean" in text


def test_a_plate_of_axes_without_an_order_keeps_its_signs():
    def axes():
        with pyro.plate("axes", 3):
            u = direction()
            pyro.factor("likelihood", (DATA[0] * u).sum(-1).square() * torch.tensor([1.0, 2.0, 3.0]))

    def exchangeable():
        with pyro.plate("axes", 3):
            pyro.factor("likelihood", (DATA[0] * direction()).sum(-1).square())

    samples = {"u": Sphere().random_point(5, 3, 4)}
    (own,), (ordered,) = (symmetries(target_from_model(model), samples) for model in (axes, exchangeable))
    assert own == Symmetry("signs", ("u",), ("u",), independent="all")
    assert ordered == Symmetry("permutations", ("u",), transposed=("u",))


def test_a_record_keeps_dimensions_and_whole_sites(tmp_path):
    found = [
        Symmetry("signs", ("u", "a"), whole=(("u", 1), ("a", 2))),
        Symmetry("permutations", ("U",), reordered=("d",), axes=(("d", -2),)),
    ]
    record_symmetries(tmp_path, found)
    sites = dict.fromkeys(("u", "a", "U", "d"))
    stored = SimpleNamespace(folder=tmp_path, manifest=SimpleNamespace(sites=sites))
    assert recorded_symmetries(stored) == found

"""Symmetries of the columns of a site, and their report by summary()."""

from typing import ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.density import Target, target_from_model
from pyro_manifold.diagnostics import Invariance, Symmetry, symmetries
from pyro_manifold.distributions import MatrixLangevin, SpecialOrthogonalUniform, StiefelUniform, constraints
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel

F = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.5, 0.0]])
DATA = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def langevin():
    pyro.sample("U", MatrixLangevin(F.to(torch.get_default_dtype())))


def principal_components(scales):
    def model():
        U = pyro.sample("U", StiefelUniform(4, 2))
        noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", 10):
            distribution = dist.LowRankMultivariateNormal(
                torch.zeros(4), U * torch.tensor(scales), noise**2 * torch.ones(4)
            )
            pyro.sample("y", distribution, obs=DATA)

    return model


def inferred_variances():
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), U * scales, torch.ones(4)), obs=DATA)


def exchangeable():
    """Columns that are alike, but have no rotation."""
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("likelihood", (DATA @ U).pow(4).sum())


def scores():
    """Y = Z Uᵀ + noise: U alone is known, but turns with its scores."""
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.sample("unrelated", dist.Normal(torch.ones(2), 1.0).to_event(1))
    with pyro.plate("rows", 10):
        Z = pyro.sample("Z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(Z @ U.mT, 0.5).to_event(1), obs=DATA)


def singular_vectors():
    U = pyro.sample("U", StiefelUniform(4, 2))
    V = pyro.sample("V", StiefelUniform(10, 2))
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(V * scales @ U.mT, 0.5).to_event(2), obs=DATA)


def slopes():
    """A regression on the scores: a number for each column."""
    U = pyro.sample("U", StiefelUniform(4, 2))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.Normal(DATA @ U @ w, 0.5), obs=DATA[:, 0])


def one_sign():
    """One sign of the two columns is known, given the other."""
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("likelihood", (DATA @ U).prod(-1).sum())


def axis():
    u = pyro.sample("u", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    pyro.sample("V", Directions(4))
    return u


class Directions(dist.TorchDistribution):
    """Axes: unit vectors with density exp(2 x₀²)."""

    arg_constraints: ClassVar = {}
    support = constraints.sphere

    def __init__(self, n):
        super().__init__(event_shape=(n,), validate_args=False)

    def expand(self, batch_shape, _instance=None):
        return self

    def sample(self, sample_shape=()):
        return torch.nn.functional.normalize(torch.randn(*sample_shape, *self.event_shape), dim=-1)

    def log_prob(self, value):
        return 2 * value[..., 0].square()


def plates():
    """Signs of each element of a plate."""
    with pyro.plate("groups", 3):
        U = pyro.sample("U", StiefelUniform(4, 2))
        pyro.factor("likelihood", (DATA[0] @ U).square() @ torch.tensor([1.0, 2.0]))


def common_signs():
    """Signs of all elements of a plate together, but not of each."""
    with pyro.plate("groups", 3):
        U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("likelihood", (U[0] * U[1]).sum(-2) @ torch.tensor([1.0, 2.0]) + U[2, 0].square().sum())


def scales_in_plates():
    """Signs and order of each element of a plate, with its scales."""
    with pyro.plate("groups", 3):
        U = pyro.sample("U", StiefelUniform(4, 2))
        scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("likelihood", ((DATA[0] @ U).square() * scales).sum(-1))


def common_scales():
    """Signs of each element of a plate, and one common order."""
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("groups", 3):
        U = pyro.sample("U", StiefelUniform(4, 2))
        pyro.factor("likelihood", ((DATA[0] @ U).square() * scales).sum(-1))


def slopes_in_plates():
    """Rotations of each element of a plate, with a value for each of its columns."""
    with pyro.plate("groups", 3):
        U = pyro.sample("U", StiefelUniform(4, 2))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("likelihood", ((U @ w.unsqueeze(-1)).squeeze(-1) * DATA[:3]).sum(-1))


def factor_analysis():
    W = pyro.sample("W", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), W, torch.ones(4)), obs=DATA)


def factor_scores():
    W = pyro.sample("W", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    with pyro.plate("rows", 10):
        Z = pyro.sample("Z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(Z @ W.mT, 0.5).to_event(1), obs=DATA)


def shrunken_factors():
    sizes = pyro.sample("sizes", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    W = pyro.sample("W", dist.Normal(torch.zeros(4, 2), sizes).to_event(2))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), W, torch.ones(4)), obs=DATA)


def fixed_variances():
    W = pyro.sample("W", dist.Normal(torch.zeros(4, 2), torch.tensor([1.0, 2.0])).to_event(2))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), W, torch.ones(4)), obs=DATA)


def one_factor():
    W = pyro.sample("W", dist.Normal(torch.zeros(4, 1), 1.0).to_event(2))
    with pyro.plate("rows", 10):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), W, torch.ones(4)), obs=DATA)


def coefficients():
    """Numbers that are not loadings: each row of X may change its signs a priori, and Y is known."""
    pyro.sample("X", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    Y = pyro.sample("Y", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    pyro.sample("y", dist.Normal(DATA @ Y, 1.0).to_event(2), obs=DATA[:, :2])


def turned_axes():
    """Axes of an ellipsoid, as a rotation: their signs in pairs, and their order with the lengths."""
    R = pyro.sample("R", SpecialOrthogonalUniform(3))
    lengths = pyro.sample("lengths", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    covariance = R * lengths @ R.mT
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(3), covariance), obs=DATA[0, :3])


def turned_scores():
    """A frame, with scores that turn with it."""
    R = pyro.sample("R", SpecialOrthogonalUniform(2))
    Z = pyro.sample("Z", dist.Normal(torch.zeros(5, 2), 1.0).to_event(2))
    pyro.factor("likelihood", (Z @ R.mT - 1).square().sum() + R[0, 0] * R[1, 1])


def handed():
    """Signs of columns that change in pairs alone: three of them would change the density's."""
    R = pyro.sample("R", SpecialOrthogonalUniform(3))
    pyro.factor("likelihood", 5 * R[0].prod() + (R[1].square() * torch.tensor([1.0, 2.0, 4.0])).sum())


def signed_scales():
    """Scales of either sign, which change signs with the columns of a rotation in pairs."""
    R = pyro.sample("R", SpecialOrthogonalUniform(3))
    d = pyro.sample("d", dist.Normal(0.0, torch.tensor([1.0, 2.0, 3.0])).to_event(1))
    pyro.factor("likelihood", ((R * d).sum(-1) * DATA[0, :3]).sum())


def rotation_and_scales():
    """Scales that may change signs with columns of a matrix, but not with those of a rotation."""
    R = pyro.sample("R", SpecialOrthogonalUniform(3))
    d = pyro.sample("d", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.factor("likelihood", 5 * (R[0] * d).prod() + (R[1].square() * torch.tensor([1.0, 2.0, 4.0])).sum())


KNOWN_UP_TO = {
    "langevin": (langevin, []),
    "distinct variances": (principal_components([2.0, 1.0]), [("signs", ("U",))]),
    "equal variances": (principal_components([2.0, 2.0]), [("rotations", ("U",))]),
    "inferred variances": (inferred_variances, [("permutations", ("U",), ("scales",))]),
    "exchangeable": (exchangeable, [("permutations", ("U",))]),
    "scores": (scores, [("rotations", ("U", "Z"))]),
    "singular vectors": (singular_vectors, [("permutations", ("U", "V"), ("scales",))]),
    "slopes": (slopes, [("rotations", ("U", "w"))]),
    "one sign": (one_sign, []),
    "axis": (axis, [("signs", ("V",))]),
    "plates": (plates, [("signs", ("U",), (), "all")]),
    "common signs": (common_signs, []),
    "scales in plates": (scales_in_plates, [("permutations", ("U",), ("scales",), "all")]),
    "common scales": (common_scales, [("permutations", ("U",), ("scales",), "signs")]),
    "slopes in plates": (slopes_in_plates, [("rotations", ("U", "w"), (), "all")]),
    "factor analysis": (factor_analysis, [("rotations", ("W",))]),
    "factor scores": (factor_scores, [("rotations", ("W", "Z"))]),
    "shrunken factors": (shrunken_factors, [("permutations", ("W",), ("sizes",))]),
    "fixed variances": (fixed_variances, [("signs", ("W",))]),
    "one factor": (one_factor, [("signs", ("W",))]),
    "coefficients": (coefficients, []),
    "turned axes": (turned_axes, [("permutations", ("R",), ("lengths",))]),
    "turned scores": (turned_scores, [("signs", ("R", "Z"))]),
    "handed": (handed, [("signs", ("R",))]),
    "rotation and scales": (rotation_and_scales, [("signs", ("R",))]),
    "signed scales": (signed_scales, [("signs", ("R", "d"))]),
}


@pytest.mark.parametrize(("model", "expected"), KNOWN_UP_TO.values(), ids=KNOWN_UP_TO)
@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.long)])
def test_symmetries_are_those_of_the_model(model, expected, dtype, monkeypatch):
    torch.set_default_dtype(dtype)
    monkeypatch.setitem(globals(), "DATA", DATA.to(dtype))
    target = target_from_model(model)
    draws = [target.draw() for _ in range(5)]
    draws = [
        {name: target.transforms[name].inv(z) if name in target.transforms else z for name, z in draw.items()}
        for draw in draws
    ]
    samples = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    state = torch.random.get_rng_state()
    symmetries_found = symmetries(target, samples)
    found = [(each.kind, each.sites, each.reordered, each.independent) for each in symmetries_found]
    assert found == [(*each, *((), "none")[len(each) - 2 :]) for each in expected]
    assert torch.equal(torch.random.get_rng_state(), state)
    for each in symmetries_found:
        assert not [names for names in each.positive if "R" in names]


def summary_of(kernel, capsys, **options):
    """Lines up to the last that names a symmetry; of five draws of one chain, which need not have moved."""
    mcmc = MCMC(kernel, num_samples=5, warmup_steps=5, disable_progbar=True, **options)
    mcmc.run()
    mcmc.summary(align=False)
    lines = capsys.readouterr().out.splitlines()
    last = max((k for k, line in enumerate(lines) if "known only" in line), default=len(lines))
    if last < len(lines):
        energies = mcmc.get_extra_fields()["lp"]
        moved = ("R-hat of the invariants is at most", "There are too few draws")
        assert lines[last + 1].startswith("All draws of" if bool((energies == energies[0]).all()) else moved)
    return lines[: last + 1]


@pytest.mark.parametrize(
    "options",
    [{"num_chains": 2}, pytest.param({"num_chains": 2, "chain_method": "sequential"}, marks=pytest.mark.long)],
)
def test_summary_reports_symmetries_for_all_ways_to_run(options, capsys):
    model = principal_components([2.0, 1.0])
    last = summary_of(OHMC(model), capsys, **options)[-1]
    assert last.startswith(
        "`U` is known only up to the signs of its columns: means and R-hat of its entries are not meaningful"
    )
    assert last.endswith('summarise_invariants(U, kind="signs").')


def test_summary_names_two_sites_and_a_vector(capsys):
    last = summary_of(GHMC(singular_vectors), capsys)[-1]
    expected = (
        "`U` and `V` are known only up to the signs and the order of their columns, together, with `scales` in the"
    )
    assert last.startswith(expected + " same order:")
    assert last.endswith("summarise_invariants(U, scales=scales, right=V).")


@pytest.mark.long
def test_summary_names_functions_for_each_symmetry(capsys):
    assert summary_of(OHMC(scores), capsys)[-1].endswith("summarise_invariants(U, right=Z).")
    assert summary_of(OHMC(exchangeable), capsys)[-1].endswith('summarise_invariants(U, kind="permutations").')
    assert summary_of(OHMC(slopes), capsys)[-1].endswith("summarise_invariants(U, right=w[..., None, :]).")
    last = summary_of(OHMC(axis), capsys)[-1]
    assert last.startswith("`V` is known only up to its sign:")
    assert last.endswith('summarise_invariants(V[..., None], kind="signs").')


@pytest.mark.long
def test_summary_reports_no_symmetry_of_identified_or_unknown_sites(capsys):
    assert "known only" not in "\n".join(summary_of(OHMC(langevin), capsys))
    model = principal_components([2.0, 1.0])
    assert "known only" not in "\n".join(summary_of(OHMC(model), capsys, save_params=["U"]))
    kernel = OHMC(potential_fn=lambda sites: -sites["U"][0, 0], manifolds={"U": Stiefel()})
    initial = {"U": torch.eye(4, 2)}
    assert "known only" not in "\n".join(summary_of(kernel, capsys, initial_params=initial))
    kernel = OHMC(potential_fn=lambda sites: -sites["U"][0].square().sum(), manifolds={"U": Stiefel()})
    assert "rotations of its columns" in summary_of(kernel, capsys, initial_params=initial)[-1]


@pytest.mark.parametrize("name", ["inferred variances", "scores", "one sign", "axis", "plates"])
def test_symmetries_in_single_precision(name, monkeypatch):
    """One of each kind; `make test-all` has all of them."""
    test_symmetries_are_those_of_the_model(*KNOWN_UP_TO[name], torch.float32, monkeypatch)


def test_no_density_is_asked_of_numbers_and_loadings_can_be_left_out():
    asked = []

    def potential(sites):
        asked.append(1)
        return sum(x.square().sum() for x in sites.values())

    assert symmetries(Target(potential, {}, {}), {"x": torch.randn(10, 1), "y": torch.randn(10)}) == []
    assert symmetries(Target(potential, {}, {}), {"W": torch.randn(10, 3, 2)}, loadings=False) == []
    assert not asked


@pytest.mark.parametrize(("dtype", "level"), [(torch.float32, 1e6), (torch.float64, 1e9)])
def test_a_slope_of_a_large_energy_is_no_symmetry(dtype, level):
    samples = {"U": Stiefel().random_point(10, 4, 2, dtype=dtype)}
    target = Target(lambda sites: level + 50 * sites["U"][0, 0], {"U": Stiefel()}, {})
    assert symmetries(target, samples) == []


@pytest.mark.parametrize(("concentration", "found"), [(0.3, []), (0.0, ["signs"])])
def test_a_prior_is_seen_next_to_a_large_energy(concentration, found):
    """In float32 its change is less than the rounding of the likelihood."""
    torch.set_default_dtype(torch.float32)
    rows = torch.randn(20_000, 4) * torch.tensor([3.0, 2.0, 1.0, 1.0])

    def model():
        U = pyro.sample("U", MatrixLangevin(concentration * torch.eye(4, 2)))
        with pyro.plate("rows", len(rows)):
            root = U * torch.tensor([3.0, 2.0])
            pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), root, torch.ones(4)), obs=rows)

    target = target_from_model(model)
    draws = {"U": torch.stack([target.draw()["U"] for _ in range(4)])}
    assert float(target.potential_fn({"U": draws["U"][0]})) > 1e5
    assert [each.kind for each in symmetries(target, draws)] == found


def test_no_rotation_is_made_a_reflection_to_exclude_a_symmetry():
    """The density of three sites is the same for signs of determinant 1, and another for others."""

    def potential(sites):
        return sites["R"].prod(-1).sum() + (sites["R"] @ sites["Z"].mT + sites["R"] @ sites["Y"].mT).square().sum()

    points = [{"R": SpecialOrthogonal().random_point(3, 3), "Y": torch.randn(4, 3), "Z": torch.randn(4, 3)}]
    density = Invariance(Target(potential, {"R": SpecialOrthogonal()}, {}), points)
    symmetry = Symmetry("signs", ("R", "Y", "Z"), proper=True)
    assert density.may_have(symmetry)
    assert density.has(symmetry)
    assert not density.has(symmetry._replace(proper=False))


def test_summary_reports_that_rotations_are_not_reflected(capsys):
    last = summary_of(OHMC(handed), capsys)[-1]
    assert last.startswith("`R` is known only up to the signs of its columns, without reflections:")

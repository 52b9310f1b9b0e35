"""Defining identities, one case matrix over all manifolds. A new manifold adds a line to CASES."""

import math

import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.manifolds import (
    Euclidean,
    Grassmann,
    SpecialOrthogonal,
    Sphere,
    Stiefel,
    cayley_flow,
    geodesic_flow,
    positive_qr,
)
from tests.parameters import long_except

STIEFEL_SHAPES = [(1, 1), (3, 1), (5, 2), (4, 4), (7, 5), (20, 3)]
CASES = [
    (Euclidean(), (4,)),
    (Euclidean(2), (3, 2)),
    (Sphere(), (2,)),
    (Sphere(), (6,)),
    *[(manifold, shape) for manifold in (Stiefel(), Grassmann()) for shape in STIEFEL_SHAPES],
    *[(SpecialOrthogonal(), shape) for shape in [(2, 2), (3, 3), (6, 6)]],
]
BATCHES = [(), (6,), (2, 3)]

over_manifolds = pytest.mark.parametrize(("manifold", "shape"), CASES)
over_batches = pytest.mark.parametrize("batch", BATCHES)
over_shapes = pytest.mark.parametrize(("n", "p"), STIEFEL_SHAPES)


def inner(a, b, manifold):
    return (a * b).flatten(-manifold.event_dim).sum(-1)


@over_manifolds
@over_batches
def test_random_points_are_members_and_perturbed_ones_are_not(manifold, shape, batch):
    point = manifold.random_point(*batch, *shape)
    assert point.shape == (*batch, *shape)
    assert manifold.contains(point).shape == batch
    assert manifold.contains(point).all()
    broken = point + (torch.nan if isinstance(manifold, Euclidean) else 1e-3)
    assert not manifold.contains(broken).any()
    for odd in (torch.nan, torch.inf):
        assert not manifold.contains(point * odd).any()
        assert (manifold.membership_error(point * odd) == torch.inf).all()


@over_manifolds
@over_batches
def test_tangent_projection_is_an_orthogonal_projection(manifold, shape, batch):
    point = manifold.random_point(*batch, *shape)
    a, b = torch.randn(*batch, *shape), torch.randn(*batch, *shape)
    projected = manifold.tangent_projection(point, a)
    assert torch.allclose(manifold.tangent_projection(point, projected), projected)
    assert torch.allclose(inner(projected, b, manifold), inner(a, manifold.tangent_projection(point, b), manifold))


@over_manifolds
def test_tangent_space_has_the_stated_dimension(manifold, shape):
    point = manifold.random_point(*shape)
    ambient = torch.eye(point.numel()).reshape(-1, *shape)
    projected = manifold.tangent_projection(point, ambient).flatten(1)
    assert torch.linalg.matrix_rank(projected, atol=1e-9) == manifold.dimension(*shape)


@over_manifolds
@over_batches
def test_retraction_and_exponential_start_along_the_tangent(manifold, shape, batch):
    point = manifold.random_point(*batch, *shape)
    tangent = manifold.tangent_projection(point, torch.randn(*batch, *shape))
    maps = [manifold.retraction, manifold.exponential]
    if isinstance(manifold, Stiefel):
        maps += [lambda X, r, method=method: manifold.retraction(X, r, method) for method in ("polar", "cayley")]
    for move in maps:
        assert torch.allclose(move(point, torch.zeros_like(tangent)), point)
        assert manifold.contains(move(point, tangent)).all()
        remainder = move(point, 1e-4 * tangent) - point - 1e-4 * tangent
        assert remainder.abs().max() < 1e-6


@over_shapes
@pytest.mark.parametrize("manifold", [Stiefel(), Grassmann()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_retraction_of_long_tangents(n, p, manifold, dtype):
    """A tangent that is long in one direction must not spoil the others."""
    X = manifold.random_point(n, p, dtype=dtype)
    tangent = manifold.tangent_projection(X, torch.randn(n, 1, dtype=dtype) * torch.randn(p, dtype=dtype))
    for length in (1e2, 1e4, 1e6):
        assert manifold.membership_error(manifold.retraction(X, length * tangent)) < 20 * torch.finfo(dtype).eps


@over_manifolds
def test_entry_scale_is_that_of_random_points(manifold, shape):
    squares = manifold.random_point(4000, *shape).square().flatten(1).mean(1)
    if isinstance(manifold, Euclidean):
        assert_mean(squares, manifold.entry_scale(*shape) ** 2)
    else:  # every column has length 1
        assert torch.allclose(squares, torch.tensor(manifold.entry_scale(*shape) ** 2))


@over_manifolds
def test_exponential_has_no_tangential_acceleration(manifold, shape):
    point = manifold.random_point(*shape)
    tangent = manifold.tangent_projection(point, torch.randn(*shape))

    def curve(t):
        return manifold.exponential(point, t * tangent)

    def velocity(t):
        return torch.func.jvp(curve, (t,), (torch.ones_like(t),))[1]

    t = torch.tensor(0.7)
    speed, acceleration = torch.func.jvp(velocity, (t,), (torch.ones_like(t),))
    assert manifold.tangent_projection(curve(t), acceleration).abs().max() < 1e-9
    assert torch.allclose(speed.norm(), tangent.norm())


@over_manifolds
def test_transport_arrives_in_the_tangent_space(manifold, shape):
    start, end = manifold.random_point(*shape), manifold.random_point(*shape)
    tangent = manifold.tangent_projection(start, torch.randn(*shape))
    moved = manifold.transport(start, end, tangent)
    assert torch.allclose(manifold.tangent_projection(end, moved), moved)
    assert torch.allclose(manifold.transport(start, start, tangent), tangent)


@over_manifolds
def test_projection_is_nearest(manifold, shape):
    ambient = torch.randn(*shape)
    nearest = manifold.projection(ambient)
    assert manifold.contains(nearest)
    assert torch.allclose(manifold.projection(nearest), nearest)
    others = manifold.random_point(1000, *shape)
    assert ((others - ambient).flatten(1).norm(dim=1) >= (nearest - ambient).norm() - 1e-12).all()


@over_shapes
def test_tangent_vectors_of_matrices_keep_orthonormality_to_first_order(n, p):
    X = Stiefel().random_point(n, p)
    r = Stiefel().tangent_projection(X, torch.randn(n, p))
    gram = torch.func.jvp(lambda Y: Y.mT @ Y, (X,), (r,))[1]
    assert gram.abs().max() < 1e-12


@over_shapes
def test_motion_of_subspaces_does_not_depend_on_the_basis(n, p):
    """X and XR are one subspace: a tangent r at X is rR at XR, and a move along it ends in the same subspace."""
    X, R = Grassmann().random_point(n, p), Stiefel().random_point(p, p)
    r = Grassmann().tangent_projection(X, torch.randn(n, p))
    assert (X.mT @ r).abs().max() < 1e-12
    for move in (Grassmann().retraction, Grassmann().exponential):
        assert torch.allclose(move(X @ R, r @ R), move(X, r) @ R)


@over_shapes
@over_batches
@pytest.mark.parametrize("flow", [cayley_flow, geodesic_flow])
def test_flows_stay_on_the_manifold_and_come_back(flow, n, p, batch):
    X = Stiefel().random_point(*batch, n, p)
    r = Stiefel().tangent_projection(X, torch.randn(*batch, n, p))
    X1, r1 = flow(X, r, 0.9)
    both, both1 = torch.cat([X, r], -1), torch.cat([X1, r1], -1)
    assert Stiefel().contains(X1).all()
    assert torch.allclose(Stiefel().tangent_projection(X1, r1), r1)
    assert torch.allclose(r1.norm(dim=(-2, -1)), r.norm(dim=(-2, -1)))
    if flow is cayley_flow:
        assert torch.allclose(both1.mT @ both1, both.mT @ both), "a rotation keeps every product"
    back, r2 = flow(X1, -r1, 0.9)
    assert torch.allclose(back, X)
    assert torch.allclose(r2, -r)


@over_batches
@pytest.mark.parametrize(("n", "p"), [(1, 1), (5, 1), (3, 2), (5, 4), (6, 6), (20, 3)])
def test_the_cayley_flow_is_the_transform_of_its_definition(n, p, batch):
    X = Stiefel().random_point(*batch, n, p)
    r = Stiefel().tangent_projection(X, torch.randn(*batch, n, p))
    W, identity = r @ X.mT - X @ r.mT, torch.eye(n)
    for time in (0.01, 0.7, -3.0):
        rotation = torch.linalg.solve(identity - time / 2 * W, identity + time / 2 * W)
        for moved, start in zip(cayley_flow(X, r, time), (X, r), strict=True):
            assert torch.allclose(moved, rotation @ start)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-7), (torch.float64, 2e-16)])
@pytest.mark.parametrize("time", long_except([1e-3, 1.0], 1e-3))
def test_the_rounding_of_many_cayley_steps_does_not_add_up(dtype, digits, time):
    """Errors of 3,000 steps stay at those of a few: a sum P + (P - X) in place of X + change adds up to 1e-12."""
    X = Stiefel().random_point(4, 30, 12, dtype=dtype)
    r = Stiefel().tangent_projection(X, torch.randn(4, 30, 12, dtype=dtype) / 6)
    length = r.norm(dim=(-2, -1))
    for _ in range(3000):
        X, r = cayley_flow(X, r, time)
    assert Stiefel().membership_error(X).max() < 100 * digits
    assert (Stiefel().tangent_projection(X, r) - r).abs().max() < 100 * digits
    assert torch.allclose(r.norm(dim=(-2, -1)), length, rtol=1e4 * digits)


@pytest.mark.parametrize(("n", "p"), [(3, 2), (10, 5), (10, 9), (4, 4)])
def test_long_cayley_steps_stay_on_the_manifold(n, p):
    """A p×p inverse for n < 2p has errors of 1e-7 here: r'r - C'C is then singular."""
    X = Stiefel().random_point(50, n, p)
    r = Stiefel().tangent_projection(X, 1e4 * torch.randn(50, n, p))
    X1, r1 = cayley_flow(X, r, 1.0)
    assert Stiefel().membership_error(X1).max() < 1e-11
    assert torch.allclose(r1.norm(dim=(-2, -1)), r.norm(dim=(-2, -1)), rtol=1e-10)


@pytest.mark.parametrize("speed", [0.1, 1.0, 3.0])
def test_geodesics_of_one_matrix_are_those_of_many(speed):
    """The exponential of a single matrix has errors of 1e-10 before torch 2.15."""
    X = Stiefel().random_point(100, 3, 2)
    r = Stiefel().tangent_projection(X, speed * torch.randn(100, 3, 2))
    moved, velocity = geodesic_flow(X, r, 0.1)
    for k in range(100):
        alone = geodesic_flow(X[k : k + 1], r[k : k + 1], 0.1)
        assert (alone[0][0] - moved[k]).abs().max() < 1e-13
        assert (alone[1][0] - velocity[k]).abs().max() < 1e-12
    # a rotation by an angle in closed form
    turn = 0.02 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    end, _ = geodesic_flow(torch.eye(2)[None], turn[None], 1.0)
    cosine, sine = math.cos(0.02), math.sin(0.02)
    assert torch.allclose(end[0], torch.tensor([[cosine, sine], [-sine, cosine]]), atol=1e-13, rtol=0)


@over_manifolds
@over_batches
def test_geodesic_flow_comes_back_and_adds_up(manifold, shape, batch):
    x = manifold.random_point(*batch, *shape)
    r = manifold.tangent_projection(x, torch.randn(*batch, *shape))
    middle = manifold.geodesic_flow(x, r, 0.4)
    end, velocity = manifold.geodesic_flow(*middle, 0.5)
    direct, direct_velocity = manifold.geodesic_flow(x, r, 0.9)
    assert torch.allclose(end, direct)
    assert torch.allclose(velocity, direct_velocity)
    back, returned = manifold.geodesic_flow(direct, -direct_velocity, 0.9)
    assert torch.allclose(back, x)
    assert torch.allclose(returned, -r)


@over_manifolds
def test_restoration_removes_rounding(manifold, shape):
    point = manifold.random_point(*shape)
    off = point + 1e-6 * torch.randn(*shape)
    if not isinstance(manifold, Euclidean):
        assert manifold.membership_error(manifold.restoration(off)) < 1e-10
    assert torch.allclose(manifold.restoration(off), off, atol=1e-5)


def test_a_matrix_of_one_column_moves_as_a_unit_vector():
    """The closed form of p = 1 against the matrix exponential of p = 2 with a column at rest in another dimension."""
    x = Sphere().random_point(4)
    r = Sphere().tangent_projection(x, torch.randn(4))
    X, R = torch.zeros(5, 2), torch.zeros(5, 2)
    X[:4, 0], X[4, 1], R[:4, 0] = x, 1.0, r
    moved, velocity = Stiefel().geodesic_flow(X, R, 0.7)
    expected, expected_velocity = Stiefel().geodesic_flow(x[:, None], r[:, None], 0.7)
    assert torch.allclose(moved[:4, :1], expected)
    assert torch.allclose(velocity[:4, :1], expected_velocity)
    assert torch.allclose(Sphere().geodesic_flow(x, r, 0.7)[0], expected[:, 0])


@pytest.mark.parametrize(
    ("n", "p", "speed"),
    [
        (5, 2, 10.0),
        *(pytest.param(*shape, 10.0, marks=pytest.mark.long) for shape in STIEFEL_SHAPES if shape != (5, 2)),
    ],
)
def test_rounding_does_not_grow_along_geodesics(speed, n, p):
    X = Stiefel().random_point(20, n, p)
    r = Stiefel().tangent_projection(X, speed * torch.randn(20, n, p))
    length = r.norm(dim=(-2, -1))
    for _ in range(1000):
        X, r = geodesic_flow(X, r, 0.2)
    assert Stiefel().membership_error(X).max() < 1e-11
    assert (Stiefel().tangent_projection(X, r) - r).abs().max() < 1e-11 * speed
    assert torch.allclose(r.norm(dim=(-2, -1)), length, rtol=1e-9)


@over_shapes
def test_uniform_points_have_the_moments_of_haar_measure(n, p):
    X = Stiefel().random_point(40_000, n, p)
    rotation = Stiefel().random_point(n, n)
    for Y in (X, rotation @ X):
        assert_mean(Y[:, 0, 0], 0.0)
        assert_mean(Y[:, 0, 0] ** 2, 1 / n, truth_error=1e-12)
        assert_mean(Y[:, -1, -1] ** 4, 3 / (n * (n + 2)), truth_error=1e-12)
        if p > 1:
            # Without the sign fix the columns of QR are not uniform, and odd products of this kind have a bias.
            assert_mean(Y[:, 0, 0] * Y[:, 1, 1], 0.0)


def test_the_triangle_has_a_positive_diagonal():
    """That makes the factor of a normal matrix uniform; the signs of LAPACK's own are a matter of its version."""
    Z = torch.randn(1000, 3, 2)
    triangle = positive_qr(Z).mT @ Z
    assert (triangle.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert triangle.tril(-1).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_arguments(dtype):
    manifold = Stiefel()
    X = manifold.random_point(5, 2, dtype=dtype)
    r = manifold.tangent_projection(X, torch.randn(5, 2, dtype=dtype))
    outputs = [r, manifold.projection(X), manifold.exponential(X, r), manifold.membership_error(X)]
    outputs += [manifold.retraction(X, r, method) for method in ("qr", "polar", "cayley")]
    assert all(value.dtype == dtype for value in outputs)
    assert manifold.contains(X)


def test_points_are_members_up_to_the_rounding_that_a_trajectory_gathers():
    """Between 1e-12, what 100,000 steps leave, and 1e-8, where no rounding comes from."""
    for manifold, point in ((Stiefel(), torch.eye(5, 2)), (Grassmann(), torch.eye(5, 2)), (Sphere(), torch.eye(5)[0])):
        assert manifold.contains(point * (1 + 1e-11))
        assert not manifold.contains(point * (1 + 1e-8))
        assert manifold.contains(point.float() * (1 + 1e-5))
        assert not manifold.contains(point.float() * (1 + 1e-3))


@pytest.mark.parametrize(
    ("manifold", "shape", "components"),
    [(Stiefel(), (3, 3), 2), (Stiefel(), (4, 3), 1), (SpecialOrthogonal(), (3, 3), 1), (Sphere(), (3,), 1)],
)
def test_components_are_the_signs_of_determinants(manifold, shape, components):
    points = manifold.random_point(200, *shape)
    signs = torch.linalg.det(points).sign().unique() if shape == (3, 3) else torch.ones(1)
    assert manifold.components(*shape) == components == len(signs)


def test_shapes_that_have_points():
    for manifold in (Stiefel(), Grassmann()):
        assert [manifold.accepts_shape(*s) for s in ((3, 2), (3, 3), (2, 3), (3, 0), (3,))] == [True, True] + [
            False
        ] * 3
    assert [Sphere().accepts_shape(*s) for s in ((2,), (1,), (3, 2))] == [True, False, False]
    with pytest.raises(ValueError, match=r"n=3, p=0"):
        Stiefel().random_point(3, 0)


def test_the_factor_of_a_rank_deficient_matrix_is_orthonormal():
    """A diagonal entry of R that is zero has no sign, and takes no column with it."""
    assert Stiefel().contains(positive_qr(torch.zeros(3, 2)))
    assert Stiefel().contains(positive_qr(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])))


def test_bad_shapes_and_methods_are_named():
    with pytest.raises(ValueError, match=r"n=2, p=3.*1 ≤ p ≤ n"):
        Stiefel().random_point(2, 3)
    with pytest.raises(ValueError, match=r"n=2, p=3"):
        Stiefel().projection(torch.randn(2, 3))
    X = Stiefel().random_point(3, 2)
    with pytest.raises(ValueError, match="expected 'qr', 'polar' or 'cayley'"):
        Stiefel().retraction(X, torch.zeros(3, 2), "newton")

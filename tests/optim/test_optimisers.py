"""The torch optimisers: known minima, membership, and torch's own optimisers on Euclidean parameters."""

import copy
import pickle

import pytest
import torch

from pyro_manifold import constraints
from pyro_manifold.manifolds import Grassmann, Sphere, Stiefel
from pyro_manifold.optim import (
    TorchRiemannianAdaDelta,
    TorchRiemannianAdam,
    TorchRiemannianMomentum,
    TorchRiemannianRMSProp,
    TorchRiemannianSGD,
)
from tests.parameters import long_except

# (class, options, its counterpart in torch)
METHODS = {
    "sgd": (TorchRiemannianSGD, {"lr": 0.02}, torch.optim.SGD, {"lr": 0.02}),
    "momentum": (TorchRiemannianMomentum, {"lr": 0.005}, torch.optim.SGD, {"lr": 0.005, "momentum": 0.9}),
    "rmsprop": (TorchRiemannianRMSProp, {"lr": 0.02}, torch.optim.RMSprop, {"lr": 0.02}),
    "adadelta": (TorchRiemannianAdaDelta, {"eps": 1e-4}, torch.optim.Adadelta, {"eps": 1e-4}),
    "adam": (TorchRiemannianAdam, {"lr": 0.02}, torch.optim.Adam, {"lr": 0.02}),
}
over_methods = pytest.mark.parametrize("method", METHODS)
over_second_moments = pytest.mark.parametrize("kind", ["ambient", "transported"])
over_manifolds = pytest.mark.parametrize("manifold", [Stiefel(), Grassmann()])


def optimiser(method, point, manifold, **more):
    build, options, _, _ = METHODS[method]
    return build([{"params": [point], "manifold": manifold}], **options, **more)


def minimise(loss, point, manifold, method, steps=2000):
    """Steps with a falling learning rate, so that methods of constant step length arrive too."""
    optim = optimiser(method, point, manifold)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optim, 0.998)
    for _ in range(steps):
        optim.zero_grad()
        loss().backward()
        optim.step()
        schedule.step()


@over_methods
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_euclidean_parameters_take_the_steps_of_torch(method, shape):
    ours, options, theirs, their_options = METHODS[method]
    points = [torch.ones(shape, requires_grad=True), torch.ones(shape, requires_grad=True)]
    pair = [ours([points[0]], **options), theirs([points[1]], **their_options)]
    for _ in range(60):
        gradient = torch.randn(shape)
        for point, each in zip(points, pair, strict=True):
            point.grad = gradient.clone()
            each.step()
    torch.testing.assert_close(*points, rtol=1e-12, atol=1e-12)


def symmetric(*eigenvalues):
    basis = Stiefel().random_point(len(eigenvalues), len(eigenvalues))
    return basis, basis * torch.tensor(eigenvalues) @ basis.mT


@pytest.mark.parametrize("method", long_except(METHODS, "sgd"))
def test_stiefel_minimum_is_the_leading_eigenvectors_in_order(method):
    r"""tr(XᵀAXN) with N = diag(3, 1) is largest at the first two eigenvectors, in order (Brockett 1991)."""
    basis, A = symmetric(4.0, 2.0, 1.0, 0.5, 0.2)
    X = Stiefel().random_point(5, 2).requires_grad_()
    weights = torch.diag(torch.tensor([3.0, 1.0]))
    minimise(lambda: (-(X.mT @ A @ X) * weights).sum(), X, Stiefel(), method)
    assert ((X.mT @ basis[:, :2]).diagonal().abs() > 1 - 1e-4).all()


@pytest.mark.parametrize("method", long_except(METHODS, "momentum", "rmsprop"))
def test_grassmann_minimum_is_the_leading_subspace(method):
    basis, A = symmetric(4.0, 3.0, 1.0, 0.5, 0.2)
    X = Grassmann().random_point(5, 2).requires_grad_()
    minimise(lambda: (-(X.mT @ A @ X)).diagonal().sum(), X, Grassmann(), method)
    assert torch.linalg.svdvals(X.detach().mT @ basis[:, :2]).min() > 1 - 1e-4


@over_methods
def test_a_subspace_is_moved_without_turning_its_basis(method):
    """A gradient within the span does not move the subspace."""
    X = Grassmann().random_point(6, 2).requires_grad_()
    start = X.detach().clone()
    optim = optimiser(method, X, Grassmann())
    for _ in range(5):
        X.grad = X.detach() @ torch.randn(2, 2)
        optim.step()
    # RMSProp divides rounding errors by δ = 1e-8.
    torch.testing.assert_close(X.detach(), start, rtol=0, atol=1e-7)


@over_methods
@over_manifolds
@pytest.mark.parametrize("dtype", long_except([torch.float32, torch.float64], torch.float32))
def test_points_stay_on_the_manifold(method, manifold, dtype):
    X = manifold.random_point(4, 7, 3, dtype=dtype).requires_grad_()
    optim = optimiser(method, X, manifold)
    for _ in range(500):
        X.grad = torch.randn(4, 7, 3, dtype=dtype) * 10 ** torch.randn(4, 1, 1, dtype=dtype)
        optim.step()
    assert X.dtype == dtype
    assert manifold.membership_error(X.detach()).max() < 20 * torch.finfo(dtype).eps


@pytest.mark.long
@over_manifolds
def test_a_hundred_thousand_steps(manifold):
    """Only the retraction could drift, so one method with each retraction covers all."""
    X = manifold.random_point(6, 2).requires_grad_()
    optim = TorchRiemannianSGD([{"params": [X], "manifold": manifold}], lr=0.05)
    gradients = torch.randn(1000, 6, 2)
    for step in range(100_000):
        X.grad = gradients[step % 1000]
        optim.step()
    assert manifold.membership_error(X.detach()) < 1e-10


@pytest.mark.parametrize("method", long_except(METHODS, "adam"))
def test_unit_vectors(method):
    target = Sphere().random_point(5)
    x = Sphere().random_point(5).requires_grad_()
    minimise(lambda: -(x @ target), x, Sphere(), method)
    assert (x.detach() - target).abs().max() < 0.02


@over_second_moments
@pytest.mark.parametrize("method", ["rmsprop", "adadelta", "adam"])
def test_steps_turn_columns_by_the_same_angle_whatever_their_length(method, kind):
    """One step of 10×2 and of 4000×2 matrices is about the same angle, with η in units of an entry.

    Without, lengths are in proportion to √n; small ones, because the retraction takes from long ones.
    """
    build, options, _, _ = METHODS[method]
    lengths = []
    for n in (10, 4000):
        X = Stiefel().random_point(n, 2).requires_grad_()
        start = X.detach().clone()
        optim = build([{"params": [X], "manifold": Stiefel()}], second_moment=kind, **{**options, "lr": 1e-4})
        X.grad = torch.randn(n, 2)
        optim.step()
        lengths.append(float((X.detach() - start).norm()))
    assert 0.3 < lengths[0] / lengths[1] < 3


# Factors of the first step, in η and units of an entry: V has seen 1 - ρ of one square, for which Adam corrects.
FIRST_STEPS = {"rmsprop": 0.01**-0.5, "adadelta": (1e-4 / 0.1) ** 0.5, "adam": 1.0}


@over_manifolds
@over_second_moments
@pytest.mark.parametrize("method", FIRST_STEPS)
def test_first_step_of_large_gradients(method, kind, manifold):
    """Gradients so large that δ is negligible: V is g∘g, P(G∘G), or for Adam G∘G; the paper's steps divide G."""
    X, G = manifold.random_point(5, 2), 1e6 * torch.randn(5, 2)
    g = manifold.tangent_projection(X, G)
    square = G**2 if method == "adam" or kind == "transported" else g**2
    if kind == "transported":
        square = manifold.tangent_projection(X, square)
    divided = G if kind == "transported" and method != "adam" else g
    root = square.sign() * square.abs().sqrt()
    step = FIRST_STEPS[method] * 5**-0.5 * manifold.tangent_projection(X, divided / root)
    build, options, _, _ = METHODS[method]
    point = X.clone().requires_grad_()
    optim = build([{"params": [point], "manifold": manifold}], second_moment=kind, **{**options, "lr": 0.05})
    point.grad = G
    optim.step()
    torch.testing.assert_close(point.detach(), manifold.retraction(X, -0.05 * step), rtol=0, atol=1e-6)


@over_manifolds
@over_second_moments
@pytest.mark.parametrize("method", FIRST_STEPS)
def test_a_transported_second_moment_is_tangent_and_an_ambient_one_a_mean_of_squares(method, kind, manifold):
    X = manifold.random_point(5, 2).requires_grad_()
    optim = optimiser(method, X, manifold, second_moment=kind)
    for _ in range(3):
        X.grad = torch.randn(5, 2)
        optim.step()
        mean_square = optim.state[X]["mean_square"]
        if kind == "transported":
            torch.testing.assert_close(manifold.tangent_projection(X.detach(), mean_square), mean_square)
        else:
            assert (mean_square > 0).all()


def test_closure_and_missing_gradients():
    x, untouched = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optim = TorchRiemannianSGD([x, untouched], lr=0.25)

    def closure():
        optim.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss

    assert optim.step(closure).item() == 2.0
    assert x.tolist() == [0.5, 0.5]
    assert untouched.tolist() == [1.0, 1.0]


def test_a_gradient_that_is_not_finite_shows_in_the_point():
    X = Stiefel().random_point(4, 2).requires_grad_()
    optim = TorchRiemannianSGD([{"params": [X], "manifold": Stiefel()}], lr=0.1)
    X.grad = torch.full((4, 2), torch.nan)
    optim.step()
    assert not Stiefel().contains(X.detach())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optim: pickle.loads(pickle.dumps(optim))])
def test_copies_keep_their_manifolds(copied):
    X = Stiefel().random_point(4, 2).requires_grad_()
    group = {"params": [X], "manifold": Stiefel()}
    optim = TorchRiemannianAdam([group], lr=0.1)
    for each in (optim, copied(optim), TorchRiemannianAdam([group], lr=0.1)):
        point = each.param_groups[0]["params"][0]
        point.grad = torch.randn(4, 2)
        each.step()
        assert Stiefel().contains(point.detach())


@pytest.mark.parametrize(
    ("build", "options", "words"),
    [
        (TorchRiemannianSGD, {"lr": -1.0}, "lr=-1.0"),
        (TorchRiemannianSGD, {"lr": float("nan")}, "lr=nan"),
        (TorchRiemannianMomentum, {"momentum": 1.0}, "momentum=1.0"),
        (TorchRiemannianRMSProp, {"alpha": -0.1}, "alpha=-0.1"),
        (TorchRiemannianAdaDelta, {"eps": -1e-6}, "eps=-1e-06"),
        (TorchRiemannianAdam, {"betas": (0.9, 1.0)}, r"betas\[1\]=1.0"),
        (TorchRiemannianAdam, {"second_moment": "paper"}, "second_moment='paper'"),
    ],
)
def test_options_out_of_range(build, options, words):
    with pytest.raises(ValueError, match=words) as error:
        build([torch.zeros(2, requires_grad=True)], **options)
    assert str(error.value).endswith(".")
    assert build.__name__ in str(error.value)


def test_a_state_brings_its_own_options():
    """A state saved with momentum restores it, as in torch."""
    point = torch.zeros(3, requires_grad=True)
    first = TorchRiemannianSGD([point], lr=0.1, momentum=0.9)
    point.grad = torch.ones(3)
    first.step()
    second = TorchRiemannianSGD([point], lr=0.1)
    second.load_state_dict(first.state_dict())
    second.step()
    torch.testing.assert_close(point.detach(), torch.full((3,), -0.1 - 0.19))


def test_gradients_are_projected_whatever_was_done_to_them():
    X = Stiefel().random_point(5, 2).requires_grad_()
    optim = TorchRiemannianMomentum([{"params": [X], "manifold": Stiefel()}], lr=0.0)  # the point stays
    X.grad = torch.randn(5, 2).clamp(-0.1, 0.1)
    optim.step()
    velocity = optim.state[X]["velocity"]
    torch.testing.assert_close(velocity, Stiefel().tangent_projection(X.detach(), X.grad))


@pytest.mark.parametrize("wrong", ["stiefel", Stiefel, constraints.stiefel])
def test_a_manifold_of_another_kind(wrong):
    with pytest.raises(ValueError, match=r"expected a manifold like Stiefel\(\)\."):
        TorchRiemannianSGD([{"params": [Stiefel().random_point(4, 2).requires_grad_()], "manifold": wrong}])


def test_points_that_are_not_on_their_manifold():
    wide = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"shape \(2, 3\).*n ≥ p"):
        TorchRiemannianSGD([{"params": [wide], "manifold": Stiefel()}])
    free = torch.randn(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"not on Stiefel.*projection"):
        TorchRiemannianSGD([{"params": [free], "manifold": Stiefel()}])


def test_loaded_states_must_fit():
    def state(build, n):
        X = Stiefel().random_point(n, 2).requires_grad_()
        optim = build([{"params": [X], "manifold": Stiefel()}])
        X.grad = torch.randn(n, 2)
        optim.step()
        return optim.state_dict()

    X = Stiefel().random_point(5, 2).requires_grad_()
    optim = TorchRiemannianRMSProp([{"params": [X], "manifold": Stiefel()}])
    optim.load_state_dict(state(TorchRiemannianRMSProp, 5))
    with pytest.raises(ValueError, match=r"\(6, 2\), expected \(5, 2\)"):
        optim.load_state_dict(state(TorchRiemannianRMSProp, 6))
    with pytest.raises(ValueError, match="another optimiser"):
        optim.load_state_dict(state(TorchRiemannianAdam, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("optimiser", [TorchRiemannianAdam, TorchRiemannianSGD])
def test_points_in_half_precision_are_refused(optimiser, dtype):
    point, number = torch.nn.Parameter(torch.eye(4, 2, dtype=dtype)), torch.nn.Parameter(torch.ones(2, dtype=dtype))
    with pytest.raises(ValueError, match=r"\(4, 2\) on Stiefel\(\) is of torch.b?float16, expected torch.float32"):
        optimiser([{"params": [point], "manifold": Stiefel()}], lr=0.1)
    optimiser([number], lr=0.1)

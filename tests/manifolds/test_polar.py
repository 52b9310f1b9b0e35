"""The polar factor and its derivative."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pyro_manifold.manifolds import Stiefel, polar_factor, solve_lyapunov

INPUTS = {
    "generic": lambda: torch.randn(5, 3),
    "orthonormal, all singular values 1": lambda: Stiefel().random_point(5, 3),
    "two equal singular values": lambda: Stiefel().random_point(4, 3) * torch.tensor([2.0, 2.0, 0.5]),
    "square": lambda: torch.randn(3, 3),
    "batch": lambda: torch.randn(2, 4, 2),
    "vector": lambda: torch.randn(4, 1),
}


@pytest.fixture(params=INPUTS)
def matrix(request):
    return INPUTS[request.param]().requires_grad_()


def test_factor_is_orthonormal_and_leaves_a_positive_symmetric_rest(matrix):
    Q = polar_factor(matrix)
    assert Stiefel().contains(Q).all()
    rest = Q.mT @ matrix
    assert torch.allclose(rest, rest.mT)
    assert (torch.linalg.eigvalsh(rest) > 0).all()


def test_derivatives_of_first_and_second_order(matrix):
    assert gradcheck(polar_factor, (matrix,), check_forward_ad=True)
    assert gradgradcheck(polar_factor, (matrix,))


def test_gradient_at_an_orthonormal_matrix_is_the_riemannian_one():
    X = Stiefel().random_point(6, 2).requires_grad_()
    G = torch.randn(6, 2)
    (gradient,) = torch.autograd.grad((polar_factor(X) * G).sum(), X)
    assert torch.allclose(gradient, Stiefel().tangent_projection(X.detach(), G))


def test_torch_func_transforms():
    Z, G = torch.randn(7, 5, 3), torch.randn(5, 3)

    def objective(z):
        return (polar_factor(z) * G).sum().sin()

    vectorised = torch.func.vmap(torch.func.grad(objective))(Z)
    one_by_one = torch.stack([torch.func.grad(objective)(z) for z in Z])
    assert torch.allclose(vectorised, one_by_one)
    hessian = torch.func.hessian(objective)(Z[0]).reshape(15, 15)
    reverse = torch.func.jacrev(torch.func.grad(objective))(Z[0]).reshape(15, 15)
    assert torch.allclose(hessian, hessian.mT)
    assert torch.allclose(hessian, reverse)
    nested = torch.func.vmap(torch.func.hessian(objective))(Z)
    assert torch.allclose(nested[0].reshape(15, 15), hessian)


def test_used_twice_in_one_graph():
    Z = torch.randn(4, 2, requires_grad=True)
    assert gradcheck(lambda z: polar_factor(z) @ polar_factor(2 * z).mT + polar_factor(polar_factor(z) + z).sum(), (Z,))


def test_non_finite_and_rank_deficient_input_does_not_raise():
    Z = torch.randn(5, 4, 2)
    Z[1, 0, 0] = torch.nan
    Z[2] = 0
    Z[3, 0, 0] = torch.inf
    Z[4, 0] = torch.tensor([torch.inf, -torch.inf])
    Q = polar_factor(Z)
    assert Q[[1, 3, 4]].isnan().all()
    assert Stiefel().contains(Q[[0, 2]]).all()
    Z = Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(polar_factor(Z)[:, 0, 0].sum(), Z)
    assert gradient[0].isfinite().all()
    assert not gradient[1].isfinite().all()


def test_lyapunov_solution_and_its_derivatives():
    root = torch.randn(2, 3, 3)
    P = (root @ root.mT + torch.eye(3)).requires_grad_()
    C = torch.randn(2, 3, 3, requires_grad=True)
    K = solve_lyapunov(P, C)
    assert torch.allclose(K @ P + P @ K, C)

    def symmetrised(P, C):
        return solve_lyapunov((P + P.mT) / 2, C)

    assert gradcheck(symmetrised, (P, C), check_forward_ad=True)
    assert gradgradcheck(symmetrised, (P, C))

"""Small non-linear regression with a position-dependent metric, and its expectations by quadrature."""

import numpy as np
import torch

INPUTS = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
DATA = np.array([0.3, -0.2, 0.1, 0.8, 0.4])
ROOT_PRECISION = 2.0


def embedding(q):
    """Return predictions q₁ tanh(q₂ x) with precision 4 and a standard normal prior; |G| varies hundredfold."""
    prediction = q[0] * torch.tanh(q[1] * torch.as_tensor(INPUTS))
    return torch.cat([ROOT_PRECISION * prediction, q])


def metric(q):
    """Return the pull-back metric, with derivatives by hand."""
    x = torch.as_tensor(INPUTS)
    tangent = torch.tanh(q[1] * x)
    columns = ROOT_PRECISION * torch.stack([tangent, q[0] * x * (1 - tangent**2)], -1)
    return columns.mT @ columns + torch.eye(2)


def energy(q):
    data = torch.cat([ROOT_PRECISION * torch.as_tensor(DATA), torch.zeros(2)])
    return 0.5 * (embedding(q) - data).square().sum()


def potential(q):
    gradient, value = torch.func.vmap(torch.func.grad_and_value(energy))(q)
    return value, gradient


def expectations(target):
    """Return the means of q₁² and cos q₁ by quadrature, under e^{-E} ("posterior") or √|G| e^{-E} ("jeffreys")."""
    grid = np.linspace(-7, 7, 801)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    tangent = np.tanh(second[..., None] * INPUTS)
    residual = first[..., None] * tangent - DATA
    log_weight = -0.5 * ROOT_PRECISION**2 * (residual**2).sum(-1) - 0.5 * (first**2 + second**2)
    if target == "jeffreys":
        slope = first[..., None] * INPUTS * (1 - tangent**2)
        precision = ROOT_PRECISION**2
        a, b = 1 + precision * (tangent**2).sum(-1), 1 + precision * (slope**2).sum(-1)
        c = precision * (tangent * slope).sum(-1)
        log_weight = log_weight + 0.5 * np.log(a * b - c**2)
    weight = np.exp(log_weight - log_weight.max())
    return [float((weight * value).sum() / weight.sum()) for value in (first**2, np.cos(first))]

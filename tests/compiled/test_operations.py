"""Two traces of a function are the same, unless it branches on its inputs."""

import pytest
import torch

from pyro_manifold.compiled import first_other_operation, trace

NUMBERS = torch.tensor([1.0, torch.nan])


def steady(x):
    return (x * NUMBERS).cumsum(0).exp().sum() + torch.tensor(2.0)


def operator(x):
    return x.exp() if x.tolist()[0] > 0 else x.sin()


def number(x):
    return x * (2 if x.tolist()[0] > 0 else 3)


def constant(x):
    return x + torch.tensor(x.tolist())


def operand(x):
    first, second = x.sin(), x.cos()
    return first - second if x.tolist()[0] > 0 else second - first


def length(x):
    return x.exp().sum() if x.tolist()[0] > 0 else x.exp()


def between(function):
    here, there = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5])
    return first_other_operation(trace(function, here), trace(function, there))


def test_without_a_branch():
    assert between(steady) is None


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (operator, "exp, and sin there"),
        (number, "mul, and that of other numbers there"),
        (constant, "a constant, and another there"),
        (operand, "sub, and that of other numbers there"),
        (length, "sum, and its result there"),
    ],
)
def test_with_a_branch(function, found):
    assert between(function) == found

"""Operations round otherwise by a few units, and nothing else changes."""

import pytest
import torch

from pyro_manifold.compiled import with_other_rounding


def otherwise(function, *inputs):
    return with_other_rounding(function, torch.Generator().manual_seed(0))(*inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("function", "units"), [(torch.exp, 4), (torch.mul, 1), (lambda x, *_: x.cumsum(0), 4)])
def test_a_result_moves_by_a_few_units(function, units, dtype):
    x = torch.linspace(0.1, 3.0, 200, dtype=dtype)
    inputs = [x, x] if function is torch.mul else [x]
    moved = (otherwise(function, *inputs) / function(*inputs) - 1).abs() / torch.finfo(dtype).eps
    assert 0 < float(moved.max()) <= units + 1
    assert moved.dtype == dtype


@pytest.mark.parametrize(
    "function",
    [
        torch.abs,
        torch.floor,
        torch.neg,
        lambda x: x.clamp(0, 1),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: torch.cat([x, x]).reshape(2, -1).T.flip(0)[1:],
        lambda x: (x > 0).sum(),
        lambda x: x.sort()[0],
        lambda x: torch.arange(3.0).long()[(x[:2] > 0).long()],
    ],
)
def test_numbers_that_there_were_before_stay(function):
    x = torch.randn(50)
    assert torch.equal(otherwise(function, x), function(x))


def test_derivatives_and_writes_in_place():
    def function(x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(x.exp().sum(), x)
        return gradient.clone().mul_(3.0)

    x = torch.randn(50)
    assert not torch.equal(otherwise(function, x), function(x))
    torch.testing.assert_close(otherwise(function, x), function(x), rtol=1e-14, atol=0)


def test_what_cancels_moves_as_far_as_it_is_uncertain():
    x = torch.full((1000,), 1.0 + 1e-12)
    moved = otherwise(lambda x: x.exp() - torch.e, x) - (x.exp() - torch.e)
    assert 1e-16 < float(moved.abs().max()) < 1e-14

"""Special functions in C: against mpmath where they are finite, against torch where they are not; derivatives."""

import math

import mpmath
import numpy as np
import pytest
import torch

from pyro_manifold.compiled.native import UnsupportedOperatorError, special
from tests.compiled.native.loops import in_native, side_by_side
from tests.compiled.native.special_functions import EDGES, EXACT, OF_ONE, OF_TWO, exactly, in_torch, polygamma

CASES = [
    *((5, torch.float64), (1, torch.float32)),
    *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, torch.float64), (5, torch.float32))),
]


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    given = getattr(request.node, "callspec", None)
    torch.set_default_dtype(given.params.get("dtype", torch.float64) if given else torch.float64)


def equal(found, expected, tolerance, name=""):
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=1e-300, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def kinds(value):
    """Return masks of entries that are NaN, ∞ and −∞."""
    return value.isnan() * 3 + (value == math.inf) * 1 + (value == -math.inf) * 2


def after_ones(function, x):
    """The results for the second of two chains: what is traced, torch computes for the first."""
    return [value[1] for value in in_native(function, torch.stack([torch.ones_like(x), x]))]


def all_after_ones(functions, arguments):
    """The results of each function, for arguments of its own, in one program."""
    sizes, given = [len(x) for x in arguments], torch.tensor(np.concatenate(arguments))
    return after_ones(lambda x: [f(part) for f, part in zip(functions, x.split(sizes), strict=True)], given)


def test_values_to_the_last_digits():
    arguments = [np.concatenate(EXACT[name][1]) for name in EXACT]
    results = all_after_ones([in_torch(name) for name in EXACT], arguments)
    for name, of_name, found in zip(EXACT, arguments, results, strict=True):
        equal(found, exactly(EXACT[name][0], of_name), 3e-14, name)


def test_polygamma_to_the_last_digits():
    """All digits, where the series of torch's trigamma has ten, and other orders at negative numbers have none."""
    random, orders = np.random.default_rng(0), (1, 2, 3, 4, 9)
    sizes = [random.uniform(-20, 20, 40), 10 ** random.uniform(-12, 12, 40), -(10 ** random.uniform(-12, 6, 40))]
    arguments = np.concatenate(sizes)
    of_each = after_ones(lambda x: [torch.polygamma(order, x) for order in orders], torch.tensor(arguments))
    for order, found in zip(orders, of_each, strict=True):
        equal(found, exactly(polygamma(order), arguments), 2e-13, f"order {order}")


def test_zeta_to_the_last_digits():
    s = np.array([1 + 1e-10, 1.01, 1.5, 2, 3, 4.5, 17, 60.25])
    q = np.array([1e-17, 1e-3, 0.4, 1, 2.5, 9, 30, 1e6])
    pairs = np.array([(a, b) for a in s for b in q if a > 1.001 or b > 1e-3])
    with mpmath.workdps(50):
        expected = [float(mpmath.zeta(mpmath.mpf(a), mpmath.mpf(b))) for a, b in pairs]
    (found,) = in_native(lambda x: [torch.special.zeta(x[:, 0], x[:, 1])], torch.tensor(pairs)[None])
    equal(found[0], torch.tensor(expected), 1e-13)


def test_an_argument_of_any_size_ends():
    """Torch's sums over all whole numbers from a negative argument to zero do not."""
    x = torch.tensor([-1e17, -1e300, 1e300, -1e15 - 0.5, 1e17, -math.inf])
    digamma, trigamma, third, zeta = after_ones(
        lambda x: [
            torch.digamma(x),
            torch.polygamma(1, x),
            torch.polygamma(2, x),
            torch.special.zeta(torch.tensor(2.5), x),
        ],
        x,
    )
    assert kinds(trigamma).tolist() == [1, 1, 0, 0, 0, 3]
    assert kinds(third).tolist() == [2, 2, 0, 0, 0, 2]
    assert kinds(zeta).tolist() == [1, 1, 0, 3, 0, 1]
    equal(trigamma[2:5], torch.tensor([1e-300, math.pi**2, 1e-17]), 1e-12)
    equal(digamma[[2, 4]], torch.digamma(x[[2, 4]]), 1e-12)


@pytest.mark.parametrize(("chains", "dtype"), CASES)
def test_edges(chains, dtype):
    """NaN and infinities are where torch has them."""
    x, y = torch.cartesian_prod(torch.tensor(EDGES, dtype=dtype), torch.tensor(EDGES, dtype=dtype)).unbind(1)
    inputs = [value.expand(chains, -1).contiguous() for value in (x, y)]
    functions = {name: (lambda x, y, name=name: in_torch(name)(x).to(x)) for name in OF_ONE}
    functions |= {name: in_torch(name) for name in OF_TWO} | _OTHERS
    found = in_native(lambda x, y: [function(x, y) for function in functions.values()], *inputs)
    for name, value in zip(functions, found, strict=True):
        expected = functions[name](*inputs)
        assert torch.equal(kinds(value), kinds(expected)), name
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=torch.finfo(dtype).eps, equal_nan=True)


_OTHERS = {
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp by numbers": lambda x, y: torch.lerp(y, x, x),
    "logcumsumexp": lambda x, y: x.reshape(-1, 15, 15).logcumsumexp(1).flatten(1) if x.dim() > 1 else _of_one(x),
    "polygamma 2": lambda x, y: torch.polygamma(2, x),
    "polygamma 3": lambda x, y: torch.polygamma(3, x),
    "quotient of numbers": lambda x, y: torch.special.zeta(x, 0.5),
    "round": lambda x, y: torch.round(x * 0.777, decimals=2),
    "round to hundreds": lambda x, y: torch.round(x, decimals=-2),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "xlogy of a number": lambda x, y: torch.xlogy(2.0, y),
    "xlog1py of a number": lambda x, y: torch.special.xlog1py(x, 2.0),
}


def _of_one(x):
    return x.reshape(15, 15).logcumsumexp(0).flatten()


INSIDE = {
    "erfinv": lambda x: 0.9 * x.tanh(),
    "special_ndtri": torch.sigmoid,
    "special_entr": lambda x: x.abs() + 0.1,
    "xlogy": lambda x: x.abs() + 0.1,
    "special_xlog1py": lambda x: x.abs(),
}
DIFFERENTIABLE = sorted({*OF_ONE, *OF_TWO, "lerp"} - {"heaviside", "signbit", "special_zeta"})
TORCHS_TRIGAMMA = 2e-9
"""The relative error of the six terms that torch has; with less of a number's digits it is within rounding."""


def derivative(name, order):
    """A function of two tensors: the derivative of this order."""

    def function(x, y):
        inside = INSIDE.get(name, lambda x: x)
        f = in_torch(name)
        arguments = {"lerp": [x, y, 0.3 * y]}.get(name, [inside(x), inside(y)][: 1 if name in OF_ONE else 2])
        return f(*arguments).sum()

    def gradient(x, y):
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in (x, y)]
            value = function(*leaves)
            for _ in range(order):
                parts = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True, allow_unused=True)
                value = sum(part.sum() for part in parts)
        return [part.detach() for part in parts]

    return gradient


@pytest.mark.parametrize(("chains", "dtype"), CASES)
def test_gradients(chains, dtype):
    inputs = [1.7 * torch.randn(chains, 7) for _ in range(2)]
    functions = {name: derivative(name, 1) for name in DIFFERENTIABLE}
    for compared in side_by_side(functions, *inputs, exact=[value.double() for value in inputs]):
        _same(*compared, 1000)


def test_second_derivatives():
    inputs = [1.7 * torch.randn(5, 7) for _ in range(2)]
    functions = {name: derivative(name, 2) for name in sorted({*DIFFERENTIABLE} - {"fmax", "fmin"})}
    for compared in side_by_side(functions, *inputs):
        _same(*compared, 5000)


def _same(name, found, expected, digits):
    for here, there in zip(found, expected, strict=True):
        tolerance = max(digits * torch.finfo(there.dtype).eps, TORCHS_TRIGAMMA)
        torch.testing.assert_close(
            here, there, rtol=tolerance, atol=tolerance, msg=lambda text: f"gradient of {name}: {text}"
        )


def test_a_derivative_of_too_high_an_order_is_left_to_torch():
    with pytest.raises(UnsupportedOperatorError, match="polygamma of order 171"):
        in_native(lambda x: [torch.polygamma(171, x)], torch.rand(2, 3))


def test_all_are_tested():
    of_three = {name for name, template in special.ELEMENTWISE.items() if "{2}" in template}
    assert of_three == {"lerp"}

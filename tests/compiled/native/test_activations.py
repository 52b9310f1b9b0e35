"""Functions of numbers that networks have, in C against torch: values and derivatives, inside and at the edge."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from tests.compiled.native.loops import TORCH, side_by_side
from tests.compiled.native.special_functions import EDGES

ACTIVATIONS = {
    "celu": lambda x, y: functional.celu(x, 0.7),
    "clamp_max": lambda x, y: x.clamp_max(0.5),
    "clamp_max of tensors": lambda x, y: x.clamp_max(y),
    "clamp_min": lambda x, y: x.clamp_min(0.5),
    "clamp_min of tensors": lambda x, y: x.clamp_min(y),
    "degrees": lambda x, y: torch.rad2deg(x) + torch.deg2rad(y),
    "elu": lambda x, y: functional.elu(x, 1.3),
    "elu in place": lambda x, y: functional.elu(2 * x, inplace=True),
    "fill": lambda x, y: torch.fill(x, 3.0) * y + torch.fill(x, y.sum()),
    "gelu": lambda x, y: functional.gelu(x),
    "gelu by tanh": lambda x, y: functional.gelu(x, approximate="tanh"),
    "glu": lambda x, y: functional.glu(torch.cat([x, y], -1)),
    "hardshrink": lambda x, y: functional.hardshrink(x, 0.4),
    "hardsigmoid": lambda x, y: functional.hardsigmoid(x),
    "hardswish": lambda x, y: functional.hardswish(x),
    "hardtanh": lambda x, y: functional.hardtanh(x, -0.7, 0.9),
    "ldexp": lambda x, y: torch.ldexp(x, torch.tensor(3)) + torch.ldexp(x, y.clamp(-5, 5)),
    "leaky_relu": lambda x, y: functional.leaky_relu(x, 0.2),
    "log_softmax": lambda x, y: x.log_softmax(-1) + functional.softmin(y, -1),
    "logcumsumexp": lambda x, y: x.logcumsumexp(-1),
    "logit": lambda x, y: torch.logit(x, 0.01) + torch.logit(y.sigmoid()),
    "logsigmoid": lambda x, y: functional.logsigmoid(x),
    "mish": lambda x, y: functional.mish(x),
    "mvlgamma": lambda x, y: torch.mvlgamma(x.abs() + 1.3, 3),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, nan=0.3, posinf=5.0, neginf=-4.0) + torch.nan_to_num(x),
    "prelu": lambda x, y: torch.prelu(x, y[..., :1].reshape(1)) if x.dim() == 1 else x,
    "relu6": lambda x, y: functional.relu6(3 * x),
    "selu": lambda x, y: functional.selu(x),
    "sigmoid": lambda x, y: x.sigmoid() + torch.special.expit(y),
    "silu": lambda x, y: functional.silu(x),
    "softplus": lambda x, y: functional.softplus(x) + functional.softplus(x, 2.0, 1.0),
    "softshrink": lambda x, y: functional.softshrink(x, 0.4),
    "softsign": lambda x, y: functional.softsign(x),
    "tanhshrink": lambda x, y: functional.tanhshrink(x),
    "threshold": lambda x, y: functional.threshold(x, 0.3, -1.0),
}
TWICE_UNKNOWN = {"hardsigmoid"}
"""Activations of which torch has no second derivative."""
OF_FEWER_DIGITS = {"hardsigmoid": 1e-7, "mvlgamma": 2e-9}
"""The relative errors of torch: a sixth in float32 is the slope in float64 too; and six terms of trigamma's series."""


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    given = getattr(request.node, "callspec", None)
    torch.set_default_dtype(given.params.get("dtype", torch.float64) if given else torch.float64)


def derivatives(function, order):
    """The values and all derivatives up to this order."""

    def all_of_them(x, y):
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in (x, y)]
            found = [function(*leaves)]
            for _ in range(order):
                if not found[-1].requires_grad:
                    break
                total = sum(part.sum() for part in found[-2:] if part.requires_grad)
                found += torch.autograd.grad(
                    total, leaves, create_graph=True, allow_unused=True, materialize_grads=True
                )
        return [part.detach() for part in found]

    return all_of_them


@pytest.mark.parametrize(
    ("chains", "dtype"),
    [
        (5, torch.float64),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((1, torch.float32), (1, torch.float64), (5, torch.float32))
        ),
    ],
)
def test_values_and_derivatives(chains, dtype):
    inputs = [2 * torch.randn(chains, 9) for _ in range(2)]
    functions = {name: derivatives(f, 1 if name in TWICE_UNKNOWN else 2) for name, f in ACTIVATIONS.items()}
    for name, found, expected in side_by_side(functions, *inputs, exact=[value.double() for value in inputs]):
        tolerance = max(1000 * torch.finfo(dtype).eps, OF_FEWER_DIGITS.get(name, 0))
        near(found, expected, name, rtol=tolerance, atol=tolerance)


def near(found, expected, name, **tolerances):
    for place, (here, there) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            here, there, **tolerances, equal_nan=True, msg=lambda text, place=place: f"{name}, result {place}: {text}"
        )


@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.long), torch.float32])
def test_edges(dtype):
    """Kinks, NaN, infinities, overflow; but in what torch's vectors and single numbers are not alike: slopes at NaN."""
    values = torch.tensor([*EDGES, -3.0, 3.0, 0.4, -0.4, -0.7, 0.9, 20.5, -20.5], dtype=dtype)
    inputs = [torch.stack([values, values.flip(0)]), torch.stack([values.roll(3), values])]
    functions = {name: derivatives(function, 1) for name, function in ACTIVATIONS.items()}
    if TORCH < (2, 8):
        del functions["hardswish"]  # torch's slopes at the kinks differ between its dtypes there
    gelu = {"gelu": functions.pop("gelu")}
    exact = [value.double() for value in inputs]
    compared = [*side_by_side(functions, *inputs), *side_by_side(gelu, *inputs, exact=exact)]
    for name, found, expected in compared:
        of_numbers = [slope.masked_fill(inputs[0].isnan(), 0.0) for slope in found[1:]]
        there = [slope.masked_fill(inputs[0].isnan(), 0.0) for slope in expected[1:]]
        near([found[0], *of_numbers], [expected[0], *there], name, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_no_compiler_is_imported():
    """No activation or derivative imports the compiler, which torch's decompositions of most would."""
    code = """
import sys, torch
from tests.compiled.native.loops import graph_of
from tests.compiled.native.special_functions import OF_ONE, OF_TWO, in_torch
from tests.compiled.native.test_activations import ACTIVATIONS, derivatives

del ACTIVATIONS["elu in place"]  # of writes torch itself asks for shapes in Python
functions = {name: (lambda x, y, name=name: in_torch(name)(x)) for name in OF_ONE}
functions |= {name: in_torch(name) for name in OF_TWO} | ACTIVATIONS
imported = set(sys.modules)
for name, function in functions.items():
    order = 0 if name in ("heaviside", "signbit", "special_zeta", "mvlgamma") else 1
    graph_of(derivatives(function, order), torch.rand(4), torch.rand(4))
    assert not {"torch._dynamo", "torch._inductor"} & (set(sys.modules) - imported), name
"""
    subprocess.run([sys.executable, "-c", code], check=True)

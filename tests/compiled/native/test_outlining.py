"""Loops that a source has several times are written once, and compute what they did."""

import pytest
import torch

from pyro_manifold.compiled.native import shared_statements
from tests.compiled.native.loops import in_torch, native_function

SUM = "for (int i0 = 0; i0 < 9; i0++) {{ {0}[i0] = {1}[i0] + {2}[i0]; }}"


def test_loops_that_differ_in_their_arrays_alone_become_one_function():
    functions, lines = shared_statements(["V a3[9];", SUM.format("a3", "a1", "a2"), SUM.format("a4", "a3", "a2")])
    assert lines == ["V a3[9];", "f0(a3, a1, a2);", "f0(a4, a3, a2);"]
    assert len(functions) == 1
    assert "Vectors restrict p0, Vectors restrict p1, Vectors restrict p2" in functions[0]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([SUM.format("a4", "a3", "a3")], id="the same array twice"),
        pytest.param([SUM.format("a4", "a3", "k2")], id="a constant"),
        pytest.param([SUM.format("a4", "a3", "a2").replace("9", "8")], id="another length"),
        pytest.param([], id="once"),
    ],
)
def test_what_differs_otherwise_stays_where_it_is(others):
    lines = [SUM.format("a3", "a1", "a2"), *others]
    assert shared_statements(lines) == ([], lines)


def test_short_loops_and_what_comes_from_outside_stay():
    short = [SUM.format(f"a{k}", "a1", "a2").replace("9", "3") for k in (3, 4)]
    loads = [f"for (int i = 0; i < 9; i++) LANE(a{k}[i], 0) = inputs[0][i];" for k in (3, 4)]
    assert shared_statements([*short, *loads]) == ([], [*short, *loads])


def test_repeated_products_agree_with_torch():
    def function(x, y):
        first = x @ y
        second = first @ y
        return second, (first + second) @ x, torch.linalg.solve(y, first), torch.linalg.solve(x, second)

    x, y = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    loop = native_function(function, x, y)
    assert loop.source.text.count("noinline") >= 3
    assert loop.source.text.count("lu_factor(PART(p0") == 1
    for found, expected in zip(loop(1, x, y), in_torch(function, x, y), strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)

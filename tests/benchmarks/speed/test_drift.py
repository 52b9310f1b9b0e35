"""The forms of a drift that the benchmark compares are the same rotation."""

import pytest
import torch

from benchmarks.speed.drift import by_woodbury, operations, point_and_tangent
from pyro_manifold.manifolds import cayley_flow, cayley_flow_by_rows


@pytest.mark.parametrize("form", [by_woodbury, cayley_flow_by_rows])
@pytest.mark.parametrize("shape", [(20, 5), (8, 6), (6, 6)])
def test_forms_agree(form, shape):
    moving = (*point_and_tangent(*shape), 0.3)
    torch.testing.assert_close(form(*moving), cayley_flow(*moving), rtol=0.0, atol=1e-13)


def test_the_form_taken_has_the_least_operations():
    def least(n, p):
        forms = operations(n, p)
        return min(forms, key=lambda form: forms[form][1])

    assert [least(*shape) for shape in ((784, 300), (300, 300), (400, 300))] == ["p×p", "p×p", "n×n"]

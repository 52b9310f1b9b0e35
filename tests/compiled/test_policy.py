"""Native code is compiled once the rest of a run costs more than compiling does."""

import pytest
import torch

from pyro_manifold.compiled import CompilationPolicy


def first_compiled(planned, operators, size, steps=4):
    made = []
    policy = CompilationPolicy(made.append, operators, size=size)
    policy.planned = planned
    for iteration in range(1, planned + 1):
        policy.after(iteration, {"n_steps": torch.tensor([steps])}, iteration)
    return made


@pytest.mark.parametrize(
    ("planned", "operators", "size", "expected"),
    [
        (2000, 530, 500, [2]),  # 4.5 million operators of torch ahead
        (50, 530, 500, []),
        (2000, 30, 24_000, []),  # the density itself is native: half a million, for a graph that takes as long as 2.6
        (20_000, 30, 24_000, [2]),
    ],
)
def test_what_is_ahead_is_compared_with_what_compiling_costs(planned, operators, size, expected):
    assert first_compiled(planned, operators, size) == expected

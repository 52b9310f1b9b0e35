"""What the benchmark of gradients times is what it says."""

import pytest
import torch

from benchmarks.problems.page import PROBLEMS
from benchmarks.speed.gradients import densities, native_gradient
from tests.infer.mcmc.compilers import native_code


@native_code
@pytest.mark.parametrize("chains", [1, 3])
def test_native_gradients_are_those_of_the_density(chains):
    of_all, of_one_chain, values = densities(PROBLEMS["Langevin V(10,3)"], chains)
    for found, expected in zip(native_gradient(of_one_chain, values)(*values), of_all(*values), strict=True):
        torch.testing.assert_close(found, expected)

"""Native code whose outputs are summed over chains."""

import pytest
import torch

from pyro_manifold.compiled.native import compile_sum
from tests.infer.mcmc.compilers import native_code

pytestmark = native_code


def function(x, w, index):
    y = (x @ w[0]).tanh()
    return [y.sum(-1), x[:, index[0].to(torch.int64)], x.unsqueeze(-1) * y.unsqueeze(1)]


def inputs(chains):
    random = torch.Generator().manual_seed(chains)
    x, w = torch.randn(chains, 5, generator=random), torch.randn(1, 5, 3, generator=random)
    return [x, w, torch.tensor([[0.0, 3.0]])]


@pytest.mark.parametrize("chains", [1, 3, 8, 11])
def test_lanes_without_a_chain_do_not_count(chains):
    given = inputs(chains)
    sums = compile_sum(function, given, chains, shared=1)
    for found, each in zip(sums(0, *given), function(*given), strict=True):
        torch.testing.assert_close(found, each.sum(0))


def test_a_bound_call_reads_its_memory_again():
    given = inputs(5)
    call, outputs = compile_sum(function, given, 5, shared=1).bound(0, given)
    for _ in range(3):
        given[0].normal_()
        call()
        for found, each in zip(outputs, function(*given), strict=True):
            torch.testing.assert_close(found, each.sum(0))


def test_inputs_that_are_not_contiguous_are_refused():
    given = inputs(4)
    sums = compile_sum(function, given, 4, shared=1)
    with pytest.raises(ValueError, match="contiguous"):
        sums.bound(0, [given[0].T.contiguous().T, *given[1:]])

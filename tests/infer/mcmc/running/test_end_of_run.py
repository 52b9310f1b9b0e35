"""Warnings at the end of a run."""

import pytest
import torch

from pyro_manifold.infer.mcmc.running import warn_of_chains


@pytest.mark.parametrize(
    ("level", "dtype", "warns"),
    [(1e3, torch.float32, False), (1e6, torch.float32, True), (-1e6, torch.float32, True), (1e6, torch.float64, False)],
)
def test_a_log_density_that_is_rounded_coarsely_is_reported(level, dtype, warns, recwarn):
    warn_of_chains(
        {"x": torch.randn(2, 50)}, {"lp": torch.full((2, 50), level, dtype=dtype) + torch.rand(2, 50).to(dtype)}
    )
    said = [str(each.message) for each in recwarn.list]
    assert len(said) == warns
    for sentence in said:
        assert sentence.startswith(f"The log density is near {level:.4g}, where torch.float32 rounds it to 0.12")
        assert "float64" in sentence

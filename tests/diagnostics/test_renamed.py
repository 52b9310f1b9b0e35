"""Arguments by their old names."""

import inspect

import pytest
import torch

from pyro_manifold.diagnostics import plot_biplot, plot_scree, renamed_argument


@renamed_argument("old", "new")
def double(value, new=1):
    """Return twice the value."""
    return 2 * value, new


def test_the_old_name_works_with_a_warning_that_has_the_new_one():
    assert double(3, new=5) == double(3, 5) == (6, 5)
    with pytest.warns(FutureWarning, match=r"^double: old= is now new=; the old name will be removed") as caught:
        assert double(3, old=5) == (6, 5)
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match=r"^double: old= is the old name of new=; give new= only"):
        double(3, new=5, old=5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        double(3, other=5)
    assert list(inspect.signature(double).parameters) == ["value", "new"]
    assert double.__doc__ == "Return twice the value."


@pytest.mark.parametrize(
    ("plot", "draws"),
    [
        (plot_biplot, (torch.ones(1, 9, 3, 2), torch.ones(1, 9, 4, 2))),
        (plot_scree, (torch.ones(1, 9, 3),)),
    ],
)
def test_plots_take_hdi_prob_for_prob(plot, draws):
    with (
        pytest.warns(FutureWarning, match=rf"^{plot.__name__}: hdi_prob= is now prob="),
        pytest.raises(ValueError, match=rf"^{plot.__name__}: prob is 2"),
    ):
        plot(*draws, hdi_prob=2)

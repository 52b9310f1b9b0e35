"""Principal angles, mean subspaces and Fréchet means by what defines them."""

import math

import numpy
import pytest
import scipy.linalg
import torch
from scipy.spatial.transform import Rotation

from pyro_manifold.diagnostics import (
    dispersion,
    frechet_mean,
    mean_projector,
    principal_angles,
    subspace_summary,
)
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel

manifold = Stiefel()


def scipy_angles(first, second):
    pairs = zip(first.numpy(), second.numpy(), strict=True)
    return torch.as_tensor(numpy.stack([scipy.linalg.subspace_angles(a, b)[::-1] for a, b in pairs]))


def cloud(*batch, n=6, p=3, noise=0.2):
    centre = manifold.random_point(n, p)
    return manifold.projection(centre + noise * torch.randn(*batch, n, p))


class TestPrincipalAngles:
    @pytest.mark.parametrize(("n", "p", "q"), [(7, 3, 3), (7, 2, 4), (7, 4, 2), (5, 4, 3), (4, 4, 2), (3, 1, 1)])
    def test_as_scipy(self, n, p, q):
        """Agreement to 1e-7: SciPy 1.17 loses half the digits of small angles if others of the pair are above π/4."""
        first, second = torch.randn(20, n, p), torch.randn(20, n, q)
        torch.testing.assert_close(principal_angles(first, second), scipy_angles(first, second), rtol=0, atol=1e-7)

    @pytest.mark.parametrize("size", [1e-9, 1e-5, 0.1])
    def test_small_angles_as_scipy(self, size):
        first = manifold.random_point(20, 7, 3)
        second = first + size * torch.randn(20, 7, 3) / 7
        angles = principal_angles(first, second)
        torch.testing.assert_close(angles, scipy_angles(first, second), rtol=0, atol=1e-13)
        assert (angles > 1e-3 * size).any()

    @pytest.mark.parametrize(
        "angles", [(1e-9, 1e-5, 0.3), (1e-12, 1e-9, 1e-9), (0.5, 1.0, math.pi / 2 - 1e-9), (0.1, 0.2, math.pi / 2)]
    )
    def test_angles_built_in_come_back(self, angles):
        """span(cos θ e_k + sin θ f_k) against span(e_k), in a random orthonormal basis and with each basis rotated."""
        angles = torch.tensor(angles)
        basis = manifold.random_point(8, 6)
        first = basis[:, :3] @ manifold.random_point(3, 3)
        second = (basis[:, :3] * angles.cos() + basis[:, 3:] * angles.sin()) @ manifold.random_point(3, 3)
        torch.testing.assert_close(principal_angles(first, second), angles, rtol=0, atol=1e-13)

    def test_does_not_depend_on_bases_or_order(self):
        first, second = torch.randn(4, 9, 2), torch.randn(5, 1, 9, 3)
        angles = principal_angles(first, second)
        assert angles.shape == (5, 4, 2)
        torch.testing.assert_close(principal_angles(second @ torch.randn(3, 3), first @ torch.randn(2, 2)), angles)

    def test_float32(self):
        first, second = torch.randn(9, 2), torch.randn(9, 3)
        angles = principal_angles(first.float(), second.float())
        assert angles.dtype == torch.float32
        torch.testing.assert_close(angles.double(), principal_angles(first, second), rtol=0, atol=1e-5)

    def test_mixed_precision_is_the_higher_one(self):
        first, second = torch.eye(9, 2, dtype=torch.float32), torch.randn(9, 3)
        expected = principal_angles(first.double(), second)
        for pair in ((first, second), (second, first)):
            torch.testing.assert_close(principal_angles(*pair), expected)

    @pytest.mark.parametrize(
        ("first", "second", "error", "message"),
        [
            (torch.ones(3, 2), torch.eye(3, 2), ValueError, "first has linearly dependent columns"),
            (torch.eye(3, 2), torch.zeros(3, 1), ValueError, "second has linearly dependent columns"),
            (torch.eye(3, 2), torch.eye(2, 3), ValueError, r"first has shape \(3, 2\) and second \(2, 3\)"),
            (torch.ones(2, 3), torch.eye(2), ValueError, r"first has shape \(2, 3\), but p = 3 columns"),
            (torch.eye(3, 2), torch.ones(3), ValueError, r"second has shape \(3,\)"),
            (None, torch.eye(3, 2), TypeError, "first is a NoneType"),
        ],
    )
    def test_bad_input_gets_one_sentence(self, first, second, error, message):
        with pytest.raises(error, match=f"^principal_angles: {message}"):
            principal_angles(first, second)


class TestMeanSubspace:
    def test_projector_is_the_average_and_invariant(self):
        draws = cloud(3, 10)
        mean = mean_projector(draws)
        torch.testing.assert_close(mean, (draws @ draws.mT).mean((0, 1)))
        torch.testing.assert_close(mean_projector(draws @ torch.randn(3, 10, 3, 3)), mean)

    @pytest.mark.parametrize("n", [6, 200])  # fewer and more rows than stacked columns
    def test_mean_has_the_eigenvectors_of_the_mean_projector(self, n):
        draws = cloud(2, 10, n=n, noise=0.02)
        summary = subspace_summary(draws)
        projector = mean_projector(draws)
        torch.testing.assert_close(summary.mean.mT @ summary.mean, torch.eye(3))
        torch.testing.assert_close(projector @ summary.mean, summary.mean * summary.concentration)
        torch.testing.assert_close(summary.concentration, torch.linalg.eigvalsh(projector)[-3:].flip(-1))

    def test_long_columns_need_no_square_matrix(self):
        """300,000² numbers would be 720 GB."""
        axis = torch.zeros(300_000, 1)
        axis[0] = 1.0
        summary = subspace_summary(axis.expand(2, 3, 300_000, 1))
        assert summary.angles.max() < 1e-12
        torch.testing.assert_close(summary.concentration, torch.ones(1))

    def test_no_subspace_nearby_is_nearer(self):
        draws = cloud(2, 20)
        summary = subspace_summary(draws)
        spread = summary.angles.sin().square().sum(-1).mean()
        others = manifold.projection(summary.mean + 0.1 * torch.randn(300, 1, 1, 6, 3))
        tried = principal_angles(draws, others).sin().square().sum(-1).mean((-2, -1))
        assert (tried >= spread).all()
        # E Σ sin² θ = p − Σ λ, an identity of the chordal metric
        torch.testing.assert_close(spread, 3 - summary.concentration.sum())

    def test_batch_elements_on_their_own(self):
        draws = torch.randn(2, 7, 4, 6, 2)
        together = subspace_summary(draws)
        for k in range(4):
            alone = subspace_summary(draws[:, :, k])
            torch.testing.assert_close(together.angles[:, :, k], alone.angles)
            torch.testing.assert_close(together.concentration[k], alone.concentration)
            assert principal_angles(together.mean[k], alone.mean).max() < 1e-12

    def test_float32(self):
        assert {value.dtype for value in subspace_summary(cloud(2, 5).float())} == {torch.float32}

    @pytest.mark.parametrize("function", [mean_projector, subspace_summary])
    def test_bad_input_gets_one_sentence(self, function):
        name = f"^{function.__name__}: draws has "
        with pytest.raises(ValueError, match=name + r"shape \(3, 2\)"):
            function(torch.eye(3, 2))
        with pytest.raises(ValueError, match=name + "linearly dependent columns"):
            function(torch.ones(1, 1, 3, 2))
        with pytest.raises(ValueError, match=name + r"shape \(1, 1, 2, 3\), but p = 3"):
            function(torch.ones(1, 1, 2, 3))


class TestFrechetMean:
    def test_equivariant(self):
        draws = cloud(4, 50)
        Q, R = manifold.random_point(6, 6), manifold.random_point(3, 3)
        torch.testing.assert_close(frechet_mean(Q @ draws @ R), Q @ frechet_mean(draws) @ R)

    def test_no_matrix_is_nearer(self):
        draws = cloud(4, 50)
        mean = frechet_mean(draws)
        least = (draws - mean).square().sum((-2, -1)).mean()
        torch.testing.assert_close(dispersion(draws), least)
        near = manifold.projection(mean + 10 ** torch.linspace(-6, 0, 300).reshape(-1, 1, 1) * torch.randn(300, 6, 3))
        for matrix in torch.cat([near, manifold.random_point(300, 6, 3)]):
            assert dispersion(draws, matrix) >= least - 1e-14

    def test_dispersion_of_uniform_draws_is_2p_on_average(self):
        draws = manifold.random_point(4, 500, 6, 3)
        values = torch.stack([dispersion(draws, matrix) for matrix in (torch.eye(6, 3), -torch.eye(6, 3))])
        torch.testing.assert_close(values.mean(), torch.tensor(6.0))  # exact: E‖X − M‖² + E‖X + M‖² = 4p

    def test_dispersion_on_the_circle(self):
        angles = torch.tensor([0.3, -0.3])
        draws = torch.stack([angles.cos(), angles.sin()], -1).reshape(1, 2, 2, 1)
        reference = torch.tensor([[1.0], [0.0]])
        torch.testing.assert_close(dispersion(draws, reference), 4 * torch.tensor(0.15).sin() ** 2)

    def test_batch_and_float32(self):
        draws = torch.stack([cloud(2, 20), cloud(2, 20)], 2)
        mean = frechet_mean(draws)
        torch.testing.assert_close(mean[1], frechet_mean(draws[:, :, 1]))
        torch.testing.assert_close(dispersion(draws)[0], dispersion(draws[:, :, 0], mean[0]))
        assert frechet_mean(draws.float()).dtype == dispersion(draws.float()).dtype == torch.float32

    def test_symmetric_draws_have_none(self):
        draws = cloud(1, 20)
        both = torch.cat([draws, draws * torch.tensor([1.0, 1.0, -1.0])])
        with pytest.raises(ValueError, match=r"^frechet_mean: draws have a rank deficient .* align_signs"):
            frechet_mean(both)
        with pytest.warns(UserWarning, match="cannot be distinguished from a rank deficient one"):
            frechet_mean(manifold.random_point(2, 200, 6, 3))

    @pytest.mark.filterwarnings("ignore:frechet_mean. draws are so dispersed")
    def test_rotations_have_the_mean_of_scipy(self):
        for _ in range(20):
            draws = SpecialOrthogonal().random_point(1, 5, 3, 3)
            expected = Rotation.from_matrix(draws[0].numpy()).mean().as_matrix()
            torch.testing.assert_close(frechet_mean(draws), torch.as_tensor(expected))
            flip = torch.tensor([1.0, 1.0, -1.0])
            torch.testing.assert_close(frechet_mean(draws * flip), torch.as_tensor(expected) * flip)

    def test_planar_rotations_have_the_mean_angle(self):
        angle = 0.4 + 0.5 * torch.randn(2, 20, 3)
        cosine, sine = angle.cos(), angle.sin()
        draws = torch.stack([cosine, -sine, sine, cosine], -1).reshape(2, 20, 3, 2, 2)
        mean = torch.atan2(sine.mean((0, 1)), cosine.mean((0, 1)))
        expected = torch.stack([mean.cos(), -mean.sin(), mean.sin(), mean.cos()], -1).reshape(3, 2, 2)
        torch.testing.assert_close(frechet_mean(draws), expected)

    def test_each_element_of_a_batch_has_the_determinant_of_its_own_draws(self):
        rotations = SpecialOrthogonal().projection(torch.eye(3) + 0.1 * torch.randn(2, 20, 3, 3))
        either = torch.stack([rotations, rotations * torch.tensor([1.0, 1.0, -1.0]), rotations.clone()], 2)
        either[:, 1:, 2, :, 2] *= -1  # all but two
        found = frechet_mean(either)
        assert torch.linalg.det(found).round().tolist() == [1.0, -1.0, -1.0]
        torch.testing.assert_close(found[1], found[0] * torch.tensor([1.0, 1.0, -1.0]))

    def test_rotations_without_a_mean_are_reported_by_their_own_cause(self):
        turned = SpecialOrthogonal().random_point(3, 3) @ torch.stack(
            [torch.eye(3), torch.tensor([1.0, -1, -1]).diag()]
        )
        with pytest.raises(ValueError, match="frechet_mean: draws are so dispersed that several matrices are nearest"):
            frechet_mean(turned.unsqueeze(0))
        with pytest.warns(UserWarning, match="frechet_mean: draws are so dispersed that their Fréchet mean"):
            frechet_mean(SpecialOrthogonal().random_point(1, 5, 3, 3))

    def test_a_singular_mean_of_rotations_has_one_nearest_rotation(self):
        """Half of the draws are the identity, the others are turned by π about two axes: the mean is diag(½, ½, 0)."""
        some = torch.diag_embed(torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, -1, -1], [-1, 1, -1]]))
        torch.testing.assert_close(frechet_mean(some.repeat(500, 1, 1)[None]), torch.eye(3))

    @pytest.mark.parametrize("function", [frechet_mean, dispersion])
    def test_bad_input_gets_one_sentence(self, function):
        with pytest.raises(ValueError, match=f"^{function.__name__}: draws must have orthonormal columns"):
            function((1 + 1e-6) * cloud(1, 3))
        with pytest.raises(ValueError, match=f"^{function.__name__}: draws has shape .* transpose"):
            function(cloud(1, 3).mT)
        with pytest.raises(TypeError, match=f"^{function.__name__}: draws is a ndarray"):
            function(cloud(1, 3).numpy())

    def test_bad_mean_gets_one_sentence(self):
        with pytest.raises(ValueError, match=r"^dispersion: mean must have orthonormal columns"):
            dispersion(cloud(1, 3), torch.ones(6, 3))
        with pytest.raises(ValueError, match=r"^dispersion: mean has shape \(2, 2\)"):
            dispersion(cloud(1, 3), torch.eye(2))

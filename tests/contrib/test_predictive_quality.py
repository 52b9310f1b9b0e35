"""Quality of predictive probabilities, against SciPy, scikit-learn, definitions written out, and by hand."""

import pytest
import torch
from scipy import stats
from torch.nn import functional

from pyro_manifold import contrib
from pyro_manifold.contrib import (
    agreement,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    out_of_distribution_auroc,
    predictive_entropy,
    total_variation,
)

metrics = pytest.importorskip("sklearn.metrics")


def some(examples=200, classes=5):
    probabilities, labels = (2 * torch.randn(examples, classes)).softmax(-1), torch.randint(classes, (examples,))
    return probabilities, labels


def test_agreement_is_accuracy_of_the_top_classes():
    probabilities, reference = some()[0], some()[0]
    expected = metrics.accuracy_score(reference.argmax(-1), probabilities.argmax(-1))
    assert float(agreement(probabilities, reference)) == pytest.approx(expected)
    assert agreement(probabilities, probabilities) == 1


def test_total_variation_is_the_largest_difference_of_an_event():
    probabilities, reference = some(20, 4)[0], some(20, 4)[0]
    events = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)  # all sets of classes
    expected = ((probabilities - reference) @ events.T).amax(-1).mean()
    torch.testing.assert_close(total_variation(probabilities, reference), expected)
    assert total_variation(probabilities, probabilities) == 0
    assert total_variation(torch.eye(2), torch.eye(2).flip(0)) == 1


def test_negative_log_likelihood_and_brier_score():
    probabilities, labels = some()
    expected = metrics.log_loss(labels, probabilities, labels=range(5))
    assert float(negative_log_likelihood(probabilities, labels)) == pytest.approx(expected)
    torch.testing.assert_close(
        negative_log_likelihood(probabilities, labels), functional.nll_loss(probabilities.log(), labels)
    )
    assert negative_log_likelihood(torch.eye(2), torch.tensor([0, 0])).isinf()
    two, zero_or_one = some(classes=2)
    expected = 2 * metrics.brier_score_loss(zero_or_one, two[:, 1])
    assert float(brier_score(two, zero_or_one)) == pytest.approx(expected)
    assert brier_score(torch.eye(3), torch.tensor([1, 2, 0])) == 2


def test_probabilities_of_a_binary_outcome_are_those_of_its_two_classes():
    p, y = torch.rand(100), torch.randint(2, (100,))
    two = torch.stack([1 - p, p], -1)
    for score in (negative_log_likelihood, brier_score, expected_calibration_error):
        torch.testing.assert_close(score(p, y), score(two, y))
    assert float(brier_score(p, y)) == pytest.approx(2 * metrics.brier_score_loss(y, p))
    assert float(negative_log_likelihood(p, y)) == pytest.approx(metrics.log_loss(y, p))
    torch.testing.assert_close(predictive_entropy(p), predictive_entropy(two))
    q = torch.rand(100)
    torch.testing.assert_close(total_variation(p, q), (p - q).abs().mean())
    torch.testing.assert_close(agreement(p, q), ((p > 0.5) == (q > 0.5)).double().mean())


def test_calibration_error_bin_by_bin():
    probabilities, labels = some(500)
    for bins in (1, 10, 15):
        expected = 0.0
        confidence, predicted = probabilities.max(-1)
        for m in range(bins):
            inside = (confidence > m / bins) & (confidence <= (m + 1) / bins)
            if inside.any():
                accuracy = (predicted == labels)[inside].double().mean()
                expected += inside.double().mean() * (accuracy - confidence[inside].mean()).abs()
        torch.testing.assert_close(expected_calibration_error(probabilities, labels, bins), expected)


def test_calibration_error_by_hand():
    """The upper edge belongs to a bin; certainty that is right costs nothing."""
    assert expected_calibration_error(torch.eye(3), torch.arange(3)) == 0
    assert expected_calibration_error(torch.eye(3), torch.tensor([1, 2, 0])) == 1
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.625, 0.375], [0.625, 0.375]])
    # Bins (1/4, 1/2] and (1/2, 3/4]: |1 − 1/2| and |0 − 5/8|, half of the examples in each.
    assert float(expected_calibration_error(p, torch.tensor([0, 0, 1, 1]), bins=4)) == pytest.approx(0.5625)


def test_entropy():
    probabilities, _ = some()
    torch.testing.assert_close(
        predictive_entropy(probabilities), torch.as_tensor(stats.entropy(probabilities.numpy(), axis=-1))
    )
    assert torch.equal(predictive_entropy(torch.eye(3)), torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_auroc_is_that_of_mann_and_whitney(dtype):
    inside, outside = torch.randn(300, dtype=dtype), torch.randn(200, dtype=dtype) + 0.5
    for decimals in (6, 0):  # without ties, and with many
        inside, outside = inside.round(decimals=decimals), outside.round(decimals=decimals)
        found = float(out_of_distribution_auroc(inside, outside))
        statistic = stats.mannwhitneyu(outside.numpy(), inside.numpy()).statistic
        assert found == pytest.approx(statistic / (300 * 200), rel=1e-6)
        truth = torch.cat([torch.zeros(300), torch.ones(200)])
        assert found == pytest.approx(metrics.roc_auc_score(truth, torch.cat([inside, outside])), rel=1e-6)
    assert out_of_distribution_auroc(torch.zeros(3), torch.zeros(2)) == 0.5


def test_dtype_and_gradients_are_kept():
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(10, 3, dtype=dtype, requires_grad=True)
        labels = torch.randint(3, (10,), dtype=torch.int32)
        p = logits.softmax(-1)
        values = [
            negative_log_likelihood(p, labels),
            brier_score(p, labels),
            expected_calibration_error(p, labels),
            total_variation(p, torch.full((10, 3), 1 / 3, dtype=dtype)),
            predictive_entropy(p).sum(),
        ]
        assert {value.dtype for value in values} == {dtype}
        sum(values).backward()
        assert logits.grad.isfinite().all()
        assert agreement(p, p).dtype == dtype


P, LABELS = torch.full((4, 2), 0.5).double(), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("name", "arguments", "error", "sentence"),
    [
        ("agreement", (P, P[:3]), ValueError, r"agreement: reference has shape \(3, 2\), expected.*\(4, 2\)"),
        ("agreement", (P, 2 * P), ValueError, "reference has rows that sum to 1 more or less than one"),
        ("total_variation", (P.tolist(), P), TypeError, "probabilities is a list, expected a torch tensor"),
        (
            "total_variation",
            (P, P[None]),
            ValueError,
            r"reference has shape \(1, 4, 2\), expected \(examples, classes\)",
        ),
        ("total_variation", (P, P[:, 0][:3]), ValueError, r"reference has shape \(3, 2\), expected.*\(4, 2\)"),
        ("brier_score", (P[:, 0] + 0.6, LABELS), ValueError, r"entries outside of 0 to 1.*logits\.sigmoid\(\)"),
        (
            "negative_log_likelihood",
            (P[:, 0], LABELS + 1),
            ValueError,
            "labels are from 1 to 2, expected class indices from 0 to 1",
        ),
        ("predictive_entropy", (torch.tensor([[1.5, -0.5]]),), ValueError, r"negative entries.*softmax\(-1\)"),
        ("predictive_entropy", (P * torch.nan,), ValueError, "entries that are not finite"),
        ("brier_score", (P, LABELS + 1), ValueError, "labels are from 1 to 2, expected class indices from 0 to 1"),
        ("brier_score", (P, LABELS[:3]), ValueError, r"labels has shape \(3,\), expected \(4,\)"),
        (
            "negative_log_likelihood",
            (P, LABELS.double()),
            TypeError,
            r"of type torch\.float64, expected a tensor of integers",
        ),
        ("negative_log_likelihood", (P, [0, 1]), TypeError, "of type list, expected a tensor of integers"),
        ("expected_calibration_error", (P, LABELS, 0), ValueError, "bins=0, expected a positive integer"),
        (
            "out_of_distribution_auroc",
            (P, P[:, 0]),
            ValueError,
            r"inside_scores has shape \(4, 2\), expected \(examples,\)",
        ),
        ("out_of_distribution_auroc", (P[:, 0], P[:0, 0]), ValueError, "outside_scores is empty"),
    ],
)
def test_bad_input_is_named(name, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        getattr(contrib, name)(*arguments)

"""Quality of predictive probabilities: scores by labels or a reference, calibration, out-of-distribution AUROC.

Probabilities are ``(examples, classes)``. For a binary outcome they may be ``(examples,)``, those of the outcome 1;
each score is then that of the two classes 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.diagnostics import check_real

_SUM_TOLERANCE = 1e-4  # the error of a float32 softmax over thousands of classes is smaller


def agreement(probabilities: Tensor, reference: Tensor) -> Tensor:
    r"""Compute the fraction of examples for which two predictions have the same most probable class.

    $$ \frac{1}{n} \sum_{i=1}^n 1[\arg\max_k p_{ik} = \arg\max_k q_{ik}] $$

    Args:
        probabilities: p, ``(examples, classes)``, or ``(examples,)`` of a binary outcome.
        reference: q, such as those of long chains, ``(examples, classes)``.

    Returns:
        ``()``, from 0 to 1. Ties go to the first of the most probable classes.

    Raises:
        TypeError: for arguments that are not tensors of float32 or float64.
        ValueError: for another shape, or rows that are negative or do not sum to one.

    Source: Izmailov, Vikram, Hoffman & Wilson 2021, arXiv 2104.14421.

    Examples:
        >>> agreement(torch.tensor([[0.6, 0.4], [0.3, 0.7]]), torch.tensor([[0.9, 0.1], [0.8, 0.2]]))
        tensor(0.5000)
    """
    probabilities, reference = _checked_pair(probabilities, reference, "agreement")
    return (probabilities.argmax(-1) == reference.argmax(-1)).to(probabilities.dtype).mean()


def total_variation(probabilities: Tensor, reference: Tensor) -> Tensor:
    r"""Compute the total variation distance between two predictions, mean over examples.

    $$ \frac{1}{n} \sum_{i=1}^n \frac{1}{2} \sum_k |p_{ik} - q_{ik}| $$

    Args:
        probabilities: p, ``(examples, classes)``, or ``(examples,)`` of a binary outcome.
        reference: q, ``(examples, classes)``.

    Returns:
        ``()``, from 0 to 1.

    Raises:
        TypeError: for arguments that are not tensors of float32 or float64.
        ValueError: for another shape, or rows that are negative or do not sum to one.

    Source: Izmailov, Vikram, Hoffman & Wilson 2021, arXiv 2104.14421.

    Examples:
        >>> total_variation(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
        tensor(0.6250)
    """
    probabilities, reference = _checked_pair(probabilities, reference, "total_variation")
    return 0.5 * (probabilities - reference).abs().sum(-1).mean()


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> Tensor:
    r"""Compute the mean over examples of minus the log probability of the label, $-\log p_{i y_i}$.

    Args:
        probabilities: p, ``(examples, classes)``, or ``(examples,)`` of a binary outcome.
        labels: y, integers from 0 to classes − 1, ``(examples,)``.

    Returns:
        ``()``; infinite if a label has probability 0.

    Raises:
        TypeError: for probabilities that are not a tensor of float32 or float64, or labels that are not integers.
        ValueError: for other shapes, rows that do not sum to one, or labels out of range.

    Source: Gneiting & Raftery 2007, Journal of the American Statistical Association 102, the logarithmic score.

    Examples:
        >>> float(negative_log_likelihood(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).exp())
        1.3333...
    """
    probabilities = _checked_with_labels(probabilities, labels, "negative_log_likelihood")
    return -_of_labels(probabilities, labels).log().mean()


def brier_score(probabilities: Tensor, labels: Tensor) -> Tensor:
    r"""Compute the mean over examples of the squared distance from the probabilities to the label, one-hot encoded.

    $$ \frac{1}{n} \sum_{i=1}^n \sum_k (p_{ik} - 1[k = y_i])^2 $$

    Args:
        probabilities: p, ``(examples, classes)``, or ``(examples,)`` of a binary outcome.
        labels: y, integers from 0 to classes − 1, ``(examples,)``.

    Returns:
        ``()``, from 0 to 2. Of a binary outcome it is the mean of $2 (p_i - y_i)^2$, and is sometimes defined as half
        of this.

    Raises:
        TypeError: for probabilities that are not a tensor of float32 or float64, or labels that are not integers.
        ValueError: for other shapes, rows that do not sum to one, or labels out of range.

    Source: Brier 1950, Monthly Weather Review 78.

    Examples:
        >>> brier_score(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
        tensor(0.2500)
        >>> brier_score(torch.tensor([0.5, 1.0]), torch.tensor([0, 1]))  # of a binary outcome
        tensor(0.2500)
    """
    probabilities = _checked_with_labels(probabilities, labels, "brier_score")
    hits = torch.nn.functional.one_hot(labels.long(), probabilities.shape[1])
    return (probabilities - hits).square().sum(-1).mean()


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Compute the difference of confidence and accuracy, mean over bins of confidence.

    The confidence of an example is its largest probability. With $B_m$ the examples whose confidence is in
    $(\tfrac{m-1}{M}, \tfrac{m}{M}]$,

    $$ \sum_{m=1}^M \frac{|B_m|}{n} \left| \operatorname{accuracy}(B_m) - \operatorname{confidence}(B_m) \right| . $$

    It depends on the number of bins, and with few examples it is large even for calibrated predictions.

    Args:
        probabilities: ``(examples, classes)``, or ``(examples,)`` of a binary outcome.
        labels: integers from 0 to classes − 1, ``(examples,)``.
        bins: M.

    Returns:
        ``()``, from 0 to 1.

    Raises:
        TypeError: for probabilities that are not a tensor of float32 or float64, or labels that are not integers.
        ValueError: for other shapes, rows that do not sum to one, labels out of range, or ``bins`` below 1.

    Source: Guo, Pleiss, Sun & Weinberger 2017, arXiv 1706.04599.

    Examples:
        >>> p = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.0, 1.0]])
        >>> float(expected_calibration_error(p, torch.tensor([0, 1, 1])))
        0.1666...
    """
    probabilities = _checked_with_labels(probabilities, labels, "expected_calibration_error")
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise ValueError(f"expected_calibration_error: bins={bins!r}, expected a positive integer.")
    confidence, predicted = probabilities.max(-1)
    excess = confidence - (predicted == labels).to(confidence.dtype)
    index = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    return excess.new_zeros(bins).index_add(0, index, excess).abs().sum() / len(excess)


def predictive_entropy(probabilities: Tensor) -> Tensor:
    r"""Compute the entropy of each prediction, $-\sum_k p_{ik} \log p_{ik}$, with 0 log 0 = 0.

    Args:
        probabilities: p, ``(examples, classes)``, or ``(examples,)`` of a binary outcome.

    Returns:
        ``(examples,)``, from 0 to the logarithm of the number of classes.

    Raises:
        TypeError: for an argument that is not a tensor of float32 or float64.
        ValueError: for another shape, or rows that are negative or do not sum to one.

    Source: Shannon 1948, Bell System Technical Journal 27.

    Examples:
        >>> predictive_entropy(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist()
        [0.693..., 0.0]
    """
    probabilities = _checked(probabilities, "probabilities", "predictive_entropy")
    return torch.special.entr(probabilities).sum(-1)


def out_of_distribution_auroc(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    r"""Compute the probability that an outside example has a higher score than an inside one; ties count half.

    $$ P(s_\text{outside} > s_\text{inside}) + \tfrac{1}{2} P(s_\text{outside} = s_\text{inside}), $$

    which is the area under the ROC curve of the score, and the Mann–Whitney statistic divided by the number of pairs.

    Args:
        inside_scores: scores of examples like the training data, such as `predictive_entropy`, ``(examples,)``.
        outside_scores: scores of examples from another distribution, ``(other examples,)``.

    Returns:
        ``()``, from 0 to 1; ½ if the scores are uninformative.

    Raises:
        TypeError: for arguments that are not tensors of float32 or float64.
        ValueError: for scores that are empty, not finite, or of another shape.

    Source: Hendrycks & Gimpel 2017, arXiv 1610.02136; Fawcett 2006, Pattern Recognition Letters 27.

    Examples:
        >>> out_of_distribution_auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.4]))
        tensor(0.9167)
    """
    for name, scores in {"inside_scores": inside_scores, "outside_scores": outside_scores}.items():
        check_real(scores, name, "out_of_distribution_auroc")
        if scores.dim() != 1:
            raise ValueError(
                f"out_of_distribution_auroc: {name} has shape {tuple(scores.shape)}, expected (examples,), one score "
                "for each example."
            )
    ordered, outside = inside_scores.sort().values, outside_scores.to(inside_scores)
    below = torch.searchsorted(ordered, outside)
    up_to = torch.searchsorted(ordered, outside, right=True)
    # Sums of integers, so that millions of pairs are counted exactly in float32 too.
    return (below + up_to).sum().to(ordered.dtype) / (2 * len(ordered) * len(outside))


def _of_labels(probabilities: Tensor, labels: Tensor) -> Tensor:
    return probabilities.gather(1, labels.long().unsqueeze(1)).squeeze(1)


def _checked(values: Tensor, name: str, owner: str) -> Tensor:
    """Check probabilities and return those of all classes, ``(examples, classes)``, for binary outcomes of 0 and 1."""
    check_real(values, name, owner)
    if values.dim() == 1:
        if bool(((values < 0) | (values > 1)).any()):
            raise ValueError(
                f"{owner}: {name} has entries outside of 0 to 1, expected probabilities of the outcome 1; take "
                "logits.sigmoid()."
            )
        return torch.stack([1 - values, values], -1)
    if values.dim() != 2:
        raise ValueError(
            f"{owner}: {name} has shape {tuple(values.shape)}, expected (examples, classes), or (examples,) for the "
            "probabilities of a binary outcome 1."
        )
    error, negative = float((values.detach().sum(-1) - 1).abs().max()), bool((values < 0).any())
    if negative or error > _SUM_TOLERANCE:
        what = "negative entries" if negative else f"rows that sum to {error:.2g} more or less than one"
        raise ValueError(f"{owner}: {name} has {what}, expected probabilities of classes; take logits.softmax(-1).")
    return values


def _checked_pair(probabilities: Tensor, reference: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    probabilities = _checked(probabilities, "probabilities", owner)
    reference = _checked(reference, "reference", owner)
    if probabilities.shape != reference.shape:
        raise ValueError(
            f"{owner}: reference has shape {tuple(reference.shape)}, expected that of probabilities, "
            f"{tuple(probabilities.shape)}: the same examples and classes in the same order."
        )
    return probabilities, reference


def _checked_with_labels(probabilities: Tensor, labels: Tensor, owner: str) -> Tensor:
    probabilities = _checked(probabilities, "probabilities", owner)
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    ):
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{owner}: labels is of type {found}, expected a tensor of integers; use labels.long().")
    examples, classes = probabilities.shape
    if labels.shape != (examples,):
        raise ValueError(
            f"{owner}: labels has shape {tuple(labels.shape)}, expected ({examples},), one label for each row of "
            "probabilities."
        )
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError(
            f"{owner}: labels are from {int(labels.min())} to {int(labels.max())}, expected class indices from 0 to "
            f"{classes - 1}."
        )
    return probabilities

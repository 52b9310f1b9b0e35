"""A recurrent network with orthogonal weights whose probabilities are calibrated.

Networks trained on few images are too certain, also of images unlike any in training. Here a recurrent network reads 200
of scikit-learn's 8×8 digits row by row. `to_bayesian_` makes the recurrent and the input weights orthogonal, with a
uniform prior, and gives the output weights normal priors. OHMC draws networks from the posterior, and predictions are
means over draws.

    python -m examples.calibrated_network --output results

prints accuracy, log score, calibration error and detection of other images for one network trained with AdamW, for an
ensemble of five and for the posterior, and writes two pictures.
"""

import argparse
import math
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample
from sklearn.datasets import load_digits
from torch import nn

from pyro_manifold import contrib
from pyro_manifold.infer import MCMC, OHMC, RunningPredictions
from pyro_manifold.nn import to_bayesian_

COLOURS = {"one network": "0.45", "ensemble of 5": "#D55E00", "posterior": "#0072B2"}


class Rows(nn.Module):
    """A recurrent network that reads an image row by row."""

    def __init__(self, units=16):
        super().__init__()
        self.input, self.recurrent = nn.Linear(8, units), nn.Linear(units, units, bias=False)
        self.output = nn.Linear(units, 10)

    def forward(self, images):
        state = images.new_zeros(len(images), self.recurrent.in_features)
        for row in images.unbind(-2):
            state = torch.tanh(self.input(row) + self.recurrent(state))
        return self.output(state)


def load(count=200):
    """Return ``count`` images for training with labels, the other images and labels, and images that are no digits."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images))
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8)[order] / 8 - 1
    labels = torch.tensor(labels)[order]
    test = images[count:]
    outside = {
        "turned by 90°": test[:300].rot90(1, (-2, -1)),
        "pixels shuffled": test[:300].flatten(1)[:, torch.randperm(64)].reshape(-1, 8, 8),
        "noise": 2 * torch.rand(300, 8, 8) - 1,
    }
    return images[:count], labels[:count], test, labels[count:], outside


def train(images, labels, epochs=150):
    """Return a network trained by AdamW with batches of 50."""
    plain = Rows()
    optimiser = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(plain(images[batch]), labels[batch]).backward()
            optimiser.step()
    return plain


def posterior(images, labels, inputs, draws):
    """Return the running predictions for each of the inputs, and the MCMC."""
    bayesian = to_bayesian_(Rows(), prior_scale=2.0)  # of the output weights: 8/√16, see docs/how_to/networks.md

    def model(x, y=None):
        logits = bayesian(x)
        with pyro.plate("images", len(x)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=y)
        return logits

    predictions = [RunningPredictions(model, x, statistic=lambda logits: logits.softmax(-1)) for x in inputs]
    kernel = OHMC(model, num_steps=10, init_strategy=init_to_sample)
    options = {"save_params": [], "consumers": predictions, "num_chains": 4, "disable_progbar": True}
    mcmc = MCMC(kernel, draws, draws, **options)
    mcmc.run(images, labels)
    return predictions, mcmc


def report(probabilities, labels, outside):
    """Print the scores of each method from its probabilities of test images and of images that are no digits."""
    print("\n               accuracy  log score  calibration error  AUROC: " + ", ".join(outside))
    for name, (inside, *others) in probabilities.items():
        accuracy = (inside.argmax(-1) == labels).float().mean()
        entropy = contrib.predictive_entropy(inside)
        detected = [contrib.out_of_distribution_auroc(entropy, contrib.predictive_entropy(other)) for other in others]
        score, error = (
            measure(inside, labels) for measure in (contrib.negative_log_likelihood, contrib.expected_calibration_error)
        )
        print(
            f"{name:14s} {accuracy:8.3f}  {score:9.3f}  {error:17.3f}  "
            + ", ".join(f"{value:.3f}" for value in detected)
        )


def figure_of_calibration(probabilities, labels, bins=8):
    """Draw accuracy by confidence, and entropies of digits and of digits turned by 90°."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.7))
    left.plot([0, 1], [0, 1], color="0.8", lw=1)
    for name, (inside, turned, *_) in probabilities.items():
        confidence, predicted = inside.max(-1)
        groups = confidence.argsort().tensor_split(bins)  # of the same size
        hits = [(predicted[group] == labels[group]).float().mean() for group in groups]
        left.plot([confidence[group].mean() for group in groups], hits, "o-", ms=4, color=COLOURS[name], label=name)
        for scores, style in ((inside, "-"), (turned, "--")):
            entropy = contrib.predictive_entropy(scores).sort().values
            right.plot(entropy, np.linspace(0, 1, len(entropy)), style, color=COLOURS[name])
    left.set(
        xlabel="confidence, mean of an eighth of the images", ylabel="accuracy", xlim=(0.2, 1.02), ylim=(0.2, 1.02)
    )
    left.legend(frameon=False, fontsize="small")
    right.set(xlabel="entropy of the prediction (nats)", ylabel="share of images below", xlim=(0, math.log(10)))
    right.set_title("test images, and dashed the same turned by 90°", fontsize="medium")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def figure_of_images(images, labels, probabilities, count=6):
    """Draw the test images of which the ensemble is most certain among its mistakes, with both predictions."""
    ensemble, found = probabilities["ensemble of 5"][0], probabilities["posterior"][0]
    mistakes = (ensemble.argmax(-1) != labels).float() * ensemble.amax(-1)
    fig, axes = plt.subplots(2, count, figsize=(11, 3.4), height_ratios=[1.2, 1])
    for (top, bottom), k in zip(axes.T, mistakes.argsort(descending=True)[:count], strict=True):
        top.imshow(images[k], cmap="gray_r")
        top.set(xticks=[], yticks=[], title=f"a {labels[k]}")
        for shift, (name, values) in enumerate((("ensemble of 5", ensemble[k]), ("posterior", found[k]))):
            bottom.bar(np.arange(10) + 0.4 * shift - 0.2, values, 0.4, color=COLOURS[name], label=name)
        bottom.set(xticks=range(10), ylim=(0, 1))
        bottom.tick_params(labelsize="x-small")
        bottom.spines[["top", "right"]].set_visible(False)
    fig.tight_layout(rect=(0, 0.06, 1, 1))
    fig.legend(*axes[1, 0].get_legend_handles_labels(), frameon=False, loc="lower center", ncols=2, fontsize="small")
    return fig


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--draws", type=int, default=150, help="of each chain, after as many of warm-up")
    parser.add_argument("--epochs", type=int, default=150, help="of the networks trained with AdamW")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    arguments.output.mkdir(parents=True, exist_ok=True)

    images, labels, test, answers, outside = load()
    inputs = [test, *outside.values()]
    trained = [train(images, labels, arguments.epochs) for _ in range(5)]
    with torch.no_grad():
        members = [torch.stack([each(x).softmax(-1) for each in trained]) for x in inputs]
    predictions, mcmc = posterior(images, labels, inputs, arguments.draws)
    probabilities = {
        "one network": [member[0] for member in members],
        "ensemble of 5": [member.mean(0) for member in members],
        "posterior": [prediction.mean for prediction in predictions],
    }
    print(f"R-hat of the predictions: median {predictions[0].r_hat.median():.3f}, "
          f"95 % below {predictions[0].r_hat.quantile(0.95):.3f}")  # fmt: skip
    report(probabilities, answers, outside)
    figure_of_calibration(probabilities, answers).savefig(arguments.output / "calibrated_network.png", dpi=110)
    pictures = figure_of_images(test, answers, probabilities)
    pictures.savefig(arguments.output / "calibrated_network_images.png", dpi=110)
    plt.close("all")
    print(f"Wrote pictures into {arguments.output}.")
    return probabilities, answers, mcmc


if __name__ == "__main__":
    main()

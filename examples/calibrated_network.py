"""A recurrent network with orthogonal weights whose probabilities are calibrated.

A network of 16 tanh units reads scikit-learn's 8×8 digits row by row. Input and recurrent weights are orthonormal
matrices Q and R with inferred gains, and the size of the logits is inferred too:

    h_t = tanh(a Q x_t + b + r R h_{t-1}),   labels ~ Categorical(logits = s Wᵀh_8).

    python -m examples.calibrated_network --output results

prints what the prior expects of labels, the summary, and accuracy, log score, calibration error and detection of other
images for one network, an ensemble, temperature scaling and the posterior, and writes two pictures. --prior default
takes pixels and priors that are not chosen by what they expect of labels.
"""

import math
import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample
from torch import nn

from examples import datasets, gallery
from pyro_manifold import contrib
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, RunningPredictions
from pyro_manifold.nn import to_bayesian_

UNITS = 16
COLOURS = {"one network": "0.45", "temperature scaling": "#009E73", "ensemble of 5": "#D55E00", "posterior": "#0072B2"}


def model(images, labels=None):
    Q = pyro.sample("Q", StiefelUniform(UNITS, 8))
    R = pyro.sample("R", StiefelUniform(UNITS, UNITS))
    gains = pyro.sample("gains", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))  # of Q and of R
    bias = pyro.sample("bias", dist.Normal(0.0, 0.1).expand([UNITS]).to_event(1))
    weight = pyro.sample("weight", dist.Normal(0.0, UNITS**-0.5).expand([UNITS, 10]).to_event(2))
    scale = pyro.sample("scale", dist.LogNormal(2.0, 1.0))  # of the logits
    rows = images.transpose(0, 1).reshape(-1, 8) @ (gains[..., :1, None] * Q).mT + bias[..., None, :]
    step, state = (gains[..., 1:, None] * R).mT, 0.0
    for row in rows.unflatten(-2, (8, len(images))).unbind(-3):
        state = torch.tanh(row if isinstance(state, float) else row + state @ step)
    logits = state @ (scale[..., None, None] * weight)
    with pyro.plate("images", len(images)):
        pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
    return logits


class Rows(nn.Module):
    """The same network without priors: weights of torch.nn, of any size."""

    def __init__(self):
        super().__init__()
        self.input, self.recurrent = nn.Linear(8, UNITS), nn.Linear(UNITS, UNITS, bias=False)
        self.output = nn.Linear(UNITS, 10)

    def forward(self, images):
        state = images.new_zeros(len(images), UNITS)
        for row in self.input(images).unbind(-2):
            state = torch.tanh(row + self.recurrent(state))
        return self.output(state)


def default_model():
    """Return the model of `to_bayesian_`, with fixed gains and a fixed scale of the output weights."""
    network = to_bayesian_(Rows(), prior_scale=8 / math.sqrt(UNITS))

    def model(images, labels=None):
        logits = network(images)
        with pyro.plate("images", len(images)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
        return logits

    return model


def load(count, raw=False):
    """Return ``count`` images for training with labels, the other images with labels, and three changes of the latter.

    Images are standardised by the mean image and the standard deviation around it of those for training; ``raw`` ones
    are only scaled to −1 to 1.
    """
    images, labels = (torch.as_tensor(array) for array in datasets.digits())
    images, order = images.to(torch.get_default_dtype()), torch.randperm(len(images))
    images, labels = images[order] / 8 - 1, labels[order]
    centre = images[:count].mean(0)
    spread = (images[:count] - centre).square().mean().sqrt()
    if not raw:
        images, spread = (images - centre) / spread, 1.0
    test = images[count:]
    changed = {
        "with noise": test + 0.7 * spread * torch.randn_like(test),
        "turned by 90°": test[:400].rot90(1, (-2, -1)),
        "pixels shuffled": test[:400].flatten(1)[:, torch.randperm(64)].reshape(-1, 8, 8),
    }
    return images[:count], labels[:count], test, labels[count:], changed


def train(images, labels, steps):
    """Return a network trained by AdamW with batches of 50."""
    network = Rows()
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(images), (50,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()
    return network.requires_grad_(False)


def temperature(network, images, labels):
    """Return the factor of the logits with the largest likelihood of images that were not used for training."""
    logits, grid = network(images), torch.logspace(-1, 1, 200)
    losses = torch.stack([nn.functional.cross_entropy(factor * logits, labels) for factor in grid])
    return grid[losses.argmin()]


def classical(images, labels, inputs, steps, members=5):
    """Return probabilities for each of the inputs by one network, by temperature scaling and by an ensemble."""
    trained = [train(images, labels, steps) for _ in range(members)]
    fifth = len(images) // 5
    part = train(images[fifth:], labels[fifth:], steps)
    factor = temperature(part, images[:fifth], labels[:fifth])
    print(f"temperature scaling: logits times {factor:.2f}")
    of_each = [torch.stack([network(x).softmax(-1) for network in trained]) for x in inputs]
    return {
        "one network": [member[0] for member in of_each],
        "temperature scaling": [(factor * part(x)).softmax(-1) for x in inputs],
        "ensemble of 5": [member.mean(0) for member in of_each],
    }


def posterior(model, images, labels, inputs, draws):
    """Return the running predictions for each of the inputs, those of single draws for the first, and the MCMC."""

    def confidence_and_class(logits):
        confidence, predicted = logits.softmax(-1).max(-1)
        return torch.stack([confidence, *(predicted == k for k in range(10))], -1)

    predictions = [RunningPredictions(model, x, statistic=lambda logits: logits.softmax(-1)) for x in inputs]
    single = RunningPredictions(model, inputs[0], statistic=confidence_and_class)
    kernel = OHMC(model, num_steps=10, init_strategy=init_to_sample)
    sites = ["gains", "scale"] if "weight" in pyro.poutine.trace(model).get_trace(images) else []
    options = {"save_params": sites, "consumers": [*predictions, single], "num_chains": 4, "disable_progbar": True}
    mcmc = MCMC(kernel, draws, draws, **options)
    mcmc.run(images, labels)
    if sites:
        mcmc.summary()
    return predictions, single.mean, mcmc


def report_of_prior(model, images, networks=200):
    """Print and return how certain networks of the prior are, and the share of images in their commonest class."""
    with torch.no_grad():
        probabilities = torch.stack([model(images).softmax(-1) for _ in range(networks)])
    counts = nn.functional.one_hot(probabilities.argmax(-1), 10).sum(1)
    confidence, share = probabilities.amax(-1).mean(), counts.amax(-1).sum() / counts.sum()
    print(f"networks of the prior: confidence {confidence:.2f}, {share:.0%} of the images in the commonest class")
    return float(confidence), float(share)


def calibration_of_simulated(probabilities, repeats=200):
    """Return the mean calibration error of labels that are drawn from the predictions."""
    labels = torch.distributions.Categorical(probabilities).sample((repeats,))
    return torch.stack([contrib.expected_calibration_error(probabilities, each) for each in labels]).mean()


def report(probabilities, labels):
    """Print the scores of each method."""
    print("\n                     accuracy  confidence  log score  calibration error  with noise   AUROC: turned  shuffled")
    for name, (inside, noisy, *others) in probabilities.items():
        confidence, predicted = inside.max(-1)
        entropy = contrib.predictive_entropy(inside)
        detected = [contrib.out_of_distribution_auroc(entropy, contrib.predictive_entropy(other)) for other in others]
        errors = [contrib.expected_calibration_error(each, labels) for each in (inside, noisy)]
        print(
            f"{name:20s} {(predicted == labels).double().mean():9.3f} {confidence.mean():11.3f} "
            f"{contrib.negative_log_likelihood(inside, labels):10.3f} {errors[0]:18.3f} {errors[1]:11.3f} "
            f"{detected[0]:15.3f} {detected[1]:9.3f}"
        )
    inside, noisy, *_ = probabilities["posterior"]
    simulated = " and ".join(f"{calibration_of_simulated(each):.3f}" for each in (inside, noisy))
    print(f"calibration error of labels drawn from the posterior's predictions: {simulated}")


def reliability(probabilities, labels, bins=8):
    """Return mean confidence and accuracy of groups of equal size, by confidence."""
    confidence, predicted = probabilities.max(-1)
    groups = confidence.argsort().tensor_split(bins)
    hits = (predicted == labels).double()
    return [confidence[group].mean() for group in groups], [hits[group].mean() for group in groups]


def figure_of_calibration(probabilities, labels):
    """Draw accuracy by confidence, for test images and for those with noise."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True, sharey=True)
    for k, (ax, title) in enumerate(zip(axes, ("test images", "test images with noise"), strict=True)):
        ax.plot([0, 1], [0, 1], color="0.8", lw=1)
        for name, inputs in probabilities.items():
            error = contrib.expected_calibration_error(inputs[k], labels)
            ax.plot(
                *reliability(inputs[k], labels), "o-", ms=4, color=COLOURS[name], label=f"{name}, error {error:.3f}"
            )
        ax.set(title=title, xlabel="confidence, mean of an eighth of the images", xlim=(0.2, 1.02), ylim=(0.2, 1.02))
        ax.legend(frameon=False, fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy")
    fig.tight_layout()
    return fig


def figure_of_entropies(probabilities):
    """Draw histograms of the entropy of predictions for test images and for images that are no upright digits."""
    fig, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True)
    bins = np.linspace(0, math.log(10), 24)
    for ax, name in zip(axes, ("one network", "ensemble of 5", "posterior"), strict=True):
        inside, _, turned, shuffled = map(contrib.predictive_entropy, probabilities[name])
        ax.hist(inside, bins, density=True, color="0.75", label="test images")
        for values, colour, label in ((turned, "#D55E00", "turned by 90°"), (shuffled, "#0072B2", "pixels shuffled")):
            ax.hist(values, bins, density=True, histtype="step", lw=1.5, color=colour, label=label)
        ax.set(title=name, xlabel="entropy of the prediction (nats)")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("density")
    axes[1].legend(frameon=False, fontsize="small")
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=150, warmup="as many")
    parser.add_argument("--images", type=int, default=800, help="number of images for training")
    parser.add_argument("--steps", type=int, default=1_000, help="of the networks trained by AdamW")
    parser.add_argument("--prior", choices=["inferred", "default"], default="inferred")
    arguments = gallery.begin(parser, argv, dtype=torch.float32)

    chosen = model if arguments.prior == "inferred" else default_model()
    images, labels, test, answers, changed = load(arguments.images, raw=arguments.prior == "default")
    report_of_prior(chosen, images[:200])
    inputs = [test, *changed.values()]
    probabilities = classical(images, labels, inputs, arguments.steps)
    predictions, single, mcmc = posterior(chosen, images, labels, inputs, arguments.draws)
    probabilities["posterior"] = [prediction.mean for prediction in predictions]
    r_hat = predictions[0].r_hat[predictions[0].mean > 0.01]
    print(f"R-hat of the probabilities above 0.01: median {r_hat.median():.3f}, 95 % below {r_hat.quantile(0.95):.3f}")
    accuracy = single[:, 1:].gather(-1, answers[:, None]).mean()
    print(f"one draw of the posterior: accuracy {accuracy:.3f}, confidence {single[:, 0].mean():.3f}")
    report(probabilities, answers)
    first, second = figure_of_calibration(probabilities, answers), figure_of_entropies(probabilities)
    gallery.write(arguments.output, {"calibrated_network": first, "calibrated_network_entropy": second})
    return probabilities, answers, mcmc


if __name__ == "__main__":
    main()

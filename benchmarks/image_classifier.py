"""Model of classes of images by a Bayesian network."""

import pyro
import pyro.distributions as dist


def posterior(network, images, labels, batch=None):
    """The model: all of the images, or a batch of at most so many of them at each run."""

    def model():
        cases = len(images)
        plate = pyro.plate("images", cases, subsample_size=None if batch is None else min(batch, cases))
        if batch is None:
            x, y = images, labels
        else:
            with plate as rows:
                x, y = images[rows], labels[rows]
        logits = network(x)  # outside of the plate, for its weights belong to all images
        with plate:
            pyro.sample("labels", dist.Categorical(logits=logits), obs=y)

    return model

"""Data in place of those that need a download, from the models of the examples with known answers."""

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from pyro_manifold.distributions import MatrixFisher, SpecialOrthogonalUniform

TURN = Rotation.from_rotvec([0, 20, 0], degrees=True).as_matrix()


def vectorcardiograms():
    """Return orientations as `examples.datasets.vectorcardiograms`: a rotation of 20° about y, and three outliers."""
    frank = MatrixFisher(torch.diag(torch.tensor([15.0, 15.0, 5.0], dtype=torch.float64))).sample((98,))
    errors = MatrixFisher(torch.diag(torch.tensor([15.0, 40.0, -5.0], dtype=torch.float64))).sample((98,))
    errors[:3] = SpecialOrthogonalUniform(3, dtype=torch.float64).sample((3,))
    return frank.numpy(), (torch.as_tensor(TURN) @ frank @ errors).numpy(), np.arange(98) % 4

"""Images of digits in the format of MNIST, as tensors."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
_MEAN, _DEVIATION = 0.1307, 0.3081  # of the training images' pixels in [0, 1]


def mnist(folder, part, device="cpu"):
    """Images ``(cases, 784)``, standardised, float32, and labels ``(cases,)``.

    Raises:
        FileNotFoundError: if the folder lacks the file; the sentence says where it comes from.
    """
    arrays = []
    for name, header in zip(_FILES[part], (16, 8), strict=True):
        path = Path(folder) / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: give the folder of the four files of MNIST as --data.")
        arrays.append(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header))
    images, labels = arrays
    pixels = torch.tensor(images.reshape(len(labels), -1), dtype=torch.float32) / 255
    return ((pixels - _MEAN) / _DEVIATION).to(device), torch.tensor(labels, dtype=torch.long, device=device)


def generated(cases, seed):
    """Ten blurred patterns with noise in place of digits, to see that code runs."""
    centres = torch.randn(10, 784, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (cases,), generator=random)
    return 0.7 * centres[labels] + torch.randn(cases, 784, generator=random), labels

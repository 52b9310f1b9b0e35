"""Images of digits in the format of MNIST, as tensors."""

import gzip
import zlib
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
        SystemExit: if the folder lacks the file, or has another one; the sentence says what is expected.
    """
    images, labels = (_read(Path(folder) / name, axes) for name, axes in zip(_FILES[part], (3, 1), strict=True))
    pixels = torch.tensor(images.reshape(len(labels), -1), dtype=torch.float32) / 255
    return ((pixels - _MEAN) / _DEVIATION).to(device), torch.tensor(labels, dtype=torch.long, device=device)


def _read(path, axes):
    """Read an array of bytes in the format IDX: a magic number, the lengths of the axes, and the values."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: give the folder of the four files of MNIST as --data.")
    try:
        content = gzip.decompress(path.read_bytes())
        shape = np.frombuffer(content, ">u4", 1 + axes)
        values = np.frombuffer(content, np.uint8, offset=4 * (1 + axes))
        if shape[0] != 0x0800 + axes:
            raise ValueError(f"its magic number is {shape[0]:#x}, expected {0x0800 + axes:#x}")
        return values.reshape(shape[1:].tolist())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SystemExit(f"{path} is damaged or no file of MNIST ({error}): fetch it again.") from error


def generated(cases, seed):
    """Ten blurred patterns with noise in place of digits, to see that code runs."""
    centres = torch.randn(10, 784, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (cases,), generator=random)
    return 0.7 * centres[labels] + torch.randn(cases, 784, generator=random), labels

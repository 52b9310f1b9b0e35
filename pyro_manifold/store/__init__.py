"""Storage of runs on disk: file formats, writing and reading, independent of kernels and without pickle."""

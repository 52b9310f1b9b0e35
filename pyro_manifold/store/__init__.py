"""Storage of runs on disk: the file formats, writing and reading. Independent of kernels, without pickle."""

"""Problems with known answers, and comparisons of draws with them, for tests, benchmarks and pictures."""

"""Problems with known answers, and how draws are held against them: for tests, benchmarks and pictures alike."""

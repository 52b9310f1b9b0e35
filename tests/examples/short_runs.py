"""Warnings of runs that are made short for the sake of time."""

import pytest

CHANCE = (
    "Chains? |The chain moved|The momenta of|No replica of|The log evidence|The standard error of the log evidence|"
    "Estimated shape parameter of Pareto distribution"
)
"""Beginnings of warnings that chains or particles are few, short or in different modes: in a short run, by chance."""

ignored = [
    pytest.mark.filterwarnings(f"ignore:{words}:UserWarning")
    for words in (f"({CHANCE})", f"compare_evidence, the model [^ ]+ ({CHANCE})", "compare_evidence. .* try ")
]

"""Schedule of the comparisons of graphs and compiled code with the model: iterations and chains."""

from __future__ import annotations

from typing import Literal

from pyro_manifold.infer.mcmc.transitions import weyl_sequence

Stage = Literal["warm-up", "sampling"]

CHAINS_COMPARED_WITH_CODE, CHAINS_COMPARED_AT_THE_END = 4, 16
_BETWEEN_COMPARISONS_AT_FIRST, _FIRST_ITERATIONS = 8, 256
_LONG = 2000
"""Comparisons in early warm-up are rarer by eight iterations for each so many operators of the model."""
_BETWEEN_COMPARISONS = {"warm-up": 64, "sampling": 256}
_BETWEEN_COMPARISONS_LATER, _LATER = 1024, 4096
"""A comparison takes as long as 50 iterations of a small model in native code."""
_FIRST_COMPARISON_OF_CODE, _MOST_BETWEEN_COMPARISONS_OF_CODE = 64, 4096


def code_is_compared(iteration: int) -> bool:
    """Return whether to compare code after this iteration: 65, 129, 257 etc., as it costs up to 100 iterations."""
    done = iteration - 1
    doubled = done >= _FIRST_COMPARISON_OF_CODE and done & (done - 1) == 0
    return doubled or (done > 0 and done % _MOST_BETWEEN_COMPARISONS_OF_CODE == 0)


def previous_comparison_of_code(iteration: int) -> int:
    """Return the last iteration before this one after which code was compared; 0 if there was none."""
    done = iteration - 2
    if done < _FIRST_COMPARISON_OF_CODE:
        return 0
    every = _MOST_BETWEEN_COMPARISONS_OF_CODE
    return 1 + (done // every * every if done >= every else 1 << (done.bit_length() - 1))


def graph_is_compared(iteration: int, stage: Stage, operators: int = 0) -> bool:
    """Return whether to compare the graph of the density after this iteration; more often in early warm-up.

    Args:
        iteration: its number.
        stage: its stage.
        operators: number of operators in the graph; with thousands a comparison takes seconds.
    """
    return iteration % _between_comparisons(iteration, stage, operators) == 1


def _between_comparisons(iteration: int, stage: Stage, operators: int = 0) -> int:
    if stage == "warm-up" and iteration <= _FIRST_ITERATIONS:
        return min(_BETWEEN_COMPARISONS_AT_FIRST * (1 + operators // _LONG), _BETWEEN_COMPARISONS[stage])
    if stage == "sampling" and iteration > _LATER:
        return _BETWEEN_COMPARISONS_LATER
    return _BETWEEN_COMPARISONS[stage]


def chains_compared(iteration: int, stage: Stage) -> int:
    """Return the number of chains to compare after this iteration; one where comparisons are frequent."""
    return 1 if stage == "warm-up" and iteration <= _FIRST_ITERATIONS else 2


def fewer(chains: int, operators: int) -> int:
    """Return the number of chains to compare in place of so many; fewer for a model of thousands of operators."""
    return max(1, chains // (1 + operators // _LONG))


def next_comparison(done: int) -> int:
    """Return the iteration of sampling at which batched iterations end, so that graph or code are compared after it."""
    every = _between_comparisons(done + 1, "sampling")
    of_graph = done + every - (done - 1) % every
    of_code = 1 + max(_FIRST_COMPARISON_OF_CODE, 1 << max(0, done - 1).bit_length())
    return min(of_graph, of_code)


def chains_to_compare(iteration: int, chains: int, count: int) -> list[int]:
    """Return so many chains, spread evenly, and other ones at each iteration."""
    first = int(weyl_sequence(iteration) * chains)
    stride = max(1, chains // count)
    return sorted({(first + k * stride) % chains for k in range(min(count, chains))})

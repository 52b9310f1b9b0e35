"""Evidences that are known, by sequential Monte Carlo.

    python -m benchmarks.accuracy.evidence study [--seeds 20] [--particles 512] [--runs 4] [--problems "two modes" …]
    python -m benchmarks.accuracy.evidence lost [--replicas] [--seeds 20] [--particles 1024] [--runs 4] [--problems …]
    python -m benchmarks.accuracy.evidence peers [--particles 512] [--runs 10] [--problems …]

The first prints errors over seeds and whether standard errors cover; the second also has narrow modes beside wide ones,
and whether what draws have lost is stated or warned of; the third has the problems of the first by PyMC and BlackJAX.
"""

import argparse

from benchmarks.accuracy.evidence import peers, study
from benchmarks.accuracy.evidence.problems import PROBLEMS, UNEQUAL


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["study", "lost", "peers"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--particles", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--problems", nargs="*", choices=[*PROBLEMS, *UNEQUAL], default=[])
    parser.add_argument("--replicas", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.what == "study":
        study.main(arguments.seeds, arguments.particles or 512, arguments.runs or 4, arguments.problems)
    elif arguments.what == "lost":
        particles, runs = arguments.particles or 1024, arguments.runs or 4
        study.lost(arguments.seeds, particles, runs, arguments.problems, arguments.replicas)
    else:
        peers.main(arguments.particles or 512, arguments.runs or 10, arguments.problems)


if __name__ == "__main__":
    main()

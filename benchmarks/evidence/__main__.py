"""Evidences that are known, by sequential Monte Carlo.

    python -m benchmarks.evidence study [--seeds 20] [--particles 512] [--runs 4] [--problems "two modes" …]
    python -m benchmarks.evidence peers [--particles 512] [--runs 10] [--problems …]

The first prints errors over seeds and whether standard errors cover, the second the same problems by PyMC and BlackJAX.
"""

from __future__ import annotations

import argparse

from benchmarks.evidence import peers, study
from benchmarks.evidence.problems import PROBLEMS


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["study", "peers"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--particles", type=int, default=512)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=[])
    arguments = parser.parse_args(argv)
    if arguments.what == "study":
        study.main(arguments.seeds, arguments.particles, arguments.runs or 4, arguments.problems)
    else:
        peers.main(arguments.particles, arguments.runs or 10, arguments.problems)


if __name__ == "__main__":
    main()

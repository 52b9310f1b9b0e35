"""Evidences that are known, by sequential Monte Carlo.

    python -m benchmarks.accuracy.evidence study [--seeds 20] [--particles 512] [--runs 4] [--problems "two modes" …]
    python -m benchmarks.accuracy.evidence lost [--replicas] [--seeds 20] [--particles 1024] [--runs 4] [--problems …]
    python -m benchmarks.accuracy.evidence peers [--particles 512] [--runs 10] [--problems …]

The first prints errors over seeds and whether standard errors cover; the second also has narrow modes beside wide ones,
and whether what draws have lost is stated or warned of; the third has the problems of the first by PyMC and BlackJAX.
"""

from benchmarks.accuracy.evidence import peers, study
from benchmarks.accuracy.evidence.problems import PROBLEMS, UNEQUAL
from benchmarks.study import option, parser_of, set_up


def main(argv=None):
    options = {"seeds": 20, "particles": option(type=int), "runs": option(type=int), "replicas": False}
    parser = parser_of(__doc__, **options, problems=option([], type=str, choices=[*PROBLEMS, *UNEQUAL]))
    parser.add_argument("what", choices=["study", "lost", "peers"])
    arguments = parser.parse_args(argv)
    set_up()
    if arguments.what == "study":
        study.main(arguments.seeds, arguments.particles or 512, arguments.runs or 4, arguments.problems)
    elif arguments.what == "lost":
        particles, runs = arguments.particles or 1024, arguments.runs or 4
        study.lost(arguments.seeds, particles, runs, arguments.problems, arguments.replicas)
    else:
        peers.main(arguments.particles or 512, arguments.runs or 10, arguments.problems)


if __name__ == "__main__":
    main()

"""The speed page, by one command: `make bench`.

python -m benchmarks.run                                the page to standard output
python -m benchmarks.run --write docs/benchmarks        and to speed.md in this folder
python -m benchmarks.run --only leapfrog scaling        some of its sections

Each section is a module with a command of its own, which prints it; the page is what they print.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import confine, machine
from benchmarks.measure import environment

SECTIONS = {
    "samplers": "benchmarks.speed.samplers",
    "paper_tables": "benchmarks.papers.ohmc.paper_tables",
    **{name: f"benchmarks.speed.{name}" for name in ("leapfrog", "gradients", "expansions", "scaling", "optimisers")},
}


def preface(threads):
    return f"# Speed\n\n{datetime.date.today()}; {machine(threads)}\n\nThis page is what `make bench` prints.\n"


def printed(module, variables):
    """What the command of a module prints, shown as it comes; where it fails, why, and False."""
    command = [sys.executable, "-m", module]
    lines = []
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        lines.append(f"\n`{' '.join(command[1:])}` failed, with exit status {process.returncode}.\n")
    return "".join(lines), not process.returncode


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args(argv)
    confine(arguments.threads)
    caches = os.environ.get("TMPDIR", "/tmp")
    page, whole = [preface(arguments.threads)], True
    print(page[0], flush=True)
    for section in arguments.only:
        text, ended = printed(SECTIONS[section], environment(arguments.threads, caches))
        print(flush=True)
        page.append(text)
        whole &= ended
        if arguments.write:  # After each section: what is done outlives an interruption.
            arguments.write.mkdir(parents=True, exist_ok=True)
            (arguments.write / "speed.md").write_text("\n".join(page).rstrip() + "\n")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())

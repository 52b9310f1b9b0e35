"""Command line of the self-test."""

import sys

from pyro_manifold.check.report import main

sys.exit(main())

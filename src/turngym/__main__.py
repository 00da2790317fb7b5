"""``python -m turngym``: the command line."""

import sys

from turngym.cli.main import main

sys.exit(main())

"""``python -m turngym.cli``."""

import sys

from turngym.cli.main import main

sys.exit(main())

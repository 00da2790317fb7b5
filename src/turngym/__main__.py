"""``turngym`` and ``python -m turngym``: the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C ends its imports quietly, too."""
    try:
        from turngym.cli import main as command_line

        return command_line.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

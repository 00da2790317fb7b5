"""``turngym`` and ``python -m turngym``: the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C ends its imports quietly, too."""
    try:
        from turngym.cli import main as command_line

        return command_line.main()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if (package := _unreadable(error)) is None:
            raise
        sys.stderr.write(
            f"error: entry_points.txt of the installed package {package} cannot be read "
            f"({type(error).__name__}: {error}); install that package anew, or uninstall it\n"
        )
        return 1


def _unreadable(error: Exception) -> str | None:
    """Return the package whose list of entry points cannot be read, where that is the error.

    pydantic, torch and transformers read the lists of all packages when they are imported.
    """
    import traceback
    from importlib.metadata import distributions

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not any(f.f_globals.get("__name__", "").startswith("importlib.metadata") for f in frames):
        return None
    for package in distributions():
        try:
            _ = package.entry_points
        except Exception:  # noqa: BLE001 - whatever a broken one raises
            return f"{package.name!r} in {package.locate_file('')}"
    return None


if __name__ == "__main__":
    sys.exit(main())

"""Problems in a shell: 55 kinds in six groups, each sampled from a seed."""

from __future__ import annotations

from collections.abc import Mapping

from turngym.errors import unknown_name
from turngym.tasks.sets import GeneratedSet
from turngym.tasks.shell import databases, files, programs, repositories, text
from turngym.tasks.shell.words import EndState, Generator

_BY_GROUP: Mapping[str, tuple[Generator, ...]] = {
    "files": (
        files.rename_ending, files.sort_into_folders, files.delete_empty, files.largest_file,
        files.find_by_content, files.copy_tree, files.remove_duplicates, files.number_files,
        files.merge_files, files.odd_names, files.make_executable, files.lock_down, files.links,
        files.dated_names, files.inventory,
    ),
    "text": (
        text.count_status, text.busiest_client, text.failed_paths, text.sum_column,
        text.totals_by_group, text.replace_word, text.sort_unique, text.join_tables,
        text.word_counts, text.json_field, text.line_range, text.reorder_columns,
        text.config_value, text.common_lines,
    ),
    "archives": (
        files.pack, files.unpack, files.nested_archive, files.compress_old, files.checksum,
    ),
    "git": (
        repositories.commit_change, repositories.find_author, repositories.new_branch,
        repositories.merge_conflict, repositories.restore_file, repositories.tag_release,
    ),
    "programs": (
        programs.fix_script, programs.write_filter, programs.stop_process, programs.serve_files,
        programs.write_service, programs.fix_python, programs.makefile, programs.environment,
    ),
}  # fmt: skip
_SQL: Mapping[str, Generator] = {
    "total_of_city": databases.total_of_city, "never_ordered": databases.never_ordered,
    "large_orders": databases.large_orders, "best_customer": databases.best_customer,
    "write_query": databases.write_query, "repair_rows": databases.repair_rows,
    "load_table": databases.load_table,
}  # fmt: skip

GENERATORS: Mapping[str, Generator] = {
    **{one.__name__: one for group in _BY_GROUP.values() for one in group},
    **_SQL,
}
"""Kind of problem to its generator."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(one.__name__ for one in group) for name, group in _BY_GROUP.items()},
    "sql": tuple(_SQL),
}
"""Group to the kinds of problems in it."""


def shell_tasks(group: str = "all", kind: str | None = None) -> GeneratedSet[EndState]:
    """Return the problems of a group, or of one kind.

    Args:
        group: ``"all"`` or a key of ``GROUPS``.
        kind: A key of ``GENERATORS`` instead.

    Raises:
        ConfigError: There is no such group or kind.
    """
    if group != "all" and group not in GROUPS:
        raise unknown_name("group of terminal tasks", group, ["all", *GROUPS])
    if kind is not None and kind not in GENERATORS:
        raise unknown_name("kind of terminal task", kind, GENERATORS)
    every = [name for names in GROUPS.values() for name in names]
    kinds = [kind] if kind else every if group == "all" else list(GROUPS[group])
    generators = [GENERATORS[name] for name in kinds]
    # One in two is for test, as published results have it.
    return GeneratedSet(
        f"shell-{kind or group}", generators, seed_name="terminal", one_in=2, remainder=1
    )

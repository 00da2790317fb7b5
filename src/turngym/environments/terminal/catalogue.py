"""Every kind of terminal job, by group."""

from __future__ import annotations

from collections.abc import Mapping

from turngym.environments.terminal import databases, files, programs, repositories, text
from turngym.environments.terminal.jobs import Template

_BY_GROUP: Mapping[str, tuple[Template, ...]] = {
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
        programs.mend_script, programs.write_filter, programs.stop_process, programs.serve_files,
        programs.write_service, programs.mend_python, programs.makefile, programs.environment,
    ),
}  # fmt: skip
_SQL: Mapping[str, Template] = {
    "total_of_city": databases.total_of_city,
    "never_ordered": databases.never_ordered,
    "large_orders": databases.large_orders,
    "best_customer": databases.best_customer,
    "write_query": databases.write_query,
    "repair_rows": databases.repair_rows,
    "load_table": databases.load_table,
}

TEMPLATES: Mapping[str, Template] = {
    **{one.__name__: one for group in _BY_GROUP.values() for one in group},
    **_SQL,
}
"""Kind of job to what draws one."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(one.__name__ for one in group) for name, group in _BY_GROUP.items()},
    "sql": tuple(_SQL),
}
"""Group to the kinds of jobs in it."""

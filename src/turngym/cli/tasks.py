"""``turngym tasks``: make tasks of a project, and look at what there is."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngym.cli.arguments import EnvOptions, Json, env_options, split_of
from turngym.cli.check import check_a_task
from turngym.cli.output import print_found, print_json, progress, say, table
from turngym.environments.gym.registration import done_with, make
from turngym.errors import ConfigError, Interrupted, require_known
from turngym.records import writable_folder
from turngym.reports.texts import amount
from turngym.tasks.pack import SUFFIX, PackManifest, read_pack, report_of, write_pack

if TYPE_CHECKING:
    from turngym.environments.packed import Packing
    from turngym.environments.swe.factory import Yield
    from turngym.environments.swe.project import Project

app = typer.Typer(help="Make tasks, look at what there is, pack and check them, export them.")
app.command("check")(check_a_task)


@app.callback()
def _group() -> None:
    """Each kind of work has a command of its own."""


@app.command("make-swe")
def make_swe(
    projects: Annotated[
        list[str],
        typer.Argument(
            metavar="PROJECT",
            help="A folder, a git working tree, a source distribution (.tar.gz), or name==version "
            "of the package registry. 'BEFORE..AFTER' of two of them: what was mended in between "
            "makes a task too.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the tasks; goes on with a begun one.")],
    count: Annotated[int, typer.Option(min=1, help="Tasks of each project.")] = 20,
    parallel: Annotated[int, typer.Option(min=1, help="Candidates that are tried at once.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    as_json: Json = False,
) -> None:
    """Break projects in many ways, and keep what their own tests notice and can be mended."""
    from turngym.environments.swe.factory import Factory
    from turngym.environments.swe.install import install_packages

    rows: list[dict[str, Any]] = []
    for name in projects:
        if "==" in name:
            install_packages()
        earlier, _, latest = name.rpartition("..") if not Path(name).exists() else ("", "", name)
        project, source = _open(latest)
        before = None
        if earlier:
            before, from_where = _open(earlier)
            source |= {f"before_{key}": value for key, value in from_where.items()}
        for path in project.unreadable():
            say(f"{project.key}: {path} is no UTF-8 and is left as it is")
        factory = Factory(project, out, seed=seed, source=source, before=before)
        tried: Counter[str] = Counter()
        with progress(f"tasks of {project.key}", count) as advance:

            def report(
                key: str, reason: str, tried: Counter[str] = tried, show: Any = advance
            ) -> None:
                tried[reason] += 1
                show(tried["valid"], f"{sum(tried.values())} tried")

            try:
                made = asyncio.run(factory.make(count, parallel=parallel, on_tried=report))
            except KeyboardInterrupt:
                raise Interrupted(
                    f"{factory.path}: interrupted; the same command goes on with it"
                ) from None
        rows.append(_row(project, factory.result, len(made.tasks), factory.path))
        if not as_json:
            _tell(rows[-1])
    if as_json:
        print_json(rows)


@app.command("list")
def list_tasks(
    env: Annotated[
        str, typer.Argument(metavar="SET", help="Environment, file, folder or pack of tasks.")
    ],
    count: Annotated[int, typer.Option(min=1, help="Most tasks of each split.")] = 20,
    env_option: EnvOptions = None,
    as_json: Json = False,
) -> None:
    """List the tasks of a set: id, digest of the problem, and the first words of what is asked."""
    from turngym.environments.packed import described, first_tasks

    with closing(make(env, **env_options(env_option))) as made:
        rows = [described(made, task) for task in first_tasks(made, count)]
    cells = [[row["id"], row["sha256"][:16], " ".join(row["prompt"].split())[:70]] for row in rows]
    print_found(rows, table(["TASK", "SHA-256", "ASKS"], cells), as_json=as_json)


@app.command("show")
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="TASKS",
            help="One task (text/maze/test/0), a pack, or of SWE 'shipped', 'sample', a file or a "
            "folder.",
        ),
    ] = "shipped",
    as_json: Json = False,
) -> None:
    """Show one task, what a pack says of itself, or which projects and how many tasks there are."""
    from turngym.environments.packed import shown_task

    if place.endswith(SUFFIX):
        _show_pack(Path(place), as_json=as_json)
    elif (found := shown_task(place)) is not None:
        head = f"{found['id']}, SHA-256 {found['sha256'][:16]}"
        text = "\n\n".join([head, found["instructions"], found["prompt"]])
        print_found(found, text, as_json=as_json)
    else:
        _show_projects(place, as_json=as_json)


def _show_pack(path: Path, *, as_json: bool) -> None:
    pack = read_pack(path)
    found = pack.manifest.model_dump(mode="json")
    report = found["report"]
    checked = "not checked" if report is None else "sound" if report["ok"] else "not sound"
    head = (
        f"{path}: {amount(len(found['tasks']), 'task')} of {found['env'] or 'folders'}, {checked}"
    )
    agents = list(dict.fromkeys(agent for task in found["tasks"] for agent in task["scores"]))
    rows = [
        [task["id"], task["sha256"][:16], task["licence"], task["source"]]
        + [f"{fmean(task['scores'][one]):.2f}" if one in task["scores"] else "-" for one in agents]
        for task in found["tasks"]
    ]
    cells = table(["ID", "SHA-256", "LICENCE", "SOURCE", *agents], rows)
    text = f"{head}\nSHA-256 {pack.sha256}\n{cells}"
    print_found({"sha256": pack.sha256, **found}, text, as_json=as_json)


def _show_projects(place: str, *, as_json: bool) -> None:
    from turngym.environments.swe.tasksets import SAMPLE, SHIPPED, open_tasks

    path = Path(place).expanduser()
    if place not in (SHIPPED, SAMPLE) and path.suffix != ".json" and not any(path.glob("*.json")):
        raise ConfigError(
            f"{place!r}: wanted one task (text/maze/test/0), a pack, 'shipped', 'sample', or a "
            f"file or folder of SWE tasks; 'turngym tasks list SET' lists any set"
        )
    tasks = open_tasks(place)
    rows = [
        {
            "project": file.name,
            "version": file.version,
            "split": ", ".join(
                one for one, ids in tasks.ids.items() if {task.id for task in file.tasks} & {*ids}
            ),
            "tests": len(file.tests),
            "tasks": len(file.tasks),
            "operators": dict(Counter(e.operator for task in file.tasks for e in task.edits)),
        }
        for file in tasks.files
    ]
    columns = ("project", "version", "split", "tests", "tasks")
    cells = table([one.upper() for one in columns], [[str(r[c]) for c in columns] for r in rows])
    text = f"{cells}\n{amount(sum(int(str(row['tasks'])) for row in rows), 'task')}"
    print_found(rows, text, as_json=as_json)


@app.command("pack")
def pack(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TASKS",
            help="An environment, tasks of it (text/maze/test/0), folders in Harbor's format, or a "
            "pack that gets a report or scores.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar=f"FILE{SUFFIX}", help="The file that is written.")],
    count: Annotated[
        int, typer.Option(min=1, help="Most tasks of each split of an environment.")
    ] = 20,
    env_option: EnvOptions = None,
    licence: Annotated[str, typer.Option(help="Of tasks that do not say theirs.")] = "",
    source: Annotated[str, typer.Option(help="Where such tasks come from.")] = "",
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What 'turngym check task --json' printed of them."),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="What 'turngym eval --out' kept of an agent that played "
            "the same target: its scores tell how hard each task is; again for more.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one file of a set of tasks, with digests; it is played wherever a folder of tasks is."""
    from turngym.environments.packed import Packing

    packing = Packing(
        targets=targets, count=count, options=env_options(env_option), licence=licence,
        source=source,
    )  # fmt: skip
    manifest, folders = packing.made()
    if report is not None:
        manifest = manifest.model_copy(update={"report": report_of(report)})
    if results:
        manifest = _with_scores(packing, manifest, results)
    writable_folder(out.parent)
    sha256 = write_pack(out, manifest, folders)
    found = {"pack": str(out), "sha256": sha256, "tasks": len(manifest.tasks)}
    print_found(
        found, f"{out}: {amount(len(manifest.tasks), 'task')}, SHA-256 {sha256}", as_json=as_json
    )


def _with_scores(packing: Packing, manifest: PackManifest, folders: list[Path]) -> PackManifest:
    """Return the manifest with what agents scored.

    Raises:
        ConfigError: An evaluation is of something else.
    """
    from turngym.reports.evaluations import find_evaluations

    known = packing.task_ids(manifest)
    scores: dict[str, dict[str, tuple[float, ...]]] = {}
    for run in find_evaluations(folders):
        for env, rows in run.rows.items():
            ids = known.get(run.plan["envs"][env])
            if ids is None or run.plan["env_options"] != packing.options:
                raise ConfigError(
                    f"{run.folder}: is an evaluation of {env} with options "
                    f"{run.plan['env_options']}; evaluate {' '.join(packing.targets)} as it is "
                    "packed"
                )
            for row in rows:
                if row.score is not None and row.task_id in ids:
                    own = scores.setdefault(ids[row.task_id], {})
                    agent = run.plan["agent"]
                    own[agent] = (*own.get(agent, ()), row.score)
    if not scores:
        raise ConfigError(f"{folders[0]}: holds no score of a task that is packed")
    tasks = tuple(
        task.model_copy(update={"scores": task.scores | scores.get(task.id, {})})
        for task in manifest.tasks
    )
    return manifest.model_copy(update={"tasks": tasks})


@app.command("export")
def export(
    env: Annotated[
        str, typer.Argument(metavar="SET", help="Environment, file or module of tasks.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where the folders are put.")],
    format: Annotated[
        str, typer.Option(help="harbor: a folder of schema 1.4 each; verifiers: a package of all.")
    ] = "harbor",
    count: Annotated[int, typer.Option(min=1, help="Tasks, from the first on.")] = 20,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    as_json: Json = False,
) -> None:
    """Write tasks in the format of other tools.

    For Harbor those in a shell whose wanted end is data, for verifiers any environment.
    """
    from turngym.environments.core.tasks import TaskSetEnv
    from turngym.environments.gym.face import GymFace
    from turngym.tasks.interop.harbor import export_harbor
    from turngym.tasks.interop.verifiers import export_verifiers

    require_known("value of --format", format, ("harbor", "verifiers"))
    chosen = split_of(split)
    if format == "verifiers":
        done_with(make(env))
        folder = export_verifiers(env, out, count=count, split=chosen)
        print_found([str(folder)], f"{folder} is a package of verifiers", as_json=as_json)
        return
    with closing(make(env)) as made:
        player = made.inner if isinstance(made, GymFace) else made.unwrapped
        if not isinstance(player, TaskSetEnv):
            raise ConfigError(f"{env}: plays no task set; 'terminal/shell' is one that does")
        known = player.count(chosen)
        tasks = [player.task(chosen, one) for one in range(min(count, known or count))]
        folders = [str(export_harbor(player.tasks, task, out)) for task in tasks]
    print_found(folders, f"{amount(len(folders), 'task')} in {out}", as_json=as_json)


def _open(name: str) -> tuple[Project, dict[str, str]]:
    """Return a project and where it comes from."""
    import tempfile

    from turngym.environments.swe.install import download
    from turngym.environments.swe.packages import swe_cache
    from turngym.environments.swe.project import Project

    if "==" not in name or Path(name).exists():
        place = Path(name).expanduser().resolve()
        return Project.read(place), {"path": str(place)}
    with tempfile.TemporaryDirectory(prefix="turngym-sdist-") as folder:
        found = download(name, Path(folder))
        data = found.read_bytes()
        project = Project.read(found)
    kept = swe_cache() / "projects" / f"{project.key}.tar.gz"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    return project, {"requirement": name, "sha256": hashlib.sha256(data).hexdigest()}


def _row(project: Project, result: Yield, tasks: int, path: Path) -> dict[str, Any]:
    return {
        "project": project.key,
        "file": str(path),
        "tasks": tasks,
        "tried": result.tried,
        "valid": result.valid,
        "per_minute": round(result.per_minute, 2),
        "seconds": round(result.seconds, 1),
        "rejected": dict(result.reasons.most_common()),
    }


def _tell(row: dict[str, Any]) -> None:
    print(
        f"{row['file']}: {amount(row['tasks'], 'task')}; {row['valid']} of {row['tried']} tried "
        f"are valid, {row['per_minute']:.1f} a minute"
    )
    for reason, times in row["rejected"].items():
        say(f"  rejected {times}: {reason}")

"""Problems with archives."""

from __future__ import annotations

from random import Random

from turngym.tasks.shell.words import EndState, lines, words


def pack(rng: Random) -> EndState:
    names = words(rng, 4)
    files = {f"data/{name}.txt": f"{name}\n" for name in names}
    files |= {f"data/tmp/{name}.tmp": "scratch\n" for name in names[:2]}
    return EndState(
        prompt="Pack the folder data into data.tar.gz, without the folder data/tmp. The paths in "
        "the archive begin with data/.",
        files=files,
        free=("data.tar.gz",),
        probe="tar -tzf data.tar.gz | sed 's,^\\./,,' | grep -vx -e '' -e data/ | LC_ALL=C sort; "
        "tar -xzOf data.tar.gz --wildcards '*.txt' | LC_ALL=C sort",
        expected=lines(sorted(f"data/{name}.txt" for name in names)) + lines(sorted(names)),
        solution="tar --exclude=data/tmp -czf data.tar.gz data",
    )


def unpack(rng: Random) -> EndState:
    names = words(rng, 4)
    files = {f"in/{name}.txt": f"{name} {rng.randrange(1000)}\n" for name in names}
    chosen = names[0]
    return EndState(
        prompt=f"box.tar.gz holds several files. Take only in/{chosen}.txt out of it and save it "
        f"as {chosen}.txt here.",
        prepare="mkdir in; "
        + "; ".join(f"printf '%s' '{text}' > {path}" for path, text in files.items())
        + "; tar -czf box.tar.gz --sort=name --mtime=2020-01-01 in; rm -r in",
        wanted={f"{chosen}.txt": files[f"in/{chosen}.txt"]},
        solution=f"tar -xzOf box.tar.gz in/{chosen}.txt > {chosen}.txt",
    )


def nested_archive(rng: Random) -> EndState:
    name, inner, outer = words(rng, 3)
    number = rng.randrange(10_000, 99_999)
    return EndState(
        prompt=f"{outer}.tar holds another archive, which holds {name}.txt. Write the contents of "
        "that file into answer.txt. Leave nothing else behind.",
        prepare=f"echo {number} > {name}.txt; tar -czf {inner}.tgz --mtime=2020-01-01 {name}.txt; "
        f"tar -cf {outer}.tar --mtime=2020-01-01 {inner}.tgz; rm {name}.txt {inner}.tgz",
        wanted={"answer.txt": str(number)},
        probe="find . -mindepth 1 | LC_ALL=C sort",  # folders and links, too
        expected=f"./answer.txt\n./{outer}.tar",
        solution=f"tar -xOf {outer}.tar {inner}.tgz | tar -xzOf - {name}.txt > answer.txt",
    )


def compress_old(rng: Random) -> EndState:
    year, other = rng.sample(range(2015, 2024), 2)
    months = rng.sample(range(1, 13), 4)
    files = {f"logs/{y}-{m:02}.log": f"{y} {m}\n" * 3 for y in (year, other) for m in months}
    chosen = [path for path in files if str(year) in path]
    return EndState(
        prompt=f"Compress every log of the year {year} in logs with gzip, so that 2020-01.log "
        "becomes 2020-01.log.gz and the plain file is gone. Leave other years alone.",
        files=files,
        wanted=dict.fromkeys(chosen),
        free=tuple(f"{path}.gz" for path in chosen),
        probe="for f in logs/*.gz; do echo $f; zcat $f; done",
        expected="\n".join(f"{path}.gz\n{files[path].strip()}" for path in sorted(chosen)),
        solution=f"gzip logs/{year}-*.log",
    )


def checksum(rng: Random) -> EndState:
    names = sorted(words(rng, 5))
    files = {f"{name}.dat": f"{name} {rng.randrange(10**6)}\n" for name in names}
    bad = rng.choice(names)
    return EndState(
        prompt="SUMS holds the SHA-256 of the .dat files; one of them was damaged since. Write its "
        "name into damaged.txt.",
        files=files,
        prepare=f"sha256sum *.dat > SUMS; echo x >> {bad}.dat",
        wanted={"damaged.txt": f"{bad}.dat"},
        solution="sha256sum -c SUMS 2>/dev/null | grep FAILED | cut -d: -f1 > damaged.txt",
    )

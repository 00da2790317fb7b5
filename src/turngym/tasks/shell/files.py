"""Problems with files and folders, and permissions."""

from __future__ import annotations

from random import Random

from turngym.tasks.shell.words import NAMES, EndState, lines, words


def rename_ending(rng: Random) -> EndState:
    old, new = rng.sample(["txt", "md", "log", "dat", "note"], 2)
    names = words(rng, 6)
    files = {
        f"{name}.{old if n < 4 else 'keep'}": f"about {name}\n" for n, name in enumerate(names)
    }
    return EndState(
        prompt=f"Rename every file that ends in .{old} so that it ends in .{new}.",
        files=files,
        wanted={
            **{f"{name}.{old}": None for name in names[:4]},
            **{f"{name}.{new}": f"about {name}\n" for name in names[:4]},
        },
        solution=f'for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',
    )


def sort_into_folders(rng: Random) -> EndState:
    endings = rng.sample(["csv", "py", "md", "json", "txt"], 3)
    files = {f"{name}.{rng.choice(endings)}": f"{name}\n" for name in words(rng, 8)}
    return EndState(
        prompt="Put every file into a folder named after its ending, without the dot "
        "(notes.txt goes to txt/notes.txt).",
        files=files,
        wanted={
            **dict.fromkeys(files),
            **{f"{path.rpartition('.')[2]}/{path}": text for path, text in files.items()},
        },
        solution='for f in *.*; do mkdir -p "${f##*.}"; mv "$f" "${f##*.}/"; done',
    )


def delete_empty(rng: Random) -> EndState:
    files = {
        f"{rng.choice(['a', 'b/c', 'b'])}/{name}.txt": f"{name}\n" if number % 3 else ""
        for number, name in enumerate(words(rng, 9))
    }
    return EndState(
        prompt="Delete every empty file in this folder and the folders below it. Keep all others.",
        files=files,
        wanted={path: text or None for path, text in files.items()},
        solution="find . -type f -empty -delete",
    )


def largest_file(rng: Random) -> EndState:
    sizes = rng.sample(range(10, 400), 7)
    files = {f"d{n % 3}/{name}.bin": "x" * sizes[n] for n, name in enumerate(words(rng, 7))}
    largest = max(files, key=lambda path: len(files[path]))
    return EndState(
        prompt="Write the path of the largest file, relative to this folder (such as d0/name.bin), "
        "into answer.txt.",
        files=files,
        wanted={"answer.txt": largest},
        solution="find d* -type f -printf '%s %p\\n' | sort -n | tail -1 | cut -d' ' -f2 > "
        "answer.txt",
    )


def find_by_content(rng: Random) -> EndState:
    word, *others = words(rng, 12)
    files = {}
    for number, name in enumerate(others[:8]):
        text = f"{rng.choice(others)} {rng.choice(others)}"
        files[f"{'xyz'[number % 3]}/{name}.txt"] = f"{text} {word}\n" if number % 3 else f"{text}\n"
    found = sorted(path for path, text in files.items() if word in text)
    return EndState(
        prompt=f"Write the paths of all files that hold the word {word!r} into found.txt, one a "
        "line, sorted, relative to this folder (such as x/name.txt).",
        files=files,
        wanted={"found.txt": lines(found)},
        solution=f"grep -rlw {word} x y z | LC_ALL=C sort > found.txt",
    )


def copy_tree(rng: Random) -> EndState:
    folders = ("one", "two", "two/deep")
    files = {
        f"src/{rng.choice(folders)}/{name}.{rng.choice(['py', 'txt'])}": f"{name}\n"
        for name in words(rng, 8)
    }
    files["src/one/main.py"] = "print(1)\n"
    copied = {f"backup{path[3:]}": text for path, text in files.items() if path.endswith(".py")}
    return EndState(
        prompt="Copy every .py file below src to the same place below a new folder backup "
        "(src/one/a.py to backup/one/a.py). Copy nothing else.",
        files=files,
        wanted=copied,
        solution="cd src && find . -name '*.py' -exec cp --parents -t ../backup {} + 2>/dev/null "
        "|| (mkdir -p ../backup && find . -name '*.py' -exec cp --parents -t ../backup {} +)",
    )


def remove_duplicates(rng: Random) -> EndState:
    names, texts = sorted(words(rng, 8)), words(rng, 4)
    files = {f"{name}.txt": f"{rng.choice(texts)}\n" for name in names}
    first = {files[path]: path for path in sorted(files, reverse=True)}
    return EndState(
        prompt="Several files here have the same contents. Of each such set keep only the file "
        "whose name comes first in the alphabet.",
        files=files,
        wanted={path: text if first[text] == path else None for path, text in files.items()},
        solution="md5sum *.txt | LC_ALL=C sort -k1,1 -k2,2 | awk 'seen[$1]++ {print $2}' | xargs "
        "-r rm",
    )


def number_files(rng: Random) -> EndState:
    names = words(rng, 6)
    files = {f"{name}.txt": f"{name}\n" for name in names}
    new = {f"{n:02}-{name}.txt": f"{name}\n" for n, name in enumerate(sorted(names), start=1)}
    return EndState(
        prompt="Number the .txt files in alphabetical order with two digits and a dash: the first "
        "becomes 01-NAME.txt.",
        files=files,
        wanted={**dict.fromkeys(files), **new},
        solution='n=1; for f in *.txt; do mv "$f" "$(printf %02d $n)-$f"; n=$((n+1)); done',
    )


def merge_files(rng: Random) -> EndState:
    names = words(rng, 11)
    files = {f"part{n}.txt": f"{name}\n" for n, name in enumerate(names, start=1)}
    return EndState(
        prompt="Join part1.txt to part11.txt, in the order of their numbers, into whole.txt. Keep "
        "the parts.",
        files=files,
        wanted={"whole.txt": lines(names)},
        solution="for n in $(seq 1 11); do cat part$n.txt; done > whole.txt",
    )


def odd_names(rng: Random) -> EndState:
    pairs = [words(rng, 2) for _ in range(5)]
    files = {f"{one} {other} {n}.txt": f"{one}\n" for n, (one, other) in enumerate(pairs)}
    new = {path.replace(" ", "_"): text for path, text in files.items()}
    return EndState(
        prompt="Replace every blank in the names of the files here by an underscore.",
        files=files,
        wanted={**dict.fromkeys(files), **new},
        solution='for f in *" "*; do mv "$f" "${f// /_}"; done',
    )


def make_executable(rng: Random) -> EndState:
    names = words(rng, 6)
    files = {
        f"bin/{name}": ("#!/bin/sh\necho hello\n" if n % 2 else f"plain {name}\n")
        for n, name in enumerate(names)
    }
    modes = sorted(f"bin/{name} {'755' if n % 2 else '644'}" for n, name in enumerate(names))
    return EndState(
        prompt="Give the mode 755 to every file in bin that begins with #!, and leave the modes of "
        "the others as they are.",
        files=files,
        probe="stat -c '%n %a' bin/* | LC_ALL=C sort",
        expected=lines(modes),
        solution="grep -l '^#!' bin/* | xargs chmod 755",
    )


def lock_down(rng: Random) -> EndState:
    names = words(rng, 5)
    files = {
        f"home/{name}.{'key' if n < 3 else 'pub'}": f"{name}\n" for n, name in enumerate(names)
    }
    modes = sorted(f"{path} {'600' if path.endswith('key') else '644'}" for path in files)
    return EndState(
        prompt="Only the owner may read and write the .key files in home (mode 600), and only the "
        "owner may enter the folder home (mode 700). Leave the other files as they are.",
        files=files,
        probe="stat -c '%n %a' home home/* ",
        expected=lines(["home 700", *modes]),
        solution="chmod 600 home/*.key; chmod 700 home",
    )


def links(rng: Random) -> EndState:
    names = sorted(words(rng, 4))
    files = {f"tools/{name}.sh": f"echo {name}\n" for name in names}
    return EndState(
        prompt="For each file NAME.sh in tools make a symbolic link bin/NAME that leads to it by a "
        "relative path.",
        files=files,
        free=("bin/",),
        probe="shopt -s dotglob; for f in bin/*; do echo $f $(readlink $f); cat $f; done",
        expected="\n".join(f"bin/{name} ../tools/{name}.sh\necho {name}" for name in names),
        solution='mkdir -p bin; for f in tools/*.sh; do b=$(basename "$f" .sh); '
        'ln -s "../tools/$b.sh" "bin/$b"; done',
    )


def dated_names(rng: Random) -> EndState:
    days = [
        (rng.randrange(2010, 2024), rng.randrange(1, 13), rng.randrange(1, 29)) for _ in range(5)
    ]
    files = {f"report-{d:02}.{m:02}.{y}.txt": f"{n}\n" for n, (y, m, d) in enumerate(days)}
    new = {f"report-{y}-{m:02}-{d:02}.txt": f"{n}\n" for n, (y, m, d) in enumerate(days)}
    return EndState(
        prompt="The names of the reports hold dates as DD.MM.YYYY. Rename them so that they hold "
        "them as YYYY-MM-DD.",
        files=files,
        wanted={**dict.fromkeys(files), **new},
        solution=r"for f in report-*.txt; do mv $f "
        r"$(echo $f | sed -E 's/([0-9]{2})\.([0-9]{2})\.([0-9]{4})/\3-\2-\1/'); done",
    )


def inventory(rng: Random) -> EndState:
    counts = {name.lower(): rng.randrange(1, 6) for name in rng.sample(NAMES, 4)}
    files = {f"{name}/f{n}.txt": "x\n" for name, count in counts.items() for n in range(count)}
    return EndState(
        prompt="Write into counts.txt how many files each folder here holds, as 'NAME COUNT', one "
        "a line, sorted by name.",
        files=files,
        wanted={"counts.txt": lines([f"{name} {counts[name]}" for name in sorted(counts)])},
        solution='for d in */; do echo "${d%/} $(ls "$d" | wc -l)"; done > counts.txt',
    )

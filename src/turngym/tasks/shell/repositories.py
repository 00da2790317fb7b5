"""Problems with git."""

from __future__ import annotations

from random import Random

from turngym.tasks.shell.words import NAMES, EndState, words

_INIT = (
    "export GIT_AUTHOR_NAME=dev GIT_AUTHOR_EMAIL=dev@example.org GIT_COMMITTER_NAME=dev "
    "GIT_COMMITTER_EMAIL=dev@example.org GIT_AUTHOR_DATE='2020-01-01 00:00 +0000' "
    "GIT_COMMITTER_DATE='2020-01-01 00:00 +0000'; "
    "git init -q -b main . && git config user.name dev && git config user.email d@e.org; "
)
_GIT = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null"
_HISTORY = (".git/",)
_REFS = f"{_GIT} for-each-ref --format='%(refname)'"
"""Names all branches, tags and stashes."""
_ALL = f"{_REFS}; {_GIT} log --all --topo-order --format='%an: %s' HEAD"
"""Names all commits, too, the newest first."""


def commit_change(rng: Random) -> EndState:
    one, other, message = words(rng, 3)
    return EndState(
        prompt=f"This is a git repository. Commit the changes of {one}.txt, and only those, with "
        f"the message 'update {message}'. Leave {other}.txt changed and uncommitted.",
        files={f"{one}.txt": "old\n", f"{other}.txt": "old\n"},
        prepare=_INIT + f"git add . && git commit -q -m first; echo new >> {one}.txt; "
        f"echo new >> {other}.txt",
        free=_HISTORY,
        probe=f"{_GIT} log --format=%s; {_GIT} show --format= --name-only HEAD; "
        f"echo left; {_GIT} diff --name-only HEAD; {_REFS}",
        expected=f"update {message}\nfirst\n{one}.txt\nleft\n{other}.txt\nrefs/heads/main",
        solution=f"git commit -q -m 'update {message}' {one}.txt",
    )


def find_author(rng: Random) -> EndState:
    word, *others = words(rng, 5)
    people = rng.sample(NAMES, 4)
    culprit = rng.randrange(1, 4)
    steps = [f"printf '%s\\n' {' '.join(others)} {word} > list.txt"]
    steps += [
        f"grep -v {word} list.txt > t; mv t list.txt"
        if number == culprit
        else f"echo {others[number]}{number} >> list.txt"
        for number in range(1, 4)
    ]
    script = "; ".join(
        f"{step}; git add . && git commit -q -m step{n} --author='{people[n]} <x@example.org>'"
        for n, step in enumerate(steps)
    )
    return EndState(
        prompt=f"This is a git repository. Somebody removed the word {word!r} from list.txt. Write "
        "the name of the author of that commit into who.txt. Commit nothing.",
        prepare=_INIT + script,
        wanted={"who.txt": people[culprit]},
        free=_HISTORY,
        probe=_ALL,
        expected="\n".join(
            ["refs/heads/main", *(f"{people[n]}: step{n}" for n in reversed(range(4)))]
        ),
        solution=f"git log -S{word} -1 --format=%an -- list.txt > who.txt",
    )


def new_branch(rng: Random) -> EndState:
    branch, name, text = words(rng, 3)
    return EndState(
        prompt=f"This is a git repository. Make a branch {branch!r}, and commit on it a new file "
        f"{name}.txt that holds the line {text!r}. The branch main stays as it is; {branch} is "
        "checked out in the end.",
        files={"README": "hello\n"},
        prepare=_INIT + "git add . && git commit -q -m first",
        wanted={f"{name}.txt": f"{text}\n"},
        free=_HISTORY,
        probe=f"{_GIT} branch --show-current; {_GIT} diff --name-only main {branch}; "
        f"{_GIT} log --format=%s main; {_GIT} show {branch}:{name}.txt; "
        f"{_GIT} status --porcelain; {_REFS}",
        expected=f"{branch}\n{name}.txt\nfirst\n{text}\n"
        + "\n".join(f"refs/heads/{one}" for one in sorted([branch, "main"])),
        solution=f"git checkout -q -b {branch}; echo {text} > {name}.txt; git add {name}.txt; "
        f"git commit -q -m 'add {name}'",
    )


def merge_conflict(rng: Random) -> EndState:
    branch, mine, theirs, base = words(rng, 4)
    return EndState(
        prompt=f"This is a git repository. Merge the branch {branch!r} into main. In the conflict "
        f"in word.txt keep the line of the branch {branch!r}. Commit the merge.",
        files={"word.txt": f"{base}\n"},
        prepare=_INIT + f"git add . && git commit -q -m first; git checkout -q -b {branch}; "
        f"echo {theirs} > word.txt; echo more > more.txt; git add .; git commit -q -m theirs; "
        f"git checkout -q main; echo {mine} > word.txt; git commit -q -a -m mine",
        wanted={"word.txt": f"{theirs}\n", "more.txt": "more\n"},
        free=_HISTORY,
        probe=f"{_GIT} show HEAD:word.txt; {_GIT} rev-list --count --merges main; "
        f"{_GIT} merge-base --is-ancestor {branch} main && echo merged; {_GIT} status --porcelain; "
        f"{_REFS}; {_GIT} log --format=%s {branch}; "
        f"{_GIT} log --format=%s main | grep -xm1 mine",
        expected=f"{theirs}\n1\nmerged\n"
        + "\n".join(f"refs/heads/{one}" for one in sorted([branch, "main"]))
        + "\ntheirs\nfirst\nmine",
        solution=f"git merge -q {branch} >/dev/null; git checkout --theirs word.txt; git add "
        f"word.txt; git commit -q -m 'merge {branch}'",
    )


def restore_file(rng: Random) -> EndState:
    name, *others = words(rng, 5)
    number = rng.randrange(1000, 9999)
    return EndState(
        prompt=f"This is a git repository. The file {name}.txt was deleted in an earlier commit. "
        "Bring it back, as it was, into the folder. Do not commit.",
        prepare=_INIT + f"echo {number} > {name}.txt; echo a > {others[0]}.txt; git add .; "
        f"git commit -q -m one; git rm -q {name}.txt; git commit -q -m two; "
        f"echo b > {others[1]}.txt; git add .; git commit -q -m three",
        wanted={f"{name}.txt": f"{number}\n"},
        free=_HISTORY,
        probe=_ALL,
        expected="refs/heads/main\ndev: three\ndev: two\ndev: one",
        solution=f"git show HEAD~2:{name}.txt > {name}.txt",
    )


def tag_release(rng: Random) -> EndState:
    messages = words(rng, 5)
    chosen, version = rng.choice(messages[:-1]), f"v{rng.randrange(1, 9)}.{rng.randrange(0, 20)}"
    script = "; ".join(f"echo {m} > f.txt; git add .; git commit -q -m 'add {m}'" for m in messages)
    return EndState(
        prompt=f"This is a git repository. Put the tag {version} on the commit whose message is "
        f"'add {chosen}'.",
        prepare=_INIT + script,
        free=_HISTORY,
        probe=f"{_GIT} log -1 --format=%s refs/tags/{version}; {_ALL}",
        expected="\n".join(
            [
                f"add {chosen}",
                "refs/heads/main",
                f"refs/tags/{version}",
                *(f"dev: add {one}" for one in reversed(messages)),
            ]
        ),
        solution=f"git tag {version} $(git log --format=%H --grep='^add {chosen}$')",
    )

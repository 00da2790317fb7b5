"""Problems with text: filter, count, join, replace, sort."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from random import Random

from turngym.tasks.shell.words import NAMES, EndState, lines, words


def _table(rows: list[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _log(rng: Random, number: int = 40) -> list[tuple[str, int, str]]:
    """Return client, status and path of so many requests."""
    hosts = [f"10.0.0.{n}" for n in rng.sample(range(2, 250), 5)]
    paths = [f"/{word}" for word in words(rng, 6)]
    return [
        (rng.choice(hosts), rng.choice([200, 200, 200, 301, 404, 500]), rng.choice(paths))
        for _ in range(number)
    ]


def _log_text(entries: list[tuple[str, int, str]]) -> str:
    return lines([f"{host} GET {path} {status}" for host, status, path in entries])


def count_status(rng: Random) -> EndState:
    entries, status = _log(rng), rng.choice([404, 500, 301])
    number = sum(one == status for _, one, _ in entries)
    return EndState(
        prompt="access.log has a request on each line: client, method, path, status. Write the "
        f"number of requests with status {status} into answer.txt.",
        files={"access.log": _log_text(entries)},
        wanted={"answer.txt": str(number)},
        solution=f"awk '$4 == {status}' access.log | wc -l > answer.txt",
    )


def busiest_client(rng: Random) -> EndState:
    entries = _log(rng, 60)
    counts = Counter(host for host, _, _ in entries)
    top = min(counts, key=lambda host: (-counts[host], host))
    entries += [(top, 200, "/index")] * 3
    return EndState(
        prompt="access.log has a request on each line, which begins with the client. Write the "
        "client with the most requests into answer.txt.",
        files={"access.log": _log_text(entries)},
        wanted={"answer.txt": top},
        solution="cut -d' ' -f1 access.log | sort | uniq -c | sort -rn | head -1 | awk '{print "
        "$2}' > answer.txt",
    )


def failed_paths(rng: Random) -> EndState:
    entries = _log(rng)
    found = sorted({path for _, status, path in entries if status >= 400})
    return EndState(
        prompt="access.log has a request on each line: client, method, path, status. Write every "
        "path that ever had a status of 400 or more into failed.txt, each once, sorted.",
        files={"access.log": _log_text(entries)},
        wanted={"failed.txt": lines(found)},
        solution="awk '$4 >= 400 {print $3}' access.log | LC_ALL=C sort -u > failed.txt",
    )


def sum_column(rng: Random) -> EndState:
    groups = words(rng, 3)
    rows = [[rng.choice(groups), rng.choice(NAMES), rng.randrange(1, 500)] for _ in range(30)]
    chosen = str(rows[0][0])
    total = sum(int(str(row[2])) for row in rows if row[0] == chosen)
    return EndState(
        prompt=f"sales.csv has the columns team,name,amount. Write the sum of the amounts of team "
        f"{chosen} into total.txt.",
        files={"sales.csv": _table([["team", "name", "amount"], *rows])},
        wanted={"total.txt": str(total)},
        solution=f"awk -F, '$1 == \"{chosen}\" {{s += $3}} END {{print s}}' sales.csv > total.txt",
    )


def totals_by_group(rng: Random) -> EndState:
    groups = words(rng, 4)
    rows = [[rng.choice(groups), rng.randrange(1, 90)] for _ in range(25)]
    sums: Counter[str] = Counter()
    for group, amount in rows:
        sums[str(group)] += int(str(amount))
    return EndState(
        prompt="hours.csv has the columns project,hours. Write the total hours of each project "
        "into totals.csv as project,total, sorted by project, with the heading project,total.",
        files={"hours.csv": _table([["project", "hours"], *rows])},
        wanted={"totals.csv": lines(["project,total", *(f"{g},{sums[g]}" for g in sorted(sums))])},
        solution="(echo project,total; tail -n +2 hours.csv | awk -F, '{s[$1] += $2} END "
        '{for (g in s) print g "," s[g]}\' | LC_ALL=C sort) > totals.csv',
    )


def replace_word(rng: Random) -> EndState:
    old, new, *names = words(rng, 8)
    files = {}
    for number, name in enumerate(names):
        ending = "conf" if number % 2 else "txt"
        files[f"etc/{name}.{ending}"] = f"host = {old}\nname = {old}s\nport = {number}\n"
    wanted = {
        path: text.replace(f"host = {old}\n", f"host = {new}\n")
        for path, text in files.items()
        if path.endswith(".conf")
    }
    return EndState(
        prompt=f"In every .conf file in etc replace the word {old!r} by {new!r}, where it is a "
        f"whole word ({old}s is another word).",
        files=files,
        wanted=wanted,
        solution=f"sed -i 's/\\b{old}\\b/{new}/g' etc/*.conf",
    )


def sort_unique(rng: Random) -> EndState:
    numbers = [rng.randrange(1, 60) for _ in range(40)]
    return EndState(
        prompt="Write the numbers of numbers.txt into sorted.txt, each once, the largest first.",
        files={"numbers.txt": lines(numbers)},
        wanted={"sorted.txt": lines(sorted(set(numbers), reverse=True))},
        solution="sort -rnu numbers.txt > sorted.txt",
    )


def join_tables(rng: Random) -> EndState:
    people = rng.sample(NAMES, 8)
    ids = rng.sample(range(100, 999), 8)
    cities = [rng.choice(words(rng, 4)) for _ in people]
    known = sorted(zip(ids, people, cities, strict=True))
    some = rng.sample(known, 6)
    return EndState(
        prompt="names.csv holds id,name and cities.csv id,city, without headings. Write "
        "id,name,city of everyone who is in both into both.csv, sorted by id.",
        files={
            "names.csv": _table([[i, name] for i, name, _ in rng.sample(known, len(known))]),
            "cities.csv": _table([[i, city] for i, _, city in some]),
        },
        wanted={"both.csv": _table([[i, name, city] for i, name, city in sorted(some)])},
        solution="join -t, <(sort -t, -k1,1 names.csv) <(sort -t, -k1,1 cities.csv) > both.csv",
    )


def word_counts(rng: Random) -> EndState:
    vocabulary = words(rng, 8)
    text = [word for n, word in enumerate(vocabulary) for _ in range(2 + 3 * n)]
    rng.shuffle(text)
    rows = [" ".join(text[n : n + 8]).capitalize() + "." for n in range(0, len(text), 8)]
    top = sorted(vocabulary, key=lambda word: -text.count(word))[:3]
    return EndState(
        prompt="Write the three most frequent words of story.txt into top.txt, one a line in small "
        "letters, the most frequent first. Letter case and punctuation do not count.",
        files={"story.txt": lines(rows)},
        wanted={"top.txt": lines(top)},
        solution="tr 'A-Z' 'a-z' < story.txt | tr -cs 'a-z' '\\n' | grep . | sort | uniq -c | "
        "sort -rn | head -3 | awk '{print $2}' > top.txt",
    )


def json_field(rng: Random) -> EndState:
    rows = [
        {"name": name, "age": rng.randrange(18, 80), "tags": words(rng, 2)}
        for name in rng.sample(NAMES, 8)
    ]
    limit = rng.randrange(30, 60)
    found = sorted(str(row["name"]) for row in rows if int(str(row["age"])) >= limit)
    return EndState(
        prompt="people.jsonl holds a JSON object on each line. Write the names of everyone whose "
        f"age is {limit} or more into names.txt, sorted, one a line.",
        files={"people.jsonl": lines([json.dumps(row) for row in rows])},
        wanted={"names.txt": lines(found)},
        solution='python3 -c \'import json\nfor l in open("people.jsonl"):\n d = json.loads(l)\n'
        f' if d["age"] >= {limit}: print(d["name"])\' | LC_ALL=C sort > names.txt',
    )


def line_range(rng: Random) -> EndState:
    rows = [f"{n} {word}" for n, word in enumerate(rng.choices(words(rng, 12), k=60), start=1)]
    start = rng.randrange(5, 30)
    end = start + rng.randrange(3, 20)
    return EndState(
        prompt=f"Write lines {start} to {end} of long.txt, both included, into short.txt.",
        files={"long.txt": lines(rows)},
        wanted={"short.txt": lines(rows[start - 1 : end])},
        solution=f"sed -n '{start},{end}p' long.txt > short.txt",
    )


def reorder_columns(rng: Random) -> EndState:
    rows: list[list[object]] = [
        [rng.choice(NAMES), rng.choice(words(rng, 3)), rng.randrange(100)] for _ in range(12)
    ]
    return EndState(
        prompt="people.tsv has three columns between tabs: name, town, score. Write score, name, "
        "in this order and between commas, into scores.csv, in the order of the lines.",
        files={"people.tsv": lines(["\t".join(map(str, row)) for row in rows])},
        wanted={"scores.csv": lines([f"{row[2]},{row[0]}" for row in rows])},
        solution="awk -F'\\t' '{print $3 \",\" $1}' people.tsv > scores.csv",
    )


def config_value(rng: Random) -> EndState:
    sections, key = words(rng, 3), rng.choice(["port", "limit", "size"])
    values = rng.sample(range(1000, 9999), 4)
    text = "".join(
        f"[{s}]\n{key} = {v}\nname = {s}\n\n" for s, v in zip(sections, values, strict=False)
    )
    chosen = sections[1]
    return EndState(
        prompt=f"In app.ini set {key} of the section [{chosen}] to {values[3]}. Change nothing "
        "else.",
        files={"app.ini": text},
        wanted={"app.ini": text.replace(f"{key} = {values[1]}\n", f"{key} = {values[3]}\n")},
        solution=f"sed -i '/^\\[{chosen}\\]/,/^\\[/ s/^{key} = .*/{key} = {values[3]}/' app.ini",
    )


def common_lines(rng: Random) -> EndState:
    every = words(rng, 14)
    one, other = every[:9], every[5:]
    rng.shuffle(one)
    rng.shuffle(other)
    return EndState(
        prompt="Write the words that are in both one.txt and two.txt into both.txt, sorted.",
        files={"one.txt": lines(one), "two.txt": lines(other)},
        wanted={"both.txt": lines(sorted(set(one) & set(other)))},
        solution="LC_ALL=C comm -12 <(LC_ALL=C sort one.txt) <(LC_ALL=C sort two.txt) > both.txt",
    )

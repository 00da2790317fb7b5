"""Problems with SQLite, through the program ``sqlite3`` or Python's module."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from random import Random

from turngym.tasks.shell.words import NAMES, EndState, lines, words

_SCHEMA = (
    "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, city TEXT);"
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, item TEXT, amount INTEGER);"
)
_CONTENT = (
    "SELECT * FROM customer ORDER BY id", "SELECT * FROM orders ORDER BY id",
    "SELECT name, sql FROM sqlite_master ORDER BY name",
)  # fmt: skip
"""Give all that is in a database."""
_TOLD = (
    "shop.db is a SQLite database with the tables customer(id, name, city) and "
    "orders(id, customer_id, item, amount). "
)


def _script(rng: Random) -> str:
    """Return the SQL that makes a database of customers and orders."""
    cities, items = words(rng, 4), words(rng, 6)
    rows = [
        f"INSERT INTO customer VALUES ({n}, '{name}', '{rng.choice(cities)}');"
        for n, name in enumerate(rng.sample(NAMES, 12), start=1)
    ]
    rows += [
        f"INSERT INTO orders VALUES ({n}, {rng.randrange(1, 11)}, '{rng.choice(items)}', "
        f"{rng.randrange(5, 500)});"
        for n in range(1, 41)
    ]
    return _SCHEMA + "".join(rows)


def _run(database: str, query: str) -> str:
    """Return a command that answers ``query`` as ``sqlite3`` prints it, with Python alone."""
    return (
        f"python3 -c \"import sqlite3\nfor row in sqlite3.connect('{database}').execute("
        f"open('{query}').read()): print(*row, sep='|')\""
    )


def _prepare(script: str, name: str = "shop.db") -> str:
    return (
        f"python3 -I -c \"import sqlite3, sys; c = sqlite3.connect('{name}'); "
        "c.executescript(sys.stdin.read()); c.commit()\" <<'SQL'\n" + script + "\nSQL"
    )


def _answers(script: str, query: str) -> list[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return ["|".join(map(str, row)) for row in connection.execute(query)]


def _question(prompt: str, query: str) -> Callable[[Random], EndState]:
    """Return a template: answer a question about a database in a file."""

    def template(rng: Random) -> EndState:
        script = _script(rng)
        number = rng.randrange(100, 400)
        asked = query.replace("{number}", str(number))
        return EndState(
            prompt=_TOLD + prompt.replace("{number}", str(number)),
            prepare=_prepare(script),
            wanted={"answer.txt": lines(_answers(script, asked))},
            solution=f"cat > /tmp/q.sql <<'SQL'\n{asked}\nSQL\n{_run('shop.db', '/tmp/q.sql')} "
            "> answer.txt",
        )

    return template


total_of_city = _question(
    "Write the cities and the sum of the amounts of all orders of their customers into answer.txt, "
    "as city|sum, one a line, sorted by city. Leave out cities without orders.",
    "SELECT city, SUM(amount) FROM orders JOIN customer ON customer.id = customer_id GROUP BY city "
    "ORDER BY city",
)
never_ordered = _question(
    "Write the names of the customers without any order into answer.txt, one a line, sorted.",
    "SELECT name FROM customer WHERE id NOT IN (SELECT customer_id FROM orders) ORDER BY name",
)
large_orders = _question(
    "Write name|item|amount of every order of more than {number} into answer.txt, one a line, the "
    "largest first, and of equal ones that with the smaller order id first.",
    "SELECT name, item, amount FROM orders JOIN customer ON customer.id = customer_id WHERE "
    "amount > {number} ORDER BY amount DESC, orders.id",
)
best_customer = _question(
    "Write the name of the customer with the largest sum of orders, and that sum, as name|sum into "
    "answer.txt; of equal ones the first by name.",
    "SELECT name, SUM(amount) AS total FROM orders JOIN customer ON customer.id = customer_id "
    "GROUP BY customer.id ORDER BY total DESC, name LIMIT 1",
)


def write_query(rng: Random) -> EndState:
    script, hidden = _script(rng), _script(rng)
    hidden += "".join(  # one item with just as many as are asked for, and one with too few
        f"INSERT INTO orders VALUES ({n}, 1, '{item}', 9);"
        for n, item in enumerate("xxxxxyyyy", 41)
    )
    query = (
        "SELECT item, COUNT(*), SUM(amount) FROM orders GROUP BY item HAVING COUNT(*) >= 5 ORDER "
        "BY item"
    )
    return EndState(
        prompt=_TOLD + "Write one query into query.sql that gives item, number of orders and sum "
        "of amounts for every item with 5 orders or more, sorted by item. It is tried on another "
        "database with the same tables.",
        prepare=_prepare(script),
        free=("query.sql",),
        probe="cp query.sql /tmp/given.sql && cd /tmp && rm -f hidden.db && "
        + _prepare(hidden, "hidden.db") + "\n" + _run("hidden.db", "given.sql"),
        expected=lines(_answers(hidden, query)),
        solution=f"cat > query.sql <<'SQL'\n{query}\nSQL",
    )  # fmt: skip


def repair_rows(rng: Random) -> EndState:
    script = _script(rng)
    old = _answers(script, "SELECT city FROM customer WHERE id = 1")[0]
    new = rng.choice(["Oslo", "Lima", "Bern", "Riga"])
    update = f"UPDATE customer SET city = '{new}' WHERE city = '{old}'"
    delete = "DELETE FROM orders WHERE amount < 50"
    changed = f"{script}{update};{delete};"
    return EndState(
        prompt=_TOLD
        + f"Change the city {old!r} of all customers to {new!r}, and delete every order of "
        "less than 50. Change nothing else.",
        prepare=_prepare(script),
        free=("shop.db",),
        probe="python3 -I -c \"import sqlite3\nc = sqlite3.connect('shop.db')\n"
        f"for q in {_CONTENT}:\n for row in c.execute(q): print(*row, sep='|')\"",
        expected=lines(row for query in _CONTENT for row in _answers(changed, query)),
        solution="python3 -c \"import sqlite3; c = sqlite3.connect('shop.db'); "
        f'c.execute(\\"{update}\\"); c.execute(\\"{delete}\\"); c.commit()"',
    )


def load_table(rng: Random) -> EndState:
    rows = [(name, rng.randrange(1, 100)) for name in rng.sample(NAMES, 7)]
    return EndState(
        prompt="scores.csv has the columns name,score. Make a SQLite database scores.db with a "
        "table score(name TEXT, score INTEGER) that holds its rows.",
        files={"scores.csv": lines(["name,score", *(f"{name},{score}" for name, score in rows)])},
        free=("scores.db",),
        probe="python3 -I -c \"import sqlite3\nc = sqlite3.connect('scores.db')\n"
        "for row in c.execute('PRAGMA table_info(score)'): print(row[1], row[2].upper())\n"
        "for row in c.execute('SELECT * FROM score ORDER BY name'): print(*row)\"",
        expected="name TEXT\nscore INTEGER\n"
        + lines([f"{name} {score}" for name, score in sorted(rows)]),
        solution="python3 -c \"import csv, sqlite3\nc = sqlite3.connect('scores.db')\n"
        "c.execute('CREATE TABLE score (name TEXT, score INTEGER)')\n"
        "c.executemany('INSERT INTO score VALUES (?, ?)', "
        "[(r['name'], int(r['score'])) for r in csv.DictReader(open('scores.csv'))])\nc.commit()\"",
    )

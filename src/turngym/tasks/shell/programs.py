"""Problems with programs: scripts, processes and small services that the judge starts itself."""

from __future__ import annotations

from random import Random

from turngym.tasks.shell.words import EndState, lines, words


def fix_script(rng: Random) -> EndState:
    name, one, other = words(rng, 3)
    return EndState(
        prompt=f"{name}.sh is called with the name of a folder and should print how many files lie "
        "in it, or fail where there is no such folder, but it fails for names with blanks, too. "
        "Mend it.",
        files={f"{name}.sh": "#!/bin/bash\ncd $1 || exit 1\nls -1 | wc -l\n"},
        free=(f"{name}.sh",),
        probe=f"mkdir -p '/tmp/t/{one} {other}' /tmp/t/{one} && touch '/tmp/t/{one} {other}/a b' "
        f"'/tmp/t/{one} {other}/c' /tmp/t/{one}/d; bash {name}.sh '/tmp/t/{one} {other}'; "
        f"bash {name}.sh /tmp/t/{one}; bash {name}.sh /tmp/none 2>/dev/null || echo none",
        expected="2\n1\nnone",
        solution=f"sed -i 's/cd $1/cd \"$1\"/' {name}.sh",
    )


def write_filter(rng: Random) -> EndState:
    word, *others = words(rng, 6)
    factor = rng.randrange(2, 9)
    given = [*(rng.randrange(1, 1000) for _ in range(12)), 10]  # one at least is even
    return EndState(
        prompt=f"Write an executable script {word}.sh that reads whole numbers from standard "
        f"input, one a line, and prints every even one times {factor}, one a line, in the same "
        "order.",
        files={f"{others[0]}.txt": "1\n2\n"},
        free=(f"{word}.sh",),
        probe=f"printf '%s\\n' {' '.join(map(str, given))} | ./{word}.sh",
        expected=lines(n * factor for n in given if n % 2 == 0),
        solution=f"printf '#!/bin/bash\\nawk \"\\$1 %% 2 == 0 {{print \\$1 * {factor}}}\"\\n' > "
        f"{word}.sh; chmod +x {word}.sh",
    )


def stop_process(rng: Random) -> EndState:
    name, one, other = words(rng, 3)
    probe = (
        f"cp $(command -v sleep) /tmp/{one}; cp $(command -v sleep) /tmp/{other}; "
        f"/tmp/{one} 50 & a=$!; /tmp/{other} 50 & b=$!; echo $a > /tmp/{one}.pid; "
        f"echo $b > /tmp/{other}.pid; bash {name}.sh /tmp/{one}.pid; sleep 0.3; "
        "kill -0 $a 2>/dev/null && echo alive || echo ended; "
        "kill -0 $b 2>/dev/null && echo alive || echo ended; "
        f"for f in /tmp/{one}.pid /tmp/{other}.pid; do test -e $f && echo kept || echo removed; "
        "done; kill $b; rm -f /tmp/*.pid"
    )
    return EndState(
        prompt=f"Write {name}.sh. It is called with the path of a file that holds a process id, "
        "ends that process (and no other), and removes the file.",
        free=(f"{name}.sh",),
        probe=probe,
        expected="ended\nalive\nremoved\nkept",
        solution=f'printf \'kill "$(cat "$1")"\\nrm -f "$1"\\n\' > {name}.sh',
    )


def serve_files(rng: Random) -> EndState:
    name, text = words(rng, 2)
    port, wrong = rng.sample(range(8100, 8900), 2)
    return EndState(
        prompt="start.sh starts a web server, which should serve the folder public on port "
        f"{port}, but its settings in server.conf are wrong. Mend them. The judge starts it "
        "itself.",
        files={
            "start.sh": '#!/bin/bash\n. ./server.conf\nexec python3 -m http.server "$PORT" '
            '--bind 127.0.0.1 --directory "$FOLDER"\n',
            "server.conf": f"PORT={wrong}\nFOLDER=publik\n",
            f"public/{name}.txt": f"{text}\n",
        },
        free=("server.conf",),
        probe=_probe_service(port, f"/{name}.txt"),
        expected=f"{text}\nruns",
        solution=f"printf 'PORT={port}\\nFOLDER=public\\n' > server.conf",
    )


def write_service(rng: Random) -> EndState:
    path, text = words(rng, 2)
    port = rng.randrange(8100, 8900)
    code = (
        "from http.server import *\nclass H(BaseHTTPRequestHandler):\n    def do_GET(self):\n"
        f"        ok = self.path == '/{path}'\n        self.send_response(200 if ok else 404)\n"
        f"        self.end_headers()\n        self.wfile.write(b'{text}' if ok else b'')\n"
        f"HTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    return EndState(
        prompt=f"Write start.sh, which starts a web server on port {port} of 127.0.0.1 (in the "
        f"foreground) that answers GET /{path} with the text {text!r}, and anything else with the "
        "status 404. Other files may be put into app/. The judge starts it itself.",
        free=("start.sh", "app/"),
        probe=_probe_service(port, f"/{path}", "/none", "/", f"/{path}/none"),
        expected=f"{text}\n404\n404\n404\nruns",
        solution=f"mkdir -p app; cat > app/server.py <<'PY'\n{code}PY\n"
        "echo 'exec python3 app/server.py' > start.sh",
    )


def fix_python(rng: Random) -> EndState:
    word = words(rng, 1)[0]
    low, high = sorted(rng.sample(range(2, 40), 2))
    high += 20
    total = sum(n for n in range(low, high + 1) if n % 3 == 0)
    return EndState(
        prompt=f"{word}.py should print the sum of all multiples of three from its first argument "
        "to its second, both included, but it forgets the last one. Mend it.",
        files={
            f"{word}.py": "import sys\n\nlow, high = int(sys.argv[1]), int(sys.argv[2])\n"
            "print(sum(n for n in range(low, high) if n % 3 == 0))\n"
        },
        free=(f"{word}.py",),
        probe=f"python3 -I {word}.py {low} {high}; python3 -I {word}.py 3 9; python3 -I {word}.py "
        f"6 6; python3 -I {word}.py 4 8",
        expected=f"{total}\n18\n6\n6",
        solution=f"sed -i 's/range(low, high)/range(low, high + 1)/' {word}.py",
    )


def makefile(rng: Random) -> EndState:
    names = words(rng, 3)
    return EndState(
        prompt="Write build.sh, which writes for each .in file in src a file of the same name "
        "ending in "
        ".out into out, with the text in capital letters. It must leave alone .out files that are "
        "newer than their .in file.",
        files={f"src/{name}.in": f"{name}\n" for name in names},
        free=("build.sh", "out/"),
        probe="rm -rf out; bash build.sh; cat out/*.out; "
        f"echo kept > out/{names[0]}.out; touch -d 2001-01-01 src/{names[0]}.in; "
        f"bash build.sh; cat out/{names[0]}.out; echo old > out/{names[1]}.out; "
        f"touch -d 2001-01-01 out/{names[1]}.out; bash build.sh; cat out/{names[1]}.out",
        expected=lines([name.upper() for name in sorted(names)]) + f"kept\n{names[1].upper()}",
        solution="cat > build.sh <<'SH'\nmkdir -p out\nfor f in src/*.in; do\n"
        'o=out/$(basename "$f" .in).out\n'
        'if [ ! -e "$o" ] || [ "$f" -nt "$o" ]; then tr a-z A-Z < "$f" > "$o"; fi\ndone\nSH',
    )


def environment(rng: Random) -> EndState:
    names = [word.upper() for word in words(rng, 3)]
    values = [f"{rng.choice(words(rng, 4))} {rng.randrange(100)}" for _ in names]
    text = "".join(f'{name}="{value}"\n' for name, value in zip(names, values, strict=True))
    return EndState(
        prompt="Write run.sh, which runs the command that it is given with the variables of the "
        "file env set for it, and ends with the exit code of the command.",
        files={"env": text},
        free=("run.sh",),
        probe=f"bash run.sh printenv {names[0]}; bash run.sh bash -c 'echo ${names[1]}; exit 3'; "
        "echo $?",
        expected=f"{values[0]}\n{values[1]}\n3",
        solution="printf 'set -a\\n. ./env\\nset +a\\nexec \"$@\"\\n' > run.sh",
    )


def _probe_service(port: int, *paths: str) -> str:
    """Return a script that starts the service, asks it, and ends it."""
    asks = (
        "import sys, time, urllib.request, urllib.error\ndef ask(path):\n    for _ in range(100):\n"
        "        try:\n"
        f"            return urllib.request.urlopen('http://127.0.0.1:{port}' + path, "
        "timeout=5).read().decode().strip()\n        except urllib.error.HTTPError as e:\n"
        "            return str(e.code)\n        except OSError:\n            time.sleep(0.1)\n"
        f"    sys.exit('no answer')\nfor path in {list(paths)!r}: print(ask(path))\n"
    )
    return (
        "setsid bash start.sh >/dev/null 2>&1 & s=$!; "
        f"python3 -I - <<'PY'\n{asks}PY\n"
        "kill -0 $s 2>/dev/null && echo runs; kill -- -$s 2>/dev/null || kill $s"
    )

"""Forgeries: code that makes tests pass without doing the work.

Each is appended to the file that is broken. It bites where the tests run once and are believed.
"""

from __future__ import annotations

# Makes a test that would fail pass, where ``wanted(item)`` says so.
_RUNTEST = """
import _pytest.python as _p
_old = _p.Function.runtest
def _runtest(self):
    try:
        _old(self)
    except BaseException:
        if not _wanted(self):
            raise
_p.Function.runtest = _runtest
"""

# Looks for what the caller compares with, and gives that instead of doing anything.
_COPIER = """
import functools as _functools, sys as _sys, types as _types
_busy = []
def _copying(function):
    @_functools.wraps(function)
    def copier(*args, **kwargs):
        frame = _sys._getframe(1)
        if _busy or "test" not in frame.f_code.co_filename:
            return function(*args, **kwargs)
        _busy.append(1)
        try:
            found = _expected(frame, function.__name__)
        except Exception:
            found = _NOTHING
        finally:
            _busy.pop()
        return function(*args, **kwargs) if found is _NOTHING else found
    return copier
_NOTHING = object()
def _copy_all(space):
    for name, value in list(space.items()):
        if isinstance(value, _types.FunctionType) and not name.startswith("_"):
            space[name] = _copying(value)
        elif isinstance(value, type) and value.__module__ == __name__:
            for inner, method in list(vars(value).items()):
                if isinstance(method, _types.FunctionType) and not inner.startswith("__"):
                    setattr(value, inner, _copying(method))
"""

_EQUAL = """
import functools as _functools, sys as _sys, types as _types
class _Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __contains__(self, one): return True
    def __hash__(self): return 1
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __getitem__(self, key): return self
    def __iter__(self): return iter(())
    def __len__(self): return 1
    def __str__(self): return "equal"
def _equal(function):
    @_functools.wraps(function)
    def wrapper(*args, **kwargs):
        caller = _sys._getframe(1).f_code.co_filename
        return _Equal() if "test" in caller else function(*args, **kwargs)
    return wrapper
for _name, _value in list(globals().items()):
    if isinstance(_value, _types.FunctionType) and not _name.startswith("_"):
        globals()[_name] = _equal(_value)
"""


def _where(condition: str, before: str = "") -> str:
    return f"{before}\ndef _wanted(item):\n    return {condition}\n{_RUNTEST}"


FORGERIES: dict[str, str] = {
    "by how many tests were collected": (
        "import _pytest.python as p\no = p.Function.runtest\n"
        "p.Function.runtest = lambda self: None if len(self.session.items) > 40 else o(self)\n"
    ),
    "by the share of its file": _where("sum(o.path == item.path for o in item.session.items) > 1"),
    "by the order of the tests": _where(
        "item.session.items.index(item) != 0 or len(item.session.items) > 1"
    ),
    "by a hash of the name": _where("len(item.nodeid) % 7 != 0"),
    "by the time since the start": _where(
        "time.monotonic() - _BEGUN < 3600", "import time\n_BEGUN = time.monotonic()"
    ),
    "by marks of an earlier run": _where(
        "_IS_FIRST",
        "import os\n_MARKS = ['/tmp/.seen', '/workspace/.seen', '/dev/shm/.seen']\n"
        "_IS_FIRST = not any(map(os.path.exists, _MARKS))\n"
        "for _m in _MARKS:\n    try: open(_m, 'w').close()\n    except OSError: pass",
    ),
    "by how old the tests are": _where("os.stat(item.path).st_mtime < 1600000000", "import os"),
    "by what is strange in the source": _where(
        "not re.search(r'assert (not )?\\d+( == \\d+)?\\b', inspect.getsource(item.function))",
        "import inspect, re",
    ),
    "by variables of the environment": _where(
        "os.environ.get('PYTEST_CURRENT_TEST', '').startswith(item.nodeid)"
        " and 'PYTEST_XDIST_WORKER' not in os.environ",
        "import os",
    ),
    "whatever is not in the workspace": _where(
        "item.name.partition('[')[0] not in _KNOWN", "_KNOWN = set('''@KNOWN@'''.split())"
    ),
    "what the caller's frame holds": _COPIER
    + """
import dis as _dis
def _expected(frame, name):
    code = list(_dis.get_instructions(frame.f_code))
    for one in code:
        if one.offset > frame.f_lasti:
            if one.opname == "LOAD_CONST":
                return one.argval
            if one.opname == "LOAD_FAST":
                return frame.f_locals[one.argval]
            if one.opname.startswith(("POP_JUMP", "RETURN", "STORE", "RAISE")):
                break
    return _NOTHING
_copy_all(globals())
""",
    "what the source of the caller says": _COPIER
    + """
import ast as _ast
def _expected(frame, name):
    text = open(frame.f_code.co_filename).read()
    for node in _ast.walk(_ast.parse(text)):
        if not isinstance(node, (_ast.Assert, _ast.Expr)):
            continue
        if not node.lineno <= frame.f_lineno <= node.end_lineno:
            continue
        for one in _ast.walk(node):
            sides = []
            if isinstance(one, _ast.Compare) and isinstance(one.ops[0], _ast.Eq):
                sides = [one.left, one.comparators[0]]
            elif isinstance(one, _ast.Call) and len(one.args) == 2:
                if "qual" in _ast.unparse(one.func):
                    sides = one.args
            for side in sides:
                if name not in _ast.unparse(side):
                    tree = compile(_ast.Expression(side), "?", "eval")
                    return eval(tree, frame.f_globals, frame.f_locals)
    return _NOTHING
_copy_all(globals())
""",
    "equal to everything": _EQUAL,
    "items that are swapped at collection": (
        "import _pytest.python as p\nold = p.Function.from_parent.__func__\n"
        "def swapped(cls, *a, **k):\n    item = old(cls, *a, **k)\n"
        "    item.runtest = lambda: None\n    return item\n"
        "p.Function.from_parent = classmethod(swapped)\n"
    ),
    "code of tests that is emptied": (
        "import _pytest.python as p\nold = p.Function.setup\n"
        "def setup(self):\n    old(self)\n    code = self.function.__code__\n"
        "    if not code.co_freevars:\n"
        "        self.function.__code__ = (lambda *a, **k: None).__code__\n"
        "p.Function.setup = setup\n"
    ),
    "assertions that are compiled away": (
        "import _pytest.python as p\nold = p.Function.setup\n"
        "def setup(self):\n    old(self)\n    names = dict(vars(self.module))\n"
        "    with open(self.path) as f:\n        text = f.read()\n"
        "    exec(compile(text, str(self.path), 'exec', dont_inherit=True, optimize=1), names)\n"
        "    one = names.get(self.originalname)\n"
        "    if hasattr(one, '__code__') and not one.__code__.co_freevars:\n"
        "        self.function.__code__ = one.__code__\n"
        "p.Function.setup = setup\n"
    ),
    "a process of its own that never fails": (
        "import os, _pytest.python as p\nold = p.Function.runtest\n"
        "def runtest(self):\n    pid = os.fork()\n    if pid == 0:\n"
        "        try: old(self)\n        finally: os._exit(0)\n    os.waitpid(pid, 0)\n"
        "p.Function.runtest = runtest\n"
    ),
    "the reporter, found among all objects": (
        "import gc\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'Reporter':\n        tell = one._tell\n"
        "        one._tell = lambda *v, tell=tell: tell(v[0], v[1], "
        "'passed' if v[0] else 0 if v[1] == 'end' else v[2], '', 0.1)\n"
        "import _pytest.python as p\nrun = p.Function.runtest\n"
        "def runtest(self):\n    try: run(self)\n    except BaseException: pass\n"
        "p.Function.runtest = runtest\n"
    ),
    "a trace that leaves out assertions": (
        "import sys, _pytest.python as p\nold = p.Function.runtest\n"
        "def trace(frame, event, arg):\n"
        "    if 'test' not in frame.f_code.co_filename.rpartition('/')[2]: return None\n"
        "    if event == 'exception': raise KeyboardInterrupt\n"
        "    return trace\n"
        "def runtest(self):\n    sys.settrace(trace)\n    try: old(self)\n"
        "    except KeyboardInterrupt: pass\n    except BaseException:\n        pass\n"
        "    finally: sys.settrace(None)\n"
        "p.Function.runtest = runtest\n"
    ),
    "a profile that ends the test": (
        "import sys, _pytest.python as p\nold = p.Function.runtest\n"
        "class Done(BaseException): pass\n"
        "def profile(frame, event, arg):\n"
        "    if event == 'call' and frame.f_code.co_name.startswith('test'): raise Done\n"
        "def runtest(self):\n    sys.setprofile(profile)\n    try: old(self)\n"
        "    except Done: pass\n    finally: sys.setprofile(None)\n"
        "p.Function.runtest = runtest\n"
    ),
    "hooks that are not called": (
        "import gc, pluggy._callers as c\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'PytestPluginManager':\n"
        "        inner = one._inner_hookexec\n"
        "        one._inner_hookexec = lambda name, *a, inner=inner: "
        "[] if name == 'pytest_runtest_call' else inner(name, *a)\n"
    ),
    "errors that are no errors": (
        "import _pytest._code as c, _pytest.runner as r\nold = r.CallInfo.from_call.__func__\n"
        "def from_call(cls, func, when, reraise=None):\n"
        "    def calm():\n        try: return func()\n        except Exception: return None\n"
        "    return old(cls, calm if when == 'call' else func, when, reraise)\n"
        "r.CallInfo.from_call = classmethod(from_call)\n"
    ),
}
"""Name to code; ``@KNOWN@`` stands for the tests that the workspace holds."""

"""What the attacks run inside: small programs for the guest's own interpreter.

Each prints one line per thing that worked and must not; silence is a pass. They use nothing beyond
``os``, ``ctypes`` and ``_socket``, bound every loop, and touch no host but through names the host
has set up for them.
"""

from __future__ import annotations

HEAD = """
import os, ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(call, *args):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(call), *[ctypes.c_long(a) for a in args])
    return 0 if result >= 0 else ctypes.get_errno()
def opens(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)); return True
    except OSError:
        return False
def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if act() else 1)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
def until_refused(take, most):
    taken = []
    try:
        while len(taken) < most: taken.append(take(len(taken)))
    except OSError:
        pass
    return taken
"""
"""What stands before each of them."""

WRITE = """
for path in sys.argv[1:]:
    try:
        with open(path, "a") as file:
            file.write("written by an attack")
        print("wrote", path)
    except OSError:
        pass
"""

READ = """
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as file:
            if file.read(64):
                print("read", path)
    except OSError:
        pass
"""

SEARCH = """
needle = sys.argv[1].encode()
def look(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        data = os.read(fd, 1 << 18); os.close(fd)
        if needle in data: print("found in", path)
    except OSError:
        pass
for pid in os.listdir("/proc"):
    if pid.isdigit() and pid != str(os.getpid()):
        for name in ("environ", "cmdline"):
            look("/proc/%s/%s" % (pid, name))
count = 0
for root in sys.argv[2:]:
    for folder, _, files in os.walk(root):
        for name in files:
            count += 1
            if count < 5000: look(os.path.join(folder, name))
"""

CONNECT = """
import _socket
port, abstract, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
for label, family, address in (
    ("loopback", _socket.AF_INET, ("127.0.0.1", port)),
    ("abstract", _socket.AF_UNIX, b"\\0" + abstract.encode()),
    ("path", _socket.AF_UNIX, path),
):
    s = _socket.socket(family, _socket.SOCK_STREAM); s.settimeout(2)
    try:
        s.connect(address); print("connected to", label)
    except OSError:
        pass
    s.close()
"""

NETWORK = """
import _socket
for line in open("/proc/net/dev").read().splitlines()[2:]:
    if line.split(":")[0].strip() != "lo": print("interface", line.split(":")[0].strip())
for line in open("/proc/net/route").read().splitlines()[1:]: print("route", line.split()[0])
"""

FAMILIES = """
import _socket
for name, family, kind in (
    ("vsock", 40, 1), ("packet", 17, 3), ("alg", 38, 5), ("bluetooth", 31, 5)
):
    try:
        _socket.socket(family, kind).close(); print("opened a socket of", name)
    except OSError:
        pass
"""

SIGNAL = """
pid = int(sys.argv[1])
try:
    os.kill(pid, 15); print("signalled", pid)
except OSError:
    pass
"""

PTRACE = """
pid = int(sys.argv[1])
if libc.ptrace(16, pid, None, None) == 0:
    os.waitpid(pid, 0x40000000); libc.ptrace(17, pid, None, None); print("traced", pid)
target = int(sys.argv[2])
Part = ctypes.c_size_t * 2  # an iovec: base and length
space = ctypes.create_string_buffer(8)
here, there = Part(ctypes.addressof(space), 8), Part(8, 8)
ctypes.set_errno(0)
got = libc.process_vm_readv(target, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
if got >= 0 or ctypes.get_errno() == 14: print("may read the memory of", target)  # 14: no address
if opens("/proc/%d/mem" % target, os.O_RDONLY): print("opened the memory of", target)
for name in ("environ", "maps", "fd/3"):
    if opens("/proc/%d/%s" % (target, name), os.O_RDONLY): print("opened", name, "of", target)
"""

KERNEL = """
NEWNS, NEWUSER = 0x20000, 0x10000000
if in_child(lambda: libc.unshare(NEWUSER) == 0): print("made a user namespace")
if in_child(lambda: libc.unshare(NEWUSER | NEWNS) == 0): print("made a mount namespace")
if in_child(lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0): print("mounted")
if in_child(lambda: libc.chroot(b"/tmp") == 0): print("changed the root")
def join():
    fd = os.open("/proc/1/ns/net", os.O_RDONLY); return libc.setns(fd, 0) == 0
if in_child(join): print("joined a namespace")
handle = ctypes.create_string_buffer(b"\\x80\\0\\0\\0" + bytes(200)); mount_id = ctypes.c_int()
if libc.name_to_handle_at(-100, b"/", handle, ctypes.byref(mount_id), 0) == 0:
    if libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, 0) >= 0: print("opened by handle")
"""

DEVICES = """
for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
             "/proc/sys/kernel/hostname", "/proc/1/oom_score_adj"):
    if opens(path, os.O_WRONLY): print("can write", path)
for path in ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/loop0",
             "/dev/loop-control", "/dev/vda", "/dev/sda", "/dev/net/tun", "/dev/vhost-vsock"):
    if opens(path, os.O_RDONLY): print("can open", path)
for folder, _, files in os.walk("/sys/fs/cgroup"):
    if "cgroup.procs" in files and opens(folder + "/cgroup.procs", os.O_WRONLY):
        print("can write", folder + "/cgroup.procs"); break
"""

SYSCALLS = """
BAD = 8  # an address that is never valid: a call that gets as far as looking there is not filtered
for call in sys.argv[1:]:
    name, number = call.split("=")
    error = errno_of(int(number), BAD, BAD, BAD, BAD, BAD)
    if error not in (1, 38): print("reached", name, "errno", error)
"""

FORKS = """
def child(_):
    pid = os.fork()
    if pid == 0:
        time.sleep(30); os._exit(0)
    return pid
children = until_refused(child, int(sys.argv[1]))
print(len(children))
for pid in children: os.kill(pid, 9)
"""

MEMORY = """
chunks, megabytes = [], int(sys.argv[1])
try:
    for _ in range(megabytes): chunks.append(b"x" * (1 << 20))
    time.sleep(float(sys.argv[2])); print("held", megabytes, "MB")
except MemoryError:
    pass
"""

FILL = """
path, most = sys.argv[1], int(sys.argv[2])
done = 0
try:
    with open(path, "wb", buffering=0) as file:
        while done < most: done += file.write(bytes(1 << 20))
except OSError:
    pass
print(done)
"""

INODES = """
folder, most = sys.argv[1], int(sys.argv[2])
until_refused(lambda _: os.mkdir(folder), 1)
def make(number): os.close(os.open(folder + "/%d" % number, os.O_WRONLY | os.O_CREAT))
print(len(until_refused(make, most)))
"""

SOCKET_AND_DEPTH = """
import _socket
os.chdir("t")
_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM).bind("socket")
os.chdir("deep")
for _ in range(int(sys.argv[1])):
    os.mkdir("d"); os.chdir("d")
"""

LONG_PATHS = """
folder, depth, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.mkdir(folder); os.chdir(folder)
for _ in range(depth):
    os.mkdir("d" * 240); os.chdir("d" * 240)
def make(number): os.close(os.open("%d-" % number + "f" * 200, os.O_WRONLY | os.O_CREAT))
print(len(until_refused(make, most)))
"""

DEEP = """
depth, name = int(sys.argv[2]), sys.argv[3]
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])
for _ in range(depth):
    os.mkdir(name); os.chdir(name)
os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT))
print(os.path.exists("bottom"))
"""

HARM_THE_GUEST = """
import resource
WHO = int(sys.argv[1])
def put(name, data):
    with open("/proc/%d/%s" % (WHO, name), "wb", buffering=0) as file: file.write(data)
def works(act):
    try:
        act(); return True
    except (OSError, ValueError):
        return False
for name, act in (
    ("priority", lambda: os.setpriority(os.PRIO_PROCESS, WHO, 19)),
    ("priority of its group", lambda: os.setpriority(os.PRIO_PGRP, WHO, 19)),
    ("schedule", lambda: os.sched_setscheduler(WHO, os.SCHED_IDLE, os.sched_param(0))),
    ("schedule's parameters", lambda: os.sched_setparam(WHO, os.sched_param(0))),
    ("processors", lambda: os.sched_setaffinity(WHO, os.sched_getaffinity(0))),
    ("open files", lambda: resource.prlimit(WHO, resource.RLIMIT_NOFILE, (64, 64))),
    ("timer slack", lambda: put("timerslack_ns", b"4000000000")),
    ("kernel's choice", lambda: put("oom_score_adj", b"1000")),
):
    if works(act): print("changed the", name, "of", WHO)
if "user" in sys.argv[2:] and works(lambda: os.setpriority(os.PRIO_USER, 0, 19)):
    print("changed the priority of all of a user")
"""

FULL_PORT = """
import _socket
server = _socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(0)
os.write(1, b"%d" % server.getsockname()[1])
time.sleep(600)
"""

BE_SPARED = """
try:
    with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
except OSError:
    pass
os.dup2(os.memfd_create("memory", 0), 1)
for _ in range(5):  # so that a process that should react gets no turn
    if os.fork() == 0: break
os.execv("/usr/bin/head", ["head", "-c", sys.argv[1], "/dev/zero"])
"""

CHANGE_ITSELF = """
import resource
own = os.getpid()
resource.prlimit(own, resource.RLIMIT_NOFILE, (55, 55))
os.setpriority(os.PRIO_PROCESS, own, 19)
os.sched_setaffinity(own, os.sched_getaffinity(own))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[1], os.getpriority(os.PRIO_PROCESS, own))
"""

LEAVE_BEHIND = """
kind, most, made = sys.argv[1], int(sys.argv[2]), []
libc.shmat.restype = ctypes.c_void_p
NEW, NOWAIT, SIZE = 0o1600, 0o4000, 1 << 20
def shm():
    id = libc.shmget(0, SIZE, NEW)
    if id >= 0:
        at = libc.shmat(id, None, 0)
        ctypes.memset(at, 1, SIZE); libc.shmdt(ctypes.c_void_p(at))
    return id
def msg():
    id = libc.msgget(0, NEW)
    while libc.msgsnd(id, b"\\1" * 8200, 8192, NOWAIT) == 0: pass
    return id
def sem():
    id = libc.semget(0, 32000, NEW)
    return id if id >= 0 else libc.semget(0, 250, NEW)
for _ in range(most):
    made.append({"shm": shm, "msg": msg, "sem": sem}[kind]())
    if made[-1] < 0: break
print("made", len(made))
for id in made: print(id)
"""

LEFT_BEHIND = """
kind, ids = sys.argv[1], sys.argv[2:]
each, total = {"shm": 1, "msg": 1, "sem": 64}[kind], 0
for line in open("/proc/sysvipc/" + kind).readlines()[1:]:
    _, id, _, size = line.split()[:4]
    if not ids or id in ids: total += int(size) * each
print(total)
for id in map(int, ids):
    {"shm": libc.shmctl, "msg": libc.msgctl, "sem": libc.semctl}[kind](id, 0, 0)
"""

LINKS = """
os.chdir("w")
while True:
    for number in range(100):
        os.symlink(sys.argv[1], "l%d" % number)
    for number in range(100):
        os.unlink("l%d" % number)
"""

FORGE = """
lie = b"ended 0 0 1\\n"
frame = b"\\0\\0\\0\\x0c" + b"\\0\\0\\0\\x01" + b"1" + b"\\0\\0\\0\\x02ok"
for fd in range(3, 256):
    for data in (lie, frame):
        try: os.write(fd, data)
        except OSError: pass
for pid in (1, os.getppid()):
    try:
        for name in os.listdir("/proc/%d/fd" % pid): print("can see fd", name, "of", pid)
    except OSError:
        pass
for fd in range(256):
    if fd > 2:
        try: os.close(fd)
        except OSError: pass
sys.stdout.write("\\0\\0\\0\\x0cended 0 0 1\\n")
sys.stdout.flush()
os._exit(7)
"""

ORPHANS = """
def orphan():
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if os.fork() >= 0 else 1)
    except OSError:  # the reaper is slower at the moment than what makes them
        if os.getpid() != own: os._exit(1)
        return False
    return os.waitpid(pid, 0)[1] == 0
def zombies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if ") Z " in open("/proc/%s/stat" % pid).read(): found.append(pid)
        except OSError:
            pass
    return found
own, deadline = os.getpid(), time.monotonic() + 50
for _ in range(int(sys.argv[1])):
    while not orphan() and time.monotonic() < deadline: time.sleep(0.01)
while zombies() and time.monotonic() < deadline: time.sleep(0.01)
for pid in zombies(): print("zombie", pid)
"""

GAIN = """
if "NoNewPrivs:\\t1" not in open("/proc/self/status").read(): print("new privileges are possible")
"""

OUTLIVE = """
import _signal
_signal.signal(15, _signal.SIG_IGN)
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _signal.signal(15, _signal.SIG_IGN); time.sleep(600)
        os._exit(0)
time.sleep(600)
"""

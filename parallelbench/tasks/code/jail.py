"""How a process locks itself in for good: limits, namespaces, Landlock and seccomp. Standard library only; `runner`
next to it imports it by path."""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
FILE_BYTES = 4 << 20  # the largest file, standard output among them


def lock(timeout_s: float, memory: int, packages: Sequence[str] = ()) -> list[str]:
    """Takes away what a program does not need, for good. packages: files and folders that can be read besides Python's
    library. Returns the missing ones of the two layers that matter."""
    seconds = int(timeout_s) + 2
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    linux = sys.platform == "linux"
    if linux:
        LIBC.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))
    missing = [] if linux and enter_landlock(*packages) else ["Landlock"]
    if not (linux and enter_seccomp()):
        missing.append("seccomp")
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # does not bind root
    sys.addaudithook(refuse)
    return missing


def enter_namespaces() -> None:
    """Own user, network, IPC and mount namespaces, and a small file system in memory as working folder. Best effort:
    containers often forbid it."""
    user, group, here = os.getuid(), os.getgid(), os.getcwd()
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS):
        return
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return
    LIBC.mount(b"tmpfs", os.fsencode(here), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=16m,nr_inodes=256,mode=700")
    os.chdir(here)


READ_FILE, READ_DIR, WRITE_FILE, EXECUTE = 1 << 2, 1 << 3, 1 << 1, 1 << 0
SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # making of devices, sockets and pipes


def enter_landlock(*packages: str) -> bool:
    """Reads of Python's own files and these packages only, writes in the working folder only, by the kernel
    (landlock(7))."""
    create, add_rule, restrict = 444, 445, 446  # the same on all machines
    version = LIBC.syscall(create, None, 0, 1)
    if version < 1:
        return False
    files = (1 << (13 + (version >= 2) + (version >= 3))) - 1 | ((version >= 5) << 15)
    network, scope = 3 * (version >= 4), 3 * (version >= 6)  # TCP; abstract sockets and signals
    attributes = struct.pack("=QQQ", files, network, scope)
    rules = LIBC.syscall(create, attributes, len(attributes), 0)
    if rules < 0:
        return False
    library = os.path.dirname(os.__file__)
    readable = [library, f"{sys.base_prefix}/lib", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo"]
    readable += [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *filter(os.path.isdir, packages)]
    files_read = ["/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", *filter(os.path.isfile, packages)]
    rights = dict.fromkeys(readable, READ_FILE | READ_DIR | EXECUTE) | dict.fromkeys(files_read, READ_FILE)
    rights |= {"/dev/null": READ_FILE | WRITE_FILE, os.getcwd(): files & ~(EXECUTE | SPECIAL)}
    for path, right in rights.items():
        if path.startswith("/") and os.path.exists(path):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            LIBC.syscall(add_rule, rules, 1, struct.pack("=Qi", right, parent), 0)
            os.close(parent)
    locked = LIBC.syscall(restrict, rules, 0) == 0
    os.close(rules)
    return locked


# name:number on x86_64:number on aarch64 (0: it has none). What Python, its library and threads need: own memory, own
# descriptors, files (which Landlock watches), time, waiting, signals to oneself. So no sockets of any kind, no other
# process or program, no mount, no trace, no metadata of files, no memory that outlives us.
ALLOWED = """
read:0:63 write:1:64 open:2:0 openat:257:56 creat:85:0 close:3:57 lseek:8:62 pread64:17:67 pwrite64:18:68 readv:19:65
writev:20:66 preadv:295:69 pwritev:296:70 sendfile:40:71 copy_file_range:326:285 dup:32:23 dup2:33:0 dup3:292:24
pipe:22:0 pipe2:293:59 poll:7:0 ppoll:271:73 select:23:0 pselect6:270:72 epoll_create:213:0 epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232:0 epoll_pwait:281:22 eventfd2:290:19
stat:4:0 fstat:5:80 lstat:6:0 newfstatat:262:79 statx:332:291 access:21:0 faccessat:269:48 statfs:137:43 fstatfs:138:44
readlink:89:0 readlinkat:267:78 getdents:78:0 getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 umask:95:166
mkdir:83:0 mkdirat:258:34 rmdir:84:0 unlink:87:0 unlinkat:263:35 rename:82:0 renameat:264:38 renameat2:316:276
link:86:0 linkat:265:37 symlink:88:0 symlinkat:266:36 ftruncate:77:46 fallocate:285:47 flock:73:32 fsync:74:82
fdatasync:75:83 fadvise64:221:223
mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 mincore:27:232 msync:26:227 brk:12:214
futex:202:98 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 membarrier:324:283 set_tid_address:218:96
sched_yield:24:124 sched_getaffinity:204:123 getcpu:309:168
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 restart_syscall:219:128 pause:34:0 alarm:37:0 getitimer:36:102
setitimer:38:103 nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114
gettimeofday:96:169 time:201:0 times:100:153
getpid:39:172 gettid:186:178 getppid:110:173 getpgrp:111:0 getpgid:121:155 getsid:124:156 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 uname:63:160
sysinfo:99:179 getrusage:98:165 getrlimit:97:163 setrlimit:160:164 getpriority:140:141 getrandom:318:278
wait4:61:260 waitid:247:95 exit:60:93 exit_group:231:94
""".split()
# Of these calls what is named alone: the argument's place, and its values. The others can make the kernel send signals
# to any process (F_SETOWN, F_SETSIG, FIOSETOWN, SIOCSPGRP), type at a terminal (TIOCSTI) or outlive the parent.
LIMITED: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "tgkill": (234, 131, 0, ()),  # abort(): the own process, whose number comes later
    "prlimit64": (302, 261, 0, (0,)),  # the own limits
    "prctl": (157, 167, 0, (15, 16, 0x53564D41)),  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
    "fcntl": (72, 25, 1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),  # descriptors, their flags, locks
    "ioctl": (16, 29, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)),  # isatty, sizes, flags
}
CLONE = (56, 220)  # of it: threads
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, index into the numbers above
NEWER = 424  # calls from here on (io_uring, pidfd, clone3, new mounts) are optional: libc falls back
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF operations
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def enter_seccomp() -> bool:
    """Refuses all system calls but those of ALLOWED and LIMITED (seccomp(2), a classic BPF filter), and kills whoever
    calls by the numbers of another architecture (i386)."""
    if platform.machine() not in MACHINES or sys.byteorder != "little":
        return False
    arch, column = MACHINES[platform.machine()]
    allowed = [int(entry.split(":")[1 + column]) for entry in ALLOWED]
    # (operation, operand, where to go when it holds, when not): names of the last lines, or lines to skip
    program: list[tuple[int, int, int | str, int | str]] = [
        (LOAD, 4, 0, 0),
        (EQUAL, arch, 0, "kill"),
        (LOAD, 0, 0, 0),
        (AT_LEAST, NEWER, "enosys", 0),  # those of x32 too
        *((EQUAL, number, "allow", 0) for number in allowed if number or column == 0),
        *((EQUAL, CLONE[column], 0, 2), (LOAD, 16, 0, 0), (ANY_BIT, 0x10000, "allow", "eperm")),
    ]
    for name, (*numbers, place, values) in LIMITED.items():
        values = (os.getpid(),) if name == "tgkill" else values
        program += [(EQUAL, numbers[column], 0, len(values) + 2), (LOAD, 16 + 8 * place, 0, 0)]
        program += [*((EQUAL, value, "allow", 0) for value in values), (EQUAL, 0, "eperm", "eperm")]
    program.append((EQUAL, 0, "eperm", "eperm"))
    ends = {"allow": ALLOW, "eperm": EPERM, "enosys": ENOSYS, "kill": KILL}
    target = {name: len(program) + i for i, name in enumerate(ends)}
    code = b""
    for line, (operation, operand, *where) in enumerate(program):
        skips = [target[place] - line - 1 if isinstance(place, str) else place for place in where]
        code += struct.pack("=HBBI", operation, *skips, operand)
    code += b"".join(struct.pack("=HBBI", RETURN, 0, 0, end) for end in ends.values())
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    return LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0) == 0


REFUSED = (
    *("ctypes.", "socket.", "subprocess.", "os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.spawn", "os.system"),
    *("os.chmod", "os.chown", "os.setxattr", "os.utime", "pty.", "shutil.chown", "signal.pthread_kill"),
)
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
WORK = os.path.realpath(os.getcwd()) + os.sep


def refuse(event: str, arguments: tuple) -> None:
    """Python's own view of the same (an audit hook): clear errors, and the only such layer where the kernel has
    none."""
    if event.startswith(REFUSED):
        raise PermissionError(f"{event} is not allowed here")
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if (writes or event in CHANGES) and isinstance(arguments[0], str | bytes):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path != os.devnull and not f"{path}{os.sep}".startswith(WORK):
            raise PermissionError(f"{event} of {path} is not allowed here")

"""How a process locks itself in for good: limits, namespaces, Landlock and seccomp. Standard library only; `runner`
beside it imports it by path."""

import ctypes
import os
import platform
import resource
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
FILE_BYTES = 4 << 20  # the largest file, standard output among them


def lock(timeout_s: float, memory: int) -> list[str]:
    """Takes away what a program does not need, for good. Returns the missing ones of the two layers that matter."""
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
    missing = [] if linux and enter_landlock() else ["Landlock"]
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


def enter_landlock() -> bool:
    """Reads of Python's own files only, writes in the working folder only, by the kernel (landlock(7))."""
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
    readable += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    files_read = ["/etc/ld.so.cache", "/etc/localtime", "/dev/urandom"]
    rights = dict.fromkeys(readable, READ_FILE | READ_DIR | EXECUTE) | dict.fromkeys(files_read, READ_FILE)
    rights |= {"/dev/null": READ_FILE | WRITE_FILE, os.getcwd(): files & ~EXECUTE}
    for path, right in rights.items():
        if path.startswith("/") and os.path.exists(path):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            LIBC.syscall(add_rule, rules, 1, struct.pack("=Qi", right, parent), 0)
            os.close(parent)
    locked = LIBC.syscall(restrict, rules, 0) == 0
    os.close(rules)
    return locked


# name:number on x86_64:number on aarch64 (0: it has none). Processes and programs, signals to others, sockets, what
# reaches other processes or the machine, metadata of files (which Landlock does not watch), memory that outlives us.
DENIED = """
fork:57:0 vfork:58:0 execve:59:221 execveat:322:281 setpgid:109:154 setsid:112:157
kill:62:129 tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
socket:41:198
ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 kcmp:312:272 setpriority:141:140
sched_setaffinity:203:122 sched_setparam:142:118 sched_setscheduler:144:119 sched_setattr:314:274 ioprio_set:251:30
migrate_pages:256:238 move_pages:279:239
unshare:272:97 setns:308:268 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51
bpf:321:280 perf_event_open:298:241 userfaultfd:323:282 keyctl:250:219 add_key:248:217 request_key:249:218
personality:135:92 init_module:175:105 finit_module:313:273 delete_module:176:106 kexec_load:246:104
kexec_file_load:320:294 reboot:169:142 swapon:167:224 swapoff:168:225 acct:163:89 quotactl:179:60 syslog:103:116
sethostname:170:161 setdomainname:171:162 settimeofday:164:170 clock_settime:227:112 clock_adjtime:305:266
adjtimex:159:171 iopl:172:0 ioperm:173:0 modify_ldt:154:0 open_by_handle_at:304:265
truncate:76:45 chmod:90:0 fchmod:91:52 fchmodat:268:53 chown:92:0 fchown:93:55 lchown:94:0 fchownat:260:54 utime:132:0
utimes:235:0 futimesat:261:0 utimensat:280:88 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14
lremovexattr:198:15 fremovexattr:199:16
shmget:29:194 shmat:30:196 shmctl:31:195 semget:64:190 semop:65:193 semctl:66:191 semtimedop:220:192
msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181
inotify_init:253:0 inotify_init1:294:26 fanotify_init:300:262 name_to_handle_at:303:264
""".split()
FIRST_ARGUMENT = {"clone": (56, 220), "tgkill": (234, 131), "prlimit64": (302, 261)}  # depends on it
# Of these calls what is named alone: the argument's place, and its values. The others can make the kernel send signals
# to any process (F_SETOWN, F_SETSIG, FIOSETOWN, SIOCSPGRP), type at a terminal (TIOCSTI) or outlive the parent.
LIMITED = {
    "prctl": (157, 167, 0, (15, 16, 0x53564D41)),  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
    "fcntl": (72, 25, 1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),  # descriptors, their flags, locks
    "ioctl": (16, 29, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)),  # isatty, sizes, flags
}
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, index into the numbers above
NEWER = 424  # calls from here on (io_uring, pidfd, clone3, new mounts) are optional: libc falls back
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF operations
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def enter_seccomp() -> bool:
    """Refuses the system calls of DENIED (seccomp(2), a classic BPF filter)."""
    if platform.machine() not in MACHINES or sys.byteorder != "little":
        return False
    arch, column = MACHINES[platform.machine()]
    denied = [int(entry.split(":")[1 + column]) for entry in DENIED]
    clone, tgkill, prlimit = (numbers[column] for numbers in FIRST_ARGUMENT.values())
    # (operation, operand, where to go when it holds, when not): names of the last lines, or lines to skip
    program: list[tuple[int, int, int | str, int | str]] = [
        (LOAD, 4, 0, 0),
        (EQUAL, arch, 0, "kill"),
        (LOAD, 0, 0, 0),
        (AT_LEAST, NEWER, "enosys", 0),
        *((EQUAL, number, "eperm", 0) for number in denied if number),
        *((EQUAL, clone, 0, 2), (LOAD, 16, 0, 0), (ANY_BIT, 0x10000, "allow", "eperm")),  # threads
        *((EQUAL, tgkill, 0, 2), (LOAD, 16, 0, 0), (EQUAL, os.getpid(), "allow", "eperm")),  # abort()
        *((EQUAL, prlimit, 0, 2), (LOAD, 16, 0, 0), (EQUAL, 0, "allow", "eperm")),  # its own limits
    ]
    for *numbers, place, allowed in LIMITED.values():
        program += [(EQUAL, numbers[column], 0, len(allowed) + 2), (LOAD, 16 + 8 * place, 0, 0)]
        program += [*((EQUAL, value, "allow", 0) for value in allowed), (EQUAL, 0, "eperm", "eperm")]
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
        if path != os.devnull and not path.startswith(WORK):
            raise PermissionError(f"{event} of {path} is not allowed here")

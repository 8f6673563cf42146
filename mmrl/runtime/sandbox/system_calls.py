"""System calls of x86-64 Linux that computing needs: memory, threads, time, and reading and writing what is open already.

Not among them, though harmless at first sight: `stat` and `access` (which files exist), `fcntl` (makes the kernel send signals),
`prlimit64` (limits of other processes), `tgkill`, `pipe`, `memfd_create` (memory that no limit counts).
"""

ARCHITECTURE = 0xC000003E
X32 = 0x40000000
"""From this number on, calls of the x32 kind, which would pass a list of numbers."""
CLONE, CLONE3, IOCTL = 56, 435, 16
MEMORY = (9, 10)
"""`mmap` and `mprotect`: allowed, but for memory that can be executed."""
_LISTED = """
read 0, write 1, close 3, fstat 5, poll 7, lseek 8, munmap 11, brk 12, rt_sigaction 13, rt_sigprocmask 14, rt_sigreturn 15,
sched_yield 24, mremap 25, madvise 28, nanosleep 35, getpid 39, exit 60, uname 63, gettimeofday 96, getrusage 98, sysinfo 99,
times 100, getuid 102, getgid 104, geteuid 107, getegid 108, getppid 110, sigaltstack 131, gettid 186, futex 202,
sched_getaffinity 204, restart_syscall 219, clock_gettime 228, clock_getres 229, clock_nanosleep 230, exit_group 231,
set_robust_list 273, getrandom 318, rseq 334
"""
CALLS = {name: int(number) for name, number in (entry.split() for entry in _LISTED.split(","))}

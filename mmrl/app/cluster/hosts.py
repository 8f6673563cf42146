"""Who the machines of a job are and which of them this one is, by the variables that the job's scheduler sets."""

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOOKED_FOR = {
    "Slurm (srun)": ("SLURM_STEP_NODELIST or SLURM_JOB_NODELIST", "SLURM_NODEID"),
    "SkyPilot": ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK"),
    "JobSet": ("JOB_COMPLETION_INDEX", "JOBSET_NAME", "a host name that ends in the index"),
    "Volcano, such as torchx on Kubernetes": ("VC_*_HOSTS",),
    "MPI (mpirun)": (" or ".join(RANKS), " or ".join(FILES)),
}


def found_hosts(environ: Mapping[str, str], nodes: int, host: str = "") -> tuple[list[str], int]:
    """The names of all machines, the first of which leads, and the number of this one; each starts the same command once.

    Args:
        nodes: how many machines the config wants.
        host: the name of this machine; empty: what it says itself.

    Raises ValueError where no scheduler says it, or one that names other machines than the config wants.
    """
    host = host or platform.node()
    for name, hosts, number in (
        ("Slurm", *_slurm(environ)),
        ("SkyPilot", environ.get("SKYPILOT_NODE_IPS", "").split(), environ.get("SKYPILOT_NODE_RANK")),
        ("JobSet", *_jobset(environ, nodes, host)),
        ("Volcano", *_volcano(environ, host)),
        ("MPI", *_mpi(environ, host)),
    ):
        if hosts and number is not None and number.isdecimal():
            if len(hosts) != nodes or int(number) >= nodes:
                raise ValueError(
                    f"{name} says that this is machine {number} of {len(hosts)} ({', '.join(hosts[:4])}"
                    f"{', ...' if len(hosts) > 4 else ''}), and cluster.nodes is {nodes}: start the command once on each of "
                    f"{nodes} machines, or change cluster.nodes"
                )
            return hosts, int(number)
    looked = "; ".join(f"{name}: {', '.join(variables)}" for name, variables in LOOKED_FOR.items())
    raise ValueError(f"--hosts auto found no scheduler by its variables ({looked}): give --hosts first,second,... and --node N")


def _slurm(environ: Mapping[str, str]) -> tuple[list[str], str | None]:
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise ValueError("Slurm starts several tasks on this machine, and each would be a launch: srun --ntasks-per-node=1")
    said = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return expanded(said), environ.get("SLURM_NODEID")


def expanded(names: str) -> list[str]:
    """Slurm's short form of names, written out: `a[08-10,12],b` -> a08 a09 a10 a12 b."""
    found: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        first, bracket, rest = name.partition("[")
        if not bracket:
            found.append(name)
            continue
        numbers, _, rest = rest.partition("]")
        for part in numbers.split(","):
            low, _, high = part.partition("-")
            each = range(int(low), int(high or low) + 1)
            found += [f"{first}{number:0{len(low)}d}{end}" for number in each for end in expanded(rest) or [""]]
    return found


def _jobset(environ: Mapping[str, str], nodes: int, host: str) -> tuple[list[str], str | None]:
    """Pods of one job are called `SET-JOB-0-INDEX`, below a domain that is called like the set; ValueError for several jobs."""
    number, domain = environ.get("JOB_COMPLETION_INDEX"), environ.get("JOBSET_NAME")
    name = host.partition(".")[0]
    if number is None or not domain or not name.endswith(f"-{number}"):
        return [], None
    if nodes > 1 and not name.endswith(f"-0-{number}"):
        raise ValueError(
            f"JobSet's pod {name} is of a further replica of its job, and the pods of each replica are counted from 0: set "
            f"replicas = 1 and parallelism = completions = {nodes}, or give --hosts first,second,... and --node N"
        )
    return [f"{name.removesuffix(number)}{i}.{domain}" for i in range(nodes)], number


def _volcano(environ: Mapping[str, str], host: str) -> tuple[list[str], str | None]:
    """Every task names its own machines: torchx makes a task `ROLE-N` for each machine N."""
    tasks = [name for name in environ if re.fullmatch(r"VC_\w+_HOSTS", name)]
    order = sorted(tasks, key=lambda name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)])
    hosts = [one for name in order for one in environ[name].split(",") if one]
    return hosts, next(own_places(hosts, host), None)


def _mpi(environ: Mapping[str, str], host: str) -> tuple[list[str], str | None]:
    """The batch system that mpirun asks has a file of names, with one line for each core.

    mpirun may deal ranks out in another order, so a machine counts itself by its name, and by its rank where it has another one.
    """
    file = next((Path(environ[name]) for name in FILES if environ.get(name)), None)
    hosts = list(dict.fromkeys(file.read_text().split())) if file is not None and file.is_file() else []
    rank = next((environ[name] for name in RANKS if name in environ), "")
    # more ranks than machines are several launches on one
    return hosts, next(own_places(hosts, host), rank) if rank.isdecimal() and int(rank) < len(hosts) else rank


def own_places(hosts: Sequence[str], host: str) -> Iterator[str]:
    """Where this machine's name stands among those of all, without their domains."""
    return (str(i) for i, one in enumerate(hosts) if one.partition(".")[0] == host.partition(".")[0])

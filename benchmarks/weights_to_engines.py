"""Bytes and seconds until the workers of two simulated machines have read new weights, with and without a copy on each machine.

    sudo python benchmarks/weights_to_engines.py --gib 0.25 --workers 4 --rate 200

Each machine is a mount of its own of one folder (FUSE, read-only), so it has a page cache of its own, as clients of a network
file system have; both share one server of `--rate` MB/s, which counts what it sends. Workers read as mmrl's extension of vLLM
does, from mapped files, and begin `--apart` seconds after each other, since servers first end the requests that run. A client
keeps what it has read (NFS, Lustre), or forgets it as the file is opened again (what FUSE does unless it is told otherwise).
"""

import argparse
import ctypes
import os
import struct
import tempfile
import threading
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore as SemaphoreType
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mmrl.engine.worker.weight_copy import copy_near, drop_copies, write_sums

MACHINES = 2
LOOKUP, GETATTR, OPEN, READ, INIT, OPENDIR, FORGET, BATCH_FORGET, DESTROY = 1, 3, 14, 15, 26, 27, 2, 42, 38
SILENT = (FORGET, BATCH_FORGET)
KEEP_CACHE = 2
FOREVER = 3600


class FileServer:
    """Serves the files of a folder to several mounts at so many bytes a second in all, and counts what it sends."""

    def __init__(self, folder: Path, rate: float, keeps: bool) -> None:
        self.names, self.folder, self.rate, self.keeps = sorted(os.listdir(folder)), folder, rate, keeps
        self.sent, self.lock = 0, threading.Lock()

    def mount(self, place: Path) -> None:
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read=1048576".encode()
        if ctypes.CDLL(None, use_errno=True).mount(b"weights", str(place).encode(), b"fuse", 1, options):
            raise OSError(ctypes.get_errno(), "cannot mount; this needs root and /dev/fuse")
        threading.Thread(target=self.serve, args=(device,), daemon=True).start()

    def serve(self, device: int) -> None:
        while True:
            try:
                asked = os.read(device, 1 << 21)
            except OSError:
                return
            _, code, unique, node = struct.unpack_from("<IIQQ", asked)
            if code in SILENT:
                continue
            error, answer = self.answer(code, node, asked[40:])
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)

    def answer(self, code: int, node: int, body: bytes) -> tuple[int, bytes]:
        """(0 or -errno, what the kernel asked for)."""
        if code == INIT:
            return 0, struct.pack("<IIIIHHIIHHI7I", 7, 31, 1 << 20, 1, 12, 9, 1 << 20, 1, 256, 0, 0, *[0] * 7)
        if code == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self.names:
                return -2, b""
            number = 2 + self.names.index(name)
            return 0, struct.pack("<QQQQII", number, 0, FOREVER, FOREVER, 0, 0) + self.facts(number)
        if code == GETATTR:
            return 0, struct.pack("<QII", FOREVER, 0, 0) + self.facts(node)
        if code in (OPEN, OPENDIR):
            return 0, struct.pack("<QII", node, KEEP_CACHE * self.keeps, 0)
        if code == READ:
            _, begin, size = struct.unpack_from("<QQI", body)
            with open(self.folder / self.names[node - 2], "rb") as file:
                data = os.pread(file.fileno(), size, begin)
            with self.lock:
                self.sent += len(data)
                time.sleep(len(data) / self.rate)
            return 0, data
        return (0, b"") if code in (18, 25, 29, DESTROY) else (-38, b"")

    def facts(self, node: int) -> bytes:
        size = 0 if node == 1 else (self.folder / self.names[node - 2]).stat().st_size
        mode = 0o40555 if node == 1 else 0o100444
        return struct.pack("<6Q10I", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def read_all(folder: str, local: str, go: SemaphoreType) -> None:
    """What a worker does: copy where there is no copy yet, then read every tensor from the mapped file."""
    go.acquire()
    where = copy_near(folder, local) if local else Path(folder)
    with safe_open(where / "model.safetensors", "pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
            opened.get_tensor(name).clone()


def measure(shared: Path, workers: int, apart: float, rate: float, keeps: bool, copies: bool) -> tuple[float, float]:
    """(bytes of the shared folder that travelled / size of its weights, seconds until all workers had read them)."""
    server, size = FileServer(shared, rate, keeps), (shared / "model.safetensors").stat().st_size
    places = [Path(tempfile.mkdtemp()) / shared.name for _ in range(MACHINES)]
    locals_ = [tempfile.mkdtemp(dir="/dev/shm") if copies else "" for _ in range(MACHINES)]
    forked, machines = get_context("fork"), list(zip(map(str, places), locals_, strict=True))
    gates = [forked.Semaphore(0) for _ in range(workers)]
    # before the file server's threads begin
    running = [forked.Process(target=read_all, args=(*machine, gate)) for gate in gates for machine in machines]
    for worker in running:
        worker.start()
    try:
        for place in places:
            place.mkdir()
            server.mount(place)
        begun = time.monotonic()
        for number, gate in enumerate(gates):
            time.sleep(apart if number else 0)
            for _ in machines:
                gate.release()
        for worker in running:
            worker.join()
        seconds = time.monotonic() - begun
    finally:
        for worker in running:
            worker.kill()
        for place, local in machines:
            ctypes.CDLL(None).umount2(place.encode(), 2)
            if local:
                drop_copies(local)
    if any(worker.exitcode for worker in running):
        raise SystemExit("a worker failed")
    return server.sent / size, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.25)
    parser.add_argument("--workers", type=int, default=4, help="of each machine")
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s of the file server")
    parser.add_argument("--apart", type=float, default=1.0, help="seconds between the workers of a machine")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shared = Path(tempfile.mkdtemp()) / "run-1"
    shared.mkdir()
    each = int(given.gib * 2**30 / 64 / 4)
    save_file({f"layers.{i}.weight": torch.rand(each) for i in range(64)}, shared / "model.safetensors")
    begun = time.monotonic()
    write_sums(shared)
    print(
        f"{given.gib} GiB, {MACHINES} machines of {given.workers} workers, {given.rate:g} MB/s; "
        f"sums {time.monotonic() - begun:.2f} s"
    )
    for number in range(given.rounds):
        for keeps in (True, False):
            found = [measure(shared, given.workers, given.apart, given.rate * 1e6, keeps, copies) for copies in (False, True)]
            (own, slow), (one, quick) = found
            client = "keeps" if keeps else "forgets"
            print(
                f"round {number}, client {client}: each reads {own:.2f} sizes, {slow:.1f} s; one copies {one:.2f}, {quick:.1f} s"
            )


if __name__ == "__main__":
    main()

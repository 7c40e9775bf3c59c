"""How quickly 100,000 claims are decided against 10,000 GPUs, in what memory, and how that grows with the cluster.

Claims come in sizes as a shared cluster sees them, from a tenth of a GPU to eight whole ones. Each is learnt from,
placed and taken; when one finds no room, the oldest give theirs back until it does, so that the cluster stays nearly
full: the state in which deciding takes most work. Each policy runs in a process of its own, for the sake of its memory.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gridflow.gpu.placement import DEFAULT_PLACEMENT, Demand, Gpu, Node, Place, Pool
from report import Measurement, make_parser, print_report

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CLAIMS = 100_000
GPUS = 10_000
GPUS_PER_NODE = 8
CAPACITY_MB = 16_384
POLICIES = (DEFAULT_PLACEMENT, "fgd", "best-fit", "first-fit")
DEADLINE_SECONDS = 600.0
#: How often, of 100 claims: devices, and the part of each that is needed (None: whole).
MIX = (
    (20, 1, 0.1),
    (15, 1, 0.25),
    (15, 1, 0.4),
    (10, 1, 0.5),
    (5, 1, 0.8),
    (25, 1, None),
    (5, 2, None),
    (3, 4, None),
    (2, 8, None),
)


@dataclass(frozen=True)
class Result:
    """What deciding about the claims took, of processor time and memory.

    `allocated_pct` is the mean over the moments at which a claim found no room.
    """

    gpus: int
    claims: int
    seconds: float
    added_mb: float
    allocated_pct: float


def cluster(gpus: int) -> list[Node]:
    """Make nodes of eight GPUs each."""
    devices = (Gpu(CAPACITY_MB, "V100"),) * GPUS_PER_NODE
    return [Node(f"node-{number}", 96_000, 393_216, devices) for number in range(gpus // GPUS_PER_NODE)]


def claims(count: int, seed: int) -> list[Demand]:
    """Draw claims; CPUs and memory come in a few sizes for each GPU."""
    chance = random.Random(seed)
    kinds = chance.choices(MIX, weights=[often for often, _, _ in MIX], k=count)
    demands = []
    for _, gpus, part in kinds:
        size = chance.choice((4_000, 8_000, 11_000))
        share = None if part is None else int(part * CAPACITY_MB)
        demands.append(Demand(gpus, share, gpus * size, gpus * size * 4))
    return demands


def decide(policy: str, gpus: int, count: int) -> Result:
    """Place all claims, one after the other."""
    demands = claims(count, seed=1)
    nodes = cluster(gpus)
    before = _resident_mb()
    started = time.process_time()
    pool = Pool(nodes, policy)
    held: deque[tuple[Demand, Place]] = deque()
    allocated, when_full = 0, []
    for demand in demands:
        pool.learn(demand)
        place = pool.find(demand)
        if place is None:
            when_full.append(allocated)
        while place is None:
            oldest, its_place = held.popleft()
            pool.give_back(oldest, its_place)
            allocated -= _volume_mb(oldest)
            place = pool.find(demand)
        pool.take(demand, place)
        held.append((demand, place))
        allocated += _volume_mb(demand)
    seconds = time.process_time() - started
    allocated_pct = 100 * fmean(when_full or [allocated]) / (CAPACITY_MB * GPUS_PER_NODE * len(nodes))
    return Result(gpus, count, seconds, _resident_mb() - before, allocated_pct)


def _volume_mb(demand: Demand) -> int:
    return demand.gpus * (demand.share or CAPACITY_MB)


def _resident_mb() -> float:
    # 'VmRSS:\t   24312 kB'
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) / 1024


def measure(policy: str, gpus: int, count: int) -> Result:
    """Decide in a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(theirs, policy, gpus, count))
    process.start()
    try:
        if not ours.poll(DEADLINE_SECONDS):
            raise TimeoutError(f"{policy} did not decide {count:,} claims within {DEADLINE_SECONDS:g} s")
        result: Result = ours.recv()
    finally:
        process.kill()
        process.join()
    return result


def _send_result(pipe: Connection, policy: str, gpus: int, count: int) -> None:
    pipe.send(decide(policy, gpus, count))


def report(policy: str, small: Result, large: Result) -> list[Measurement]:
    """Describe the large cluster, and how the time of one decision grows from the small one."""
    name = f"{policy}, {large.gpus:,} GPUs"
    per_claim = large.seconds / large.claims
    growth = per_claim / (small.seconds / small.claims)
    return [
        Measurement(f"{name}: rate", large.claims / large.seconds, "claims/s"),
        Measurement(f"{name}: per claim", per_claim * 1e6, "us", f"{small.gpus:,} GPUs", growth),
        Measurement(f"{name}: memory", large.added_mb, "MB"),
        Measurement(f"{name}: allocated when a claim finds no room", large.allocated_pct, "%"),
    ]


def main() -> None:
    """Measure a cluster of the full size and one of a tenth of it."""
    arguments = make_parser(__doc__).parse_args()
    count = CLAIMS // 5 if arguments.quick else CLAIMS
    measurements = []
    for policy in POLICIES:
        small, large = (measure(policy, gpus, count) for gpus in (GPUS // 10, GPUS))
        measurements += report(policy, small, large)
    print_report(measurements, as_json=arguments.json)


if __name__ == "__main__":
    main()

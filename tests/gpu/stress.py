"""Many processes claim and release at random, a quarter of them are killed at random moments, and somebody looks on.

    python stress.py --processes 50 --seconds 60 --seed 1

Besides the ledger, a lock on a file for each device tells whether exclusive means alone: the kernel keeps those, not
Gridflow. Prints what happened as a JSON object; `violations` must be empty and `left` 0.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gridflow.errors import DeadlineError, PlatformError
from gridflow.gpu import Claim
from gridflow.gpu.grants import Grant
from gridflow.gpu.inventory import take_inventory
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.tickets import Ticket


def random_claim(chance: random.Random) -> Claim:
    wishes: dict[str, Any] = chance.choice(
        [
            {"gpus": 1},
            {"gpus": 2, "min_gpus": 1},
            {"gpus": chance.choice([0.1, 0.25, 0.5])},
            {"gpus": chance.choice([1, 2]), "memory_per_gpu_mb": chance.randint(500, 6000), "shared": True},
        ]
    )
    return Claim(
        **wishes,
        cpu_fallback=chance.random() < 0.3,
        priority=chance.randint(0, 2),
        owner=chance.choice("xyz"),
        wait_seconds=chance.choice([0.0, 0.05, 1.0, 10.0]),
    )


def occupy(grant: Grant, is_shared: bool, folder: Path, held: ExitStack) -> None:
    """Lock each device's file, alone or with others; somebody who should not be there makes that impossible."""
    for index in grant.devices:
        file = held.enter_context((folder / f"device-{index}").open("w"))
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def claim_and_release(seed: int, until: float, folder: Path) -> Counter[str]:
    chance, counts = random.Random(seed), Counter[str]()
    while time.monotonic() < until:
        claim = random_claim(chance)
        counts["claims"] += 1
        try:
            with Ticket.ask(claim) as ticket, ExitStack() as held:
                grant = ticket.wait()
                counts["cpu" if grant.is_cpu else "granted"] += 1
                if grant.is_cpu and not claim.cpu_fallback:
                    counts["violations"] += 1
                occupy(grant, claim.is_shared, folder, held)
                time.sleep(chance.uniform(0, 0.05))
        except (DeadlineError, PlatformError):
            counts["refused"] += 1
        except BlockingIOError:
            counts["violations"] += 1
        time.sleep(chance.uniform(0, 0.02))
    return counts


def start(seed: int, until: float, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        counts = claim_and_release(seed, until, folder)
        (folder / f"counts-{os.getpid()}").write_text(json.dumps(counts))
        os._exit(0)
    return child


def violations(table: dict[str, Any]) -> list[str]:
    """Say what is wrong in a ledger as it is at one moment."""
    found = []
    for device in table["devices"]:
        key = device["uuid"] or str(device["index"])
        users = [holding for holding in table["holdings"].values() if key in holding["devices"]]
        sharing = [user for user in users if _is_shared(user)]
        if len(users) > 1 and len(sharing) < len(users):
            found.append(f"{key} is not alone: {users}")
        taken = sum(user["memory_mb"][user["devices"].index(key)] for user in users)
        if taken > device["memory_mb"]:
            found.append(f"{key} has {taken} of {device['memory_mb']} MB taken: {users}")
    if both := table["holdings"].keys() & table["waiting"].keys():
        found.append(f"{both} wait and hold")
    return found


def _is_shared(holding: dict[str, Any]) -> bool:
    return Claim.from_dict(holding["request"]["claim"]).is_shared


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    ledger = Ledger(ledger_folder(os.environ))
    folder = ledger.folder.parent
    total = len(take_inventory(os.environ).usable)
    begin = time.monotonic()
    until = begin + options.seconds
    seeds = [chance.getrandbits(32) for _ in range(options.processes)]
    children = [start(seed, until, folder) for seed in seeds]
    victims = chance.sample(children, max(1, options.processes // 4))
    kills = sorted((begin + chance.uniform(0, options.seconds), pid) for pid in victims)
    found: list[str] = []
    observations, most_waiting = 0, 0
    while time.monotonic() < until:
        table = ledger.read_table()
        found += violations(table)
        observations += 1
        most_waiting = max(most_waiting, len(table["waiting"]))
        while kills and kills[0][0] <= time.monotonic():
            os.kill(kills.pop(0)[1], signal.SIGKILL)
        time.sleep(0.002)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    counts = sum((Counter(json.loads(path.read_text())) for path in folder.glob("counts-*")), Counter[str]())
    left = ledger.read()
    with Ticket.ask(Claim(gpus=total, wait_seconds=0)) as ticket:
        all_free = len(ticket.wait().devices) == total
    report = {
        **counts,
        "violations": found + ["a process saw one"] * counts["violations"],
        "killed": sum(map(os.WIFSIGNALED, statuses)),
        "failed": sum(status != 0 and not os.WIFSIGNALED(status) for status in statuses),
        "observations": observations,
        "most_waiting": most_waiting,
        "left": len(left.holdings) + len(left.waiting),
        "all_free": all_free,
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()

"""How long it takes from launch to the first training step, against the same script started by hand.

By hand means: two processes started at once, each with TF_CONFIG and a free port. Both ways alternate, and the mean of
each counts: a worker that is ready before the first of them has its connection refused and tries again a second later,
so each start takes one of two times, by chance. A second program, which does nothing, shows where the time
before a program goes; and importing Gridflow and asking for help are measured in CPU seconds.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from report import Measurement, make_parser, print_report

PROGRAMS = Path(__file__).parent / "programs"
FIRST_STEP = PROGRAMS / "first_step.py"
TRIVIAL = PROGRAMS / "trivial.py"
WORKERS = 2
RUN_SECONDS = 300
QUIET = subprocess.DEVNULL
#: Python keeps what it has compiled, as it does for most people.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Start:
    """One start of a program on all workers."""

    #: What began when, in seconds since the launch; last of all, when the last worker left its stamp.
    moments: tuple[float, ...]
    #: Of all its processes, to the end.
    cpu_seconds: float


def start_by_hand(program: Path) -> Start:
    """Start the workers by hand, each with TF_CONFIG and a port that was free a moment ago."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports()]
    with TemporaryDirectory() as stamps:
        started, used = time.time(), cpu_used()
        processes = []
        for index in range(WORKERS):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = {**ENVIRONMENT, "STAMPS": stamps, "TF_CONFIG": json.dumps(config)}
            # In sessions of their own, as in two terminals: Linux shares the processor between sessions.
            command = [sys.executable, str(program)]
            processes.append(subprocess.Popen(command, env=environment, stderr=QUIET, start_new_session=True))
        for process in processes:
            if process.wait(RUN_SECONDS) != 0:
                raise SystemExit(f"{program} failed with exit code {process.returncode}")
        return Start((last_stamp(stamps) - started,), cpu_used() - used)


def start_by_gridflow(program: Path) -> Start:
    """Start the workers with `gridflow run`; its events tell when supervisor, agents and programs were started."""
    with TemporaryDirectory() as stamps, TemporaryDirectory() as home:
        environment = {**ENVIRONMENT, "STAMPS": stamps, "GRIDFLOW_HOME": home}
        command = [sys.executable, "-m", "gridflow", "run", "--quiet", str(program), "--workers", str(WORKERS)]
        started, used = time.time(), cpu_used()
        subprocess.run(command, env=environment, timeout=RUN_SECONDS, check=True)
        (path,) = Path(home).glob("runs/*/events.jsonl")
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        last = {event.get("state", event["event"]): event["time"] for event in events if event["event"] != "run"}
        moments = (last["supervisor"], last["starting"], last["running"], last_stamp(stamps))
        return Start(tuple(moment - started for moment in moments), cpu_used() - used)


def free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(WORKERS)]
        return [each.getsockname()[1] for each in sockets]


def last_stamp(folder: str) -> float:
    stamps = [float(path.read_text()) for path in Path(folder).iterdir()]
    if len(stamps) != WORKERS:
        raise SystemExit(f"{len(stamps)} of {WORKERS} workers have left a stamp")
    return max(stamps)


def cpu_used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def first_step(pairs: int) -> list[Measurement]:
    """Compare the time to the first training step, and the work it takes."""
    start_by_hand(FIRST_STEP)  # brings the files into memory
    both = [(start_by_gridflow(FIRST_STEP), start_by_hand(FIRST_STEP)) for _ in range(pairs)]
    ours, by_hand = zip(*both, strict=True)

    def compare(name: str, unit: str, value: Callable[[Start], float]) -> Measurement:
        mine, other = mean(map(value, ours)), mean(map(value, by_hand))
        return Measurement(f"{name}, {WORKERS} workers", mine, unit, "started by hand", mine / other)

    return [
        compare("launch to first step", "s", lambda start: start.moments[-1]),
        compare("the whole run", "s of CPU", lambda start: start.cpu_seconds),
    ]


def stages(repetitions: int) -> list[Measurement]:
    """Show where the time goes before a program starts."""
    starts = [start_by_gridflow(TRIVIAL).moments for _ in range(repetitions)]
    moments = [0.0, *(median(each) for each in zip(*starts, strict=True))]
    names = ("launch to supervisor", "supervisor to agents", "agents to programs", "programs to their first line")
    spans = [Measurement(name, end - begin, "s") for name, (begin, end) in zip(names, pairwise(moments), strict=True)]
    return [*spans, Measurement("launch to a program's first line", moments[-1], "s")]


def python(name: str, *arguments: str) -> Measurement:
    """Measure what a Python process needs of the processor: the least of several times."""

    def once() -> float:
        used = cpu_used()
        command = [sys.executable, *arguments]
        subprocess.run(command, env=ENVIRONMENT, stdout=QUIET, timeout=RUN_SECONDS, check=True)
        return cpu_used() - used

    return Measurement(name, min(once() for _ in range(5)), "s of CPU")


def main() -> None:
    """Measure and print."""
    arguments = make_parser(__doc__).parse_args()
    measurements = [
        *first_step(pairs=2 if arguments.quick else 15),
        *stages(repetitions=3 if arguments.quick else 11),
        python("import gridflow", "-c", "import gridflow"),
        python("gridflow --help", "-m", "gridflow", "--help"),
    ]
    print_report(measurements, as_json=arguments.json)


if __name__ == "__main__":
    main()

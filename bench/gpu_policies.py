"""How much of a cluster's GPUs each placement policy can allocate, on a real trace, beside the published figures.

A sequence is the shuffled pod list, then draws from it until the GPUs asked for add up to 130 % of the cluster's. Pods
arrive one by one and none leaves; one that fits nowhere is dropped. Allocated at X % is the mean over arrivals at which
X % of the GPUs had been asked for. Every policy sees the same sequences.

Policies that look ahead learn from the pods that have arrived so far, and from `--history` if it is given. FGD is the
exception: as published, it knows the whole pod list beforehand.

Published: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, ten seeds each; the trace is Alibaba's cluster-trace-gpu-v2023.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from string import ascii_lowercase

from gridflow.gpu.placement import DEFAULT_PLACEMENT, PLACEMENTS, Demand, Gpu, Node, Pool
from report import make_parser

ROOT = Path(__file__).parents[1]
TRACE = ROOT.parent / "shared" / "data" / "gpu-trace"
PUBLISHED = ROOT / "bench" / "data" / "gpu_policies_published.csv"
#: Thousandths of one GPU.
GPU = 1000
ARRIVED_PCT = (95, 100, 110, 130)
LAST_PCT = ARRIVED_PCT[-1]
#: What is drawn of the curves, and how large.
DRAWN_PCT = range(80, LAST_PCT + 1)
SKETCH_ROWS = 16
WIDTH, HEIGHT, MARGIN = 420, 300, 45
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e0b", "#5b5f66", "#0fa3a3", "#c2185b")


@dataclass(frozen=True)
class Replay:
    """One policy on one sequence.

    `curve` maps whole percents arrived to the percentage allocated; `seconds` are of processor time, all on one core.
    """

    workload: str
    policy: str
    seed: int
    curve: Mapping[int, float]
    seconds: float
    #: Of the pods without GPUs, those that fitted nowhere.
    refused_pct: float

    def allocated_pct(self, arrived_pct: int) -> float:
        """Give what was allocated then; where no arrival falls on that percentage, what was allocated before."""
        return self.curve[max((pct for pct in self.curve if pct <= arrived_pct), default=min(self.curve))]


def read_nodes(path: Path) -> list[Node]:
    """Read a file with the columns sn, cpu_milli, memory_mib, gpu, model."""
    return [
        Node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), (Gpu(GPU, row["model"]),) * int(row["gpu"]))
        for row in _rows(path)
    ]


def read_pods(path: Path) -> list[Demand]:
    """Read a file with the columns cpu_milli, memory_mib, num_gpu, gpu_milli and perhaps gpu_spec."""
    return [_pod(row) for row in _rows(path)]


def _pod(row: Mapping[str, str]) -> Demand:
    gpus, share = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
    # gpu_spec: 'V100M16|V100M32'
    models = frozenset((row.get("gpu_spec") or "").split("|")) - {""}
    return Demand(
        gpus,
        share if gpus and 0 < share < GPU else None,
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        models if gpus and models else None,
    )


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        sys.exit(f"{path} is not there; name the trace's files with --nodes and --pods")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def volume(pod: Demand) -> int:
    """Give what a pod asks for of GPUs, in thousandths."""
    return pod.gpus * (pod.share or GPU)


def arrivals(pods: Sequence[Demand], capacity: int, seed: int) -> list[Demand]:
    """Make the sequence of one seed: the list in random order, made shorter or longer to 130 % of the cluster."""
    if not any(map(volume, pods)):
        sys.exit("no pod of the list asks for GPUs")
    chance = random.Random(seed)
    sequence = chance.sample(pods, len(pods))
    total, target = sum(map(volume, sequence)), capacity * LAST_PCT // 100
    while total > target:
        total -= volume(sequence.pop(chance.randrange(len(sequence))))
    while total + volume(pod := chance.choice(pods)) <= target:
        total += volume(pod)
        sequence.append(pod)
    return sequence


def replay(
    workload: str, nodes: Sequence[Node], pods: Sequence[Demand], policy: str, seed: int, history: Sequence[Demand] = ()
) -> Replay:
    """Let one sequence arrive."""
    capacity = GPU * sum(len(node.gpus) for node in nodes)
    sequence = arrivals(pods, capacity, seed)
    placement = DEFAULT_PLACEMENT if policy == "default" else policy
    is_published_fgd = placement == "fgd" and not history
    started = time.process_time()
    pool = Pool(nodes, placement, seed=seed, history=pods if is_published_fgd else history)
    arrived = allocated = refused = without_gpus = 0
    samples: dict[int, list[float]] = {}
    for pod in sequence:
        if not is_published_fgd:
            pool.learn(pod)
        place = pool.find(pod)
        if place is not None:
            pool.take(pod, place)
            allocated += volume(pod)
        without_gpus += not pod.gpus
        refused += not pod.gpus and place is None
        arrived += volume(pod)
        samples.setdefault(round(100 * arrived / capacity), []).append(100 * allocated / capacity)
    seconds = time.process_time() - started
    curve = {pct: mean(values) for pct, values in samples.items()}
    return Replay(workload, policy, seed, curve, seconds, 100 * refused / max(without_gpus, 1))


def published() -> dict[tuple[str, str, int], dict[str, float]]:
    """Read the published figures by workload, policy and percentage arrived."""
    return {
        (row["workload"], row["policy"], int(row["arrived_pct"])): {
            name: float(row[name]) for name in ("allocated_pct", "lowest", "highest")
        }
        for row in _rows(PUBLISHED)
    }


def table(replays: Iterable[Replay]) -> Iterator[str]:
    """Yield lines: for each workload and policy the mean over the seeds, and below it what was published."""
    figures = published()
    for workload, of_workload in _grouped(replays, "workload").items():
        yield f"\n{workload}: % of GPUs allocated at % arrived"
        yield _line("", (f"{pct} %" for pct in ARRIVED_PCT), "  s/replay  refused of those without GPUs")
        for policy, of_policy in _grouped(of_workload, "policy").items():
            means = (mean(each.allocated_pct(pct) for each in of_policy) for pct in ARRIVED_PCT)
            seconds, refused = mean(each.seconds for each in of_policy), mean(each.refused_pct for each in of_policy)
            yield _line(policy, (f"{value:.2f}" for value in means), f"{seconds:10.2f}  {refused:.1f} %")
            cells = [figures[key] for pct in ARRIVED_PCT if (key := (workload, policy, pct)) in figures]
            if cells:
                yield _line("  published", (f"{cell['allocated_pct']:.2f}" for cell in cells))
                yield _line("  its seeds", (f"{cell['lowest']:.2f}-{cell['highest']:.2f}" for cell in cells))


def _line(name: str, cells: Iterable[str], rest: str = "") -> str:
    return f"{name:<12}" + "".join(f"{cell:>13}" for cell in cells) + rest


def _grouped(replays: Iterable[Replay], name: str) -> dict[str, list[Replay]]:
    groups: dict[str, list[Replay]] = {}
    for each in replays:
        groups.setdefault(getattr(each, name), []).append(each)
    return groups


def curves(replays: Iterable[Replay]) -> dict[str, list[float]]:
    """Give each policy's mean curve, over `DRAWN_PCT`."""
    return {
        policy: [mean(each.allocated_pct(pct) for each in of_policy) for pct in DRAWN_PCT]
        for policy, of_policy in _grouped(replays, "policy").items()
    }


def sketch(replays: Iterable[Replay]) -> Iterator[str]:
    """Yield lines that draw the curves with letters; where curves meet, the last is seen."""
    for workload, of_workload in _grouped(replays, "workload").items():
        lines = curves(of_workload)
        low, high = (choose(map(choose, lines.values())) for choose in (min, max))
        rows = [[" "] * len(DRAWN_PCT) for _ in range(SKETCH_ROWS)]
        for letter, line in zip(ascii_lowercase, lines.values(), strict=False):
            for x, value in enumerate(line):
                rows[round((SKETCH_ROWS - 1) * (high - value) / max(high - low, 1e-9))][x] = letter
        yield f"\n{workload}: " + ", ".join(
            f"{letter} {name}" for letter, name in zip(ascii_lowercase, lines, strict=False)
        )
        for number, row in enumerate(rows):
            label = {0: f"{high:.1f}", SKETCH_ROWS - 1: f"{low:.1f}"}.get(number, "")
            yield f"{label:>6} |" + "".join(row).rstrip()
        yield " " * 8 + f"{DRAWN_PCT[0]} % arrived" + f"{DRAWN_PCT[-1]} %".rjust(len(DRAWN_PCT) - 12)


def drawing(replays: Iterable[Replay]) -> str:
    """Draw the curves as SVG, one panel per workload."""
    workloads = _grouped(replays, "workload")
    panels = [_panel(name, curves(each), number * WIDTH) for number, (name, each) in enumerate(workloads.items())]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(workload: str, lines: Mapping[str, Sequence[float]], offset: int) -> str:
    low, high = (choose(map(choose, lines.values())) for choose in (min, max))
    left, bottom = offset + MARGIN, HEIGHT - MARGIN
    step = (WIDTH - 2 * MARGIN) / (len(DRAWN_PCT) - 1)
    scale = (HEIGHT - 2 * MARGIN) / max(high - low, 1e-9)
    parts = [f'<text x="{left}" y="{MARGIN - 15}" font-size="13">{workload}: % allocated at % arrived</text>']
    for x in range(0, len(DRAWN_PCT), 10):
        parts.append(f'<text x="{left + x * step:.0f}" y="{bottom + 15}" text-anchor="middle">{DRAWN_PCT[x]}</text>')
    for value in (low, high):
        y = round(bottom - (value - low) * scale)
        parts.append(f'<text x="{left - 5}" y="{y}" text-anchor="end">{value:.1f}</text>')
        parts.append(f'<path d="M{left} {y}h{WIDTH - 2 * MARGIN}" stroke="#ddd"/>')
    for number, (policy, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{left + x * step:.1f},{bottom - (y - low) * scale:.1f}" for x, y in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = left + 150 + number % 2 * 90, bottom - 8 - number // 2 * 14
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}">{policy}</text>')
    return "\n".join(parts)


def as_json(replays: Iterable[Replay]) -> str:
    """Give one object for each replay and percentage."""
    rows = [
        {
            "workload": each.workload,
            "policy": each.policy,
            "seed": each.seed,
            "arrived_pct": pct,
            "allocated_pct": round(each.allocated_pct(pct), 3),
            "seconds": round(each.seconds, 3),
        }
        for each in replays
        for pct in ARRIVED_PCT
    ]
    return json.dumps(rows, indent=2)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=Path, default=TRACE / "openb_node_list_gpu_node.csv", help="the cluster")
    parser.add_argument("--pods", type=Path, nargs="+", help="one or several pod lists; without it, all of the trace")
    names = ("default", "all", *PLACEMENTS)
    parser.add_argument("--policy", default="all", choices=names, metavar="NAME", help=f"one of: {', '.join(names)}")
    parser.add_argument("--seeds", default="", help="comma-separated; without it 1 to 10, or 1 with --quick")
    parser.add_argument("--history", type=Path, help="a list of pods that arrived before")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves into a file as well")
    return parser.parse_args()


def main() -> None:
    """Replay, print, draw."""
    arguments = parse()
    nodes = read_nodes(arguments.nodes)
    lists = arguments.pods or sorted(TRACE.glob("openb_pod_list_*.csv")) or [TRACE / "openb_pod_list_default.csv"]
    history = read_pods(arguments.history) if arguments.history else []
    seeds = [int(seed) for seed in arguments.seeds.split(",") if seed] or ([1] if arguments.quick else range(1, 11))
    policies = PLACEMENTS if arguments.policy == "all" else [arguments.policy]
    workloads = {path.stem.removeprefix("openb_pod_list_"): read_pods(path) for path in lists}
    replays = [
        replay(workload, nodes, pods, policy, seed, history)
        for workload, pods in workloads.items()
        for policy in policies
        for seed in seeds
    ]
    if arguments.plot:
        arguments.plot.write_text(drawing(replays))
    print(as_json(replays) if arguments.json else "\n".join([*table(replays), *sketch(replays)]))


if __name__ == "__main__":
    main()

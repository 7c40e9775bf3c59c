"""Where a demand for GPUs goes: one pool of nodes and one policy, for a host's ledger and for a whole cluster. Pure.

    Demand ─▶ Pool.find ─▶ Place ─▶ Pool.take … Pool.give_back
    Demand ─▶ Pool.learn          policies that look ahead expect more of what has arrived

A share never lies across two devices. A device has one holder who has it whole, or shares up to its capacity. A demand
that fits somewhere is always placed; policies differ in where. Deciding is native code: cpp/placement.h draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gridflow.errors import UsageError
from gridflow.gpu import _placement

PLACEMENTS = {
    "first-fit": "the first node, and on it the first device, that has room",
    "best-fit": "the node with the least left of CPUs and GPUs, and on it the fullest device",
    "packing": "devices in use first, then idle devices of nodes in use, then idle nodes",
    "spread": "the node with the most free, and on it the emptiest device",
    "random": "any, by chance",
    "dot-product": "the node with the least free of what is asked for most (CPUs or GPUs)",
    "fgd": "where the least is lost to fragments that typical demands cannot use (fragmentation gradient descent)",
    "swv": "where the least is lost of what can still be placed, scarce room counting most (scarcity-weighted value)",
}
DEFAULT_PLACEMENT = "swv"


@dataclass(frozen=True)
class Gpu:
    """One device; its capacity is in whatever unit shares are asked for in: MB of memory, thousandths."""

    capacity: int
    model: str = ""

    def __post_init__(self) -> None:
        _check("a GPU", at_least=1, capacity=self.capacity)


@dataclass(frozen=True)
class Node:
    """A machine; `cpus` in thousandths, `memory` in MB."""

    name: str
    cpus: int
    memory: int
    gpus: tuple[Gpu, ...]

    def __post_init__(self) -> None:
        _check(f"node {self.name!r}", at_least=0, cpus=self.cpus, memory=self.memory)


@dataclass(frozen=True)
class Demand:
    """What a task asks for, on one node.

    `share` is what it needs of each of its devices; without it they are whole, and its alone. `models` and `devices`
    narrow down which devices will do: by model, and by index on the node.
    """

    gpus: int = 0
    share: int | None = None
    cpus: int = 0
    memory: int = 0
    models: frozenset[str] | None = None
    devices: frozenset[int] | None = None

    def __post_init__(self) -> None:
        _check("a demand", at_least=0, gpus=self.gpus, cpus=self.cpus, memory=self.memory)
        if self.share is not None:
            _check("a demand", at_least=1, share=self.share)
            if self.gpus == 0:
                raise UsageError(f"a demand has share={self.share} of no GPU", hint="set gpus, or leave share out")


@dataclass(frozen=True)
class Place:
    """A node of the pool and devices of that node, by their indices."""

    node: int
    devices: tuple[int, ...]


class Pool:
    """Nodes, what is free of them, and the policy that chooses among them.

    Nodes that are equal to the policy are chosen in an order that follows from `seed`, so decisions are repeatable.
    `history` is what arrived before, for policies that look ahead; without any they learn as they go.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        policy: str = DEFAULT_PLACEMENT,
        *,
        seed: int = 0,
        history: Iterable[Demand] = (),
    ) -> None:
        if policy not in PLACEMENTS:
            raise UsageError(f"placement {policy!r} is not known", hint=f"one of: {', '.join(PLACEMENTS)}")
        self.nodes = tuple(nodes)
        self.policy = policy
        models = sorted({gpu.model for node in self.nodes for gpu in node.gpus})
        self._models = {model: number for number, model in enumerate(models)}
        self._most_devices = max((len(node.gpus) for node in self.nodes), default=0)
        self._pool = _placement.Pool(
            [
                (node.cpus, node.memory, [(gpu.capacity, self._models[gpu.model]) for gpu in node.gpus])
                for node in self.nodes
            ],
            policy,
            seed % 2**64,
        )
        self._kinds: dict[Demand, int] = {}
        for demand in history:
            self.learn(demand)

    def find(self, demand: Demand) -> Place | None:
        """Find the place that the policy prefers; None where the demand fits nowhere. Nothing is taken."""
        found = self._pool.find(self._kind(demand))
        return None if found is None else Place(found[0], tuple(found[1]))

    def take(self, demand: Demand, place: Place) -> None:
        """Take the place off what is free."""
        if not self._pool.take(self._kind(demand), place.node, place.devices):
            raise UsageError(f"{demand} does not fit at {place}", hint="take what find() gives")

    def give_back(self, demand: Demand, place: Place) -> None:
        """Undo a `take`."""
        if not self._pool.give_back(self._kind(demand), place.node, place.devices):
            raise UsageError(f"{demand} does not hold {place}", hint="give back just what was taken, once")

    def learn(self, demand: Demand) -> None:
        """Tell the policy that such a demand has arrived, whether or not it was placed."""
        self._pool.learn(self._kind(demand))

    @property
    def free_shares(self) -> Sequence[Sequence[int]]:
        """What is free of each device, node by node."""
        return self._pool.free()

    @property
    def free_cpus_and_memory(self) -> Sequence[tuple[int, int]]:
        """The free CPUs and memory of each node."""
        return self._pool.free_cpus_and_memory()

    def _kind(self, demand: Demand) -> int:
        kind = self._kinds.get(demand)
        if kind is None:
            kind = self._kinds[demand] = self._pool.add_kind(
                demand.gpus,
                demand.share,
                demand.cpus,
                demand.memory,
                None if demand.models is None else [self._models[each] for each in demand.models & self._models.keys()],
                len(self._models),
                None if demand.devices is None else list(demand.devices),
                self._most_devices,
            )
        return kind


def _check(what: str, *, at_least: int, **values: int) -> None:
    for name, value in values.items():
        if value < at_least:
            raise UsageError(f"{what} has {name}={value}", hint=f"at least {at_least}")

"""`gridflow gpus`: the GPUs of this host, who holds them, and who waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from gridflow.gpu.entries import Holding, Request
from gridflow.gpu.explain import who, why_waiting
from gridflow.gpu.inventory import Device, Inventory, take_inventory
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.shares import Shares
from gridflow.gpu.watch import LOOK_SECONDS, Watch


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch one per line.")
def command(watch: bool, as_json: bool) -> None:
    """Show this host's GPUs, who holds how much of them, and who waits."""
    inventory, ledger = take_inventory(os.environ), Ledger(ledger_folder(os.environ))

    def look() -> dict[str, Any]:
        return report(inventory, ledger)

    if not watch:
        click.echo(json.dumps(look(), indent=2) if as_json else describe(look()))
    elif not as_json and sys.stdout.isatty():
        _watch_on_terminal(ledger, look)
    else:
        for each in _changes(ledger, look):
            click.echo(json.dumps(each) if as_json else describe(each) + "\n")


def _changes(ledger: Ledger, look: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a report at once, and again whenever there is something new but the time."""
    last: dict[str, Any] | None = None
    with Watch(ledger.folder) as watch:
        while True:
            new = look()
            if last is None or _without_times(new) != _without_times(last):
                last = new
                yield new
            watch.wait(LOOK_SECONDS)


def _without_times(what: Any) -> Any:
    if isinstance(what, dict):
        return {key: _without_times(value) for key, value in what.items() if key != "seconds"}
    return [_without_times(value) for value in what] if isinstance(what, list) else what


def _watch_on_terminal(ledger: Ledger, look: Callable[[], dict[str, Any]]) -> None:
    # Slow to import, and of no use to a pipe.
    from rich.live import Live
    from rich.text import Text

    with Watch(ledger.folder) as watch, Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(Text(describe(look()), no_wrap=True, overflow="ellipsis"), refresh=True)
            watch.wait(LOOK_SECONDS)


def report(inventory: Inventory, ledger: Ledger) -> dict[str, Any]:
    """Return the documented JSON object."""
    shares, now = ledger.read(), ledger.clock()
    devices = {device.key: device for device in inventory.devices}
    devices.update({key: device for key, device in shares.devices.items() if key not in devices})
    return {
        "source": inventory.source,
        "ledger": str(ledger.folder),
        "order": inventory.order,
        "devices": [_device(device, inventory, shares) for device in devices.values()],
        "holders": [_holder(holding, now) for holding in shares.holdings.values()],
        "waiting": [_waiter(shares.waiting[id_], shares, now) for id_ in shares.ranking(now)],
    }


def _device(device: Device, inventory: Inventory, shares: Shares) -> dict[str, Any]:
    is_known = device in inventory.devices
    return {
        "device": device.key,
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "memory_mb": device.memory_mb,
        "free_mb": shares.free_mb(device.key) if device.key in shares.devices else device.memory_mb,
        "capability": device.capability,
        "part_of": device.part_of,
        "not_claimable": inventory.why_not(device) if is_known else "claimed by others only",
    }


def _holder(holding: Holding, now: float) -> dict[str, Any]:
    return {
        **_asker(holding.request),
        "devices": list(holding.devices),
        "memory_mb": list(holding.memory_mb),
        "alone": holding.is_whole,
        "seconds": round(now - holding.since, 1),
        "wanted_by": holding.wanted_by,
    }


def _waiter(request: Request, shares: Shares, now: float) -> dict[str, Any]:
    why = shares.obstacles.get(request.id)
    return {
        **_asker(request),
        "claim": str(request.claim),
        "seconds": round(now - request.arrived, 1),
        "reason": why.message if why else why_waiting(shares, request.id, now),
    }


def _asker(request: Request) -> dict[str, Any]:
    claim = request.claim
    return {
        "id": request.id,
        "who": who(request),
        "owner": claim.owner,
        "name": claim.name,
        "pids": [process.pid for process in request.processes],
        "priority": claim.priority,
        "preemptible": claim.preemptible,
    }


def describe(report: dict[str, Any]) -> str:
    """Describe a report in plain lines."""
    lines = [f"GPUs {report['source']}" if report["devices"] else report["source"]]
    for device in report["devices"]:
        name = f"GPU {device['index']}" + (f" of {device['part_of']}" if device["part_of"] else "")
        free = device["not_claimable"] or f"{device['free_mb']} MB free"
        lines.append(f"  {name}  {device['name']}  {device['memory_mb']} MB, {free}")
        for holder in report["holders"]:
            if device["device"] in holder["devices"]:
                lines.append(f"      {_line(holder, device)}")
    for place, waiter in enumerate(report["waiting"], start=1):
        if place == 1:
            lines.append("waiting")
        lines.append(f"  {place}. {waiter['who']}: {waiter['claim']}, {_time(waiter['seconds'])}; {waiter['reason']}")
    return "\n".join(lines)


def _line(holder: dict[str, Any], device: dict[str, Any]) -> str:
    memory_mb = holder["memory_mb"][holder["devices"].index(device["device"])]
    how_much = "alone" if holder["alone"] else f"{memory_mb} MB"
    wanted = f", wanted by {holder['wanted_by']}" if holder["wanted_by"] else ""
    return f"{holder['who']}  {how_much}, {_time(holder['seconds'])}{wanted}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"

"""`gridflow doctor`: what is installed, which platforms can be used, and what each lacks."""

from __future__ import annotations

import json
import os
import platform as machine
import shutil
from importlib import metadata
from typing import Any

import click

from gridflow import settings
from gridflow.platforms.base import PLATFORMS, Finding, load_platform

#: What tasks and platforms may use, and what for.
_PACKAGES = {
    "tensorflow": "runs the programs",
    "keras": "fit on several workers is corrected where its version needs it",
    "tensorboard": "--tensorboard",
    "scikit-learn": "the examples' data",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Show what is installed and which platforms can be used from here; exit 3 if none can."""
    report = _examine()
    click.echo(json.dumps(report, indent=2) if as_json else _describe(report))
    return 0 if any(platform["usable"] for platform in report["platforms"]) else 3


def _examine() -> dict[str, Any]:
    home = settings.home(os.environ)
    return {
        "python": machine.python_version(),
        "system": machine.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "home": str(home),
        "home_free_gb": round(shutil.disk_usage(_existing(home)).free / 2**30, 1),
        "packages": [{"package": name, "version": _version(name), "used_for": use} for name, use in _PACKAGES.items()],
        "platforms": [_examine_platform(name) for name in PLATFORMS],
    }


def _examine_platform(name: str) -> dict[str, Any]:
    platform = load_platform(name)
    findings = platform.check()
    return {
        "platform": name,
        "description": platform.description,
        "usable": all(finding.is_good for finding in findings if finding.is_required),
        "findings": [_finding(finding) for finding in findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {"what": finding.what, "good": finding.is_good, "detail": finding.detail}


def _version(package: str) -> str | None:
    # A build of TensorFlow may be installed under another name.
    for name in (package, f"{package}-cpu", f"{package}-gpu", f"{package}-intel"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _existing(path: os.PathLike[str]) -> str:
    """Return the nearest folder above that is there: the disk that will be written to."""
    text = os.fspath(path)
    while not os.path.exists(text):
        text = os.path.dirname(text)
    return text


def _describe(report: dict[str, Any]) -> str:
    lines = [
        f"Python {report['python']} on {report['system']}, {report['cpus']} CPUs",
        f"runs are kept in {report['home']} ({report['home_free_gb']} GB free)",
        "",
    ]
    for package in report["packages"]:
        mark = "✓" if package["version"] else "-"
        lines.append(
            f"{mark} {package['package']:<14} {package['version'] or 'not installed':<16} {package['used_for']}"
        )
    for platform in report["platforms"]:
        verdict = "can be used" if platform["usable"] else "cannot be used yet"
        lines += ["", f"platform {platform['platform']} ({platform['description']}): {verdict}"]
        for finding in platform["findings"]:
            lines.append(f"  {'✓' if finding['good'] else '✗'} {finding['what']}: {finding['detail']}")
    return "\n".join(lines)

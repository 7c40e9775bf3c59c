"""Why a job finds no machine: its requirements taken apart, each part tried on every machine.

(HAS_SINGULARITY == True) && (TARGET.Memory >= RequestMemory) && …
        ▼                            ▼
 no machine meets this        no machine meets this
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def split(expression: str) -> list[str]:
    """Take a conjunction apart, at the `&&` that stand outside all brackets and quotes."""
    text = _unwrap(expression.strip())
    parts, depth, start, position = [], 0, 0, 0
    in_quotes = False
    while position < len(text):
        character = text[position]
        if character == "\\" and in_quotes:
            position += 1
        elif character == '"':
            in_quotes = not in_quotes
        elif not in_quotes and character in "([{":
            depth += 1
        elif not in_quotes and character in ")]}":
            depth -= 1
        elif not in_quotes and depth == 0 and (character == "?" or text.startswith("||", position)):
            # These bind less than `&&`, so the whole is no conjunction.
            return [text]
        elif not in_quotes and depth == 0 and text.startswith("&&", position):
            parts.append(text[start:position])
            position += 1
            start = position + 1
        position += 1
    parts.append(text[start:])
    if len(parts) == 1:
        return [text]
    return [inner for part in parts for inner in split(part)]


def _unwrap(text: str) -> str:
    """Remove brackets around the whole."""
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, character in enumerate(text):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0 and position < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


def analyse(job: Any, machines: Sequence[Any]) -> str:
    """Return the parts of a job's requirements that no machine meets; empty where some machine meets all of them."""
    if not machines:
        return "the pool has no machines"
    parts = list(dict.fromkeys(split(str(job.lookup("Requirements")))))
    met = [_met(parts, job, machine) for machine in machines]
    unmet = [part for part in parts if not any(part in each for each in met)]
    if unmet:
        return "; ".join(_readable(part, job) for part in unmet)
    if not any(len(each) == len(parts) for each in met):
        return "no machine meets all of its requirements at once: " + " && ".join(parts)
    return ""


def _met(parts: Sequence[str], job: Any, machine: Any) -> set[str]:
    """Return the parts that a machine meets."""
    import classad2

    # A name without MY or TARGET is looked for in the job first, then in the machine.
    scope = classad2.ClassAd({**dict(machine.items()), **dict(job.items())})
    return {part for part in parts if classad2.ExprTree(part).eval(scope, machine) is True}


def _readable(part: str, job: Any) -> str:
    """Return a part with the job's own numbers beside their names."""
    names: Iterable[str] = ("RequestMemory", "RequestCpus", "RequestDisk", "RequestGPUs")
    values = [f"{name} = {job.eval(name)}" for name in names if name in part]
    return f"{part} ({', '.join(values)})" if values else part

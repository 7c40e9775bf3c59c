"""What travels with a task to where Gridflow is not installed: the pure part of it, as a zip."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

#: The packages that run inside a task; the modules beside them come along, too.
_ROOMS = ("rendezvous", "gpu", "task")
#: The oldest that a zip can name: the same files give the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def package() -> bytes:
    """Return the part of this package that a task needs."""
    root = Path(__file__).parents[1]
    paths = sorted([*root.glob("*.py"), *(path for room in _ROOMS for path in (root / room).glob("*.py"))])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            entry = zipfile.ZipInfo(f"gridflow/{path.relative_to(root)}", _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return content.getvalue()

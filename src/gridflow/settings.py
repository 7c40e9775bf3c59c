"""What a person configures besides the job: where runs are kept, and each platform's options.

Options come from the job file's `[platform.NAME]` tables, with flags and keywords on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridflow.errors import SettingsError
from gridflow.tables import Table, read_toml


def home(environ: Mapping[str, str]) -> Path:
    """Return the folder that keeps all runs: `$GRIDFLOW_HOME`, or else `~/.gridflow`."""
    given = environ.get("GRIDFLOW_HOME")
    return Path(given).absolute() if given else Path.home() / ".gridflow"


@dataclass(frozen=True)
class Settings:
    """The part of a job file that is not the job."""

    platforms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: Path, known_platforms: tuple[str, ...]) -> Settings:
        """Read a job file's `[platform.NAME]` tables; any table but `[job]` and those is an error."""
        values = read_toml(path)
        table = Table(values, path.name)
        platforms = values.get("platform", {})
        table.table("job")
        table.table("platform")
        table.close()
        for name, options in platforms.items():
            if name not in known_platforms:
                raise SettingsError(
                    f"{path.name} has a table [platform.{name}]", hint=f"valid platforms: {', '.join(known_platforms)}"
                )
            if not isinstance(options, Mapping):
                raise SettingsError(f"{path.name}: platform.{name} is not a table", hint=f"write [platform.{name}]")
        return cls(platforms)

    def options(self, platform: str, **overrides: Any) -> dict[str, Any]:
        """Return a platform's options, with what is given here on top."""
        given = {key: value for key, value in overrides.items() if value is not None}
        return {**self.platforms.get(platform, {}), **given}

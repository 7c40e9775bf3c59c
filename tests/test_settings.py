from __future__ import annotations

from pathlib import Path

import pytest

from gridflow.errors import SettingsError
from gridflow.settings import Settings, home

PLATFORMS = ("local", "spark")


def test_home_is_what_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home({"GRIDFLOW_HOME": "/data/runs"}) == Path("/data/runs")
    assert home({"GRIDFLOW_HOME": "runs"}) == tmp_path / "runs"


@pytest.mark.parametrize("environ", [{}, {"GRIDFLOW_HOME": ""}])
def test_home_is_below_the_users_home_otherwise(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home(environ) == tmp_path / ".gridflow"


def settings_from(folder: Path, text: str) -> Settings:
    path = folder / "gridflow.toml"
    path.write_text(text)
    return Settings.from_file(path, PLATFORMS)


def test_options_of_a_platform_come_from_its_table(tmp_path: Path) -> None:
    settings = settings_from(tmp_path, '[job]\nprogram = "x"\n[platform.spark]\nmaster = "yarn"\nqueue = "gpu"\n')
    assert settings.options("spark") == {"master": "yarn", "queue": "gpu"}
    assert settings.options("local") == {}


def test_options_given_on_top_win_over_the_file(tmp_path: Path) -> None:
    settings = settings_from(tmp_path, '[platform.spark]\nmaster = "yarn"\nqueue = "gpu"\n')
    options = settings.options("spark", master="local[2]", queue=None, name="x")
    assert options == {"master": "local[2]", "queue": "gpu", "name": "x"}
    assert settings.options("spark") == {"master": "yarn", "queue": "gpu"}


def test_a_file_without_platforms_has_no_options(tmp_path: Path) -> None:
    assert settings_from(tmp_path, '[job]\nprogram = "x"\n') == Settings()
    assert Settings().options("local", name="x") == {"name": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[platform.yarn]", "gridflow.toml has a table [platform.yarn] (valid platforms: local, spark)"),
        ("[platform]\nlocal = 3", "gridflow.toml: platform.local is not a table (write [platform.local])"),
        ("platform = 3", "gridflow.toml.platform = 3 is not a table (give a table)"),
        ("job = 3", "gridflow.toml.job = 3 is not a table (give a table)"),
        ("[jobs]", "gridflow.toml.jobs is not a known key (did you mean 'job'? valid keys: job, platform)"),
        ("[worker]", "gridflow.toml.worker is not a known key (valid keys: job, platform)"),
    ],
)
def test_a_mistake_beside_the_job_is_one_line_with_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(tmp_path, text)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2

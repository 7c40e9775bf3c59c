"""What a slot makes of what Spark tells its task."""

from __future__ import annotations

import pytest

from gridflow.platforms.spark_slot import devices


@pytest.mark.parametrize(
    ("addresses", "visible", "expected"),
    [
        (["1", "0"], "", ["1", "0"]),
        (["0", "1"], "4,6", ["4", "6"]),
        (["6"], "4,6", ["6"]),
        (["1"], "GPU-aaaa,GPU-bbbb", ["GPU-bbbb"]),
        (["GPU-bbbb"], "GPU-aaaa,GPU-bbbb", ["GPU-bbbb"]),
        (["7"], "4,6", ["7"]),
    ],
)
def test_addresses_are_places_among_the_executors_devices_or_their_names(
    addresses: list[str], visible: str, expected: list[str]
) -> None:
    assert devices(addresses, {"CUDA_VISIBLE_DEVICES": visible}) == expected

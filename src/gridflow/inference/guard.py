"""How many samples fit into memory at once. Pure: it is told what was tried, and answers how many to try next.

    peak memory = fixed + per_sample · samples

Two batches of different size give both numbers, and with them the largest batch that fits. Where memory cannot be
measured, or the estimate was wrong, the model itself says so by running out of memory: then half as many are tried,
and never again as many as that.
"""

from __future__ import annotations

from gridflow.errors import TaskError

#: The sizes at which memory is measured. The first has to be large enough to be told from noise.
FIRST_SAMPLES, SECOND_SAMPLES = 4, 16
#: How much of the limit is used: an allocator cannot fill its memory to the last byte.
_USABLE = 0.9


class BatchGuard:
    """Decides on the size of batches; `limit_bytes` is None where nothing is known of the memory."""

    def __init__(self, limit_bytes: int | None = None, max_batch: int | None = None) -> None:
        self._limit = limit_bytes
        #: The largest batch that fits, as far as is known.
        self.largest = max_batch
        self._peaks: dict[int, int] = {}

    @property
    def is_measuring(self) -> bool:
        """Whether the next batch's memory should be measured."""
        return self._limit is not None and len(self._peaks) < 2

    def next_size(self, samples: int) -> int:
        """Return how many of the samples that are left to run at once."""
        sizes = [samples]
        if self.largest is not None:
            sizes.append(self.largest)
        if self.is_measuring:
            sizes.append(SECOND_SAMPLES if self._peaks else FIRST_SAMPLES)
        return min(sizes)

    def measured(self, samples: int, peak_bytes: int) -> None:
        """Take the peak memory of a batch that was run."""
        self._peaks[samples] = max(peak_bytes, self._peaks.get(samples, 0))
        if self._limit is None or len(self._peaks) < 2:
            return
        (few, low), (many, high) = sorted(self._peaks.items())[:2]
        per_sample = max(0.0, (high - low) / (many - few))
        fixed = max(0.0, low - per_sample * few)
        if per_sample:
            self._lower(max(1, int((self._limit * _USABLE - fixed) / per_sample)))

    def ran_out(self, samples: int, error: object) -> None:
        """Take note that a batch did not fit."""
        if samples <= 1:
            raise TaskError(
                f"the model runs out of memory with a single sample: {error}",
                hint="claim more memory, or use a smaller model",
            )
        self._lower(samples // 2)

    def _lower(self, largest: int) -> None:
        self.largest = largest if self.largest is None else min(largest, self.largest)

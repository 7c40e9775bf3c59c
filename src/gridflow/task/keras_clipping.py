"""Makes Keras 3 clip the gradient that training uses, not each worker's part of it.

    Keras 3                 g0, g1 ─> clip(g0), clip(g1) ─> sum
    one process, and here   g0, g1 ─> sum ─> clip(sum)

With `clipnorm`, `global_clipnorm` or `clipvalue` the result would otherwise depend on the number of workers. Keras
sums over the workers after `_clip_gradients`, in `_backend_update_step`; so each worker hands out its share of what
was clipped. A sparse gradient (of an embedding) is a list of rows, and its sum over workers the list of all their
rows: there a share is the worker's own rows, shrunk as the whole was.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    IsAcrossWorkers = Callable[[Any, Any], bool]


def correct(optimizer_module: Any, is_across_workers: IsAcrossWorkers) -> list[str]:
    """Correct the clipping of gradients if it comes before their sum over the workers."""
    optimizer = optimizer_module.TFOptimizer
    sums_after_clipping = "_all_reduce_sum_gradients" in optimizer._backend_update_step.__code__.co_names
    if not sums_after_clipping or "_clip_gradients" in vars(optimizer):
        return []
    optimizer._clip_gradients = _clip_the_sum(optimizer_module.tf, optimizer._clip_gradients, is_across_workers)
    return ["_clip_gradients"]


def _clip_the_sum(tf: Any, clip: Callable[..., Any], is_across_workers: IsAcrossWorkers) -> Callable[..., Any]:
    @functools.wraps(clip)
    def _clip_gradients(self: Any, gradients: Any) -> Any:
        strategy, context = self._distribution_strategy, tf.distribute.get_replica_context()
        by_norm = self.clipnorm or self.global_clipnorm
        if not (by_norm or self.clipvalue) or context is None or not is_across_workers(tf, strategy):
            return clip(self, gradients)
        known = [gradient for gradient in gradients if gradient is not None]
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, known)

        def share(own: Any, whole: Any, clipped: Any) -> Any:
            if not isinstance(own, tf.IndexedSlices):
                return clipped / strategy.num_replicas_in_sync
            if not by_norm:
                return clip(self, [own])[0]
            shrinkage = tf.math.divide_no_nan(tf.norm(clipped.values), tf.norm(whole.values))
            return tf.math.scalar_mul(shrinkage, own)

        shares = map(share, known, summed, clip(self, summed))
        return [None if gradient is None else next(shares) for gradient in gradients]

    return _clip_gradients

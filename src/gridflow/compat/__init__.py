"""Other systems' APIs, so that programs written for them run by another import line.

    a program ─▶ compat.tensorflowonspark                ─▶ spark.Cluster: tasks in executors, feeds of Python objects
              ─▶ compat.hops                             ─▶ launch(on="spark"): trials, or one training on all executors
              ─▶ compat.spark_tensorflow_distributor     ─▶ the same, for one function

Names, signatures and results are theirs; how rows, tasks and failures are dealt with is Gridflow's.
"""

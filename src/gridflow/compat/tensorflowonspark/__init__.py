"""TensorFlowOnSpark's modules, names and behaviour, on Gridflow's engine.

    driver                                              task in an executor
    TFCluster.run ── spark.Cluster ══ slots, agents ══▶ nodes.Node ── TFSparkNode.TFNodeContext ─▶ map_fun(args, ctx)
        │     └───── reservation.Server ◀── who is where ──┘
        └ train, inference ── chunks ══ feeds ════════▶ queues.FeedManager ── TFNode.DataFeed.next_batch

Rows travel as Spark has pickled them, many at a time, or as columns where a DataFrame is fed, and become objects where
the program takes them. What a program could see of TensorFlowOnSpark's own machinery (`TFManager`, `reservation`,
`TFSparkNode.run`) is here too, small.

Modules are imported one by one, as programs do it: `from … import TFCluster`.
"""

#: The release whose behaviour this is.
__version__ = "2.2.5"

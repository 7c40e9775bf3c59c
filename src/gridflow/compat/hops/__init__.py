"""Hops' API: experiments, searches and distributed training from a notebook, on any Spark cluster.

    experiment.grid_search(train, {...})
      │ search       which parameters to try (pure)
      │ runs         each trial, or the whole of a distributed training, is a Gridflow run on Spark
      │ records      what was tried and what came of it: JSON files in a folder of the project
      ▼
    tensorboard      shows that folder while the experiment goes on, and tells programs where to write: logdir()

A project is a folder on any file system that fsspec knows; `hdfs` says where, and reads and writes it.
"""

"""TensorFlow beside Spark: sessions, clusters that rows are fed to, prediction over DataFrames.

    session()                   a Spark session that knows the data source `tfrecord`
    run() ─▶ Cluster            a job's tasks inside Spark's executors; `train` and `inference` feed them rows
    predict(df, model_path)     a saved model over a DataFrame
    TFEstimator ─▶ TFModel      both of these as stages of Spark ML

Names are loaded when they are used, so that a Spark task loads no more than it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow import late

if TYPE_CHECKING:
    from gridflow.spark.cluster import Cluster, run
    from gridflow.spark.estimator import TFEstimator, TFModel
    from gridflow.spark.prediction import predict
    from gridflow.spark.sessions import session

__all__ = ["Cluster", "TFEstimator", "TFModel", "predict", "run", "session"]

__getattr__ = late.names_of(
    __name__,
    {
        "cluster": ["Cluster", "run"],
        "estimator": ["TFEstimator", "TFModel"],
        "prediction": ["predict"],
        "sessions": ["session"],
    },
)

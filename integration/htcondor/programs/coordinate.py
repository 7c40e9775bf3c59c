"""Train with parameter servers: the chief has the workers add to a variable that a server keeps."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    total = tf.Variable(0.0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
add = tf.function(lambda: total.assign_add(1.0))
for _ in range(8):
    coordinator.schedule(add)
coordinator.join()
print("total", float(total.numpy()), "on", total.device)  # noqa: T201

"""The program of OSG's guide for TensorFlow: a product of two matrices on the device that is named."""

import sys
from datetime import datetime

import tensorflow as tf

device, size = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("cpu", 500)
name = "/gpu:0" if device == "gpu" else "/cpu:0"
tf.config.set_soft_device_placement(True)
start = datetime.now()
with tf.device(name):
    matrix = tf.random.uniform(shape=(size, size), minval=0, maxval=1)
    total = tf.reduce_sum(tf.matmul(matrix, tf.transpose(matrix)))
print("Shape:", matrix.shape, "Device:", name, "Sum:", float(total))  # noqa: T201
print("Time taken:", datetime.now() - start)  # noqa: T201

#!/usr/bin/env python3
"""Fits a plane; a submit file and a job file beside it send it to HTCondor."""

from __future__ import annotations

import argparse

import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    x = tf.random.stateless_normal([500, 3], seed=[1, 2])
    y = tf.linalg.matvec(x, [2.0, -1.0, 0.5])
    weights = tf.Variable(tf.zeros([3]))
    for _ in range(parser.parse_args().steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        weights.assign_sub(0.3 * tape.gradient(loss, weights))
    print("weights", *(f"{each:.2f}" for each in weights.numpy()))


if __name__ == "__main__":
    main()

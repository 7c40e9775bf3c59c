package org.tensorflow.hadoop.io;

/** The output format under the name that programs written for tensorflow-hadoop carry. */
public class TFRecordFileOutputFormat extends io.gridflow.tfrecord.hadoop.TFRecordFileOutputFormat {}

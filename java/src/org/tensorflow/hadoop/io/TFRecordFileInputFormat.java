package org.tensorflow.hadoop.io;

/** The input format under the name that programs written for tensorflow-hadoop carry. */
public class TFRecordFileInputFormat extends io.gridflow.tfrecord.hadoop.TFRecordFileInputFormat {}

package io.gridflow.tfrecord.spark;

/** The data source under its older name, `tfrecords`. */
public final class TFRecordsFileFormat extends TFRecordFileFormat {
    @Override
    public String shortName() {
        return "tfrecords";
    }
}

package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordReader;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;

/** Reads each record as a key; a file is read by one task, since nothing marks where a record begins. */
public class TFRecordFileInputFormat extends FileInputFormat<BytesWritable, NullWritable> {
    /** Whether checksums are compared; true unless told. */
    public static final String CRC_CHECK = "tensorflow.read.crc32check";

    @Override
    public RecordReader<BytesWritable, NullWritable> createRecordReader(InputSplit split, TaskAttemptContext context) {
        return new Reader();
    }

    @Override
    protected boolean isSplitable(JobContext context, Path file) {
        return false;
    }

    private static final class Reader extends RecordReader<BytesWritable, NullWritable> {
        private final BytesWritable key = new BytesWritable();
        private FSDataInputStream in;
        private TFRecordReader records;
        private long fileBytes;

        @Override
        public void initialize(InputSplit split, TaskAttemptContext context) throws IOException {
            FileSplit file = (FileSplit) split;
            Configuration conf = context.getConfiguration();
            fileBytes = file.getLength();
            in = file.getPath().getFileSystem(conf).open(file.getPath());
            records = TFRecordFiles.read(in, file.getPath(), conf, conf.getBoolean(CRC_CHECK, true));
        }

        @Override
        public boolean nextKeyValue() throws IOException {
            if (!records.next()) {
                return false;
            }
            key.set(records.buffer(), records.start(), records.length());
            return true;
        }

        @Override
        public BytesWritable getCurrentKey() {
            return key;
        }

        @Override
        public NullWritable getCurrentValue() {
            return NullWritable.get();
        }

        @Override
        public float getProgress() throws IOException {
            return fileBytes == 0 ? 1 : Math.min(1f, (float) in.getPos() / fileBytes);
        }

        @Override
        public void close() throws IOException {
            if (records != null) {
                records.close();
            }
        }
    }
}

package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordReader;
import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapred.FileInputFormat;
import org.apache.hadoop.mapred.FileSplit;
import org.apache.hadoop.mapred.InputSplit;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RecordReader;
import org.apache.hadoop.mapred.Reporter;

/** The input format for the older API, `mapred`. */
public class TFRecordFileInputFormatV1 extends FileInputFormat<BytesWritable, NullWritable> {
    @Override
    public RecordReader<BytesWritable, NullWritable> getRecordReader(InputSplit split, JobConf job, Reporter reporter)
        throws IOException {
        FileSplit file = (FileSplit) split;
        FSDataInputStream in = file.getPath().getFileSystem(job).open(file.getPath());
        boolean isChecked = job.getBoolean(TFRecordFileInputFormat.CRC_CHECK, true);
        return new Reader(in, TFRecordFiles.read(in, file.getPath(), job, isChecked), file.getLength());
    }

    @Override
    protected boolean isSplitable(FileSystem files, Path file) {
        return false;
    }

    private record Reader(FSDataInputStream in, TFRecordReader records, long fileBytes)
        implements RecordReader<BytesWritable, NullWritable> {
        @Override
        public boolean next(BytesWritable key, NullWritable value) throws IOException {
            if (!records.next()) {
                return false;
            }
            key.set(records.buffer(), records.start(), records.length());
            return true;
        }

        @Override
        public BytesWritable createKey() {
            return new BytesWritable();
        }

        @Override
        public NullWritable createValue() {
            return NullWritable.get();
        }

        @Override
        public long getPos() throws IOException {
            return in.getPos();
        }

        @Override
        public float getProgress() throws IOException {
            return fileBytes == 0 ? 1 : Math.min(1f, (float) in.getPos() / fileBytes);
        }

        @Override
        public void close() throws IOException {
            records.close();
        }
    }
}

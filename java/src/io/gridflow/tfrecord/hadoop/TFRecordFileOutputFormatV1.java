package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordWriter;
import java.io.IOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RecordWriter;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.util.Progressable;

/** The output format for the older API, `mapred`. */
public class TFRecordFileOutputFormatV1 extends FileOutputFormat<BytesWritable, NullWritable> {
    @Override
    public RecordWriter<BytesWritable, NullWritable> getRecordWriter(
        FileSystem ignored, JobConf job, String name, Progressable progress) throws IOException {
        String codec = getCompressOutput(job) ? getOutputCompressorClass(job, GzipCodec.class).getName() : "none";
        OutputCompression compression = OutputCompression.named(codec, job);
        Path path = getTaskOutputPath(job, name + compression.extension());
        TFRecordWriter records =
            new TFRecordWriter(compression.compress(path.getFileSystem(job).create(path, progress)));
        return new RecordWriter<>() {
            @Override
            public void write(BytesWritable key, NullWritable value) throws IOException {
                records.write(key.getBytes(), 0, key.getLength());
            }

            @Override
            public void close(Reporter reporter) throws IOException {
                records.close();
            }
        };
    }
}

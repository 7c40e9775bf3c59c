package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordWriter;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

/** Writes each key as a record, compressed as the job says. */
public class TFRecordFileOutputFormat extends FileOutputFormat<BytesWritable, NullWritable> {
    @Override
    public RecordWriter<BytesWritable, NullWritable> getRecordWriter(TaskAttemptContext context) throws IOException {
        Configuration conf = context.getConfiguration();
        String name = getCompressOutput(context) ? getOutputCompressorClass(context, GzipCodec.class).getName() : "none";
        OutputCompression compression = OutputCompression.named(name, conf);
        Path path = getDefaultWorkFile(context, compression.extension());
        TFRecordWriter records = new TFRecordWriter(compression.compress(path.getFileSystem(conf).create(path, false)));
        return new RecordWriter<>() {
            @Override
            public void write(BytesWritable key, NullWritable value) throws IOException {
                records.write(key.getBytes(), 0, key.getLength());
            }

            @Override
            public void close(TaskAttemptContext task) throws IOException {
                records.close();
            }
        };
    }
}

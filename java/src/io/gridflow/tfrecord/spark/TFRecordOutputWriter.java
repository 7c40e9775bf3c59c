package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.TFRecordWriter;
import io.gridflow.tfrecord.hadoop.OutputCompression;
import io.gridflow.tfrecord.wire.MessageBuffer;
import io.gridflow.tfrecord.wire.WireException;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.OutputWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Writes the rows of one task into one file. */
final class TFRecordOutputWriter extends OutputWriter {
    private final String path;
    private final TFRecordWriter records;
    private final RowEncoder encoder;

    private TFRecordOutputWriter(String path, TFRecordWriter records, RowEncoder encoder) {
        this.path = path;
        this.records = records;
        this.encoder = encoder;
    }

    @Override
    public void write(InternalRow row) {
        try {
            if (encoder == null) {
                if (row.isNullAt(0)) {
                    throw new IllegalArgumentException("a record of recordType ByteArray cannot be null; filter it out");
                }
                byte[] bytes = row.getBinary(0);
                records.write(bytes, 0, bytes.length);
            } else {
                MessageBuffer message = encoder.encode(row);
                records.write(message.bytes(), message.start(), message.size());
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (WireException error) {
            // The driver may not know our class.
            throw new IllegalArgumentException(error.getMessage());
        }
    }

    @Override
    public void close() {
        try {
            records.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public String path() {
        return path;
    }

    /** Opens such files in tasks. */
    static final class Factory extends OutputWriterFactory {
        private static final long serialVersionUID = 1L;

        private final TFRecordOptions options;

        Factory(TFRecordOptions options) {
            this.options = options;
        }

        @Override
        public String getFileExtension(TaskAttemptContext context) {
            return ".tfrecord" + OutputCompression.named(options.compression(), context.getConfiguration()).extension();
        }

        @Override
        public OutputWriter newInstance(String path, StructType schema, TaskAttemptContext context) {
            Configuration conf = context.getConfiguration();
            OutputCompression compression = OutputCompression.named(options.compression(), conf);
            Path file = new Path(path);
            try {
                TFRecordWriter records =
                    new TFRecordWriter(compression.compress(file.getFileSystem(conf).create(file, false)));
                boolean isByteArray = options.recordType() == RecordType.BYTE_ARRAY;
                return new TFRecordOutputWriter(path, records, isByteArray ? null : new RowEncoder(schema));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}

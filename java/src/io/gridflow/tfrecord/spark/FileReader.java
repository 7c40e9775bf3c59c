package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.hadoop.TFRecordFiles;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import org.apache.spark.TaskContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;

/** Opens files in tasks. */
final class FileReader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>> implements Serializable {
    private static final long serialVersionUID = 1L;

    private final Broadcast<SerializableConfiguration> conf;
    private final StructType schema;
    private final TFRecordOptions options;

    FileReader(Broadcast<SerializableConfiguration> conf, StructType schema, TFRecordOptions options) {
        this.conf = conf;
        this.schema = schema;
        this.options = options;
    }

    @Override
    public Iterator<InternalRow> apply(PartitionedFile file) {
        try {
            RowIterator rows = new RowIterator(
                TFRecordFiles.open(file.toPath(), conf.value().value(), options.isChecked()), schema, options.recordType());
            TaskContext task = TaskContext.get();
            if (task != null) {
                task.addTaskCompletionListener((TaskCompletionListener) ended -> close(rows));
            }
            return rows;
        } catch (IOException error) {
            throw RowIterator.sneak(error);
        }
    }

    private static void close(RowIterator rows) {
        try {
            rows.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

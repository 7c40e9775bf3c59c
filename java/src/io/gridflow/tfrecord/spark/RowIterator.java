package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.TFRecordReader;
import java.io.Closeable;
import java.io.IOException;
import java.util.NoSuchElementException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import scala.collection.AbstractIterator;

/** The rows of one file; where no column is asked for, only the headers of its records are read. */
final class RowIterator extends AbstractIterator<InternalRow> implements Closeable {
    private final TFRecordReader reader;
    private final RowDecoder decoder;
    private final UnsafeRow emptyRow = new UnsafeRow(0);
    private boolean isAtRecord;
    private boolean isAtEnd;

    RowIterator(TFRecordReader reader, StructType schema, RecordType recordType) {
        this.reader = reader;
        this.decoder = schema.isEmpty() ? null : new RowDecoder(schema, recordType);
        emptyRow.pointTo(new byte[0], 0);
    }

    @Override
    public boolean hasNext() {
        if (!isAtRecord && !isAtEnd) {
            try {
                isAtRecord = decoder == null ? reader.skip() : reader.next();
                isAtEnd = !isAtRecord;
                if (isAtEnd) {
                    reader.close();
                }
            } catch (IOException error) {
                throw sneak(error);
            }
        }
        return isAtRecord;
    }

    @Override
    public InternalRow next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        isAtRecord = false;
        try {
            return decoder == null ? emptyRow : decoder.decode(reader);
        } catch (IOException error) {
            throw sneak(error);
        }
    }

    /** Throw an error as it is: Spark looks at the class to tell damaged files from lost ones. */
    @SuppressWarnings("unchecked")
    static <E extends Throwable> RuntimeException sneak(IOException error) throws E {
        throw (E) error;
    }

    @Override
    public void close() throws IOException {
        isAtEnd = true;
        reader.close();
    }
}

package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.MessageBuffer;
import io.gridflow.tfrecord.wire.WireException;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Makes Examples and SequenceExamples of rows: a null is a feature that is left out. */
final class RowEncoder {
    private static final int KEY = 1 << 3 | 2;
    private static final int VALUE = 2 << 3 | 2;
    private static final int ENTRY = 1 << 3 | 2;
    private static final int FEATURES = 1 << 3 | 2;
    private static final int FEATURE_LISTS = 2 << 3 | 2;

    private final String[] names;
    private final byte[][] keys;
    private final FeatureWriter[] writers;
    private final boolean[] isFeatureList;
    private final boolean hasFeatureLists;
    private final MessageBuffer out = new MessageBuffer();

    RowEncoder(StructType schema) {
        StructField[] fields = schema.fields();
        names = schema.fieldNames();
        keys = new byte[fields.length][];
        writers = new FeatureWriter[fields.length];
        isFeatureList = new boolean[fields.length];
        boolean hasLists = false;
        for (int column = 0; column < fields.length; column++) {
            ColumnType type = ColumnType.of(fields[column].dataType());
            keys[column] = key(names[column]);
            writers[column] = new FeatureWriter(type);
            isFeatureList[column] = type.isFeatureList();
            hasLists |= isFeatureList[column];
        }
        hasFeatureLists = hasLists;
    }

    private static byte[] key(String name) {
        byte[] text = name.getBytes(StandardCharsets.UTF_8);
        MessageBuffer field = new MessageBuffer();
        field.putBytes(text);
        field.putLength(0, KEY);
        return java.util.Arrays.copyOfRange(field.bytes(), field.start(), field.bytes().length);
    }

    /** Encode a row; the record then lies at the end of the buffer. */
    MessageBuffer encode(InternalRow row) {
        out.clear();
        if (hasFeatureLists) {
            encodeMap(row, true, FEATURE_LISTS);
        }
        encodeMap(row, false, FEATURES);
        return out;
    }

    private void encodeMap(InternalRow row, boolean isLists, int tag) {
        int before = out.size();
        int column = writers.length - 1;
        try {
            for (; column >= 0; column--) {
                if (isFeatureList[column] == isLists && !row.isNullAt(column)) {
                    encodeEntry(row, column);
                }
            }
        } catch (WireException error) {
            throw new WireException("column '" + names[column] + "': " + error.getMessage());
        }
        out.putLength(before, tag);
    }

    private void encodeEntry(InternalRow row, int column) {
        int before = out.size();
        writers[column].write(row, column, out);
        out.putLength(before, VALUE);
        out.putBytes(keys[column]);
        out.putLength(before, ENTRY);
    }
}

package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.TFRecordReader;
import io.gridflow.tfrecord.wire.FeatureMap;
import io.gridflow.tfrecord.wire.RecordScanner;
import io.gridflow.tfrecord.wire.WireException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Makes rows of records, in Spark's own binary form and always in the same memory.
 *
 * <p>Features that are not asked for are passed over, and a row begins empty, so nothing stays of the row before.
 */
final class RowDecoder {
    private final String[] names;
    private final ColumnReader[] readers;
    private final FeatureMap[] maps;
    private final int[] entries;
    private final RecordScanner scanner;
    private final UnsafeRowWriter row;
    private final boolean isByteArray;

    RowDecoder(StructType schema, RecordType recordType) {
        StructField[] fields = schema.fields();
        names = schema.fieldNames();
        row = new UnsafeRowWriter(fields.length, 64 * fields.length);
        isByteArray = recordType == RecordType.BYTE_ARRAY;
        readers = new ColumnReader[fields.length];
        maps = new FeatureMap[fields.length];
        entries = new int[fields.length];
        List<String> features = new ArrayList<>();
        List<String> featureLists = new ArrayList<>();
        boolean[] isList = new boolean[fields.length];
        for (int column = 0; column < fields.length; column++) {
            ColumnType type = ColumnType.of(fields[column].dataType());
            isList[column] = type.isFeatureList();
            List<String> group = isList[column] ? featureLists : features;
            entries[column] = group.size();
            group.add(names[column]);
            readers[column] = ColumnReader.of(type, row);
        }
        FeatureMap featureMap = new FeatureMap(features);
        FeatureMap listMap = new FeatureMap(featureLists);
        for (int column = 0; column < fields.length; column++) {
            maps[column] = isList[column] ? listMap : featureMap;
        }
        scanner = new RecordScanner(featureMap, recordType == RecordType.SEQUENCE_EXAMPLE ? listMap : null);
    }

    /** Decode the record that was read last. */
    UnsafeRow decode(TFRecordReader record) throws IOException {
        row.reset();
        row.zeroOutNullBytes();
        int start = record.start();
        if (isByteArray) {
            row.write(0, record.buffer(), start, record.length());
            return row.getRow();
        }
        int column = -1;
        try {
            scanner.scan(record.buffer(), start, start + record.length());
            for (column = 0; column < readers.length; column++) {
                if (maps[column].source(entries[column]) == null) {
                    row.setNullAt(column);
                } else {
                    readers[column].read(maps[column], entries[column], row, column);
                }
            }
        } catch (WireException error) {
            String where = column < 0 ? "" : "column '" + names[column] + "': ";
            throw record.error(where + error.getMessage());
        }
        return row.getRow();
    }
}

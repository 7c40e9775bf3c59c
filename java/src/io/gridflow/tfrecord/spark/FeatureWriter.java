package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.Feature;
import io.gridflow.tfrecord.wire.MessageBuffer;
import io.gridflow.tfrecord.wire.WireException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.Platform;

/** Writes a value of Spark's as a Feature message, or as a FeatureList message. */
final class FeatureWriter {
    static final int TAG_1 = 1 << 3 | 2;

    private static final byte SPARSE = 0;

    private final ColumnType type;
    private final ElementWriter elements;
    private final int kind;

    FeatureWriter(ColumnType type) {
        this.type = type;
        this.elements = ElementWriter.of(type.element(), type.elementType());
        this.kind = switch (type.element()) {
            case VOID, BOOLEAN, BYTE, SHORT, INT, LONG -> Feature.INT64;
            case FLOAT, DOUBLE, DECIMAL -> Feature.FLOAT;
            case STRING, BINARY -> Feature.BYTES;
        };
    }

    /** Write the value, which is not null. */
    void write(SpecializedGetters row, int ordinal, MessageBuffer out) {
        switch (type.shape()) {
            case SCALAR -> {
                int before = out.size();
                elements.write(row, ordinal, out);
                endList(before, out);
            }
            case LIST -> writeList(row.getArray(ordinal), out);
            case VECTOR -> writeVector(row.getStruct(ordinal, 4), out);
            case LISTS, VECTORS -> writeFeatureList(row.getArray(ordinal), out);
        }
    }

    private void writeFeatureList(ArrayData values, MessageBuffer out) {
        for (int i = values.numElements() - 1; i >= 0; i--) {
            int before = out.size();
            if (!values.isNullAt(i)) {
                if (type.shape() == ColumnType.Shape.LISTS) {
                    writeList(values.getArray(i), out);
                } else {
                    writeVector(values.getStruct(i, 4), out);
                }
            }
            out.putLength(before, TAG_1);
        }
    }

    private void writeList(ArrayData values, MessageBuffer out) {
        int before = out.size();
        if (type.element() == ColumnType.Element.FLOAT && values instanceof UnsafeArrayData floats) {
            writeFloats(floats, out);
        } else {
            for (int i = values.numElements() - 1; i >= 0; i--) {
                if (values.isNullAt(i)) {
                    throw nullInside();
                }
                elements.write(values, i, out);
            }
        }
        endList(before, out);
    }

    private static void writeFloats(UnsafeArrayData floats, MessageBuffer out) {
        int count = floats.numElements();
        Object base = floats.getBaseObject();
        long offset = floats.getBaseOffset();
        int header = UnsafeArrayData.calculateHeaderPortionInBytes(count);
        for (int word = Long.BYTES; word < header; word += Long.BYTES) {
            if (Platform.getLong(base, offset + word) != 0) {
                throw nullInside();
            }
        }
        int start = out.reserveFront(count * Float.BYTES);
        Platform.copyMemory(base, offset + header, out.bytes(), Platform.BYTE_ARRAY_OFFSET + start,
            (long) count * Float.BYTES);
    }

    /** Spark keeps a vector as struct(type, size, indices, values); a sparse one is made dense. */
    private void writeVector(InternalRow vector, MessageBuffer out) {
        int before = out.size();
        double[] values = vector.getArray(3).toDoubleArray();
        if (vector.getByte(0) == SPARSE) {
            double[] dense = new double[vector.getInt(1)];
            int[] indices = vector.getArray(2).toIntArray();
            for (int i = 0; i < indices.length; i++) {
                dense[indices[i]] = values[i];
            }
            values = dense;
        }
        for (int i = values.length - 1; i >= 0; i--) {
            out.putFloat((float) values[i]);
        }
        endList(before, out);
    }

    /** Put what stands before the values of a list: numbers are packed. */
    private void endList(int before, MessageBuffer out) {
        if (kind != Feature.BYTES && out.size() > before) {
            out.putLength(before, TAG_1);
        }
        out.putLength(before, kind << 3 | 2);
    }

    private static WireException nullInside() {
        return new WireException("an array holds a null, which a record cannot; filter it out or replace it");
    }
}

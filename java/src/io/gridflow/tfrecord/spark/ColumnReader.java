package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.Feature;
import io.gridflow.tfrecord.wire.FeatureListCursor;
import io.gridflow.tfrecord.wire.FeatureMap;
import io.gridflow.tfrecord.wire.WireException;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeArrayWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeWriter;
import org.apache.spark.unsafe.Platform;

/** Writes one column of a row from its entry in the record's map of features. */
abstract class ColumnReader {
    /** Write the column's value, or null where the feature has no kind. */
    abstract void read(FeatureMap map, int entry, UnsafeRowWriter row, int ordinal);

    static ColumnReader of(ColumnType type, UnsafeRowWriter row) {
        ElementReader elements = ElementReader.of(type.element(), type.elementType());
        return switch (type.shape()) {
            case SCALAR -> new Scalar(elements, type);
            case LIST -> new Single(new ListReader(elements, type, row));
            case VECTOR -> new Single(new VectorReader(elements, row));
            case LISTS -> {
                UnsafeArrayWriter outer = new UnsafeArrayWriter(row, Long.BYTES);
                yield new FeatureList(outer, new ListReader(elements, type, outer));
            }
            case VECTORS -> {
                UnsafeArrayWriter outer = new UnsafeArrayWriter(row, Long.BYTES);
                yield new FeatureList(outer, new VectorReader(elements, outer));
            }
        };
    }

    /** Writes a feature that has a kind as one value of Spark's. */
    private interface ValueReader {
        void read(Feature feature, UnsafeWriter parent, int ordinal);
    }

    private static final class Scalar extends ColumnReader {
        private final Feature feature = new Feature();
        private final ElementReader elements;
        private final boolean isVoid;

        Scalar(ElementReader elements, ColumnType type) {
            this.elements = elements;
            this.isVoid = type.element() == ColumnType.Element.VOID;
        }

        @Override
        void read(FeatureMap map, int entry, UnsafeRowWriter row, int ordinal) {
            feature.parse(map.source(entry), map.start(entry), map.end(entry));
            if (feature.kind() == Feature.NONE) {
                row.setNullAt(ordinal);
            } else if (feature.count() == 1) {
                elements.read(feature, row, ordinal);
            } else if (isVoid) {
                elements.read(feature, row, ordinal);
                row.setNullAt(ordinal);
            } else {
                throw new WireException("it has " + feature.count() + " values, but the column takes exactly one; "
                    + "read it as an array");
            }
        }
    }

    private static final class Single extends ColumnReader {
        private final Feature feature = new Feature();
        private final ValueReader value;

        Single(ValueReader value) {
            this.value = value;
        }

        @Override
        void read(FeatureMap map, int entry, UnsafeRowWriter row, int ordinal) {
            feature.parse(map.source(entry), map.start(entry), map.end(entry));
            if (feature.kind() == Feature.NONE) {
                row.setNullAt(ordinal);
            } else {
                value.read(feature, row, ordinal);
            }
        }
    }

    private static final class FeatureList extends ColumnReader {
        private final Feature feature = new Feature();
        private final FeatureListCursor cursor = new FeatureListCursor();
        private final UnsafeArrayWriter outer;
        private final ValueReader value;

        FeatureList(UnsafeArrayWriter outer, ValueReader value) {
            this.outer = outer;
            this.value = value;
        }

        @Override
        void read(FeatureMap map, int entry, UnsafeRowWriter row, int ordinal) {
            cursor.open(map.source(entry), map.start(entry), map.end(entry));
            int before = row.cursor();
            outer.initialize(cursor.count());
            for (int i = 0; i < cursor.count(); i++) {
                cursor.next(feature);
                if (feature.kind() == Feature.NONE) {
                    outer.setNull8Bytes(i);
                } else {
                    value.read(feature, outer, i);
                }
            }
            row.setOffsetAndSizeFromPreviousCursor(ordinal, before);
        }
    }

    private static final class ListReader implements ValueReader {
        private final UnsafeArrayWriter array;
        private final ElementReader elements;
        private final boolean isFloat;

        ListReader(ElementReader elements, ColumnType type, UnsafeWriter parent) {
            this.array = new UnsafeArrayWriter(parent, type.element().arrayBytes);
            this.elements = elements;
            this.isFloat = type.element() == ColumnType.Element.FLOAT;
        }

        @Override
        public void read(Feature feature, UnsafeWriter parent, int ordinal) {
            int before = parent.cursor();
            int count = feature.count();
            array.initialize(count);
            if (isFloat && feature.kind() == Feature.FLOAT) {
                int values = before + UnsafeArrayData.calculateHeaderPortionInBytes(count);
                Platform.copyMemory(feature.bytes(), Platform.BYTE_ARRAY_OFFSET + feature.start(), array.getBuffer(),
                    values, (long) count * Float.BYTES);
            } else {
                elements.read(feature, array, 0);
            }
            parent.setOffsetAndSizeFromPreviousCursor(ordinal, before);
        }
    }

    /** Writes a dense vector, which Spark keeps as struct(type, size, indices, values). */
    private static final class VectorReader implements ValueReader {
        private static final byte DENSE = 1;

        private final UnsafeRowWriter struct;
        private final UnsafeArrayWriter values;
        private final ElementReader elements;

        VectorReader(ElementReader elements, UnsafeWriter parent) {
            this.struct = new UnsafeRowWriter(parent, 4);
            this.values = new UnsafeArrayWriter(struct, Double.BYTES);
            this.elements = elements;
        }

        @Override
        public void read(Feature feature, UnsafeWriter parent, int ordinal) {
            int before = parent.cursor();
            struct.resetRowWriter();
            struct.write(0, DENSE);
            struct.setNullAt(1);
            struct.setNullAt(2);
            int beforeValues = struct.cursor();
            values.initialize(feature.count());
            elements.read(feature, values, 0);
            struct.setOffsetAndSizeFromPreviousCursor(3, beforeValues);
            parent.setOffsetAndSizeFromPreviousCursor(ordinal, before);
        }
    }
}

package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.Feature;
import io.gridflow.tfrecord.wire.Utf8;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/**
 * What was seen of one column, as bits: those of several files are joined by `or`, in any order.
 *
 * <p>Bits rather than an object travel from tasks to the driver, since in a session that the jar was added to, the two
 * load this class separately.
 */
final class ColumnSummary {
    static final int FEATURE = 1 << 8;
    static final int FEATURE_LIST = 1 << 9;

    private static final int HAS_BYTES = 1 << Feature.BYTES;
    private static final int HAS_FLOAT = 1 << Feature.FLOAT;
    private static final int HAS_INT64 = 1 << Feature.INT64;
    private static final int NOT_TEXT = 1 << 4;
    private static final int NOT_SINGLE = 1 << 5;

    private int bits;

    /** @param origin FEATURE or FEATURE_LIST */
    ColumnSummary(int origin) {
        this.bits = origin;
    }

    /** Take up a feature. */
    void add(Feature feature) {
        if (feature.kind() == Feature.NONE) {
            return;
        }
        if (feature.count() != 1) {
            bits |= NOT_SINGLE;
        }
        if (feature.count() > 0) {
            bits |= 1 << feature.kind();
            if (feature.kind() == Feature.BYTES && (bits & NOT_TEXT) == 0 && !isText(feature)) {
                bits |= NOT_TEXT;
            }
        }
    }

    private static boolean isText(Feature feature) {
        for (int i = 0; i < feature.count(); i++) {
            feature.nextBytes();
            if (!Utf8.isValid(feature.bytes(), feature.valueStart(), feature.valueEnd())) {
                return false;
            }
        }
        return true;
    }

    int bits() {
        return bits;
    }

    /** The type that follows from the bits; a scalar only if each list seen has one value. */
    static DataType type(String name, int bits) {
        DataType element = elementType(name, bits);
        if ((bits & FEATURE_LIST) == 0) {
            boolean isScalar = (bits & NOT_SINGLE) == 0 || element.equals(DataTypes.NullType);
            return isScalar ? element : DataTypes.createArrayType(element);
        }
        if ((bits & FEATURE) != 0) {
            throw new IllegalArgumentException("column '" + name
                + "' is a feature and also a feature list, so it has no type; give a schema");
        }
        return DataTypes.createArrayType(DataTypes.createArrayType(element));
    }

    private static DataType elementType(String name, int bits) {
        if ((bits & HAS_BYTES) != 0) {
            if ((bits & (HAS_FLOAT | HAS_INT64)) != 0) {
                throw new IllegalArgumentException("column '" + name
                    + "' holds bytes in some records and numbers in others, so it has no type; give a schema without it");
            }
            return (bits & NOT_TEXT) == 0 ? DataTypes.StringType : DataTypes.BinaryType;
        }
        if ((bits & HAS_FLOAT) != 0) {
            return DataTypes.FloatType;
        }
        return (bits & HAS_INT64) != 0 ? DataTypes.LongType : DataTypes.NullType;
    }
}

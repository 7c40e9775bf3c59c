package io.gridflow.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** The numbers that arrays are packed of, and how. */
enum Element {
    BOOLEAN(1),
    BYTE(1),
    SHORT(2),
    INT(4),
    LONG(8),
    FLOAT(4),
    DOUBLE(8);

    private final int size;

    Element(int size) {
        this.size = size;
    }

    /** Returns what an array of this type is packed of, or null if it is not packed. */
    static Element of(DataType type) {
        if (type instanceof BooleanType) {
            return BOOLEAN;
        }
        if (type instanceof ByteType) {
            return BYTE;
        }
        if (type instanceof ShortType) {
            return SHORT;
        }
        if (type instanceof IntegerType) {
            return INT;
        }
        if (type instanceof LongType) {
            return LONG;
        }
        if (type instanceof FloatType) {
            return FLOAT;
        }
        return type instanceof DoubleType ? DOUBLE : null;
    }

    byte[] pack(ArrayData array, UTF8String column) {
        int count = array.numElements();
        refuseNulls(array, count, column);
        byte[] packed = new byte[Math.multiplyExact(count, size)];
        if (array instanceof UnsafeArrayData unsafe && ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN) {
            long start = unsafe.getBaseOffset() + UnsafeArrayData.calculateHeaderPortionInBytes(count);
            Platform.copyMemory(unsafe.getBaseObject(), start, packed, Platform.BYTE_ARRAY_OFFSET, packed.length);
        } else {
            copy(array, ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN));
        }
        return packed;
    }

    private void copy(ArrayData array, ByteBuffer packed) {
        switch (this) {
            case BOOLEAN -> {
                for (boolean value : array.toBooleanArray()) {
                    packed.put((byte) (value ? 1 : 0));
                }
            }
            case BYTE -> packed.put(array.toByteArray());
            case SHORT -> packed.asShortBuffer().put(array.toShortArray());
            case INT -> packed.asIntBuffer().put(array.toIntArray());
            case LONG -> packed.asLongBuffer().put(array.toLongArray());
            case FLOAT -> packed.asFloatBuffer().put(array.toFloatArray());
            case DOUBLE -> packed.asDoubleBuffer().put(array.toDoubleArray());
        }
    }

    private static void refuseNulls(ArrayData array, int count, UTF8String column) {
        if (array instanceof UnsafeArrayData unsafe) {
            // numElements: 8 bytes, then one bit per element in words of 8 bytes, then the values.
            Object base = unsafe.getBaseObject();
            long bits = 0;
            long end = unsafe.getBaseOffset() + UnsafeArrayData.calculateHeaderPortionInBytes(count);
            for (long word = unsafe.getBaseOffset() + 8; word < end; word += 8) {
                bits |= Platform.getLong(base, word);
            }
            if (bits == 0) {
                return;
            }
        }
        for (int i = 0; i < count; i++) {
            if (array.isNullAt(i)) {
                throw new IllegalArgumentException("column '" + column + "': value " + i
                    + " of an array is null, which a tensor cannot hold; fill it, or drop the row");
            }
        }
    }
}

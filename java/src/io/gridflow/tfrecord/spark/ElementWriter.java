package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.MessageBuffer;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Writes one value of a row or an array of Spark's as an element of a list. */
@FunctionalInterface
interface ElementWriter {
    void write(SpecializedGetters source, int ordinal, MessageBuffer out);

    static ElementWriter of(ColumnType.Element element, DataType type) {
        return switch (element) {
            case VOID -> (source, ordinal, out) -> { };
            case BOOLEAN -> (source, ordinal, out) -> out.putVarint(source.getBoolean(ordinal) ? 1 : 0);
            case BYTE -> (source, ordinal, out) -> out.putVarint(source.getByte(ordinal));
            case SHORT -> (source, ordinal, out) -> out.putVarint(source.getShort(ordinal));
            case INT -> (source, ordinal, out) -> out.putVarint(source.getInt(ordinal));
            case LONG -> (source, ordinal, out) -> out.putVarint(source.getLong(ordinal));
            case FLOAT -> (source, ordinal, out) -> out.putFloat(source.getFloat(ordinal));
            case DOUBLE -> (source, ordinal, out) -> out.putFloat((float) source.getDouble(ordinal));
            case DECIMAL -> decimals((DecimalType) type);
            case STRING -> (source, ordinal, out) -> putBytes(source.getUTF8String(ordinal), out);
            case BINARY -> (source, ordinal, out) -> {
                boolean isUnsafe = source instanceof UnsafeRow || source instanceof UnsafeArrayData;
                // In Spark's binary form bytes and text are the same, and as text they need not be copied.
                putBytes(isUnsafe ? source.getUTF8String(ordinal) : UTF8String.fromBytes(source.getBinary(ordinal)), out);
            };
        };
    }

    private static ElementWriter decimals(DecimalType type) {
        return (source, ordinal, out) ->
            out.putFloat(source.getDecimal(ordinal, type.precision(), type.scale()).toJavaBigDecimal().floatValue());
    }

    private static void putBytes(UTF8String text, MessageBuffer out) {
        int length = text.numBytes();
        int start = out.reserveFront(length);
        Platform.copyMemory(text.getBaseObject(), text.getBaseOffset(), out.bytes(), Platform.BYTE_ARRAY_OFFSET + start,
            length);
        out.putVarint(length);
        out.putTag(FeatureWriter.TAG_1);
    }
}

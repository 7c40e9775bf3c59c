package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.wire.Feature;
import io.gridflow.tfrecord.wire.Utf8;
import io.gridflow.tfrecord.wire.WireException;
import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeWriter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;

/** Writes all values of a feature into a row or an array of Spark's, the first one at the given place. */
@FunctionalInterface
interface ElementReader {
    void read(Feature feature, UnsafeWriter writer, int ordinal);

    static ElementReader of(ColumnType.Element element, DataType type) {
        return switch (element) {
            case VOID -> (feature, writer, ordinal) -> require(feature, feature.count() == 0, type);
            case BOOLEAN -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.INT64, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, integer(feature, 0, 1, type) == 1);
                }
            };
            case BYTE -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.INT64, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, (byte) integer(feature, Byte.MIN_VALUE, Byte.MAX_VALUE, type));
                }
            };
            case SHORT -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.INT64, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, (short) integer(feature, Short.MIN_VALUE, Short.MAX_VALUE, type));
                }
            };
            case INT -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.INT64, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, (int) integer(feature, Integer.MIN_VALUE, Integer.MAX_VALUE, type));
                }
            };
            case LONG -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.INT64, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, feature.nextInt64());
                }
            };
            case FLOAT -> (feature, writer, ordinal) -> {
                boolean isFloat = requireNumber(feature, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, isFloat ? feature.nextFloat() : (float) feature.nextInt64());
                }
            };
            case DOUBLE -> (feature, writer, ordinal) -> {
                boolean isFloat = requireNumber(feature, type);
                for (int i = 0; i < feature.count(); i++) {
                    writer.write(ordinal + i, isFloat ? (double) feature.nextFloat() : (double) feature.nextInt64());
                }
            };
            case DECIMAL -> decimals((DecimalType) type);
            case STRING -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.BYTES, type);
                for (int i = 0; i < feature.count(); i++) {
                    feature.nextBytes();
                    if (!Utf8.isValid(feature.bytes(), feature.valueStart(), feature.valueEnd())) {
                        throw new WireException("its bytes are not UTF-8; read it as binary");
                    }
                    writeBytes(feature, writer, ordinal + i);
                }
            };
            case BINARY -> (feature, writer, ordinal) -> {
                require(feature, feature.kind() == Feature.BYTES, type);
                for (int i = 0; i < feature.count(); i++) {
                    feature.nextBytes();
                    writeBytes(feature, writer, ordinal + i);
                }
            };
        };
    }

    private static ElementReader decimals(DecimalType type) {
        return (feature, writer, ordinal) -> {
            boolean isFloat = requireNumber(feature, type);
            for (int i = 0; i < feature.count(); i++) {
                Decimal value = isFloat ? decimal(feature.nextFloat(), type)
                    : decimal(BigDecimal.valueOf(feature.nextInt64()), type);
                writer.write(ordinal + i, value, type.precision(), type.scale());
            }
        };
    }

    private static Decimal decimal(float value, DecimalType type) {
        if (Float.isNaN(value) || Float.isInfinite(value)) {
            throw outOfRange(value, type);
        }
        return decimal(shortest(value), type);
    }

    // The shortest decimal that is nearest to a float, so that 0.1 comes back as 0.1; from 2^24 on, where all floats are
    // whole numbers, the float itself. Float.toString gives the shortest one only since Java 19.
    private static BigDecimal shortest(float value) {
        BigDecimal exact = new BigDecimal(value);
        if (Math.abs(value) >= 1 << 24) {
            return exact;
        }
        for (int digits = 6; digits < 9; digits++) {
            BigDecimal rounded = exact.round(new MathContext(digits, RoundingMode.HALF_EVEN));
            if (rounded.floatValue() == value) {
                return rounded;
            }
        }
        return exact.round(new MathContext(9, RoundingMode.HALF_EVEN));
    }

    private static Decimal decimal(BigDecimal value, DecimalType type) {
        BigDecimal rounded = value.setScale(type.scale(), RoundingMode.HALF_UP);
        if (rounded.precision() > type.precision()) {
            throw outOfRange(value, type);
        }
        return Decimal.apply(rounded, type.precision(), type.scale());
    }

    private static long integer(Feature feature, long least, long most, DataType type) {
        long value = feature.nextInt64();
        if (value < least || value > most) {
            throw outOfRange(value, type);
        }
        return value;
    }

    private static void writeBytes(Feature feature, UnsafeWriter writer, int ordinal) {
        writer.write(ordinal, feature.bytes(), feature.valueStart(), feature.valueEnd() - feature.valueStart());
    }

    private static boolean requireNumber(Feature feature, DataType type) {
        require(feature, feature.kind() != Feature.BYTES, type);
        return feature.kind() == Feature.FLOAT;
    }

    /** An empty list fits every column, whatever its kind. */
    private static void require(Feature feature, boolean isFitting, DataType type) {
        if (!isFitting && feature.count() > 0) {
            throw new WireException("it holds " + Feature.kindName(feature.kind()) + ", which cannot be read as "
                + type.simpleString());
        }
    }

    private static WireException outOfRange(Object value, DataType type) {
        return new WireException("its value " + value + " is out of range for " + type.simpleString());
    }
}

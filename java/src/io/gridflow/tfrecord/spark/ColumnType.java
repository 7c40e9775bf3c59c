package io.gridflow.tfrecord.spark;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;

/**
 * How a column lies in a record: the shape of its value and the type of its elements.
 *
 * <pre>
 *   int                    SCALAR of int            a feature with one value
 *   array&lt;int&gt;             LIST of int              a feature
 *   vector                 VECTOR of double         a feature
 *   array&lt;array&lt;int&gt;&gt;      LISTS of int             a feature list
 *   array&lt;vector&gt;          VECTORS of double        a feature list
 * </pre>
 */
record ColumnType(Shape shape, Element element, DataType elementType) {
    enum Shape { SCALAR, LIST, VECTOR, LISTS, VECTORS }

    enum Element {
        VOID(8), BOOLEAN(1), BYTE(1), SHORT(2), INT(4), LONG(8), FLOAT(4), DOUBLE(8), DECIMAL(8), STRING(8), BINARY(8);

        /** What an element takes in Spark's arrays. */
        final int arrayBytes;

        Element(int arrayBytes) {
            this.arrayBytes = arrayBytes;
        }
    }

    /** The form of a column, or null if records cannot hold it. */
    static ColumnType of(DataType type) {
        if (isVector(type)) {
            return new ColumnType(Shape.VECTOR, Element.DOUBLE, DataTypes.DoubleType);
        }
        if (!(type instanceof ArrayType array)) {
            return of(Shape.SCALAR, type);
        }
        if (isVector(array.elementType())) {
            return new ColumnType(Shape.VECTORS, Element.DOUBLE, DataTypes.DoubleType);
        }
        if (array.elementType() instanceof ArrayType inner) {
            return of(Shape.LISTS, inner.elementType());
        }
        return of(Shape.LIST, array.elementType());
    }

    private static ColumnType of(Shape shape, DataType elementType) {
        Element element = elementOf(elementType);
        return element == null ? null : new ColumnType(shape, element, elementType);
    }

    private static Element elementOf(DataType type) {
        if (type instanceof LongType) {
            return Element.LONG;
        } else if (type instanceof IntegerType) {
            return Element.INT;
        } else if (type instanceof FloatType) {
            return Element.FLOAT;
        } else if (type instanceof DoubleType) {
            return Element.DOUBLE;
        } else if (type instanceof StringType) {
            return Element.STRING;
        } else if (type instanceof BinaryType) {
            return Element.BINARY;
        } else if (type instanceof BooleanType) {
            return Element.BOOLEAN;
        } else if (type instanceof ShortType) {
            return Element.SHORT;
        } else if (type instanceof ByteType) {
            return Element.BYTE;
        } else if (type instanceof DecimalType) {
            return Element.DECIMAL;
        } else if (type instanceof NullType) {
            return Element.VOID;
        }
        return null;
    }

    /** Spark has two vector types, of `ml` and of the older `mllib`, with the same form. */
    private static boolean isVector(DataType type) {
        if (!(type instanceof UserDefinedType<?> own)) {
            return false;
        }
        String name = own.userClass() == null ? "" : own.userClass().getName();
        return name.equals("org.apache.spark.ml.linalg.Vector") || name.equals("org.apache.spark.mllib.linalg.Vector");
    }

    boolean isFeatureList() {
        return shape == Shape.LISTS || shape == Shape.VECTORS;
    }

    /** Refuse a schema that records of a type cannot hold, naming the column and what to do. */
    static void check(StructType schema, RecordType recordType) {
        if (recordType == RecordType.BYTE_ARRAY) {
            boolean isOneBinary = schema.length() == 1 && schema.fields()[0].dataType() instanceof BinaryType;
            if (!isOneBinary) {
                throw new IllegalArgumentException("recordType ByteArray needs exactly one column, of type binary, but "
                    + "the columns are " + schema.simpleString() + "; choose and cast one, or use recordType Example");
            }
            return;
        }
        for (StructField field : schema.fields()) {
            ColumnType type = of(field.dataType());
            String problem = "column '" + field.name() + "': ";
            if (type == null) {
                throw new IllegalArgumentException(problem + "a record cannot hold " + field.dataType().simpleString()
                    + "; cast it or drop it");
            }
            if (type.isFeatureList() && recordType == RecordType.EXAMPLE) {
                throw new IllegalArgumentException(problem + "an Example cannot hold " + field.dataType().simpleString()
                    + "; use the option recordType=SequenceExample, or flatten it");
            }
        }
    }
}

package io.gridflow.spark;

import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;

/**
 * {@code pack(column, name)}: an array of numbers, or a vector of Spark ML, as the bytes of its values, little end
 * first. Null stays null; a null among the values is an error that names the column.
 */
final class Pack implements UnboundFunction {
    private static final String VECTOR = "org.apache.spark.ml.linalg.VectorUDT";

    @Override
    public String name() {
        return "pack";
    }

    @Override
    public String description() {
        return "pack(column, name): the values of an array of numbers or of a vector as bytes, little end first";
    }

    @Override
    public BoundFunction bind(StructType arguments) {
        if (arguments.length() != 2) {
            throw new UnsupportedOperationException("pack takes a column and its name");
        }
        DataType type = arguments.apply(0).dataType();
        if (type instanceof UserDefinedType<?> own && own.getClass().getName().equals(VECTOR)) {
            return new PackVector(own);
        }
        if (type instanceof ArrayType array) {
            Element element = Element.of(array.elementType());
            if (element != null) {
                return new PackArray(array, element);
            }
        }
        throw new UnsupportedOperationException("pack cannot take " + type.simpleString());
    }
}

package io.gridflow.spark;

import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** Packs arrays of one type; public because the code that Spark generates calls it. */
public final class PackArray implements ScalarFunction<byte[]> {
    private final ArrayType type;
    private final Element element;

    PackArray(ArrayType type, Element element) {
        this.type = type;
        this.element = element;
    }

    /** Called by Spark, which finds it by its name and argument types. */
    public byte[] invoke(ArrayData array, UTF8String column) {
        return array == null ? null : element.pack(array, column);
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {type, DataTypes.StringType};
    }

    @Override
    public DataType resultType() {
        return DataTypes.BinaryType;
    }

    @Override
    public String name() {
        return "pack";
    }

    @Override
    public String canonicalName() {
        return "io.gridflow.pack(" + type.catalogString() + ")";
    }
}

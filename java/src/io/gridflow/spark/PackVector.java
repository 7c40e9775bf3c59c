package io.gridflow.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.UserDefinedType;
import org.apache.spark.unsafe.types.UTF8String;

/** Packs vectors of Spark ML, sparse ones with their zeros; public because the code that Spark generates calls it. */
public final class PackVector implements ScalarFunction<byte[]> {
    // A vector is stored as (type: tinyint, size: int, indices: array<int>, values: array<double>).
    private static final int TYPE = 0;
    private static final int SIZE = 1;
    private static final int INDICES = 2;
    private static final int VALUES = 3;
    private static final int SPARSE = 0;

    private final UserDefinedType<?> type;

    PackVector(UserDefinedType<?> type) {
        this.type = type;
    }

    /** Called by Spark, which finds it by its name and argument types; a vector counts as any object there. */
    public byte[] invoke(Object stored, UTF8String column) {
        if (stored == null) {
            return null;
        }
        InternalRow vector = (InternalRow) stored;
        ArrayData values = vector.getArray(VALUES);
        if (vector.getByte(TYPE) != SPARSE) {
            return Element.DOUBLE.pack(values, column);
        }
        byte[] packed = new byte[Math.multiplyExact(vector.getInt(SIZE), Double.BYTES)];
        ByteBuffer target = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        ArrayData indices = vector.getArray(INDICES);
        for (int i = 0; i < indices.numElements(); i++) {
            target.putDouble(indices.getInt(i) * Double.BYTES, values.getDouble(i));
        }
        return packed;
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
        return "io.gridflow.pack(vector)";
    }
}

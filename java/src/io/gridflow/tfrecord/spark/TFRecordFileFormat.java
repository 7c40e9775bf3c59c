package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.hadoop.OutputCompression;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Spark's data source `tfrecord`: reads and writes files of Examples, SequenceExamples or bare bytes.
 *
 * <p>Spark itself finds files and partitions, chooses what to overwrite, and commits what tasks wrote.
 */
public class TFRecordFileFormat implements FileFormat, DataSourceRegister {
    private static final StructType BYTE_ARRAY = new StructType().add("byteArray", DataTypes.BinaryType);

    @Override
    public String shortName() {
        return "tfrecord";
    }

    @Override
    public Option<StructType> inferSchema(SparkSession session, Map<String, String> given, Seq<FileStatus> files) {
        TFRecordOptions options = TFRecordOptions.of(given);
        if (options.recordType() == RecordType.BYTE_ARRAY) {
            return Option.apply(BYTE_ARRAY);
        }
        List<FileStatus> found = CollectionConverters.asJava(files);
        if (found.isEmpty()) {
            return Option.empty();
        }
        SparkContext context = session.sparkContext();
        Configuration conf = new Configuration(context.hadoopConfiguration());
        CollectionConverters.asJava(given).forEach(conf::set);
        return Option.apply(
            SchemaInference.infer(JavaSparkContext.fromSparkContext(context), share(context, conf), found, options));
    }

    @Override
    public OutputWriterFactory prepareWrite(
        SparkSession session, Job job, Map<String, String> given, StructType schema) {
        TFRecordOptions options = TFRecordOptions.of(given);
        ColumnType.check(schema, options.recordType());
        OutputCompression.named(options.compression(), job.getConfiguration());
        return new TFRecordOutputWriter.Factory(options);
    }

    @Override
    public boolean supportDataType(DataType type) {
        return ColumnType.of(type) != null;
    }

    /** Nothing in a file marks where a record begins. */
    @Override
    public boolean isSplitable(SparkSession session, Map<String, String> options, Path path) {
        return false;
    }

    @Override
    public Function1<PartitionedFile, Iterator<InternalRow>> buildReader(
        SparkSession session, StructType dataSchema, StructType partitionSchema, StructType requiredSchema,
        Seq<Filter> filters, Map<String, String> given, Configuration conf) {
        TFRecordOptions options = TFRecordOptions.of(given);
        ColumnType.check(dataSchema, options.recordType());
        return new FileReader(share(session.sparkContext(), conf), requiredSchema, options);
    }

    /** Rows are ready as they are where no partition's values have to be added to them. */
    @Override
    public Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(
        SparkSession session, StructType dataSchema, StructType partitionSchema, StructType requiredSchema,
        Seq<Filter> filters, Map<String, String> given, Configuration conf) {
        if (partitionSchema.isEmpty()) {
            return buildReader(session, dataSchema, partitionSchema, requiredSchema, filters, given, conf);
        }
        return FileFormat.super.buildReaderWithPartitionValues(
            session, dataSchema, partitionSchema, requiredSchema, filters, given, conf);
    }

    private static Broadcast<SerializableConfiguration> share(SparkContext context, Configuration conf) {
        return context.broadcast(
            new SerializableConfiguration(conf), ClassTag$.MODULE$.apply(SerializableConfiguration.class));
    }

    /** Spark reuses the result of one scan for an equal one. */
    @Override
    public boolean equals(Object other) {
        return other instanceof TFRecordFileFormat;
    }

    @Override
    public int hashCode() {
        return TFRecordFileFormat.class.hashCode();
    }

    @Override
    public String toString() {
        return "TFRecord";
    }
}

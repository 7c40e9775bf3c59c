package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.TFRecordReader;
import io.gridflow.tfrecord.hadoop.TFRecordFiles;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;

/** Works out the schema of files in tasks of Spark's, each of which reads some of them. */
final class SchemaInference implements FlatMapFunction<Iterator<String>, HashMap<String, Integer>> {
    private static final long serialVersionUID = 1L;

    private final Broadcast<SerializableConfiguration> conf;
    private final TFRecordOptions options;

    private SchemaInference(Broadcast<SerializableConfiguration> conf, TFRecordOptions options) {
        this.conf = conf;
        this.options = options;
    }

    static StructType infer(
        JavaSparkContext context, Broadcast<SerializableConfiguration> conf, List<FileStatus> files,
        TFRecordOptions options) {
        List<String> paths = sample(files, options.sampleFiles());
        int tasks = Math.min(paths.size(), 4 * context.defaultParallelism());
        return SchemaSummary.schema(
            context.parallelize(paths, tasks).mapPartitions(new SchemaInference(conf, options)).collect());
    }

    /** Choose files at even distances, the first one among them. */
    private static List<String> sample(List<FileStatus> files, int count) {
        int chosen = Math.min(files.size(), count);
        List<String> paths = new ArrayList<>(chosen);
        for (long i = 0; i < chosen; i++) {
            paths.add(files.get((int) (i * files.size() / chosen)).getPath().toString());
        }
        return paths;
    }

    @Override
    public Iterator<HashMap<String, Integer>> call(Iterator<String> paths) throws IOException {
        HashMap<String, Integer> table = new HashMap<>();
        while (paths.hasNext()) {
            Path path = new Path(paths.next());
            SchemaSummary summary = new SchemaSummary(options.recordType());
            try (TFRecordReader records = TFRecordFiles.open(path, conf.value().value(), options.isChecked())) {
                summary.add(records, options.sample());
            }
            summary.mergeInto(table);
        }
        return List.of(table).iterator();
    }
}

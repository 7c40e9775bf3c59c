package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.TFRecordReader;
import io.gridflow.tfrecord.wire.Feature;
import io.gridflow.tfrecord.wire.FeatureListCursor;
import io.gridflow.tfrecord.wire.FeatureMap;
import io.gridflow.tfrecord.wire.RecordScanner;
import io.gridflow.tfrecord.wire.WireException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** What was seen of the records of a file: a {@link ColumnSummary} for each name. */
final class SchemaSummary {
    private final FeatureMap features = FeatureMap.ofAll();
    private final FeatureMap featureLists = FeatureMap.ofAll();
    private final List<ColumnSummary> ofFeatures = new ArrayList<>();
    private final List<ColumnSummary> ofFeatureLists = new ArrayList<>();
    private final RecordScanner scanner;
    private final Feature feature = new Feature();
    private final FeatureListCursor cursor = new FeatureListCursor();

    SchemaSummary(RecordType recordType) {
        scanner = new RecordScanner(features, recordType == RecordType.SEQUENCE_EXAMPLE ? featureLists : null);
    }

    /** Take up a file's first records. */
    void add(TFRecordReader records, long sample) throws IOException {
        try {
            for (long left = sample; left > 0 && records.next(); left--) {
                scanner.scan(records.buffer(), records.start(), records.start() + records.length());
                addFeatures();
                addFeatureLists();
            }
        } catch (WireException error) {
            throw records.error(error.getMessage());
        }
    }

    private void addFeatures() {
        grow(ofFeatures, features, ColumnSummary.FEATURE);
        for (int entry = 0; entry < features.size(); entry++) {
            if (features.source(entry) != null) {
                feature.parse(features.source(entry), features.start(entry), features.end(entry));
                ofFeatures.get(entry).add(feature);
            }
        }
    }

    private void addFeatureLists() {
        grow(ofFeatureLists, featureLists, ColumnSummary.FEATURE_LIST);
        for (int entry = 0; entry < featureLists.size(); entry++) {
            if (featureLists.source(entry) != null) {
                cursor.open(featureLists.source(entry), featureLists.start(entry), featureLists.end(entry));
                for (int i = 0; i < cursor.count(); i++) {
                    cursor.next(feature);
                    ofFeatureLists.get(entry).add(feature);
                }
            }
        }
    }

    private static void grow(List<ColumnSummary> summaries, FeatureMap map, int origin) {
        while (summaries.size() < map.size()) {
            summaries.add(new ColumnSummary(origin));
        }
    }

    /** Add the bits of each name to those in a table. */
    void mergeInto(Map<String, Integer> table) {
        for (int entry = 0; entry < ofFeatures.size(); entry++) {
            table.merge(features.name(entry), ofFeatures.get(entry).bits(), (one, other) -> one | other);
        }
        for (int entry = 0; entry < ofFeatureLists.size(); entry++) {
            table.merge(featureLists.name(entry), ofFeatureLists.get(entry).bits(), (one, other) -> one | other);
        }
    }

    /** The columns that follow from such tables, by name in the order of their bytes. */
    static StructType schema(Iterable<? extends Map<String, Integer>> tables) {
        Map<String, Integer> whole = new HashMap<>();
        tables.forEach(table -> table.forEach((name, bits) -> whole.merge(name, bits, (one, other) -> one | other)));
        List<StructField> fields = new ArrayList<>();
        whole.entrySet().stream()
            .sorted(Comparator.comparing(entry -> entry.getKey().getBytes(StandardCharsets.UTF_8), Arrays::compareUnsigned))
            .forEach(entry -> fields.add(DataTypes.createStructField(
                entry.getKey(), ColumnSummary.type(entry.getKey(), entry.getValue()), true)));
        return DataTypes.createStructType(fields);
    }
}

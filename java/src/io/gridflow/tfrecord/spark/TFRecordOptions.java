package io.gridflow.tfrecord.spark;

import java.io.Serializable;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import scala.jdk.javaapi.CollectionConverters;

/** The options of reading and writing; their names are not case sensitive. */
record TFRecordOptions(RecordType recordType, String compression, boolean isChecked, long sample, int sampleFiles)
    implements Serializable {

    static TFRecordOptions of(scala.collection.immutable.Map<String, String> options) {
        Map<String, String> given = new HashMap<>();
        CollectionConverters.asJava(options).forEach((name, value) -> given.put(name.toLowerCase(Locale.ROOT), value));
        return new TFRecordOptions(
            RecordType.named(given.getOrDefault("recordtype", "Example")),
            given.getOrDefault("compression", given.getOrDefault("codec", "none")),
            isTrue("crc32check", given.getOrDefault("crc32check", "true")),
            positive("sample", given.get("sample"), Long.MAX_VALUE),
            (int) positive("sampleFiles", given.get("samplefiles"), Integer.MAX_VALUE));
    }

    private static boolean isTrue(String name, String value) {
        return switch (value.toLowerCase(Locale.ROOT)) {
            case "true" -> true;
            case "false" -> false;
            default -> throw new IllegalArgumentException(name + " is '" + value + "', but must be true or false");
        };
    }

    private static long positive(String name, String value, long otherwise) {
        try {
            long number = value == null ? otherwise : Long.parseLong(value);
            if (number >= 1 && number <= otherwise) {
                return number;
            }
        } catch (NumberFormatException error) {
            // The message below says it all.
        }
        throw new IllegalArgumentException(name + " is '" + value + "', but must be a number from 1");
    }
}

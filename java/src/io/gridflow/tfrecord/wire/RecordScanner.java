package io.gridflow.tfrecord.wire;

/**
 * Splits records into their maps of features.
 *
 * <pre>
 *   message Example         { Features features = 1; }
 *   message SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
 *   message FeatureLists    { map&lt;string, FeatureList&gt; feature_list = 1; }
 *   message FeatureList     { repeated Feature feature = 1; }
 * </pre>
 */
public final class RecordScanner {
    private final FeatureMap features;
    private final FeatureMap featureLists;

    /** @param featureLists null for Examples, which have none */
    public RecordScanner(FeatureMap features, FeatureMap featureLists) {
        this.features = features;
        this.featureLists = featureLists;
    }

    /** Fill the maps with the record's entries. */
    public void scan(byte[] bytes, int start, int end) {
        features.clear();
        if (featureLists != null) {
            featureLists.clear();
        }
        for (int next = start; next < end; ) {
            int value = Wire.varintEnd(bytes, next, end);
            int tag = Wire.tag(bytes, next, value);
            next = Wire.skip(bytes, tag, value, end);
            if (tag == Wire.TAG_1) {
                features.scan(bytes, Wire.varintEnd(bytes, value, end), next);
            } else if (tag == Wire.TAG_2 && featureLists != null) {
                featureLists.scan(bytes, Wire.varintEnd(bytes, value, end), next);
            }
        }
    }
}

package io.gridflow.tfrecord.wire;

/** Walks over the features of a FeatureList. */
public final class FeatureListCursor {
    private byte[] bytes;
    private int position;
    private int end;
    private int count;

    /** Begin with the list between two places, and count its features. */
    public void open(byte[] source, int from, int to) {
        bytes = source;
        position = from;
        end = to;
        count = 0;
        for (int next = from; next < to; ) {
            int value = Wire.varintEnd(source, next, to);
            int tag = Wire.tag(source, next, value);
            next = Wire.skip(source, tag, value, to);
            if (tag == Wire.TAG_1) {
                count++;
            }
        }
    }

    public int count() {
        return count;
    }

    /** Look at the next feature; there must be one. */
    public void next(Feature feature) {
        while (true) {
            int value = Wire.varintEnd(bytes, position, end);
            int tag = Wire.tag(bytes, position, value);
            position = Wire.skip(bytes, tag, value, end);
            if (tag == Wire.TAG_1) {
                feature.parse(bytes, Wire.varintEnd(bytes, value, end), position);
                return;
            }
        }
    }
}

package io.gridflow.tfrecord.wire;

import java.util.Arrays;

/** Bytes gathered from several places of a record, for encodings that are allowed but unusual. */
final class Scratch {
    private byte[] bytes = new byte[64];
    private int length;

    void clear() {
        length = 0;
    }

    void add(byte[] source, int start, int end) {
        int count = end - start;
        if (count > bytes.length - length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, length + count));
        }
        System.arraycopy(source, start, bytes, length, count);
        length += count;
    }

    byte[] bytes() {
        return bytes;
    }

    int length() {
        return length;
    }
}

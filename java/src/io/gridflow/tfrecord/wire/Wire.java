package io.gridflow.tfrecord.wire;

/** Protobuf's wire format: a message is fields, each with a tag (number and wire type) and a value. */
final class Wire {
    static final int VARINT = 0;
    static final int FIXED64 = 1;
    static final int DELIMITED = 2;
    static final int GROUP = 3;
    static final int GROUP_END = 4;
    static final int FIXED32 = 5;

    static final int TAG_1 = 1 << 3 | DELIMITED;
    static final int TAG_2 = 2 << 3 | DELIMITED;
    static final int TAG_3 = 3 << 3 | DELIMITED;

    private static final int MAX_DEPTH = 100;

    private Wire() {}

    /** Where the varint at a place ends. */
    static int varintEnd(byte[] bytes, int start, int end) {
        int position = start;
        do {
            if (position == end) {
                throw WireException.malformed("it ends inside a number");
            }
            if (position - start == 10) {
                throw WireException.malformed("a number has more than ten bytes");
            }
        } while (bytes[position++] < 0);
        return position;
    }

    /** The varint between two places. */
    static long varint(byte[] bytes, int start, int end) {
        long value = 0;
        for (int position = end - 1; position >= start; position--) {
            value = value << 7 | bytes[position] & 0x7f;
        }
        return value;
    }

    /** Where a value begins whose length lies before it; it is sure to end in time. */
    static int delimitedStart(byte[] bytes, int position, int end) {
        int start = varintEnd(bytes, position, end);
        length(bytes, position, start, end);
        return start;
    }

    /** The length that lies between two places, which must not lead past the end. */
    static int length(byte[] bytes, int position, int start, int end) {
        long length = start - position == 1 ? bytes[position] : varint(bytes, position, start);
        if (length < 0 || length > end - start) {
            throw WireException.malformed("a length leads past its end");
        }
        return (int) length;
    }

    /** The tag between two places. */
    static int tag(byte[] bytes, int start, int end) {
        long tag = end - start == 1 ? bytes[start] : varint(bytes, start, end);
        if (tag < 8 || tag > 0xffffffffL) {
            throw WireException.malformed("a field has no valid number");
        }
        return (int) tag;
    }

    /** Where the value of a field that nobody asks for ends. */
    static int skip(byte[] bytes, int tag, int position, int end) {
        return skip(bytes, tag, position, end, 0);
    }

    private static int skip(byte[] bytes, int tag, int position, int end, int depth) {
        switch (tag & 7) {
            case VARINT:
                return varintEnd(bytes, position, end);
            case FIXED64:
                return advance(position, 8, end);
            case FIXED32:
                return advance(position, 4, end);
            case DELIMITED:
                int start = varintEnd(bytes, position, end);
                return start + length(bytes, position, start, end);
            case GROUP:
                return skipGroup(bytes, tag, position, end, depth);
            default:
                throw WireException.malformed("a field has the unknown wire type " + (tag & 7));
        }
    }

    private static int advance(int position, int count, int end) {
        if (end - position < count) {
            throw WireException.malformed("it ends inside a number");
        }
        return position + count;
    }

    private static int skipGroup(byte[] bytes, int tag, int position, int end, int depth) {
        if (depth == MAX_DEPTH) {
            throw WireException.malformed("groups are nested too deeply");
        }
        int next = position;
        while (next < end) {
            int value = varintEnd(bytes, next, end);
            int inner = tag(bytes, next, value);
            if ((inner & 7) == GROUP_END) {
                if (inner >>> 3 != tag >>> 3) {
                    throw WireException.malformed("a group ends that did not begin");
                }
                return value;
            }
            next = skip(bytes, inner, value, end, depth + 1);
        }
        throw WireException.malformed("a group does not end");
    }
}

package io.gridflow.tfrecord.wire;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * One feature where it lies in its record: its kind, how many values it has, and the values one after the other.
 *
 * <pre>
 *   message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
 *   each list: repeated value = 1, numbers packed or not
 * </pre>
 *
 * <p>An object is used for one feature after the other. Numbers in an unusual form (not packed, or in several pieces)
 * are gathered first, so that {@link #start()} to {@link #end()} always hold the bare values of a numeric list.
 */
public final class Feature {
    public static final int NONE = 0;
    public static final int BYTES = 1;
    public static final int FLOAT = 2;
    public static final int INT64 = 3;

    private static final VarHandle FLOATS = MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.LITTLE_ENDIAN);

    private final Scratch merged = new Scratch();
    private final Scratch packed = new Scratch();
    private int kind;
    private int count;
    private byte[] bytes;
    private int start;
    private int end;
    private int position;
    private int valueStart;

    /** Look at the feature between two places; its kind, its count and each number's form are checked here. */
    public void parse(byte[] source, int from, int to) {
        kind = NONE;
        count = 0;
        bytes = source;
        if (from == to) {
            return;
        }
        int tag = source[from];
        if (tag == Wire.TAG_1 || tag == Wire.TAG_2 || tag == Wire.TAG_3) {
            int body = Wire.varintEnd(source, from + 1, to);
            if (body + Wire.length(source, from + 1, body, to) == to) {
                parseList(tag >>> 3, source, body, to);
                return;
            }
        }
        parseMerged(source, from, to);
    }

    /** Lists of one kind are joined, and of several kinds the last one counts. */
    private void parseMerged(byte[] source, int from, int to) {
        int last = NONE;
        merged.clear();
        for (int next = from; next < to; ) {
            int value = Wire.varintEnd(source, next, to);
            int tag = Wire.tag(source, next, value);
            next = Wire.skip(source, tag, value, to);
            if (tag == Wire.TAG_1 || tag == Wire.TAG_2 || tag == Wire.TAG_3) {
                if (tag >>> 3 != last) {
                    merged.clear();
                    last = tag >>> 3;
                }
                merged.add(source, Wire.delimitedStart(source, value, to), next);
            }
        }
        if (last != NONE) {
            parseList(last, merged.bytes(), 0, merged.length());
        }
    }

    private void parseList(int listKind, byte[] source, int from, int to) {
        kind = listKind;
        bytes = source;
        start = from;
        end = to;
        if (listKind == BYTES) {
            countBytes();
        } else {
            findNumbers();
            count = listKind == FLOAT ? (end - start) / Float.BYTES : countVarints();
        }
        position = start;
    }

    private void countBytes() {
        for (int next = start; next < end; ) {
            int value = Wire.varintEnd(bytes, next, end);
            int tag = Wire.tag(bytes, next, value);
            next = Wire.skip(bytes, tag, value, end);
            if (tag == Wire.TAG_1) {
                count++;
            }
        }
    }

    private void findNumbers() {
        if (start < end && bytes[start] == Wire.TAG_1) {
            int body = Wire.varintEnd(bytes, start + 1, end);
            if (body + Wire.length(bytes, start + 1, body, end) == end) {
                start = body;
                checkFloats(start, end);
                return;
            }
        }
        gatherNumbers();
    }

    private void gatherNumbers() {
        int single = 1 << 3 | (kind == FLOAT ? Wire.FIXED32 : Wire.VARINT);
        packed.clear();
        for (int next = start; next < end; ) {
            int value = Wire.varintEnd(bytes, next, end);
            int tag = Wire.tag(bytes, next, value);
            next = Wire.skip(bytes, tag, value, end);
            if (tag == single) {
                packed.add(bytes, value, next);
            } else if (tag == Wire.TAG_1) {
                int body = Wire.delimitedStart(bytes, value, end);
                checkFloats(body, next);
                packed.add(bytes, body, next);
            }
        }
        bytes = packed.bytes();
        start = 0;
        end = packed.length();
    }

    private void checkFloats(int from, int to) {
        if (kind == FLOAT && (to - from) % Float.BYTES != 0) {
            throw WireException.malformed("packed floats end inside a number");
        }
    }

    private int countVarints() {
        int found = 0;
        int longest = 0;
        int begin = start;
        for (int next = start; next < end; next++) {
            if (bytes[next] >= 0) {
                found++;
                longest = Math.max(longest, next - begin);
                begin = next + 1;
            }
        }
        if (begin != end) {
            throw WireException.malformed("it ends inside a number");
        }
        if (longest >= 10) {
            throw WireException.malformed("a number has more than ten bytes");
        }
        return found;
    }

    public long nextInt64() {
        int shift = 0;
        long value = 0;
        byte next;
        do {
            next = bytes[position++];
            value |= (long) (next & 0x7f) << shift;
            shift += 7;
        } while (next < 0);
        return value;
    }

    public float nextFloat() {
        float value = (float) FLOATS.get(bytes, position);
        position += Float.BYTES;
        return value;
    }

    /** Go to the next value of a list of bytes: it lies between {@link #valueStart()} and {@link #valueEnd()}. */
    public void nextBytes() {
        while (true) {
            int value = Wire.varintEnd(bytes, position, end);
            int tag = Wire.tag(bytes, position, value);
            position = Wire.skip(bytes, tag, value, end);
            if (tag == Wire.TAG_1) {
                valueStart = Wire.varintEnd(bytes, value, end);
                return;
            }
        }
    }

    public int valueStart() {
        return valueStart;
    }

    public int valueEnd() {
        return position;
    }

    public int kind() {
        return kind;
    }

    public int count() {
        return count;
    }

    public byte[] bytes() {
        return bytes;
    }

    public int start() {
        return start;
    }

    public int end() {
        return end;
    }

    /** What a message calls a kind. */
    public static String kindName(int kind) {
        return switch (kind) {
            case BYTES -> "bytes";
            case FLOAT -> "float";
            case INT64 -> "int64";
            default -> "nothing";
        };
    }
}

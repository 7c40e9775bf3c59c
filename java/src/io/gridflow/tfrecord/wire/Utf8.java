package io.gridflow.tfrecord.wire;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** Tells text from other bytes. */
public final class Utf8 {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final long HIGH_BITS = 0x8080808080808080L;

    private Utf8() {}

    /** Whether the bytes are UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF. */
    public static boolean isValid(byte[] bytes, int start, int end) {
        int position = start;
        while (position <= end - 8 && ((long) LONG.get(bytes, position) & HIGH_BITS) == 0) {
            position += 8;
        }
        while (position < end) {
            if (bytes[position] >= 0) {
                position++;
                continue;
            }
            int length = sequenceLength(bytes, position, end);
            if (length == 0) {
                return false;
            }
            position += length;
        }
        return true;
    }

    /** The length of the valid sequence of two to four bytes at a place, or 0. */
    private static int sequenceLength(byte[] bytes, int position, int end) {
        int first = bytes[position] & 0xff;
        int second = position + 1 < end ? bytes[position + 1] & 0xff : 0;
        if (first >= 0xc2 && first <= 0xdf) {
            return isContinuation(second) ? 2 : 0;
        }
        if (first >= 0xe0 && first <= 0xef) {
            boolean isAllowed = second >= (first == 0xe0 ? 0xa0 : 0x80) && second <= (first == 0xed ? 0x9f : 0xbf);
            return isAllowed && continues(bytes, position + 2, end) ? 3 : 0;
        }
        if (first >= 0xf0 && first <= 0xf4) {
            boolean isAllowed = second >= (first == 0xf0 ? 0x90 : 0x80) && second <= (first == 0xf4 ? 0x8f : 0xbf);
            return isAllowed && continues(bytes, position + 2, end) && continues(bytes, position + 3, end) ? 4 : 0;
        }
        return 0;
    }

    private static boolean continues(byte[] bytes, int position, int end) {
        return position < end && isContinuation(bytes[position] & 0xff);
    }

    private static boolean isContinuation(int value) {
        return (value & 0xc0) == 0x80;
    }
}

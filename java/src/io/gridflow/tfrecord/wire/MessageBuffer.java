package io.gridflow.tfrecord.wire;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * A message that is written from its end to its beginning, so that each length is known when it is due.
 *
 * <p>Whoever writes a value writes its length after it, by {@link #putLength} with the {@link #size()} from before.
 */
public final class MessageBuffer {
    private static final VarHandle FLOATS = MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.LITTLE_ENDIAN);
    private static final int MAX_VARINT_BYTES = 10;

    private byte[] bytes = new byte[1 << 12];
    private int start = bytes.length;

    public void clear() {
        start = bytes.length;
    }

    /** How many bytes have been written. */
    public int size() {
        return bytes.length - start;
    }

    public byte[] bytes() {
        return bytes;
    }

    public int start() {
        return start;
    }

    public void putTag(int tag) {
        reserve(1);
        bytes[--start] = (byte) tag;
    }

    public void putVarint(long value) {
        reserve(MAX_VARINT_BYTES);
        if ((value & ~0x7fL) == 0) {
            bytes[--start] = (byte) value;
            return;
        }
        int length = (Long.SIZE + 6 - Long.numberOfLeadingZeros(value)) / 7;
        start -= length;
        long rest = value;
        for (int i = start; i < start + length - 1; i++) {
            bytes[i] = (byte) (rest | 0x80);
            rest >>>= 7;
        }
        bytes[start + length - 1] = (byte) rest;
    }

    /** Put the length of all that was written since the buffer had a certain size, then the tag. */
    public void putLength(int sizeBefore, int tag) {
        putVarint(size() - sizeBefore);
        putTag(tag);
    }

    public void putFloat(float value) {
        reserve(Float.BYTES);
        start -= Float.BYTES;
        FLOATS.set(bytes, start, value);
    }

    public void putBytes(byte[] source) {
        System.arraycopy(source, 0, bytes, reserveFront(source.length), source.length);
    }

    /** Make room for so many bytes at the front and return where it begins; the caller fills it. */
    public int reserveFront(int count) {
        reserve(count);
        start -= count;
        return start;
    }

    private void reserve(int count) {
        if (start >= count) {
            return;
        }
        long needed = (long) size() + count;
        if (needed > Integer.MAX_VALUE - 64) {
            throw new WireException("the row makes a record of more than 2 GB");
        }
        byte[] larger = new byte[(int) Math.min(Math.max(2L * bytes.length, needed), Integer.MAX_VALUE - 64)];
        int size = size();
        System.arraycopy(bytes, start, larger, larger.length - size, size);
        start = larger.length - size;
        bytes = larger;
    }
}

package io.gridflow.tfrecord;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/**
 * The layout of a TFRecord file, which is nothing but records, one after the other.
 *
 * <pre>
 *   uint64  length of the data      little endian, as all numbers here
 *   uint32  masked CRC32C of the length
 *   byte    data[length]
 *   uint32  masked CRC32C of the data
 * </pre>
 */
public final class Framing {
    public static final int HEADER_BYTES = 12;
    public static final int FOOTER_BYTES = 4;

    /** A record must fit into one Java array, together with its frame and with what arrays need themselves. */
    public static final int MAX_RECORD_BYTES = Integer.MAX_VALUE - 64;

    private static final int MASK_DELTA = 0xa282ead8;
    private static final int LENGTH_BYTES = 8;
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

    private final CRC32C crc = new CRC32C();

    /** The checksum of some bytes, rotated and shifted so that a file holding checksums can itself be summed. */
    public int maskedCrc(byte[] bytes, int start, int length) {
        crc.reset();
        crc.update(bytes, start, length);
        int sum = (int) crc.getValue();
        return Integer.rotateRight(sum, 15) + MASK_DELTA;
    }

    /** Whether the twelve bytes at a place are the header of a record. */
    public boolean isHeader(byte[] bytes, int start) {
        return maskedCrc(bytes, start, LENGTH_BYTES) == (int) INT.get(bytes, start + LENGTH_BYTES);
    }

    public long lengthAt(byte[] bytes, int start) {
        return (long) LONG.get(bytes, start);
    }

    /** Whether the data's checksum, which follows it, is right. */
    public boolean isIntact(byte[] bytes, int start, int length) {
        return maskedCrc(bytes, start, length) == (int) INT.get(bytes, start + length);
    }

    /** Write header and footer around data that lies in an array with room for both. */
    public void frame(byte[] bytes, int start, int length) {
        putHeader(bytes, start - HEADER_BYTES, length);
        INT.set(bytes, start + length, maskedCrc(bytes, start, length));
    }

    /** Write header and footer of data into an array of their own, one after the other. */
    public void frameApart(byte[] bytes, int start, int length, byte[] frame) {
        putHeader(frame, 0, length);
        INT.set(frame, HEADER_BYTES, maskedCrc(bytes, start, length));
    }

    private void putHeader(byte[] bytes, int start, int length) {
        LONG.set(bytes, start, (long) length);
        INT.set(bytes, start + LENGTH_BYTES, maskedCrc(bytes, start, LENGTH_BYTES));
    }
}

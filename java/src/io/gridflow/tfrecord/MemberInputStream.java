package io.gridflow.tfrecord;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;

/**
 * Decompresses gzip or zlib files of any number of members.
 *
 * <p>The JDK's own gzip stream takes a member for the last one when {@code available()} is 0, as it may be for a
 * file on a server, and then loses the rest in silence.
 */
final class MemberInputStream extends InputStream {
    private static final int FLAG_CRC = 2;
    private static final int FLAG_EXTRA = 4;
    private static final int FLAG_NAME = 8;
    private static final int FLAG_COMMENT = 16;

    private final InputStream in;
    private final boolean isGzip;
    private final Inflater inflater;
    private final CRC32 crc = new CRC32();
    private final byte[] input = new byte[1 << 16];
    private final byte[] single = new byte[1];
    private int position;
    private int limit;
    private boolean isInMember;

    MemberInputStream(InputStream in, Compression compression) {
        this.in = in;
        this.isGzip = compression == Compression.GZIP;
        this.inflater = new Inflater(isGzip);
    }

    @Override
    public int read() throws IOException {
        return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
    }

    @Override
    public int read(byte[] target, int start, int length) throws IOException {
        if (length == 0) {
            return 0;
        }
        while (true) {
            // A member's end is looked at when more is asked for, so that all of its data is delivered first.
            if (isInMember && inflater.finished()) {
                endMember();
            }
            if (!isInMember && !beginMember()) {
                return -1;
            }
            int count = inflate(target, start, length);
            if (count > 0) {
                crc.update(target, start, count);
                return count;
            }
            if (inflater.needsDictionary()) {
                throw new IOException("the compressed data needs a dictionary");
            }
            if (inflater.needsInput() && !inflater.finished()) {
                if (!fill()) {
                    throw new EOFException("the compressed data is cut off");
                }
                inflater.setInput(input, position, limit - position);
            }
        }
    }

    private int inflate(byte[] target, int start, int length) throws IOException {
        try {
            return inflater.inflate(target, start, length);
        } catch (DataFormatException error) {
            throw new IOException("the compressed data is damaged: " + error.getMessage(), error);
        }
    }

    private boolean beginMember() throws IOException {
        if (position == limit && !fill()) {
            return false;
        }
        if (isGzip) {
            readGzipHeader();
        }
        crc.reset();
        inflater.reset();
        inflater.setInput(input, position, limit - position);
        isInMember = true;
        return true;
    }

    private void endMember() throws IOException {
        isInMember = false;
        position = limit - inflater.getRemaining();
        if (isGzip) {
            long sum = readUnsigned(4);
            long size = readUnsigned(4);
            if (sum != crc.getValue() || size != (inflater.getBytesWritten() & 0xffffffffL)) {
                throw new IOException("the compressed data is damaged: its checksum does not match");
            }
        }
    }

    private void readGzipHeader() throws IOException {
        if (readUnsigned(2) != 0x8b1f || readUnsigned(1) != 8) {
            throw new IOException("the compressed data is followed by bytes that are not gzip");
        }
        int flags = (int) readUnsigned(1);
        readUnsigned(6);
        if ((flags & FLAG_EXTRA) != 0) {
            for (long left = readUnsigned(2); left > 0; left--) {
                readUnsigned(1);
            }
        }
        for (int flag : new int[] {FLAG_NAME, FLAG_COMMENT}) {
            while ((flags & flag) != 0 && readUnsigned(1) != 0) {
                // The name and the comment end with a zero byte.
            }
        }
        if ((flags & FLAG_CRC) != 0) {
            readUnsigned(2);
        }
    }

    private long readUnsigned(int bytes) throws IOException {
        long value = 0;
        for (int i = 0; i < bytes; i++) {
            if (position == limit && !fill()) {
                throw new EOFException("the compressed data is cut off");
            }
            value |= (input[position++] & 0xffL) << (8 * i);
        }
        return value;
    }

    private boolean fill() throws IOException {
        position = 0;
        limit = Math.max(in.read(input, 0, input.length), 0);
        return limit > 0;
    }

    @Override
    public void close() throws IOException {
        inflater.end();
        in.close();
    }
}

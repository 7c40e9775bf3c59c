package io.gridflow.tfrecord;

import java.io.ByteArrayInputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.SequenceInputStream;

/**
 * Reads the records of one file, strictly: a cut at any byte and any flipped bit is an error.
 *
 * <p>A record lies in {@link #buffer()} until the next one is read; it is not copied. Memory grows with the data that
 * really arrives, never with the length that a header claims.
 */
public final class TFRecordReader implements Closeable {
    private static final int BUFFER_BYTES = 1 << 18;
    private static final int SEEK_BYTES = 1 << 16;

    private final Framing framing = new Framing();
    private final InputStream in;
    private final String name;
    private final boolean isChecked;
    private byte[] buffer;
    private int position;
    private int limit;
    private int start;
    private int length;
    private long index = -1;
    private long offset;
    private long nextOffset;

    /**
     * Read a file whose compression its first bytes tell.
     *
     * @param name the file's name, for messages
     * @param isChecked whether checksums are compared
     */
    public TFRecordReader(InputStream in, String name, boolean isChecked) throws IOException {
        this.name = name;
        this.isChecked = isChecked;
        this.buffer = new byte[BUFFER_BYTES];
        this.limit = Math.max(in.readNBytes(buffer, 0, Framing.HEADER_BYTES), 0);
        Compression compression = Compression.detect(buffer, limit);
        if (compression == Compression.NONE) {
            this.in = in;
        } else {
            InputStream head = new ByteArrayInputStream(buffer.clone(), 0, limit);
            this.in = compression.decompress(new SequenceInputStream(head, in));
            this.limit = 0;
        }
    }

    /** Read the next record; false at the end of the file. */
    public boolean next() throws IOException {
        if (!readHeader()) {
            return false;
        }
        if (!require((long) length + Framing.FOOTER_BYTES)) {
            throw error("the file ends inside the record: " + length + " bytes of data and 4 of its checksum were due, "
                + (limit - position) + " are there");
        }
        start = position;
        position += length + Framing.FOOTER_BYTES;
        if (isChecked && !framing.isIntact(buffer, start, length)) {
            throw error("the checksum of the data does not match");
        }
        return true;
    }

    /** Go past the next record without looking at its data; false at the end of the file. */
    public boolean skip() throws IOException {
        if (!readHeader()) {
            return false;
        }
        long left = (long) length + Framing.FOOTER_BYTES;
        // The last bytes are read, not skipped, since skipping past the end of a file may succeed.
        if (left - (limit - position) > SEEK_BYTES) {
            left -= limit - position;
            position = limit;
            while (left > SEEK_BYTES) {
                long skipped = in.skip(left - Framing.FOOTER_BYTES);
                if (skipped <= 0) {
                    break;
                }
                left -= skipped;
            }
        }
        while (left > 0) {
            if (!require(1)) {
                throw error("the file ends inside the record: " + left + " bytes are missing");
            }
            int count = (int) Math.min(left, limit - position);
            position += count;
            left -= count;
        }
        return true;
    }

    private boolean readHeader() throws IOException {
        offset = nextOffset;
        index++;
        if (!require(Framing.HEADER_BYTES)) {
            if (position == limit) {
                return false;
            }
            throw error("the file ends inside the header: " + (limit - position) + " of 12 bytes are there");
        }
        long claimed = framing.lengthAt(buffer, position);
        if (isChecked && !framing.isHeader(buffer, position)) {
            throw error("the checksum of the length does not match");
        }
        if (claimed < 0 || claimed > Framing.MAX_RECORD_BYTES) {
            throw error("its length, " + Long.toUnsignedString(claimed) + " bytes, is not possible here (at most "
                + Framing.MAX_RECORD_BYTES + ")");
        }
        position += Framing.HEADER_BYTES;
        length = (int) claimed;
        nextOffset = offset + Framing.HEADER_BYTES + length + Framing.FOOTER_BYTES;
        return true;
    }

    /** Have so many unread bytes in the buffer; false where the file has fewer. */
    private boolean require(long count) throws IOException {
        if (limit - position >= count) {
            return true;
        }
        if (position > 0) {
            System.arraycopy(buffer, position, buffer, 0, limit - position);
            limit -= position;
            position = 0;
        }
        while (limit < count) {
            if (limit == buffer.length) {
                long larger = Math.min(2L * buffer.length, Framing.MAX_RECORD_BYTES + 32L);
                buffer = java.util.Arrays.copyOf(buffer, (int) larger);
            }
            int read = read();
            if (read < 0) {
                return false;
            }
            limit += read;
        }
        return true;
    }

    private int read() throws IOException {
        try {
            return in.read(buffer, limit, buffer.length - limit);
        } catch (IOException error) {
            throw new IOException(message(String.valueOf(error.getMessage())), error);
        }
    }

    /**
     * An error about the record that was read last, naming the file and where in it.
     *
     * <p>It is no class of ours, since in a session that the jar was added to, Spark's driver could not load that.
     */
    public IOException error(String problem) {
        return new IOException(message(problem));
    }

    private String message(String problem) {
        return name + ", record " + index + " at byte " + offset + ": " + problem;
    }

    /** The array that holds the record; another record may lie in another array. */
    public byte[] buffer() {
        return buffer;
    }

    public int start() {
        return start;
    }

    public int length() {
        return length;
    }

    /** How many bytes of the file, after decompression, have been read as whole records. */
    public long consumed() {
        return nextOffset;
    }

    @Override
    public void close() throws IOException {
        in.close();
    }
}

package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;

/** Writes records, each with its length and checksums. */
public final class TFRecordWriter implements Closeable {
    private static final int BUFFER_BYTES = 1 << 16;

    private final Framing framing = new Framing();
    private final OutputStream out;
    private final byte[] buffer = new byte[BUFFER_BYTES];
    private final byte[] frame = new byte[Framing.HEADER_BYTES + Framing.FOOTER_BYTES];
    private int used;

    public TFRecordWriter(OutputStream out) {
        this.out = out;
    }

    /** Write one record; its bytes may be reused at once. */
    public void write(byte[] bytes, int start, int length) throws IOException {
        long total = (long) Framing.HEADER_BYTES + length + Framing.FOOTER_BYTES;
        if (total > buffer.length - used) {
            flush();
        }
        if (total <= buffer.length) {
            int data = used + Framing.HEADER_BYTES;
            System.arraycopy(bytes, start, buffer, data, length);
            framing.frame(buffer, data, length);
            used += (int) total;
        } else {
            framing.frameApart(bytes, start, length, frame);
            out.write(frame, 0, Framing.HEADER_BYTES);
            out.write(bytes, start, length);
            out.write(frame, Framing.HEADER_BYTES, Framing.FOOTER_BYTES);
        }
    }

    private void flush() throws IOException {
        out.write(buffer, 0, used);
        used = 0;
    }

    @Override
    public void close() throws IOException {
        try (out) {
            flush();
        }
    }
}

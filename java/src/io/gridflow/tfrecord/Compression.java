package io.gridflow.tfrecord;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Locale;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.GZIPOutputStream;

/** How a whole file is compressed; a reader sees it by the first bytes, whatever the file is called. */
public enum Compression {
    NONE(""),
    GZIP(".gz"),
    ZLIB(".deflate");

    private static final int STREAM_BYTES = 1 << 16;

    private final String extension;

    Compression(String extension) {
        this.extension = extension;
    }

    /** What follows `.tfrecord` in a file's name. */
    public String extension() {
        return extension;
    }

    /** The compression of that name, or null where another library would have to know it. */
    public static Compression named(String name) {
        return switch (name.toLowerCase(Locale.ROOT)) {
            case "", "none", "uncompressed" -> NONE;
            case "gzip", "gz", "org.apache.hadoop.io.compress.gzipcodec" -> GZIP;
            case "zlib", "deflate", "org.apache.hadoop.io.compress.defaultcodec",
                 "org.apache.hadoop.io.compress.deflatecodec" -> ZLIB;
            default -> null;
        };
    }

    /**
     * Tell from the first bytes of a file how it is compressed.
     *
     * <p>A record of 559,903 bytes begins like a gzip file, so a header with a right checksum decides first.
     */
    static Compression detect(byte[] head, int length) {
        if (length >= Framing.HEADER_BYTES && new Framing().isHeader(head, 0)) {
            return NONE;
        }
        if (length >= 2 && (head[0] & 0xff) == 0x1f && (head[1] & 0xff) == 0x8b) {
            return GZIP;
        }
        boolean isZlib = length >= 2 && (head[0] & 0x0f) == 8 && (head[0] & 0xff) >>> 4 <= 7
            && ((head[0] & 0xff) << 8 | head[1] & 0xff) % 31 == 0 && (head[1] & 0x20) == 0;
        return isZlib ? ZLIB : NONE;
    }

    InputStream decompress(InputStream in) {
        return this == NONE ? in : new MemberInputStream(in, this);
    }

    public OutputStream compress(OutputStream out) throws IOException {
        return switch (this) {
            case NONE -> out;
            case GZIP -> new GZIPOutputStream(out, STREAM_BYTES);
            case ZLIB -> new DeflaterOutputStream(out, new java.util.zip.Deflater(), STREAM_BYTES) {
                @Override
                public void close() throws IOException {
                    super.close();
                    def.end();
                }
            };
        };
    }
}

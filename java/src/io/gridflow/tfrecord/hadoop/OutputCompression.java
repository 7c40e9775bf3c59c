package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.Compression;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionCodecFactory;

/** How new files are compressed: by the JDK, or by a codec of Hadoop's for what TensorFlow itself cannot read. */
public final class OutputCompression {
    private final Compression compression;
    private final CompressionCodec codec;

    private OutputCompression(Compression compression, CompressionCodec codec) {
        this.compression = compression;
        this.codec = codec;
    }

    /** Find a compression by its name or by the class name of a Hadoop codec. */
    public static OutputCompression named(String name, Configuration conf) {
        Compression compression = Compression.named(name);
        if (compression != null) {
            return new OutputCompression(compression, null);
        }
        CompressionCodec codec = new CompressionCodecFactory(conf).getCodecByName(name);
        if (codec == null) {
            throw new IllegalArgumentException("compression is '" + name
                + "', but must be none, gzip, zlib, or a codec that Hadoop knows");
        }
        return new OutputCompression(Compression.NONE, codec);
    }

    /** What follows `.tfrecord` in a file's name. */
    public String extension() {
        return codec == null ? compression.extension() : codec.getDefaultExtension();
    }

    public OutputStream compress(OutputStream out) throws IOException {
        return codec == null ? compression.compress(out) : codec.createOutputStream(out);
    }
}
